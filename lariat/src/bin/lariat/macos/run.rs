//! `lariat run` on macOS: what hosts start in place of a server.

use super::BOOKS;
use super::told::{self, no_home, state_dir};
use crate::{env, show};
use lariat::contain::{Backend, Choice, Ladder};
use lariat::duration;
use lariat::id::ServerName;
use lariat::relay::{Holding, Mode, Run};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

/// Runs a server so that nothing of it outlives the session, as far as macOS lets that be known.
///
/// Standard input and output are the server's own. The exit code is the server's; 128+n if a
/// signal ended it; 127 not found, 126 not executable, 125 Lariat itself failed. The receipt says what may
/// have been missed; so does `lariat doctor`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat run -- npx -y @modelcontextprotocol/server-everything
  lariat run --name time --grace 5s -- uvx mcp-server-time
  lariat run --receipt /tmp/receipt.json -- ./my-server --flag")]
pub(super) struct Args {
    /// Name of the server in receipts and logs [default: from the command]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Copy bytes through Lariat instead of handing the streams over
    #[arg(long)]
    relay: bool,
    /// What holds the server: auto or session, which are the same here
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = backend)]
    backend: Choice,
    /// Time to leave after standard input closed, before SIGTERM
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    grace: Duration,
    /// Time to leave after SIGTERM, before the kill
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    term_grace: Duration,
    /// Also write the receipt to this file
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// Where the server's stderr log goes [default: logs in the state directory]
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    #[arg(long, value_name = "DIR", help = BOOKS)]
    state_dir: Option<PathBuf>,
    /// The server and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn backend(name: &str) -> Result<Choice, String> {
    let named = Backend::named(name).map(Choice::Named);
    let choice = named.or((name == "auto").then_some(Choice::Auto));
    choice.ok_or_else(|| {
        "macOS offers nothing but `session`, which is also what `auto` chooses".into()
    })
}

/// A name from the command.
pub(super) fn derived(program: &OsStr, args: &[OsString]) -> ServerName {
    ServerName::derived(program, args)
}

/// Runs it and passes on its exit code.
pub(super) fn run(args: Args) -> i32 {
    let mut words = args.command.into_iter();
    let program = words.next().unwrap_or_default();
    let rest: Vec<OsString> = words.collect();
    let server = match told::name(args.name.as_deref(), || derived(&program, &rest)) {
        Ok(server) => server,
        Err(code) => return code,
    };
    let Some(state_dir) = state_dir(args.state_dir.as_ref()) else { return no_home(125) };
    let guardian = match std::env::current_exe() {
        Ok(guardian) => guardian,
        Err(e) => {
            show::failure("cannot find this program's own file", Some(&e), "nothing was started");
            return 125;
        }
    };
    let mode = if args.relay { Mode::Relayed } else { Mode::Direct };
    let holding = Holding { guardian, backend: args.backend, mode };
    let shown = program.to_string_lossy().into_owned();
    let receipt = args.receipt.map(env::absolute);
    let run = Run {
        program,
        args: rest,
        server,
        ladder: Ladder { grace: args.grace, term_grace: args.term_grace, ..Ladder::default() },
        receipt: receipt.clone(),
        state_dir,
        log_dir: args.log_dir.map(env::absolute),
    };
    match lariat::relay::run(run, holding) {
        Ok(outcome) => told::ended(&outcome, receipt.as_deref()),
        Err(failure) => told::explain(&shown, &failure),
    }
}
