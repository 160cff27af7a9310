//! The table of living sessions, and how its cells are written: from plain data to text.

use crate::show;
use lariat::snapshot::{Host, Living};

/// What the table is to have.
pub(super) struct Shape {
    /// Memory with what is shared divided.
    pub(super) pss: bool,
    /// A line at the end that adds up.
    pub(super) totals: bool,
}

/// A column: its head, its cell, and whether it is a number.
struct Column {
    head: &'static str,
    cell: fn(&Living) -> String,
    number: bool,
}

const fn word(head: &'static str, cell: fn(&Living) -> String) -> Column {
    Column { head, cell, number: false }
}

const fn number(head: &'static str, cell: fn(&Living) -> String) -> Column {
    Column { head, cell, number: true }
}

const BEFORE: [Column; 7] = [
    word("SESSION", |one| one.session.to_string()),
    word("SERVER", |one| show::plain(one.server.as_str())),
    word("HOST", |one| host(one.host.as_ref())),
    word("STATE", |one| one.state.word().into()),
    number("IDLE", |one| one.idle_s.map_or_else(none, time)),
    number("AGE", |one| time(one.age_s)),
    number("PROC", |one| one.processes.to_string()),
];
const CONTAINERS: Column = number("CONT", |one| one.containers.len().to_string());
const RSS: Column = number("RSS", |one| show::bytes(one.rss_bytes));
const PSS: Column = number("PSS", |one| one.pss_bytes.map_or_else(none, show::bytes));
const CPU: Column = number("CPU", |one| cpu(one.cpu_ms));
const PERCENT: Column = number("%CPU", |one| share(one.cpu_percent));
const SHARE: Column =
    word("SHARE", |one| one.share.as_ref().map_or_else(none, |share| show::plain(&share.words())));
const AFTER: [Column; 2] =
    [word("BACKEND", |one| show::plain(&one.backend)), word("EVIDENCE", evidence)];

/// One line for each, under heads. Columns that nobody has something in are left out.
pub(super) fn table(living: &[Living], shape: &Shape) -> String {
    if living.is_empty() {
        return "no sessions\n".into();
    }
    let mut columns: Vec<Column> = BEFORE.into_iter().collect();
    columns.extend(living.iter().any(|one| !one.containers.is_empty()).then_some(CONTAINERS));
    columns.extend([if shape.pss { PSS } else { RSS }, CPU]);
    columns.extend(living.iter().any(|one| one.cpu_percent.is_some()).then_some(PERCENT));
    columns.extend(living.iter().any(|one| one.share.is_some()).then_some(SHARE));
    columns.extend(AFTER);
    let cells = |one: &Living| columns.iter().map(|column| (column.cell)(one)).collect();
    let mut rows: Vec<Vec<String>> = vec![columns.iter().map(|c| c.head.to_string()).collect()];
    rows.extend(living.iter().map(cells));
    let wide = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(wide).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).zip(&columns).map(|((cell, width), column)| {
            if column.number { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text += &format!("{}\n", line.trim_end());
    }
    if shape.totals {
        text += &totals(living, shape.pss);
    }
    text
}

fn totals(living: &[Living], pss: bool) -> String {
    let processes: usize = living.iter().map(|one| one.processes).sum();
    let shares: Option<u64> = living.iter().map(|one| one.pss_bytes).sum();
    let resident: u64 = living.iter().map(|one| one.rss_bytes).sum();
    let memory = shares.filter(|_| pss).unwrap_or(resident);
    let sum = living.iter().map(|one| one.cpu_ms).sum();
    format!(
        "{}, {}, {}, CPU {}\n",
        show::count(living.len(), "session"),
        show::count(processes, "process"),
        show::bytes(memory),
        cpu(sum)
    )
}

fn none() -> String {
    "-".into()
}

/// A host as people know it.
pub(in crate::cmd) fn host(host: Option<&Host>) -> String {
    host.map_or_else(none, |host| {
        show::plain(&format!("{} {}", host.pid, host.name.as_deref().unwrap_or("gone")))
    })
}

fn evidence(one: &Living) -> String {
    let words: Vec<&str> = one.evidence.iter().map(|evidence| evidence.word()).collect();
    if words.is_empty() { none() } else { words.join(",") }
}

/// A time as people read it, in its two largest units.
pub(in crate::cmd) fn time(seconds: f64) -> String {
    match seconds as u64 {
        s @ 0..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        s @ 3600..86_400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        s => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
    }
}

/// CPU time that was used.
pub(in crate::cmd) fn cpu(ms: u64) -> String {
    if ms < 60_000 { format!("{:.1}s", ms as f64 / 1000.0) } else { time(ms as f64 / 1000.0) }
}

/// A share of one CPU, in percent.
pub(in crate::cmd) fn share(percent: Option<f64>) -> String {
    percent.map_or_else(none, |percent| format!("{percent:.1}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PLAIN: Shape = Shape { pss: false, totals: false };

    fn one(server: &str, host: &str) -> Living {
        serde_json::from_value(json!({
            "session": "0123456789abcde", "within": null, "server": server,
            "host": {"pid": 7, "name": host}, "wrapper": 8, "state": "asleep", "idle_s": 300.5,
            "evidence": ["superseded", "asked"], "backend": "descent",
            "started": "2026-11-15T20:23:00.125Z", "age_s": 4000.0, "processes": 0,
            "rss_bytes": 3 << 20, "pss_bytes": 1 << 20, "cpu_ms": 1530,
        }))
        .unwrap()
    }

    #[test]
    fn times_are_short() {
        let times = [0.9, 59.0, 61.0, 3599.0, 3660.0, 90_000.0].map(time);
        assert_eq!(times, ["0s", "59s", "1m01s", "59m59s", "1h01m", "1d01h"]);
        assert_eq!([0, 1530, 61_000].map(cpu), ["0.0s", "1.5s", "1m01s"]);
    }

    #[test]
    fn columns_are_aligned_and_names_cannot_move_the_cursor() {
        let text = table(&[one("a", "codex"), one("a-longer-name", "ev\u{1b}il")], &PLAIN);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(!text.contains('\u{1b}'));
        for word in ["asleep", "5m00s", "1h06m", "3.0 MiB", "1.5s", "descent", "superseded,asked"] {
            assert_eq!(lines[1].find(word), lines[2].find(word), "{text}");
            assert!(lines[1].contains(word), "{text}");
        }
        assert_eq!(lines[0].find("STATE"), lines[1].find("asleep"));
        assert_eq!(table(&[], &PLAIN), "no sessions\n");
    }

    #[test]
    fn columns_come_when_there_is_something_in_them() {
        let bare = table(&[one("a", "codex")], &PLAIN);
        assert!(
            !bare.contains("SHARE")
                && !bare.contains("CONT")
                && !bare.contains("%CPU")
                && !bare.contains("PSS"),
            "{bare}"
        );
        let mut full = one("b", "codex");
        full.containers =
            vec![lariat::snapshot::Container { id: "abc".into(), image: "img".into() }];
        full.cpu_percent = Some(12.34);
        full.share = serde_json::from_value(json!({
            "verdict": "private", "why": "client declares roots", "sessions": 1,
        }))
        .unwrap();
        let full = table(&[one("a", "codex"), full], &Shape { pss: true, totals: true });
        for word in
            ["CONT", "%CPU", "PSS", "12.3", "1.0 MiB", "SHARE", "private: client declares roots"]
        {
            assert!(full.contains(word), "{full}");
        }
        assert!(full.ends_with("2 sessions, 0 processes, 2.0 MiB, CPU 3.1s\n"), "{full}");
    }
}
