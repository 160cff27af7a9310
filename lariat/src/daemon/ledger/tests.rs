//! Every line counts once, however the log was cut and turned over meanwhile.

use super::*;
use crate::journal::Journal;
use serde_json::json;
use std::fs;
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
    let mut ledger = Ledger::new(place.log());
    ledger.read_on();
    for number in 0..300 {
        journal.append(started().as_bytes()).unwrap();
        if number % 7 == 0 {
            ledger.read_on();
        }
    }
    ledger.read_on();
    ledger.read_on();
    assert_eq!(ledger.counts.starts, 300);
    // Somebody who comes later has what the log still has.
    let mut late = Ledger::new(place.log());
    late.read_on();
    assert!((11..=25).contains(&late.counts.starts), "{}", late.counts.starts);
}

#[test]
fn half_a_line_waits_for_its_end_and_nonsense_is_left_out() {
    let place = Place::new("half");
    let mut ledger = Ledger::new(place.log());
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
    let mut ledger = Ledger::new(place.log());
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
    let mut ledger = Ledger::new(place.log());
    let text: String =
        (0..400).map(|n| ended(&format!("{n}"), &format!("failed:{n}"), n, &[1])).collect();
    fs::write(place.log(), text).unwrap();
    ledger.read_on();
    assert_eq!((ledger.receipts.len(), ledger.haunted.len()), (RECEIPTS, HAUNTED));
    assert_eq!(ledger.counts.ends.len(), REASONS + 1);
    assert_eq!(ledger.counts.ends["other"], 400 - REASONS as u64);
    assert_eq!(ledger.receipts.back().unwrap().number, 400);
}
