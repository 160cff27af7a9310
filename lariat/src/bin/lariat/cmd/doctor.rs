//! `lariat doctor`: what this machine can guarantee, how the books are, and who has leaked.

mod books;
mod machine;
pub(super) mod servers;

use crate::{shelf, show};
use lariat::books::Health;
use lariat::duration;
use machine::{Machine, Tools};
use serde::Serialize;
use servers::{Hosts, Servers};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Shows what this machine can guarantee, how the books are, and servers that hosts have leaked.
///
/// A leak needs evidence of two kinds: the host's own configuration has this very command, and its
/// ties say that nobody uses it. Its host is gone and nobody holds the other ends of its stdin and
/// stdout (orphaned); its host lives and has closed its stdin (forgotten); or the same host process has
/// started the same server again, in the same directory and environment, a while later (superseded).
/// Never a name alone. A host with several conversations in one process can still use an older copy:
/// look at what is listed before it is ended. Only your own processes are looked at.
///
/// Nothing is changed, crashed sessions of our own included; `lariat reap` finishes those and ends what
/// was found. Exit code 0 if all is well, 1 if there is something to do: also if a host's configuration
/// cannot be read, for its servers are not known then.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat doctor
  lariat doctor --json | jq '.servers.leaks[] | {host: .hosts[0], server, kind, rss_bytes}'")]
pub(crate) struct Args {
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    patience: Patience,
    /// Where the books are [default: ~/.local/state/lariat]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// When a server that looks forgotten is.
#[derive(clap::Args)]
pub(super) struct Patience {
    /// An older copy counts as superseded only if the newest is this much younger, and
    /// closed pipes only on a server of this age
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::parse)]
    pub(super) after: Duration,
}

/// Everything that it has to say.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    machine: Machine,
    tools: Tools,
    hosts: Hosts,
    books: Option<Health>,
    servers: Servers,
}

/// Looks and prints.
pub(crate) fn run(args: &Args) -> ExitCode {
    let (dir, books) = match shelf::find(args.state_dir.as_ref()) {
        Ok((dir, books)) => (dir, books.map(|books| books.health())),
        Err(code) => return code,
    };
    show::progress("looking at this machine …");
    // They take their time, meanwhile the rest is done.
    let asked = Tools::ask();
    let (hosts, servers) = servers::search(args.patience.after);
    let machine = Machine::look();
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        machine,
        tools: asked.answers(),
        hosts,
        books,
        servers,
    };
    show::progress("");
    let text = match args.json {
        true => serde_json::to_string_pretty(&report).unwrap_or_default() + "\n",
        false => report.text(&dir),
    };
    let heard = show::out(&text);
    ExitCode::from(u8::from(!heard || report.has_work()))
}

impl Report {
    fn has_work(&self) -> bool {
        let unwell = self.books.as_ref().is_some_and(|books| !books.is_well());
        unwell || self.hosts.has_unreadable() || !self.servers.leaks.is_empty()
    }

    fn text(&self, dir: &Path) -> String {
        let mut text = format!("lariat {}\n", self.version);
        text += "\nThis machine\n";
        text += &self.machine.text();
        text += &self.tools.text();
        text += "\nHosts\n";
        text += &self.hosts.text();
        text += &format!("\nBooks in {}\n", show::plain(&dir.display().to_string()));
        text += &books::text(self.books.as_ref(), "`lariat reap` tries again");
        text += "\nServers that nobody holds\n";
        text += &self.servers.text();
        text
    }
}
