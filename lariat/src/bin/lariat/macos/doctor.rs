//! `lariat doctor` on macOS: what this machine can guarantee, and how the books are.

#[path = "../cmd/doctor/books.rs"]
mod books;

use super::BOOKS;
use super::told::{no_home, state_dir};
use crate::show;
use lariat::books::{Books, Health};
use lariat::contain::{self, Choice, Ladder, Machine, Spec, Tree};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Says what holds a server on this machine, after trying it, what that cannot hold, and how the books are.
///
/// Nothing is changed. Exit code 0 if all is well, 1 if there is something to do.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat doctor
  lariat doctor --json | jq .machine.guarantee")]
pub(super) struct Args {
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    #[arg(long, value_name = "DIR", help = BOOKS)]
    state_dir: Option<PathBuf>,
}

/// What no process of ours can see or signal here.
const NOT_HELD: &str = "launchd jobs and whatever `open` starts; a program of the system (/bin/sh, /bin/sleep) \
                        that leaves its session and its parent at once; what sudo starts, which is named in the \
                        receipt";

/// What this release does not do here.
const NOT_YET: &str = "containers, limits, hibernation, sharing, the daemon";

/// Everything that it has to say.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    machine: Held,
    books: Option<Health>,
}

/// How a server would be held.
#[derive(Serialize)]
struct Held {
    /// None if nothing can be held here.
    backend: Option<&'static str>,
    guarantee: Option<&'static str>,
    /// Why it is not a better one, or none at all.
    why_not_better: Option<String>,
    not_held: &'static str,
    not_yet: &'static str,
}

/// Looks and prints.
pub(super) fn run(args: &Args) -> i32 {
    let Some(dir) = state_dir(args.state_dir.as_ref()) else { return no_home(1) };
    let looked = dir.is_dir().then(|| Books::open(&dir).and_then(|books| books.health()));
    let books = match looked.transpose() {
        Ok(books) => books,
        Err(e) => {
            show::failure(&format!("cannot read {}", dir.display()), Some(&e), "");
            return 1;
        }
    };
    let report = Report { version: env!("CARGO_PKG_VERSION"), machine: Held::look(), books };
    let text = match args.json {
        true => serde_json::to_string_pretty(&report).unwrap_or_default() + "\n",
        false => report.text(&dir),
    };
    let well = report.books.as_ref().is_none_or(Health::is_well);
    let read = show::out(&text);
    i32::from(!read || !well || report.machine.backend.is_none())
}

impl Report {
    fn text(&self, dir: &Path) -> String {
        let Held { backend, guarantee, why_not_better, not_held, not_yet } = &self.machine;
        let why = show::plain(why_not_better.as_deref().unwrap_or_default());
        let mut text = format!("lariat {}\n\nThis machine\n", self.version);
        text += &match (backend, guarantee) {
            (Some(backend), Some(guarantee)) => format!(
                "  holds by   {backend} (tried just now): {guarantee}\n             nothing better: {why}\n"
            ),
            _ => format!("  holds by   nothing: {why}\n"),
        };
        text += &format!("  not held   {not_held}\n  not yet    {not_yet}\n");
        text += &format!("\nBooks in {}\n", show::plain(&dir.display().to_string()));
        text + &books::text(self.books.as_ref(), "the next `lariat run` or `lariat ps` tries again")
    }
}

impl Held {
    fn look() -> Held {
        let held = contain::probe(Choice::Auto).map_err(|e| chain(&e)).and_then(|machine| {
            try_it()?;
            Ok(machine)
        });
        let (backend, guarantee, why_not_better) = match held {
            Ok(Machine { backend, guarantee, why_not_better }) => {
                (Some(backend.name()), Some(guarantee), why_not_better)
            }
            Err(why) => (None, None, Some(why)),
        };
        Held { backend, guarantee, why_not_better, not_held: NOT_HELD, not_yet: NOT_YET }
    }
}

/// Holds a program that leaves at once: many settings can forbid it, and only the try tells.
fn try_it() -> Result<(), String> {
    let own = std::env::current_exe().map_err(|e| chain(&e))?;
    let spec = Spec {
        holder: own.clone(),
        program: own.into(),
        args: vec!["--version".into()],
        env: None,
        cwd: None,
        stdin: Stdio::null(),
        stdout: Stdio::null(),
        stderr: Stdio::null(),
        backend: Choice::Auto,
        ladder: Ladder::default(),
    };
    let tree = Tree::spawn(spec).map_err(|e| chain(&e))?;
    tree.close().map(drop).map_err(|survivors| survivors.to_string())
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(|error| error.to_string()).collect::<Vec<_>>().join(": ")
}
