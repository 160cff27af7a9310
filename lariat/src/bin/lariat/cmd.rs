//! The command line: one file per verb below.

mod completions;
mod connect;
mod daemon;
pub(crate) mod demo;
mod doctor;
mod events;
mod hosts;
mod install;
mod logs;
mod man;
mod open;
mod overview;
mod probe;
mod ps;
mod reap;
mod run;
mod session;
mod top;
mod tree;
mod trial;
mod uninstall;

use crate::{env, shelf, show};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use lariat::books::Books;
use std::path::PathBuf;
use std::process::ExitCode;

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
    // They say themselves what they do: a line here would hide what they say beyond the first.
    Demo(demo::Args),
    Run(run::Args),
    Probe(probe::Args),
    Install(install::Args),
    Uninstall(uninstall::Args),
    Hosts(hosts::Args),
    Ps(ps::Args),
    Tree(tree::Args),
    Top(top::Args),
    Logs(logs::Args),
    Events(events::Args),
    Doctor(doctor::Args),
    Reap(reap::Args),
    /// Sessions of servers for scripts: open, close, list, call
    #[command(subcommand)]
    Session(session::Verb),
    Connect(connect::Args),
    Daemon(daemon::Args),
    Open(open::Args),
    Trial(trial::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    Man(man::Args),
}

/// The command line as it is parsed, shown, completed and described in manual pages.
fn command() -> clap::Command {
    overview::grouped(Cli::command())
}

/// Parses the command line and does what it says.
pub(crate) fn main() -> ExitCode {
    let parsed = command().try_get_matches().and_then(|words| Cli::from_arg_matches(&words));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(show::usage(&error)),
    };
    match &cli.verb {
        // They do it themselves.
        Verb::Run(_) | Verb::Probe(_) => {}
        Verb::Reap(_) | Verb::Ps(_) | Verb::Tree(_) | Verb::Top(_) => {
            if let Err(code) = shelf::sees_processes() {
                return code;
            }
        }
        // They look, and looking changes nothing.
        Verb::Doctor(_) | Verb::Hosts(_) => {}
        Verb::Demo(_) | Verb::Trial(_) => finish_crashed(None),
        Verb::Install(args) => finish_crashed(args.state_dir()),
        Verb::Uninstall(args) => finish_crashed(args.state_dir()),
        Verb::Logs(args) => finish_crashed(args.state_dir()),
        Verb::Events(args) => finish_crashed(args.state_dir()),
        Verb::Session(verb) => finish_crashed(verb.state_dir()),
        Verb::Connect(args) => finish_crashed(args.state_dir()),
        Verb::Daemon(args) => finish_crashed(args.state_dir()),
        // They are words only.
        Verb::Completions(_) | Verb::Man(_) => {}
        Verb::Open(args) => finish_crashed(args.state_dir()),
    }
    match cli.verb {
        Verb::Demo(args) => demo::run(&args),
        Verb::Run(args) => run::run(args),
        Verb::Probe(args) => probe::run(args),
        Verb::Install(args) => install::run(&args),
        Verb::Uninstall(args) => uninstall::run(&args),
        Verb::Hosts(args) => hosts::run(&args),
        Verb::Ps(args) => ps::run(&args),
        Verb::Tree(args) => tree::run(&args),
        Verb::Top(args) => top::run(&args),
        Verb::Logs(args) => logs::run(&args),
        Verb::Events(args) => events::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Reap(args) => reap::run(&args),
        Verb::Session(verb) => session::run(verb),
        Verb::Connect(args) => connect::run(args),
        Verb::Daemon(args) => daemon::run(args),
        Verb::Open(args) => open::run(&args),
        Verb::Trial(args) => trial::run(args),
        Verb::Completions(args) => completions::run(&args, command()),
        Verb::Man(args) => man::run(&args, command()),
    }
}

/// Whatever the command is, unless it only looks, it first finishes what crashed sessions left.
fn finish_crashed(state_dir: Option<&PathBuf>) {
    let dir = env::state_dir(state_dir.cloned());
    let Some(dir) = dir.filter(|dir| dir.exists()) else { return };
    if let Ok(books) = Books::open(&dir) {
        // Their receipts are in the event log.
        let _logged = books.sweep();
    }
}
