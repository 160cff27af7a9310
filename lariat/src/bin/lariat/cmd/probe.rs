//! `lariat probe`: what a server offers and what it costs, without leaving anything behind.

mod told;

use super::run::{Holding, explain};
use crate::{shelf, show};
use lariat::books::Rate;
use lariat::contain::Limits;
use lariat::duration;
use lariat::id::ServerName;
use lariat::probe::{Found, Process};
use lariat::start::Plan;
use serde_json::json;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

/// Starts a server, lists what it offers, ends it and shows the receipt.
///
/// Exit code 0 if the server answered and nothing is left, 1 if it did not answer or something
/// survived.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat probe -- npx -y @modelcontextprotocol/server-everything
  lariat probe --json --timeout 10s -- uvx mcp-server-time")]
pub(crate) struct Args {
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Time for start, handshake and lists together
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::parse)]
    timeout: Duration,
    #[command(flatten)]
    hold: Holding,
    /// The server and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND", help_heading = None::<&str>)]
    command: Vec<OsString>,
}

/// Probes and prints.
pub(crate) fn run(args: Args) -> ExitCode {
    let mut words = args.command.into_iter();
    let program = words.next().unwrap_or_default();
    let mut rest: Vec<OsString> = words.collect();
    let Ok(state_dir) = shelf::place(args.hold.state_dir.as_ref()) else {
        // As everything that keeps a server from being started, here and in `run`.
        return ExitCode::from(125);
    };
    let (docker, podman) = args.hold.containers(&program, &mut rest);
    let plan = Plan {
        server: ServerName::derived(&program, &rest),
        within: None,
        on_behalf: None,
        ladder: args.hold.ladder(),
        backend: args.hold.backend,
        docker,
        podman,
        receipt: None,
        state_dir,
        sweep: true,
        limits: Limits::default(),
        max_starts: Rate::OFF,
    };
    let shown = program.to_string_lossy().into_owned();
    show::progress(&format!("starting {} …", plan.server));
    let found = lariat::probe::probe(program, rest, plan, args.timeout);
    show::progress("");
    let found = match found {
        Ok(found) => found,
        Err(failure) => return explain(&shown, &failure),
    };
    if let Err(error) = &found.offer {
        told::unanswered(&found.receipt, error, &found.stderr);
    }
    show::out(&if args.json { as_json(&found) } else { as_text(&found) });
    ExitCode::from(u8::from(found.offer.is_err() || !found.receipt.survivors.is_empty()))
}

fn as_json(found: &Found) -> String {
    let mut object = told::object(&found.offer, found.startup, &found.receipt);
    object["processes_peak"] = json!(found.processes_peak);
    object["rss_peak_bytes"] = json!(found.rss_peak);
    format!("{object}\n")
}

fn as_text(found: &Found) -> String {
    let receipt = &found.receipt;
    let offer = found.offer.as_ref().map(|offer| told::offer(offer, found.startup, receipt));
    let mut text = offer.unwrap_or_default();
    text += &format!(
        "at its largest {}, {}\n",
        show::count(found.processes_peak, "process"),
        show::bytes(found.rss_peak)
    );
    let roots: Vec<&Process> =
        found.tree.iter().filter(|p| found.tree.iter().all(|q| q.pid != p.parent)).collect();
    for root in roots {
        branch(root, &found.tree, 1, &mut text);
    }
    text + &told::ending(receipt)
}

fn branch(process: &Process, all: &[Process], depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    *text += &format!("{indent}{} {} {}\n", process.pid, process.name, show::bytes(process.rss));
    for child in all.iter().filter(|p| p.parent == process.pid) {
        branch(child, all, depth + 1, text);
    }
}
