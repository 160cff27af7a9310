//! `lariat probe` on Windows: what a server offers, and what it takes.

use super::run::{derived, not_started};
use super::show;
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
        let words = found.stderr.trim_end();
        let heard = if words.is_empty() {
            "it wrote nothing to stderr".to_owned()
        } else {
            format!("its stderr ends with:\n{words}")
        };
        show::failure(&format!("{} did not answer", found.receipt.server), Some(error), &heard);
    }
    show::out(&if args.json { as_json(&found) } else { as_text(&found) });
    i32::from(found.offer.is_err() || !found.receipt.survivors.is_empty())
}

fn as_json(found: &Found) -> String {
    let offer = found.offer.as_ref().ok();
    let mut object = json!({
        "server": {
            "name": offer.and_then(|o| o.name.clone()),
            "version": offer.and_then(|o| o.version.clone()),
        },
        "protocol": offer.map(|o| &o.protocol),
        "era": offer.map(|o| o.era),
        "tools": offer.map(|o| o.tools.clone()).unwrap_or_default(),
        "resources": offer.map_or(0, |o| o.resources),
        "prompts": offer.map_or(0, |o| o.prompts),
        "startup_ms": found.startup.as_millis() as u64,
        "processes_peak": found.largest.len(),
        "receipt": found.receipt,
    });
    if let Err(error) = &found.offer {
        object["error"] = json!(error.to_string());
    }
    format!("{object}\n")
}

fn as_text(found: &Found) -> String {
    let (mut text, receipt) = (String::new(), &found.receipt);
    if let Ok(offer) = &found.offer {
        let name = offer.name.as_deref().unwrap_or(receipt.server.as_str());
        let (version, after) = (offer.version.as_deref().unwrap_or(""), found.startup.as_millis());
        let (protocol, era) = (&offer.protocol, offer.era);
        text += &format!("{name} {version}  speaks {protocol} ({era}), ready after {after} ms\n");
        let (tools, resources, prompts) = (offer.tools.len(), offer.resources, offer.prompts);
        text += &format!("{tools} tools, {resources} resources, {prompts} prompts\n");
        text.extend(offer.tools.iter().map(|tool| format!("  {}\n", show::plain(tool))));
    }
    let (most, names) = (found.largest.len(), found.largest.join(", "));
    text += &format!("at its largest {most} processes: {names}\n");
    let p = receipt.processes;
    text += &format!(
        "ended by {} ({}): {} left by themselves, {} when asked, {} killed; {} survived\n",
        receipt.backend,
        receipt.reason,
        p.left,
        p.asked,
        p.killed,
        receipt.survivors.len()
    );
    text
}
