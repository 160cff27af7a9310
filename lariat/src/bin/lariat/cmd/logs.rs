//! `lariat logs`: what servers said on stderr.

use super::events::follow;
use crate::{env, shelf, show};
use lariat::id::ServerName;
use lariat::journal::{Tail, predecessor};
use lariat::moment;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Shows what a server said on stderr, in all its sessions, or which logs there are.
///
/// Logs are bounded: each is begun anew at 1 MiB, and the one before is kept. On a terminal control
/// characters are shown as `?`, except for tabs; into a pipe or a file every byte goes as the
/// server wrote it. A log can hold secrets that the server itself has printed: only its owner may
/// read it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat logs
  lariat logs -f github
  lariat logs -n 1000 server-everything | less
  lariat logs 3f2a81c09b7d4e5      # the server of this session")]
pub(crate) struct Args {
    /// The server, or a session of it; without one, the logs are listed
    #[arg(value_name = "SERVER")]
    server: Option<String>,
    /// Go on with what comes, until interrupted
    #[arg(short, long, requires = "server")]
    follow: bool,
    /// How many lines of the past
    #[arg(short = 'n', long, value_name = "LINES", default_value_t = 100)]
    lines: usize,
    /// List the logs as JSON
    #[arg(long, conflicts_with = "server")]
    json: bool,
    /// Where the logs are [default: logs in the state directory]
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Where the books are [default: ~/.local/state/lariat]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl Args {
    /// Where it was told that the books are.
    pub(crate) fn state_dir(&self) -> Option<&PathBuf> {
        self.state_dir.as_ref()
    }
}

/// A server's log.
#[derive(Debug, Serialize)]
struct Log {
    server: String,
    /// With its predecessor.
    bytes: u64,
    /// When something was last written.
    last: String,
    path: PathBuf,
}

/// Reads and prints.
pub(crate) fn run(args: &Args) -> ExitCode {
    let (dir, books) = match shelf::find(args.state_dir.as_ref()) {
        Ok(found) => found,
        Err(code) => return code,
    };
    let given = args.log_dir.clone().map(env::absolute);
    let logs = given.or_else(|| Some(books.as_ref()?.logs())).unwrap_or_else(|| dir.join("logs"));
    let all = list(&logs);
    let Some(wanted) = &args.server else {
        let text = if args.json { json(&all) } else { table(&all) };
        return ExitCode::from(u8::from(!show::out(&text)));
    };
    let of_session = || server_of(&books.as_ref()?.events(), wanted);
    let named = |name: &str| all.iter().find(|log| log.server == name);
    let given = ServerName::given(wanted).map(|name| name.to_string());
    let log = given.as_deref().and_then(named).or_else(|| named(&of_session()?));
    let Some(log) = log else {
        let what = format!("no server or session {wanted:?} has a log in {}", logs.display());
        show::failure(&show::plain(&what), None, "`lariat logs` lists those that there are");
        return ExitCode::FAILURE;
    };
    if !show::is_terminal() {
        return follow(&log.path, args.lines, args.follow, show::raw);
    }
    let mut rest = Vec::new();
    follow(&log.path, args.lines, args.follow, |bytes| {
        rest.extend_from_slice(bytes);
        // A character can come in two parts.
        let whole = match std::str::from_utf8(&rest) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => rest.len(),
        };
        let part: Vec<u8> = rest.drain(..whole).collect();
        show::raw(&harmless(&part))
    })
}

/// The logs that there are, the one that was written last at the end.
fn list(dir: &Path) -> Vec<Log> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten().map(|file| file.path());
    let log = |path: PathBuf| {
        let server = path.file_name()?.to_str()?.strip_suffix(".log")?.to_string();
        let meta = fs::metadata(&path).ok()?;
        let before = fs::metadata(predecessor(&path)).map_or(0, |meta| meta.len());
        let written = meta.modified().ok()?;
        let last = moment::rfc3339(written);
        Some((written, Log { server, bytes: meta.len() + before, last, path }))
    };
    let mut logs: Vec<_> = files.filter_map(log).collect();
    logs.sort_by(|(at, a), (bt, b)| (at, &a.server).cmp(&(bt, &b.server)));
    logs.into_iter().map(|(_, log)| log).collect()
}

/// The server of a session, by the event log.
fn server_of(events: &Path, session: &str) -> Option<String> {
    let is_name = session.len() >= 4 && session.chars().all(|c| c.is_ascii_hexdigit());
    if !is_name {
        return None;
    }
    let (_, text) = Tail::open(events, usize::MAX).ok()?;
    String::from_utf8_lossy(&text).lines().rev().find_map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = event["session"].as_str().is_some_and(|id| id.starts_with(session));
        is_it.then(|| Some(event["server"].as_str()?.to_string())).flatten()
    })
}

fn json(logs: &[Log]) -> String {
    let mut text = serde_json::to_string_pretty(logs).unwrap_or_default();
    text.push('\n');
    text
}

fn table(logs: &[Log]) -> String {
    if logs.is_empty() {
        return "no logs\n".into();
    }
    let width = logs.iter().map(|log| log.server.chars().count()).max().unwrap_or(0).max(6);
    let mut text = format!("{:width$}  {:>10}  LAST WRITTEN\n", "SERVER", "SIZE");
    for log in logs {
        let last = log.last.replace('T', " ");
        let last = last.split('.').next().unwrap_or_default();
        let name = show::plain(&log.server);
        text += &format!("{name:width$}  {:>10}  {last}Z\n", show::bytes(log.bytes));
    }
    text
}

/// What a server wrote, so that it cannot do anything to a terminal. Only a line may end.
fn harmless(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.replace("\r\n", "\n");
    let shown = |c: char| if show::is_unruly(c) && !matches!(c, '\n' | '\t') { '?' } else { c };
    text.chars().map(shown).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_safe_from_what_servers_say() {
        let evil = "a\u{1b}]0;title\u{7}\tb\r\nc\rd\u{9b}31m\u{202e}e\n".as_bytes();
        assert_eq!(harmless(evil), "a?]0;title?\tb\nc?d?31m?e\n".as_bytes());
        assert_eq!(harmless(b"\xff"), "\u{fffd}".as_bytes());
    }

    #[test]
    fn nothing_is_listed_as_nothing() {
        assert_eq!(table(&[]), "no logs\n");
        assert!(list(Path::new("/nonexistent")).is_empty());
    }
}
