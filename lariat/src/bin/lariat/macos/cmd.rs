//! The command line on macOS: the verbs that there are so far.

#[path = "doctor.rs"]
mod doctor;
#[path = "../lean/probe.rs"]
mod probe;
#[path = "../lean/ps.rs"]
mod ps;
#[path = "run.rs"]
mod run;
#[path = "../lean/told.rs"]
mod told;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// What holds servers here.
const BACKEND: &str = "session";

/// Help for those who look into the books.
const BOOKS: &str = "Where the books are [default: ~/.local/state/lariat]";

/// Ties every MCP server to the session that started it.
///
/// When the session ends, for whatever reason, the server's process tree is ended, nothing else was
/// touched, and there is a receipt. macOS offers nothing that holds a tree whole: `lariat doctor` says what
/// that means.
#[derive(Parser)]
#[command(name = "lariat", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Run(run::Args),
    Probe(probe::Args),
    Ps(ps::Args),
    Doctor(doctor::Args),
}

/// Parses the command line and does what it says. The exit code is one of ours, or a server's own.
pub(crate) fn main() -> ExitCode {
    let code = match Cli::try_parse() {
        Ok(cli) => match cli.verb {
            Verb::Run(args) => run::run(args),
            Verb::Probe(args) => probe::run(args),
            Verb::Ps(args) => ps::run(&args),
            Verb::Doctor(args) => doctor::run(&args),
        },
        Err(error) => i32::from(told::misread(&error, &Cli::command(), "macOS")),
    };
    // What a server returns has eight bits here.
    ExitCode::from((code & 0xff) as u8)
}
