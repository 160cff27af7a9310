//! `lariat run` on Windows: what hosts start in place of a server.

use super::told::{self, no_home, state_dir};
use lariat::contain::Ladder;
use lariat::duration;
use lariat::id::ServerName;
use lariat::relay::Run;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Runs a server so that nothing of it outlives the session.
///
/// Standard input and output are copied unchanged. The exit code is the server's; 127 not found, 126
/// not executable, 125 Lariat itself failed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat run -- npx -y @modelcontextprotocol/server-everything
  lariat run --name time --grace 5s -- uvx mcp-server-time")]
pub(super) struct Args {
    /// Name of the server in receipts and logs [default: from the command]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Time to leave after standard input closed, before Ctrl-Break
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    grace: Duration,
    /// Time to leave after Ctrl-Break, before the kill
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    term_grace: Duration,
    /// Copy bytes through Lariat, as is always done here
    #[arg(long)]
    relay: bool,
    /// Also write the receipt to this file
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// Where the server's stderr log goes [default: logs in the state directory]
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Where the books and logs are [default: AppData\Local\lariat of the user]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// The server and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
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
    let whole = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    let (shown, receipt) = (program.to_string_lossy().into_owned(), args.receipt.map(whole));
    let run = Run {
        program,
        args: rest,
        server,
        ladder: Ladder { grace: args.grace, term_grace: args.term_grace, ..Ladder::default() },
        receipt: receipt.clone(),
        state_dir,
        log_dir: args.log_dir.map(whole),
    };
    match lariat::relay::run(run) {
        Ok(outcome) => told::ended(&outcome, receipt.as_deref()),
        Err(failure) => told::explain(&shown, &failure),
    }
}

/// A name from the command, without the directory and ending of its file, nor a shell before it.
pub(super) fn derived(program: &OsStr, args: &[OsString]) -> ServerName {
    let stem = Path::new(program).file_stem().unwrap_or(program);
    match args {
        [switch, inner, rest @ ..]
            if stem.eq_ignore_ascii_case("cmd") && switch.eq_ignore_ascii_case("/c") =>
        {
            derived(inner, rest)
        }
        _ => ServerName::derived(stem, args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_by_its_package() {
        let named = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            derived(&words[0], &words[1..]).as_str().to_owned()
        };
        assert_eq!(named(&["npx", "-y", "@scope/server-memory"]), "server-memory");
        assert_eq!(named(&["cmd", "/c", "npx", "-y", "@scope/server-memory@1.2"]), "server-memory");
        assert_eq!(named(&[r"C:\Program Files\nodejs\npx.cmd", "-y", "pkg"]), "pkg");
        assert_eq!(named(&[r"C:\tools\my-server.exe", "--flag"]), "my-server");
    }
}
