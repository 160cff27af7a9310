//! `lariat ps`: who lives.

use super::run::no_home;
use crate::{env, show};
use lariat::books::Books;
use lariat::snapshot::Living;
use std::path::PathBuf;
use std::process::ExitCode;

/// Lists every living session: server, host, state, what it costs.
///
/// The books say which sessions there are; no daemon is needed. Processes and memory are the
/// server's own. A session that nobody has used for long can be `asleep`: its processes are gone, and
/// the next message of its host starts them again.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat ps
  lariat ps --json | jq '.[] | select(.evidence | index(\"superseded\"))'")]
pub(crate) struct Args {
    /// Print them as JSON
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
}

/// Looks and prints.
pub(crate) fn run(args: &Args) -> ExitCode {
    let Some(dir) = env::state_dir(args.state_dir.clone()) else { return no_home() };
    // Where nothing was ever run there are no books, and looking is no reason to make them.
    let living = match dir.exists().then(|| Books::open(&dir)) {
        None => Vec::new(),
        Some(Ok(books)) => books.living(),
        Some(Err(error)) => {
            let what = format!("cannot read the state directory {}", dir.display());
            show::failure(&show::plain(&what), Some(&error), "name another with --state-dir DIR");
            return ExitCode::FAILURE;
        }
    };
    let text = if args.json { json(&living) } else { table(&living) };
    ExitCode::from(u8::from(!show::out(&text)))
}

fn json(living: &[Living]) -> String {
    let mut text = serde_json::to_string_pretty(living).unwrap_or_default();
    text.push('\n');
    text
}

const HEADER: [&str; 9] =
    ["SESSION", "SERVER", "HOST", "STATE", "IDLE", "AGE", "PROC", "MEMORY", "EVIDENCE"];

fn table(living: &[Living]) -> String {
    if living.is_empty() {
        return "no sessions\n".into();
    }
    let rows: Vec<[String; 9]> = living.iter().map(row).collect();
    let widths: [usize; 9] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).max(HEADER[column].len())
    });
    let mut text = String::new();
    for row in [HEADER.map(String::from)].iter().chain(&rows) {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text += &format!("{}\n", line.trim_end());
    }
    text
}

fn row(one: &Living) -> [String; 9] {
    let host = one.host.as_ref().map(|host| {
        let name = host.name.as_deref().unwrap_or("gone");
        show::plain(&format!("{} {name}", host.pid))
    });
    let evidence: Vec<&str> = one.evidence.iter().map(|evidence| evidence.word()).collect();
    let none = || "-".to_string();
    [
        one.session.to_string(),
        one.server.to_string(),
        host.unwrap_or_else(none),
        one.state.word().into(),
        one.idle_s.map_or_else(none, time),
        time(one.age_s),
        one.processes.to_string(),
        show::bytes(one.rss_bytes),
        if evidence.is_empty() { none() } else { evidence.join(",") },
    ]
}

/// A time as people read it, in its two largest units.
pub(super) fn time(seconds: f64) -> String {
    match seconds as u64 {
        s @ 0..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        s @ 3600..86_400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        s => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_short() {
        let times = [0.9, 59.0, 61.0, 3599.0, 3660.0, 90_000.0].map(time);
        assert_eq!(times, ["0s", "59s", "1m01s", "59m59s", "1h01m", "1d01h"]);
    }

    #[test]
    fn columns_are_aligned_and_names_cannot_move_the_cursor() {
        let one = |server: &str, host: &str| -> Living {
            serde_json::from_value(json!({
                "session": "0123456789abcde", "within": null, "server": server,
                "host": {"pid": 7, "name": host}, "wrapper": 8, "state": "asleep", "idle_s": 300.5,
                "evidence": ["superseded", "asked"], "backend": "descent",
                "started": "2026-11-15T20:23:00.125Z", "age_s": 4000.0, "processes": 0,
                "rss_bytes": 0,
            }))
            .unwrap()
        };
        let text = table(&[one("a", "codex"), one("a-longer-name", "ev\u{1b}il")]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(!text.contains('\u{1b}'));
        for word in ["asleep", "5m00s", "1h06m", "superseded,asked"] {
            assert_eq!(lines[1].find(word), lines[2].find(word), "{text}");
            assert!(lines[1].contains(word), "{text}");
        }
        assert_eq!(lines[0].find("STATE"), lines[1].find("asleep"));
        assert_eq!(table(&[]), "no sessions\n");
    }
}
