//! `lariat probe` on Windows and macOS: what a server offers, and what it takes.

#[path = "../cmd/probe/told.rs"]
mod told;

use super::run::derived;
use super::told::not_started;
use crate::show;
use lariat::contain::Ladder;
use lariat::duration;
use lariat::probe::{Found, Probe};
use serde_json::json;
use std::ffi::OsString;
use std::time::Duration;

/// Starts a server, lists what it offers, ends it, and shows the receipt.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat probe -- npx -y @modelcontextprotocol/server-everything")]
pub(super) struct Args {
    /// How long the server may take to answer
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::some)]
    timeout: Duration,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// The server and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Probes it; 0 if it answered and nothing is left.
pub(super) fn run(args: Args) -> i32 {
    let mut words = args.command.into_iter();
    let program = words.next().unwrap_or_default();
    let rest: Vec<OsString> = words.collect();
    let (server, shown) = (derived(&program, &rest), program.to_string_lossy().into_owned());
    let (ladder, timeout) = (Ladder::default(), args.timeout);
    let probe = Probe { program, args: rest, server, ladder, timeout };
    let found = match lariat::probe::probe(probe) {
        Ok(found) => found,
        Err(e) => return not_started(&shown, &e),
    };
    if let Err(error) = &found.offer {
        told::unanswered(&found.receipt, error, &found.stderr);
    }
    show::out(&if args.json { as_json(&found) } else { as_text(&found) });
    i32::from(found.offer.is_err() || !found.receipt.survivors.is_empty())
}

fn as_json(found: &Found) -> String {
    let mut object = told::object(&found.offer, found.startup, &found.receipt);
    object["processes_peak"] = json!(found.largest.len());
    format!("{object}\n")
}

fn as_text(found: &Found) -> String {
    let receipt = &found.receipt;
    let offer = found.offer.as_ref().map(|offer| told::offer(offer, found.startup, receipt));
    let (most, names) = (show::count(found.largest.len(), "process"), found.largest.join(", "));
    let largest = format!("at its largest {most}: {names}\n");
    offer.unwrap_or_default() + &largest + &told::ending(receipt)
}
