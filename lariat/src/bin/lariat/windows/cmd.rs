//! The command line on Windows: the verbs that there are so far.

#[path = "daemon.rs"]
mod daemon;
#[path = "demo.rs"]
mod demo;
#[path = "doctor.rs"]
mod doctor;
#[expect(dead_code, reason = "part of it is for verbs that only Linux has")]
#[path = "../cmd/open.rs"]
mod open;
#[path = "../lean/probe.rs"]
mod probe;
#[path = "../lean/ps.rs"]
mod ps;
#[path = "run.rs"]
mod run;
#[expect(dead_code, reason = "part of it is for verbs that only Linux has")]
#[path = "../cmd/session.rs"]
mod session;
#[path = "../lean/told.rs"]
mod told;
#[path = "trial.rs"]
mod trial;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// What holds servers here.
const BACKEND: &str = "job";

/// Help for those who look into the books.
const BOOKS: &str = "Where the books are [default: AppData\\Local\\lariat of the user]";

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
    #[command(subcommand)]
    Session(session::Verb),
    Daemon(daemon::Args),
    Open(open::Args),
    Doctor(doctor::Args),
    Trial(trial::Args),
}

/// Parses the command line and does what it says. The exit code is one of ours, or a server's own,
/// which can be any number.
pub(crate) fn main() -> Result<ExitCode, i32> {
    match Cli::try_parse() {
        Ok(cli) => Err(match cli.verb {
            Verb::Demo(args) => demo::run(&args),
            Verb::Run(args) => run::run(args),
            Verb::Probe(args) => probe::run(args),
            Verb::Ps(args) => ps::run(&args),
            Verb::Session(verb) => return Ok(session::run(verb)),
            Verb::Daemon(args) => return Ok(daemon::run(args)),
            Verb::Open(args) => return Ok(open::run(&args)),
            Verb::Doctor(args) => doctor::run(&args),
            Verb::Trial(args) => trial::run(&args),
        }),
        Err(error) => Ok(ExitCode::from(told::misread(&error, &Cli::command(), "Windows"))),
    }
}
