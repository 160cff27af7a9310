//! `lariat ps`: who lives, without a daemon, in a shape that scripts may rely on.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host/books.rs"]
mod books;
#[path = "host/finish.rs"]
mod finish;
#[path = "host/place.rs"]
mod place;

use books::{assert_nothing_left, events, pages};
use finish::finish;
use place::{PATIENCE, Place};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use trials::until;

const FIELDS: [&str; 17] = [
    "session",
    "within",
    "server",
    "host",
    "wrapper",
    "state",
    "idle_s",
    "evidence",
    "backend",
    "started",
    "age_s",
    "processes",
    "rss_bytes",
    "pss_bytes",
    "cpu_ms",
    "tree",
    "containers",
];

#[test]
fn a_living_session_is_listed_with_what_it_costs() {
    let place = Place::new();
    assert_eq!(listed(&place), json!([]));
    assert!(!place.path("state").exists(), "looking has made books");
    let session = Session::start(&place, &["sh", "-c", "sleep 60 & echo up; wait"]);
    let list = listed(&place);
    let [one] = &list.as_array().unwrap()[..] else { panic!("{list}") };
    let keys: BTreeSet<&str> = one.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(FIELDS));
    assert_eq!((&one["server"], &one["state"]), (&json!("sh"), &json!("ready")));
    assert_eq!((&one["within"], &one["evidence"]), (&Value::Null, &json!([])));
    assert_eq!(one["wrapper"], session.child.id());
    assert_eq!(one["host"]["pid"], std::process::id());
    let own = fs::read_to_string("/proc/self/comm").unwrap();
    assert_eq!(one["host"]["name"], own.trim_end());
    // The shell and its child; those who hold them are not the server's.
    assert_eq!(one["processes"], 2, "{one}");
    assert!(one["rss_bytes"].as_u64().unwrap() > 0);
    assert!((0.0..60.0).contains(&one["age_s"].as_f64().unwrap()));
    let started = events(&place).remove(0);
    assert_eq!((&one["session"], &one["backend"]), (&started["session"], &started["backend"]));
    let table = text(&place, &[]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2, "{table}");
    assert!(lines[0].starts_with("SESSION") && lines[1].contains("ready"), "{table}");
    drop(session);
    let nobody = || listed(&place) == json!([]);
    assert!(until(PATIENCE, nobody), "{}", listed(&place));
    assert_eq!(text(&place, &[]), "no sessions\n");
    assert!(until(PATIENCE, || pages(&place).is_empty()));
    assert_nothing_left(&place);
}

#[test]
fn what_a_session_says_of_itself_is_shown() {
    let place = Place::new();
    let session = Session::start(&place, &["sh", "-c", "echo up; exec cat"]);
    let page = pages(&place).into_iter().find(|page| page.extension().unwrap() == "json").unwrap();
    let quiet = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let told = json!({
        "began_ms": 1, "state": "asleep", "since_ms": 1,
        "quiet_since_ms": quiet.as_millis() as u64 - 90_000, "evidence": ["host-orphaned"],
    });
    fs::write(page.with_extension("state"), told.to_string()).unwrap();
    let one = listed(&place)[0].take();
    assert_eq!((&one["state"], &one["evidence"]), (&json!("asleep"), &json!(["host-orphaned"])));
    assert!((90.0..150.0).contains(&one["idle_s"].as_f64().unwrap()), "{one}");
    assert!(text(&place, &[]).contains("host-orphaned"));
    drop(session);
    assert!(until(PATIENCE, || pages(&place).is_empty()), "{:?}", pages(&place));
}

#[test]
fn a_crashed_session_is_finished_before_anybody_is_listed() {
    let place = Place::new();
    let session = Session::start(&place, &["sh", "-c", "echo up; exec cat"]);
    let page = pages(&place).into_iter().find(|page| page.extension().unwrap() == "json").unwrap();
    let mut page: Value = serde_json::from_slice(&fs::read(page).unwrap()).unwrap();
    drop(session);
    assert!(until(PATIENCE, || pages(&place).is_empty()));
    // As a crash would leave it: nobody holds it.
    page["session"] = json!("0123456789abcde");
    page["mark"] = json!(page["mark"].as_u64().unwrap() ^ 1);
    page["leaf"] = Value::Null;
    fs::write(place.path("state/sessions/0123456789abcde.json"), page.to_string()).unwrap();
    assert_eq!(listed(&place), json!([]));
    assert_eq!(events(&place).last().unwrap()["session"], "0123456789abcde");
    assert_nothing_left(&place);
}

#[track_caller]
fn text(place: &Place, options: &[&str]) -> String {
    let output = finish(place.lariat("ps").args(options));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn listed(place: &Place) -> Value {
    serde_json::from_str(&text(place, &["--json"])).unwrap()
}

/// A wrapped server that has said its first line. It ends when this is dropped.
struct Session {
    child: Child,
    /// Kept: a host that does not read any more has ended the session.
    _stdout: BufReader<ChildStdout>,
}

impl Session {
    fn start(place: &Place, server: &[&str]) -> Session {
        let mut run: Command = place.lariat("run");
        run.args(["--grace", "100ms", "--"]).args(server);
        let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let session = Session { child, _stdout: stdout };
        assert_eq!(line, "up\n");
        session
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if !until(PATIENCE, || self.child.try_wait().unwrap().is_some()) {
            self.child.kill().unwrap();
        }
        self.child.wait().unwrap();
    }
}
