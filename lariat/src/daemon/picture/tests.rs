//! Rows that nothing happened to stay the same text; an hour is kept in little space.

use super::*;
use serde_json::{Value, json};

fn living(session: &str, cpu_percent: Option<f64>, idle_s: Option<f64>) -> Living {
    serde_json::from_value(json!({
        "session": session, "within": null, "server": "git", "host": {"pid": 7, "name": "co\u{1b}dex"},
        "wrapper": 8, "state": "ready", "idle_s": idle_s, "evidence": ["asked"],
        "backend": "descent", "started": "2026-11-15T20:23:00.125Z", "age_s": 1.0, "processes": 2,
        "rss_bytes": 4096, "cpu_ms": 50, "cpu_percent": cpu_percent,
        "tree": [{"pid": 9, "ppid": 8, "start": 1, "command": "no\u{202e}de", "rss_bytes": 4096, "cpu_ms": 5}],
    }))
    .unwrap()
}

fn json(picture: &Picture, key: &str) -> Value {
    serde_json::from_str(&picture.rows[key]).unwrap()
}

#[test]
fn a_quiet_server_is_the_same_text_as_before() {
    let mut painter = Painter::default();
    let first = painter.paint(1_000_000, &[living("a", None, Some(1.0))], &[]);
    let second = painter.paint(1_000_500, &[living("a", Some(0.0), Some(1.507))], &[]);
    assert_eq!(first.rows, second.rows);
    let row = json(&second, "a");
    assert_eq!((&row["host"]["name"], &row["tree"][0][2]), (&json!("co?dex"), &json!("no?de")));
    assert_eq!((row["quiet_since_ms"].as_u64(), row["cpu"].as_u64()), (Some(999_000), Some(0)));
    let third = painter.paint(1_001_000, &[living("a", Some(50.0), Some(0.0))], &[]);
    let row = json(&third, "a");
    // Smoothed.
    assert_eq!((row["cpu"].as_u64(), row["quiet_since_ms"].as_u64()), (Some(200), Some(1_001_000)));
    assert_eq!(third.point, Point { ms: 1_001_000, servers: 1, processes: 2, rss_bytes: 4096 });
    // Somebody who was seldom looked at has nothing to smooth.
    let fourth = painter.paint(1_011_000, &[living("a", Some(30.0), None)], &[]);
    assert_eq!(json(&fourth, "a")["cpu"], 300);
    assert!(painter.paint(1_011_500, &[], &[]).rows.is_empty() && painter.before.is_empty());
}

#[test]
fn sessions_of_the_daemon_have_their_owner_and_their_failures() {
    let own: api::Session = serde_json::from_value(json!({
        "id": "0123456789abcde", "name": "night", "state": "open",
        "owner": {"pid": 4, "command": "python3", "lease": "process"},
        "servers": {"git": {"state": "ready"}, "bad": {"state": "failed", "error": "no such file"}},
    }))
    .unwrap();
    let one: Living = {
        let mut value = serde_json::to_value(living("b", None, None)).unwrap();
        value["within"] = json!("0123456789abcde");
        serde_json::from_value(value).unwrap()
    };
    // A host that embeds the library has sessions that no daemon knows: what can be ended is the
    // server's own.
    let foreign: Living = {
        let mut value = serde_json::to_value(living("d", None, None)).unwrap();
        value["within"] = json!("fedcba987654321");
        serde_json::from_value(value).unwrap()
    };
    let picture = Painter::default().paint(5, &[one, living("c", None, None), foreign], &[own]);
    let row = json(&picture, "d");
    assert_eq!((&row["session"], &row["host"]["pid"]), (&json!("d"), &json!(7)));
    let row = json(&picture, "b");
    assert_eq!((&row["session"], &row["name"]), (&json!("0123456789abcde"), &json!("night")));
    assert_eq!(row["host"], json!({"pid": 4, "name": "python3"}));
    let bad = json(&picture, "0123456789abcde/bad");
    assert_eq!((&bad["state"], &bad["why"]), (&json!("failed"), &json!("no such file")));
    assert_eq!((picture.sums.sessions, picture.rows.len()), (3, 4));
    assert_eq!(picture.sums.states["ready"], 3);
}

#[test]
fn an_hour_is_kept_and_no_more() {
    let mut painter = Painter::default();
    for tick in 0..2 * 3600 * 2 {
        painter.paint(1_000_000 + tick * 500, &[], &[]);
    }
    let history = painter.history();
    assert!((600..=660).contains(&history.len()), "{}", history.len());
    assert!(history.is_sorted_by_key(|point| point.ms));
    let span = history.last().unwrap().ms - history[0].ms;
    assert!((3_580_000..=3_600_000).contains(&span), "{span}");
    // A pause longer than what is kept leaves nothing of what was before.
    painter.paint(1_000_000_000, &[], &[]);
    assert_eq!(painter.history().len(), 1);
    painter.paint(5, &[], &[]);
    assert_eq!(painter.history().len(), 1);
}
