//! `lariat top` on a terminal: what it shows, what keys do, and that the terminal is given back.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "a test says what it skips")]

#[path = "host/books.rs"]
mod books;
#[path = "host/finish.rs"]
mod finish;
#[path = "host/place.rs"]
mod place;
#[path = "ps/session.rs"]
mod session;

use books::{assert_nothing_left, events, pages};
use finish::finish;
use place::{PATIENCE, Place};
use serde_json::{Value, json};
use session::Session;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use trials::until;

const TERMINAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ps/terminal.py");

/// Runs `lariat top` on a terminal of this size and does these steps. `None`, with a word, where there
/// is no Python to have a terminal with.
#[track_caller]
fn top(place: &Place, size: (u16, u16), options: &[&str], steps: &[&str]) -> Option<String> {
    let python = Command::new("python3").args(["-c", "import os; os.login_tty"]).output();
    if !python.is_ok_and(|python| python.status.success()) {
        eprintln!("skipped: no python3 of 3.11 or later, so no terminal");
        return None;
    }
    let lariat = place.lariat("top");
    let mut command = Command::new("python3");
    command.arg(TERMINAL).args([size.0, size.1].map(|n| n.to_string()));
    command.arg(lariat.get_program()).args(lariat.get_args()).args(options);
    command.env("TERM", "xterm").env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR");
    let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut driver = streams.spawn().unwrap();
    driver.stdin.take().unwrap().write_all((steps.join("\n") + "\n").as_bytes()).unwrap();
    // It has deadlines of its own.
    let output = driver.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    Some(String::from_utf8(output.stdout).unwrap())
}

const GOOD: &str = "left with 0, restored: true\n";

#[test]
fn it_shows_sorts_and_gives_the_terminal_back() {
    let place = Place::new();
    let sessions = ["alpha", "beta"].map(|name| {
        Session::start(
            &place,
            &["--name", name],
            &["sh", "-c", &format!("echo up; sleep 60 & cat # {name}")],
        )
    });
    let steps = [
        "await alpha",
        "await RSS↓",
        "await 2 sessions  2 ready",
        "await sleep",
        "type n",
        "await SERVER↑",
        "screen",
        "type r",
        "await SERVER↓",
        "screen",
        "type ?",
        "await any key",
        "type x",
        "resize 10 40",
        "await choose",
        "screen",
        "resize 24 80",
        "await memory",
        "type q",
        "leave",
    ];
    let Some(said) = top(&place, (24, 80), &[], &steps) else { return };
    assert!(said.ends_with(GOOD), "{said}");
    let screens: Vec<&str> = said.split("---\n").collect();
    let (by_name, reversed, small) = (screens[1], screens[3], screens[5]);
    // The list alone: the pane below has the chosen one's name as well.
    let first = |screen: &str| screen.lines().nth(3).unwrap_or_default().trim().to_string();
    assert!(first(by_name).starts_with("alpha"), "{by_name}");
    assert!(first(reversed).starts_with("beta"), "{reversed}");
    assert_eq!(small.lines().count(), 10, "{small}");
    assert!(small.contains("alpha") && small.contains("beta"), "{small}");
    assert!(small.lines().all(|line| line.chars().count() <= 40), "{small}");
    drop(sessions);
    assert!(until(PATIENCE, || pages(&place).is_empty()));
    assert_nothing_left(&place);
}

#[test]
fn ending_a_server_takes_a_yes_and_leaves_a_receipt() {
    let place = Place::new();
    let mut session =
        Session::start(&place, &["--name", "doomed"], &["sh", "-c", "echo up; exec cat"]);
    let no = [
        "await doomed",
        "type e",
        "await end doomed (1 process)? y/N",
        "type n",
        "await nothing was ended",
        "type \\x03",
        "leave",
    ];
    let Some(said) = top(&place, (24, 80), &["--every", "100ms"], &no) else { return };
    assert_eq!(said, GOOD);
    assert!(session.child.try_wait().unwrap().is_none(), "it ended without a yes");
    let yes = [
        "await doomed",
        "type k",
        "await y/N",
        "type y",
        "await doomed ended: signal:TERM, 1 process, nobody survived",
        "await no sessions",
        "type q",
        "leave",
    ];
    assert_eq!(top(&place, (24, 80), &["--every", "100ms"], &yes).unwrap(), GOOD);
    assert!(until(PATIENCE, || session.child.try_wait().unwrap().is_some()));
    let ended = events(&place).pop().unwrap();
    assert_eq!((&ended["reason"], &ended["server"]), (&"signal:TERM".into(), &"doomed".into()));
}

/// A daemon that ends with this.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        // Not waited for yet, so the number is its own.
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let left = until(PATIENCE, || self.0.try_wait().unwrap().is_some());
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        assert!(left || std::thread::panicking());
    }
}

#[test]
fn a_session_of_the_daemon_ends_as_a_whole() {
    let place = Place::new();
    let mut daemon = place.lariat("daemon");
    daemon.args(["--containers", "leave", "--grace", "100ms"]).stdin(Stdio::null());
    let mut daemon = Daemon(daemon.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(daemon.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let lariat = env!("CARGO_BIN_EXE_lariat");
    let config = json!({"servers": {
        "one": {"command": lariat, "args": ["__misbehave", "polite", "top-test-token"]},
        "two": {"command": lariat, "args": ["__misbehave", "polite", "top-test-token"]},
    }});
    fs::write(place.path("servers.json"), config.to_string()).unwrap();
    let mut open = Command::new(lariat);
    open.args(["session", "open", "--state-dir"]).arg(place.path("state")).arg("--config");
    open.arg(place.path("servers.json")).arg("--owner-pid").arg(std::process::id().to_string());
    let opened = finish(&mut open);
    assert!(opened.status.success(), "{}", String::from_utf8_lossy(&opened.stderr));
    let id = String::from_utf8(opened.stdout).unwrap();
    let list = || -> Value {
        serde_json::from_slice(&finish(place.lariat("ps").arg("--json")).stdout).unwrap()
    };
    let listed = list();
    for at in [0, 1] {
        assert_eq!(
            (&listed[at]["within"], &listed[at]["state"]),
            (&id.trim().into(), &"ready".into())
        );
        assert!(listed[at]["idle_s"].is_number(), "nobody knows since when it is idle: {listed}");
    }
    let ask = format!("await end session {} of ", id.trim());
    let steps =
        ["await 2 sessions", "type e", &ask, "type y", "await no sessions", "type q", "leave"];
    let said = top(&place, (24, 80), &["--every", "100ms"], &steps);
    assert_eq!(said.as_deref().unwrap_or(GOOD), GOOD);
    if said.is_some() {
        let reasons: Vec<Value> =
            events(&place).iter().map(|event| event["reason"].clone()).collect();
        let closed = reasons.iter().filter(|reason| **reason == "closed").count();
        assert_eq!(closed, 2, "{reasons:?}");
    }
}

#[test]
fn signals_and_hang_up_give_the_terminal_back() {
    let place = Place::new();
    for signal in ["SIGTERM", "SIGINT", "SIGHUP"] {
        let steps = ["await no sessions", &format!("signal {signal}"), "leave"];
        let Some(said) = top(&place, (24, 80), &[], &steps) else { return };
        assert_eq!(said, GOOD, "{signal}");
    }
}

#[test]
fn what_is_no_terminal_is_told_so() {
    let place = Place::new();
    let output = finish(&mut place.lariat("top"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    assert!(said.contains("terminal") && said.contains("lariat ps --watch"), "{said}");
}
