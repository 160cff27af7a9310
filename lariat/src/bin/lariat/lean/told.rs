//! What a run has come to, for whoever reads stderr and the exit code; on Windows and macOS.

use crate::{env, show};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use lariat::contain::{Error, Exit};
use lariat::id::ServerName;
use lariat::relay::{Failure, Outcome};
use std::path::{Path, PathBuf};

/// What Linux has, and one of the two or both do not have yet.
const ELSEWHERE: &[&str] = &[
    "completions",
    "connect",
    "daemon",
    "demo",
    "events",
    "hosts",
    "install",
    "logs",
    "man",
    "open",
    "reap",
    "session",
    "top",
    "tree",
    "trial",
    "uninstall",
];

/// Says what is wrong with a command line, or what it asks to be told; gives the exit code.
pub(super) fn misread(error: &clap::Error, here: &clap::Command, platform: &str) -> u8 {
    if let (ErrorKind::InvalidSubcommand, Some(ContextValue::String(verb))) =
        (error.kind(), error.get(ContextKind::InvalidSubcommand))
        && ELSEWHERE.contains(&verb.as_str())
    {
        let verbs: Vec<&str> = here.get_subcommands().map(clap::Command::get_name).collect();
        let what = format!("`lariat {verb}` is not there on {platform} yet");
        show::failure(
            &what,
            None,
            &format!("there are {}; Linux has all of them", verbs.join(", ")),
        );
        return 2;
    }
    show::usage(error)
}

/// Where the books, logs and events are.
pub(super) fn state_dir(given: Option<&PathBuf>) -> Option<PathBuf> {
    env::state_dir(given.cloned())
}

/// Says that there is no place for the books.
pub(super) fn no_home(code: i32) -> i32 {
    show::failure("this user has no home directory", None, "name one with --state-dir DIR");
    code
}

/// The server's name: the one that a person gave, or else this one. Says why it is none; that is the exit
/// code then.
pub(super) fn name(
    given: Option<&str>,
    derived: impl FnOnce() -> ServerName,
) -> Result<ServerName, i32> {
    let Some(name) = given else { return Ok(derived()) };
    ServerName::given(name).ok_or_else(|| {
        let what = format!("`{name}` is not a name");
        show::failure(&what, None, "use letters and digits: --name github");
        125
    })
}

/// Says who survived and what could not be written; gives the exit code.
pub(super) fn ended(outcome: &Outcome, receipt: Option<&Path>) -> i32 {
    for survivor in &outcome.receipt.survivors {
        show::survivor(survivor);
    }
    if let (Some(path), Some(e)) = (receipt, &outcome.unwritten) {
        let what = format!("cannot write the receipt {}", path.display());
        show::failure(&what, Some(e), "it is in events.jsonl in the state directory");
    }
    match outcome.exit {
        Some(Exit::Code(0)) if !outcome.receipt.survivors.is_empty() => 125,
        Some(Exit::Code(code)) => code,
        Some(exit) => i32::from(exit.code()),
        None => 137,
    }
}

/// Says why a run did not begin and what to do; gives the exit code.
pub(super) fn explain(program: &str, failure: &Failure) -> i32 {
    match failure {
        Failure::State(dir, e) => {
            let what = format!("cannot write the state directory {}", dir.display());
            show::failure(&what, Some(e), "make it writable, or use --state-dir DIR");
        }
        Failure::Log(dir, e) => {
            let what = format!("cannot write the log in {}", dir.display());
            show::failure(&what, Some(e), "make it writable, or use --log-dir DIR");
        }
        Failure::Receipt(file, e) => {
            let what = format!("cannot write the receipt {}", file.display());
            show::failure(&what, Some(e), "name a file in a directory that you can write");
        }
        Failure::Streams(e) => {
            show::failure("cannot set up the server's streams", Some(e), "nothing was started");
        }
        Failure::Start(e) => return not_started(program, e),
    }
    125
}

/// Says why a server could not be started; gives the exit code.
pub(super) fn not_started(program: &str, e: &Error) -> i32 {
    let cause = std::error::Error::source(e);
    match e.exit_code() {
        127 => {
            let advice = "check the spelling and PATH; nothing was started";
            show::failure(&format!("cannot find `{program}`"), None, advice);
        }
        126 => {
            show::failure(&format!("cannot execute `{program}`"), cause, "nothing was started");
        }
        _ => show::failure(&format!("cannot {e}"), cause, "nothing was started"),
    }
    i32::from(e.exit_code())
}
