//! `lariat events`: what has happened to sessions, and what happens.

use crate::shelf::{self, unreadable};
use crate::show;
use lariat::journal::Tail;
use serde_json::Value;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Shows what happens to sessions: who started, who ended, why, and how each process left.
///
/// The event log is bounded: it is begun anew at 4 MiB, and the one before is kept. With `-f` every
/// line is shown once as it is written, also while the log is begun anew. With `--json` lines are
/// as they were written, one object each.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat events -n 20
  lariat events -f --server github
  lariat events --reason host-died
  lariat events --json -n 1000 | jq 'select(.survivors != [])'")]
pub(crate) struct Args {
    /// Go on with what comes, until interrupted
    #[arg(short, long)]
    follow: bool,
    /// How many of the past, before those that do not match are left out
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    lines: usize,
    /// Only of this session, by the beginning of its name
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
    /// Only of this server
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Only what ended for this reason: `exited`, `stdin-closed`, `host-died`, `limit` …
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// The lines as they are written
    #[arg(long)]
    json: bool,
    /// Where the books are [default: ~/.local/state/lariat]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl Args {
    /// Where it was told that the books are.
    pub(crate) fn state_dir(&self) -> Option<&PathBuf> {
        self.state_dir.as_ref()
    }

    fn wants(&self, event: &Value) -> bool {
        let is = |key: &str, wanted: &Option<String>, fits: fn(&str, &str) -> bool| {
            let wanted = wanted.as_deref();
            wanted.is_none_or(|wanted| event[key].as_str().is_some_and(|word| fits(word, wanted)))
        };
        // A session of several is meant as well as the one of a single server.
        let session = is("session", &self.session, |word, wanted| word.starts_with(wanted))
            || is("within", &self.session, |word, wanted| word.starts_with(wanted));
        session
            && is("server", &self.server, |word, wanted| word == wanted)
            && is("reason", &self.reason, |word, wanted| {
                // `limit` is any limit, `limit:memory` that one.
                word == wanted || word.split(':').next() == Some(wanted)
            })
    }
}

/// Reads and prints.
pub(crate) fn run(args: &Args) -> ExitCode {
    let path = match shelf::find(args.state_dir.as_ref()) {
        Err(code) => return code,
        Ok((_, Some(books))) => books.events(),
        Ok((dir, None)) if args.follow => {
            let what = format!("there is no state directory {} yet", dir.display());
            show::failure(&show::plain(&what), None, "run something with `lariat run` first");
            return ExitCode::FAILURE;
        }
        Ok((_, None)) => return ExitCode::SUCCESS,
    };
    let mut rest = Vec::new();
    follow(&path, args.lines, args.follow, |bytes| {
        rest.extend_from_slice(bytes);
        let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = rest.drain(..whole).collect();
        let lines = String::from_utf8_lossy(&lines);
        let shown: String = lines.lines().filter_map(|line| shown(line, args)).collect();
        shown.is_empty() || show::out(&shown)
    })
}

/// Gives the last lines of a journal and, if wanted, whatever comes, until `take` says no.
pub(super) fn follow(
    path: &Path,
    lines: usize,
    on: bool,
    mut take: impl FnMut(&[u8]) -> bool,
) -> ExitCode {
    let (mut tail, mut text) = match Tail::open(path, lines) {
        Ok(opened) => opened,
        Err(error) => return unreadable(path, &error),
    };
    let stdout = std::io::stdout();
    loop {
        // Whoever stops reading has seen enough.
        if !take(&text) || !on || !tail.wait(stdout.as_fd()) {
            return ExitCode::SUCCESS;
        }
        text = match tail.read() {
            Ok(text) => text,
            Err(error) => return unreadable(path, &error),
        };
    }
}

/// One line of the log as it is shown; none if it is not wanted.
fn shown(line: &str, args: &Args) -> Option<String> {
    let Ok(event) = serde_json::from_str::<Value>(line) else {
        // Half a line, of a disk that was full: it is nobody's.
        return None;
    };
    args.wants(&event).then(|| match args.json {
        true => format!("{line}\n"),
        false => format!("{}\n", show::plain(&sentence(&event))),
    })
}

/// An event for a person.
fn sentence(event: &Value) -> String {
    let text = |key: &str| event[key].as_str().unwrap_or("-").to_string();
    let time = text("time").replace('T', " ");
    let time = time.split('.').next().unwrap_or_default().to_string();
    let session = event["session"].as_str().map(|session| format!("  {session}"));
    let head = format!(
        "{time}Z  {:11}  {:20}{}",
        text("event"),
        text("server"),
        session.unwrap_or_default()
    );
    let more = match text("event").as_str() {
        "started" => {
            let host = event["host"].as_i64().map(|pid| format!(", host {pid}"));
            format!("{}{}", text("backend"), host.unwrap_or_default())
        }
        "ended" => format!("{}{}", text("reason"), left(event)),
        "reaped" => {
            let hosts = event["hosts"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let hosts = hosts.collect::<Vec<_>>().join(" or ");
            let age = super::ps::time(event["age_s"].as_f64().unwrap_or(0.0));
            format!("{} by {hosts}, {age} old{}", text("kind"), left(event))
        }
        "joined" | "left" => {
            let sessions = event["sessions"].as_u64().unwrap_or(0);
            format!("{}, {}", text("why"), show::count(sessions, "session"))
        }
        "unshared" => text("why"),
        _ => event["what"].as_str().unwrap_or_default().to_string(),
    };
    format!("{head}  {more}").trim_end().to_string()
}

/// How long it was, and how everything left.
fn left(event: &Value) -> String {
    let number = |pointer: &str| event.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let mut text = String::new();
    if let Some(ms) = event["duration_ms"].as_u64() {
        text += &format!(" after {}", super::ps::time(ms as f64 / 1000.0));
    }
    let ways = ["left", "asked", "killed"]
        .map(|way| (number(&format!("/processes/{way}")), way))
        .into_iter()
        .filter(|(count, _)| *count > 0);
    let ways: Vec<String> = ways.map(|(count, way)| format!("{count} {way}")).collect();
    if !ways.is_empty() {
        let seen = show::count(number("/processes/seen"), "process");
        text += &format!(", {seen}: {}", ways.join(", "));
    }
    if number("/containers/seen") > 0 {
        let (seen, removed) = (number("/containers/seen"), number("/containers/removed"));
        text += &format!(", {removed} of {} removed", show::count(seen, "container"));
    }
    let survivors = event["survivors"].as_array().map_or(0, Vec::len);
    if survivors > 0 {
        text += &format!(", {survivors} SURVIVED");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn args(words: &[&str]) -> Args {
        use clap::{Args as _, FromArgMatches};
        let command = Args::augment_args(clap::Command::new("events"));
        let words = [&["events"], words].concat();
        Args::from_arg_matches(&command.try_get_matches_from(words).unwrap()).unwrap()
    }

    #[test]
    fn an_end_says_why_and_how() {
        let event = json!({
            "event": "ended", "time": "2026-11-15T20:23:00.125Z", "session": "0123456789abcde",
            "server": "time", "reason": "host-died", "duration_ms": 61_000,
            "processes": {"seen": 3, "left": 1, "asked": 0, "killed": 2},
            "containers": {"seen": 2, "removed": 1},
            "survivors": [{"kind": "container", "pid": 0, "start": 0, "command": "x", "why": "y"}],
        });
        let line = sentence(&event);
        assert!(line.starts_with("2026-11-15 20:23:00Z  ended"), "{line}");
        assert!(
            line.ends_with(
                "host-died after 1m01s, 3 processes: 1 left, 2 killed, 1 of 2 containers removed, \
                 1 SURVIVED"
            ),
            "{line}"
        );
    }

    #[test]
    fn only_what_is_wanted_is_shown() {
        let line = r#"{"event":"ended","time":"t","session":"abc","within":"xyz","server":"s","reason":"limit:memory"}"#;
        for wanted in [
            &["--session", "ab"][..],
            &["--session", "xyz"],
            &["--server", "s"],
            &["--reason", "limit"],
            &["--reason", "limit:memory"],
            &[],
        ] {
            assert!(shown(line, &args(wanted)).is_some(), "{wanted:?}");
        }
        for unwanted in [
            &["--session", "bc"][..],
            &["--server", "t"],
            &["--reason", "lim"],
            &["--reason", "memory"],
        ] {
            assert!(shown(line, &args(unwanted)).is_none(), "{unwanted:?}");
        }
        assert_eq!(shown(line, &args(&["--json"])), Some(format!("{line}\n")));
        assert_eq!(shown(r#"{"event":"#, &args(&["--json"])), None);
        let evil = "{\"event\":\"woke\",\"time\":\"t\",\"server\":\"a\\u001b[2J\"}";
        assert!(!shown(evil, &args(&[])).unwrap().contains('\u{1b}'));
    }
}
