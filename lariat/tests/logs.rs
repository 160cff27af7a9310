//! `lariat logs` and `lariat events`: what was written, and what is being written, also while files
//! are begun anew.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host/finish.rs"]
mod finish;
#[path = "host/place.rs"]
mod place;

use finish::finish;
use lariat::journal::Journal;
use place::{PATIENCE, Place};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use trials::until;

#[test]
fn a_servers_words_are_kept_listed_and_shown() {
    let place = Place::new();
    assert_eq!(text(&mut place.lariat("logs")), "no logs\n");
    assert_eq!(text(&mut place.lariat("events")), "");
    assert!(!place.path("state").exists(), "looking has made books");
    let mut run = place.lariat("run");
    run.args(["--name", "talker", "--", "sh", "-c", "printf 'one\\ntwo\\033[31m\\n' >&2"]);
    assert!(finish(&mut run).status.success());
    let list: Value = serde_json::from_str(&text(place.lariat("logs").arg("--json"))).unwrap();
    assert_eq!((&list[0]["server"], &list[0]["bytes"]), (&json!("talker"), &json!(13)));
    assert!(text(&mut place.lariat("logs")).contains("talker"));
    // Into a pipe it goes as it is.
    assert_eq!(text(place.lariat("logs").arg("talker")), "one\ntwo\u{1b}[31m\n");
    assert_eq!(text(place.lariat("logs").args(["-n", "1", "talker"])), "two\u{1b}[31m\n");
    let events = text(place.lariat("events").arg("--json"));
    let events: Vec<Value> = events.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["started", "ended"]);
    let session = events[0]["session"].as_str().unwrap();
    assert_eq!(text(place.lariat("logs").arg(session)), "one\ntwo\u{1b}[31m\n");
    let ended = text(place.lariat("events").args(["--session", session, "--reason", "exited"]));
    assert_eq!(ended.lines().count(), 1, "{ended}");
    assert!(ended.contains("talker") && ended.contains("exited after 0s"), "{ended}");
    assert_eq!(text(place.lariat("events").args(["--server", "nobody"])), "");
    let unknown = finish(place.lariat("logs").arg("nobody"));
    let said = String::from_utf8(unknown.stderr).unwrap();
    assert_eq!(unknown.status.code(), Some(1));
    assert!(said.contains("\"nobody\"") && said.contains("`lariat logs`"), "{said}");
    let mode = fs::metadata(place.path("state/logs/talker.log")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&mode) & 0o777, 0o600);
}

#[test]
fn following_loses_and_repeats_nothing_while_the_log_is_begun_anew() {
    let place = Place::new();
    fs::create_dir_all(place.path("state/logs")).unwrap();
    let path = place.path("state/logs/talker.log");
    let mut journal = Journal::open(&path, 10_000).unwrap();
    journal.append(b"line 0\n").unwrap();
    let mut tail = Following::start(place.lariat("logs").args(["-f", "talker"]));
    assert_eq!(tail.line(), "line 0");
    let mut next = 1;
    while next < 4000 {
        // Less than a file holds between two looks, as is promised.
        for n in next..next + 500 {
            journal.append(format!("line {n}\n").as_bytes()).unwrap();
        }
        for n in next..next + 500 {
            assert_eq!(tail.line(), format!("line {n}"));
        }
        next += 500;
    }
    let before = fs::metadata(place.path("state/logs/talker.log.1")).unwrap();
    assert!(before.len() >= 10_000, "never begun anew: this proves nothing");
}

#[test]
fn events_are_followed_and_whoever_stops_reading_has_seen_enough() {
    let place = Place::new();
    fs::create_dir_all(place.path("state")).unwrap();
    let mut tail = Following::start(place.lariat("events").args(["-f", "--server", "talker"]));
    let mut run = place.lariat("run");
    assert!(finish(run.args(["--name", "talker", "--", "true"])).status.success());
    assert!(tail.line().contains("started"));
    assert!(tail.line().contains("ended"));
    // Nothing more is written, and still it goes.
    drop(tail.stdout.take());
    assert!(until(PATIENCE, || tail.child.try_wait().unwrap().is_some()), "it goes on for nobody");
    assert!(tail.child.wait().unwrap().success());
}

/// A command that goes on until this is dropped.
struct Following {
    child: Child,
    stdout: Option<BufReader<Box<dyn Read>>>,
}

impl Following {
    fn start(command: &mut Command) -> Following {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout: Box<dyn Read> = Box::new(child.stdout.take().unwrap());
        Following { child, stdout: Some(BufReader::new(stdout)) }
    }

    #[track_caller]
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_string()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        self.child.wait().unwrap();
    }
}

#[track_caller]
fn text(command: &mut Command) -> String {
    let output = finish(command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
