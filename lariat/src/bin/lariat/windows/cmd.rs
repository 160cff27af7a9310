//! The command line on Windows: the verbs that there are so far.

#[path = "demo.rs"]
mod demo;
#[path = "doctor.rs"]
mod doctor;
#[path = "probe.rs"]
mod probe;
#[path = "ps.rs"]
mod ps;
#[path = "run.rs"]
mod run;
#[path = "show.rs"]
mod show;
#[path = "trial.rs"]
mod trial;

use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Ties every MCP server to the session that started it.
///
/// When the session ends, for whatever reason, the server's whole process tree is gone, nothing
/// else was touched, and there is a receipt.
#[derive(Parser)]
#[command(name = "lariat", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Demo(demo::Args),
    Run(run::Args),
    Probe(probe::Args),
    Ps(ps::Args),
    Doctor(doctor::Args),
    Trial(trial::Args),
}

/// Parses the command line and does what it says; gives the exit code.
pub(crate) fn main() -> i32 {
    match Cli::try_parse() {
        Ok(cli) => match cli.verb {
            Verb::Demo(args) => demo::run(&args),
            Verb::Run(args) => run::run(args),
            Verb::Probe(args) => probe::run(args),
            Verb::Ps(args) => ps::run(&args),
            Verb::Doctor(args) => doctor::run(&args),
            Verb::Trial(args) => trial::run(&args),
        },
        Err(error) => {
            let wraps = std::env::args_os().nth(1).is_some_and(|verb| verb == "run");
            show::usage(&error);
            match (error.use_stderr(), wraps) {
                (false, _) => 0,
                // A wrapper's own failures must not look like the server's.
                (true, true) => 125,
                (true, false) => 2,
            }
        }
    }
}

/// Where the books, logs and events are: in the user's own directory, which is found without any
/// variable that a host might strip.
fn state_dir(given: Option<&PathBuf>) -> Option<PathBuf> {
    let dir =
        given.cloned().or_else(|| Some(std::env::home_dir()?.join("AppData/Local/lariat")))?;
    std::path::absolute(dir).ok()
}

/// Says that there is no place for the books.
fn no_home(code: i32) -> i32 {
    show::failure("this user has no home directory", None, "name one with --state-dir DIR");
    code
}
