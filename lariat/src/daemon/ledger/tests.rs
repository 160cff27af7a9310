//! Every line counts once, however the log was cut and turned over meanwhile.

use super::*;
use crate::journal::{Journal, predecessor};
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let dir = std::env::temp_dir().join(format!("lariat-ledger-{name}-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        Place(dir)
    }

    fn log(&self) -> PathBuf {
        self.0.join("events.jsonl")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Somebody who has looked once, before anything was written.
fn watching(place: &Place) -> Ledger {
    let mut ledger = Ledger::new(place.log());
    ledger.read_on();
    ledger
}

fn started() -> String {
    "{\"event\":\"started\",\"session\":\"a\"}\n".into()
}

fn ended(session: &str, reason: &str, teardown_ms: u64, survivors: &[i32]) -> String {
    let survivor =
        |pid: &i32| json!({"kind": "process", "pid": pid, "start": 1, "command": "x", "why": "y"});
    let line = json!({
        "event": "ended", "time": "t", "session": session, "server": "s", "reason": reason,
        "backend": "descent", "started": "2026-11-15T20:23:00.125Z", "ended": "t", "duration_ms": 5,
        "teardown_ms": teardown_ms, "processes": {"seen": 1, "left": 1, "asked": 0, "killed": 0},
        "survivors": survivors.iter().map(survivor).collect::<Vec<_>>(),
    });
    format!("{line}\n")
}

#[test]
fn nothing_is_counted_twice_or_missed_across_rotations() {
    let place = Place::new("turns");
    // Turned over every few lines, and read less often than written.
    let mut journal = Journal::open(&place.log(), 400).unwrap();
    let mut ledger = watching(&place);
    for number in 0..300 {
        journal.append(started().as_bytes()).unwrap();
        if number % 7 == 0 {
            ledger.read_on();
        }
    }
    ledger.read_on();
    ledger.read_on();
    assert_eq!(ledger.counts.starts, 300);
}

#[test]
fn what_was_before_is_remembered_and_not_counted() {
    let place = Place::new("before");
    let own = Member::current().unwrap();
    let alive = ended("a", "closed", 1, &[own.pid])
        .replace("\"start\":1", &format!("\"start\":{}", own.start));
    fs::write(place.log(), format!("{}{alive}", started())).unwrap();
    let mut ledger = watching(&place);
    // Reasons that there were have a zero to start from.
    let counts = Counts { ends: BTreeMap::from([("closed".into(), 0)]), ..Counts::default() };
    assert_eq!(ledger.counts, counts);
    assert_eq!((ledger.receipts.len(), ledger.survivors()), (1, 1));
    // What is said again about an end before is no end either.
    let mut file = File::options().append(true).open(place.log()).unwrap();
    file.write_all(ended("a", "closed", 1, &[]).as_bytes()).unwrap();
    ledger.read_on();
    assert_eq!(ledger.counts, counts);
    file.write_all(ended("b", "closed", 1, &[]).as_bytes()).unwrap();
    ledger.read_on();
    assert_eq!((ledger.counts.ends["closed"], ledger.receipts.len()), (1, 3));
}

#[test]
fn a_log_that_is_away_is_not_read_again() {
    let place = Place::new("away");
    let before = predecessor(&place.log());
    fs::write(&before, ended("a", "closed", 1, &[]).repeat(3)).unwrap();
    let mut ledger = watching(&place);
    for _ in 0..3 {
        ledger.read_on();
        assert_eq!(ledger.receipts.len(), 3);
    }
    fs::write(place.log(), started()).unwrap();
    ledger.read_on();
    assert_eq!((ledger.receipts.len(), ledger.counts.starts), (3, 1));
    // The gap of a rotation, seen from within.
    fs::rename(place.log(), &before).unwrap();
    for _ in 0..3 {
        ledger.read_on();
    }
    fs::write(place.log(), started()).unwrap();
    ledger.read_on();
    assert_eq!((ledger.receipts.len(), ledger.counts.starts), (3, 2));
}

#[test]
fn who_writes_to_a_log_that_was_just_renamed_is_counted() {
    let place = Place::new("late");
    let mut ledger = watching(&place);
    let mut late = File::options().create(true).append(true).open(place.log()).unwrap();
    late.write_all(started().as_bytes()).unwrap();
    ledger.read_on();
    fs::rename(place.log(), predecessor(&place.log())).unwrap();
    fs::write(place.log(), started()).unwrap();
    ledger.read_on();
    late.write_all(started().as_bytes()).unwrap();
    ledger.read_on();
    assert_eq!(ledger.counts.starts, 3);
}

#[test]
fn a_line_that_is_too_long_is_none_at_all() {
    let place = Place::new("long");
    let mut ledger = watching(&place);
    let mut file = File::create(place.log()).unwrap();
    file.write_all(b"{\"event\":\"started\",\"x\":\"").unwrap();
    // In parts or at once: its head and its end are no line.
    for _ in 0..3 {
        file.write_all(&[b'a'; LONGEST_LINE / 2]).unwrap();
        ledger.read_on();
    }
    file.write_all(format!("\"}}\n{}", started()).as_bytes()).unwrap();
    ledger.read_on();
    assert_eq!(ledger.counts.starts, 1);
    let long = "a".repeat(LONGEST_LINE);
    let line = format!("{{\"event\":\"started\",\"x\":\"{long}\"}}\n");
    file.write_all(format!("{line}{}", started()).as_bytes()).unwrap();
    ledger.read_on();
    assert_eq!(ledger.counts.starts, 2);
}

#[test]
fn half_a_line_waits_for_its_end_and_nonsense_is_left_out() {
    let place = Place::new("half");
    let mut ledger = watching(&place);
    let mut file = File::create(place.log()).unwrap();
    let line = ended("a", "exited", 7, &[]);
    let (head, tail) = line.split_at(20);
    file.write_all(b"\nno json\n{\"event\":7}\n{\"event\":\"ended\"}\n").unwrap();
    file.write_all(head.as_bytes()).unwrap();
    ledger.read_on();
    assert_eq!(ledger.counts, Counts::default());
    file.write_all(tail.as_bytes()).unwrap();
    ledger.read_on();
    assert_eq!(ledger.counts.ends, BTreeMap::from([("exited".into(), 1)]));
    assert_eq!(ledger.counts.within[..3], [0, 1, 1]);
    assert_eq!((ledger.counts.teardown_ms, ledger.receipts.len()), (7, 1));
    // Cut by hand: from the beginning again.
    file.set_len(0).unwrap();
    ledger.read_on();
    fs::write(place.log(), started()).unwrap();
    ledger.read_on();
    assert_eq!(ledger.counts.starts, 1);
}

#[test]
fn another_look_at_survivors_is_not_another_end() {
    let place = Place::new("haunted");
    let mut ledger = watching(&place);
    let own = Member::current().unwrap();
    let alive = ended("a", "closed", 1, &[own.pid])
        .replace("\"start\":1", &format!("\"start\":{}", own.start));
    fs::write(place.log(), format!("{alive}{}", ended("b", "closed", 1, &[own.pid]))).unwrap();
    ledger.read_on();
    assert_eq!((ledger.counts.survivors, ledger.counts.ends["closed"]), (2, 2));
    // One of the two is a number that means somebody else by now.
    assert_eq!(ledger.survivors(), 1);
    let mut file = File::options().append(true).open(place.log()).unwrap();
    file.write_all(ended("a", "closed", 1, &[]).as_bytes()).unwrap();
    ledger.read_on();
    assert_eq!((ledger.counts.survivors, ledger.counts.ends["closed"]), (2, 2));
    assert_eq!((ledger.survivors(), ledger.receipts.len()), (0, 3));
}

#[test]
fn there_are_only_so_many_of_everything() {
    let place = Place::new("bounds");
    let mut ledger = watching(&place);
    let text: String =
        (0..400).map(|n| ended(&format!("{n}"), &format!("failed:{n}"), n, &[1])).collect();
    fs::write(place.log(), text).unwrap();
    ledger.read_on();
    assert_eq!((ledger.receipts.len(), ledger.haunted.len()), (RECEIPTS, HAUNTED));
    assert_eq!(ledger.counts.ends.len(), REASONS + 1);
    assert_eq!(ledger.counts.ends["other"], 400 - REASONS as u64);
    assert_eq!(ledger.receipts.back().unwrap().number, 400);
}
