//! `lariat probe`: what a server offers and what it costs, without leaving anything behind.

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
    let text = if args.json { format!("{}\n", as_json(&found)) } else { as_text(&found) };
    if let Err(error) = &found.offer {
        let words = found.stderr.trim_end();
        let heard = if words.is_empty() {
            "it wrote nothing to stderr".to_string()
        } else {
            format!("its stderr ends with:\n{words}")
        };
        show::failure(&format!("{} did not answer", found.receipt.server), Some(error), &heard);
    }
    show::out(&text);
    ExitCode::from(u8::from(found.offer.is_err() || !found.receipt.survivors.is_empty()))
}

fn as_json(found: &Found) -> serde_json::Value {
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
        "processes_peak": found.processes_peak,
        "rss_peak_bytes": found.rss_peak,
        "receipt": found.receipt,
    });
    if let Err(error) = &found.offer {
        object["error"] = json!(error.to_string());
    }
    object
}

fn as_text(found: &Found) -> String {
    let mut text = String::new();
    let receipt = &found.receipt;
    if let Ok(offer) = &found.offer {
        let name = offer.name.as_deref().unwrap_or(receipt.server.as_str());
        let version = offer.version.as_deref().unwrap_or("");
        text += &format!(
            "{name} {version}  speaks {} ({}), ready after {} ms\n",
            offer.protocol,
            offer.era,
            found.startup.as_millis()
        );
        text += &format!(
            "{}, {}, {}\n",
            show::count(offer.tools.len(), "tool"),
            show::count(offer.resources, "resource"),
            show::count(offer.prompts, "prompt")
        );
        for tool in &offer.tools {
            text += &format!("  {}\n", show::plain(tool));
        }
    }
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
    let p = receipt.processes;
    text += &format!(
        "ended by {} ({}): {} left by themselves, {} when asked, {} killed; ",
        receipt.backend, receipt.reason, p.left, p.asked, p.killed
    );
    if receipt.containers.seen > 0 {
        let c = receipt.containers;
        text += &format!("{} of {} removed; ", c.removed, show::count(c.seen, "container"));
    }
    match receipt.survivors.len() {
        0 => text += "nothing is left\n",
        n => {
            text += &format!("{n} SURVIVED\n");
            for s in &receipt.survivors {
                text += &show::plain(&format!("  {s}: {}", s.why));
                text += "\n";
            }
        }
    }
    text
}

fn branch(process: &Process, all: &[Process], depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    *text += &format!("{indent}{} {} {}\n", process.pid, process.name, show::bytes(process.rss));
    for child in all.iter().filter(|p| p.parent == process.pid) {
        branch(child, all, depth + 1, text);
    }
}
