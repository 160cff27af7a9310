//! What the next command does after wrapper and guardian were killed at once: all of it is ended and written
//! down, whoever says that, at whatever moment, and however little can be read.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host/books.rs"]
mod books;
#[path = "host/place.rs"]
mod place;

use books::{assert_nothing_left, events, pages};
use place::{PATIENCE, Place};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use trials::{Witness, until};

/// Waits in the directory until it is told to go on, and then asks who lives; deaf to whoever asks it to leave.
const ASKS: &str = "trap '' TERM; echo up; while [ ! -e go ]; do sleep 0.02; done; \
    \"$0\" ps --state-dir state >said; mv said heard; exec sleep 100";

/// The same below a session of its own, whose words are its mark.
const ASKS_FROM_BELOW: &str = "trap '' TERM; \"$0\" run --state-dir state --backend descent \
    --max-starts off -- sh -c \"$(cat asks)\" \"$0\" \"$1\"";

/// A wrapped server that is up.
struct Session {
    wrapper: Child,
    witness: Witness,
}

impl Session {
    /// `sh -c SCRIPT lariat TOKEN`, held by descent: there is no leaf to know it by.
    fn start(place: &Place, before: &[&str], script: &str) -> Session {
        let token = format!("swept-{}-token", place.path("").display());
        let mut run = place.lariat("run");
        run.args(["--backend", "descent", "--max-starts", "off", "--", "sh", "-c", script]);
        run.arg(env!("CARGO_BIN_EXE_lariat")).arg(&token);
        if let [program, words @ ..] = before {
            let mut front = Command::new(program);
            front.args(words).arg(run.get_program()).args(run.get_args());
            run = std::mem::replace(&mut front, run);
            run.current_dir(place.path(""));
        }
        run.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut wrapper = run.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(wrapper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        Session { wrapper, witness: Witness::new(&token, &[]) }
    }

    /// Kills wrapper and guardian, who are a child of ours and a child of that.
    fn crash(&mut self) {
        let wrapper = self.wrapper.id();
        let children = fs::read_to_string(format!("/proc/{wrapper}/task/{wrapper}/children"));
        let guardian = children.unwrap().trim().parse().unwrap();
        for pid in [wrapper as i32, guardian] {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        }
    }

    fn assert_gone(&mut self) {
        self.wrapper.wait().unwrap();
        assert!(until(PATIENCE, || self.witness.nobody_in(2)), "{:?}", self.witness.look());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // After a failed check: whatever is left of it must not stay.
        let _nobody = self.witness.end_all();
        let _reaped = self.wrapper.wait();
    }
}

/// How many are in the books. A session may have other files beside its page.
fn sessions(place: &Place) -> usize {
    pages(place).iter().filter(|page| page.extension().is_some_and(|kind| kind == "json")).count()
}

/// The receipt of the sweep says how many were killed.
#[track_caller]
fn assert_swept(place: &Place) {
    assert_killed(place);
    assert_nothing_left(place);
}

#[track_caller]
fn assert_killed(place: &Place) {
    let events = events(place);
    let receipt = events.iter().find(|event| event["reason"] == "wrapper-died").unwrap();
    assert_eq!(receipt["survivors"], serde_json::json!([]), "{receipt}");
    assert!(receipt["processes"]["killed"].as_u64() >= Some(1), "{receipt}");
}

#[track_caller]
fn ps(place: &Place) {
    let output = place.lariat("ps").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn at_once() {
    for _ in 0..5 {
        let place = Place::new();
        let mut session =
            Session::start(&place, &[], "trap '' TERM; echo up; sleep 100 & wait; wait");
        session.crash();
        // They are killed and need not be gone yet.
        ps(&place);
        session.assert_gone();
        assert_swept(&place);
    }
}

#[test]
fn whoever_has_a_real_time_limit_of_its_own() {
    for limit in ["--rttime=200000:200000", "--rttime=200000:unlimited"] {
        let place = Place::new();
        let script = "trap '' TERM; echo up; env -i setsid sleep 100 & wait; wait";
        let mut session = Session::start(&place, &["prlimit", limit], script);
        session.crash();
        ps(&place);
        session.assert_gone();
        assert_swept(&place);
    }
}

#[test]
fn not_by_one_of_its_own() {
    let place = Place::new();
    let mut session = Session::start(&place, &[], ASKS);
    session.crash();
    session.wrapper.wait().unwrap();
    fs::write(place.path("go"), "").unwrap();
    assert!(until(PATIENCE, || place.path("heard").exists()), "it has ended, or stopped, itself");
    assert_eq!(pages(&place).len(), 1, "somebody else is to do it");
    ps(&place);
    session.assert_gone();
    assert_swept(&place);
}

#[test]
fn not_by_one_that_is_below_its_own() {
    let place = Place::new();
    fs::write(place.path("asks"), ASKS).unwrap();
    let mut session = Session::start(&place, &[], ASKS_FROM_BELOW);
    session.crash();
    session.wrapper.wait().unwrap();
    fs::write(place.path("go"), "").unwrap();
    assert!(until(PATIENCE, || place.path("heard").exists()), "it has ended, or stopped, itself");
    assert_eq!(sessions(&place), 2, "somebody else is to do it");
    // The first finishes the outer session, and so ends those who held the inner one.
    ps(&place);
    ps(&place);
    session.assert_gone();
    assert_swept(&place);
}

#[test]
fn by_whoever_joins_a_daemon() {
    let place = Place::new();
    let mut daemon = place.lariat("daemon");
    daemon.args(["--containers", "leave"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut daemon = Killed(daemon.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(daemon.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on /"), "{line}");
    let mut session = Session::start(&place, &[], "trap '' TERM; echo up; sleep 100 & wait; wait");
    session.crash();
    session.wrapper.wait().unwrap();
    let mut join = place.lariat("run");
    join.args(["--share", "--", "cat"]).stdin(Stdio::null()).stdout(Stdio::null());
    join.status().unwrap();
    session.assert_gone();
    assert_killed(&place);
}

/// A daemon that goes when the test does.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn under_another_name_of_the_machine() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    let mut session = Session::start(&place, &[], "trap '' TERM; echo up; sleep 100 & wait; wait");
    session.crash();
    session.wrapper.wait().unwrap();
    let run = place.lariat("ps");
    let mut renamed = Command::new("unshare");
    renamed.args(["--uts", "sh", "-c", "hostname renamed && exec \"$@\"", "sh"]);
    renamed.arg(run.get_program()).args(run.get_args());
    assert!(renamed.status().unwrap().success());
    session.assert_gone();
    assert_swept(&place);
}

/// The first process of a namespace is killed, and all in there with it: nobody can be in there to write that down.
#[test]
fn whose_namespace_has_gone() {
    if !rustix::process::geteuid().is_root()
        || fs::read_link("/proc/self/ns/pid").unwrap().as_os_str() != "pid:[4026531836]"
    {
        return;
    }
    let place = Place::new();
    let before = ["unshare", "-p", "-f", "--kill-child", "--mount-proc"];
    let mut session = Session::start(&place, &before, "trap '' TERM; echo up; sleep 100 & wait");
    assert_eq!(sessions(&place), 1);
    session.wrapper.kill().unwrap();
    session.assert_gone();
    ps(&place);
    assert_nothing_left(&place);
}

/// `lariat ps` that cannot open this. Nothing if there is no strace; `./test` says so.
fn blind_ps(place: &Place, path: &str, error: &str) -> Option<Output> {
    let run = place.lariat("ps");
    let mut blind = Command::new("strace");
    blind.args(["-f", "-q", "-o", "/dev/null", "-P", path, "-e", "trace=open,openat"]);
    blind.args(["-e", &format!("inject=open,openat:error={error}"), "--"]);
    blind.arg(run.get_program()).args(run.get_args()).stdin(Stdio::null());
    blind.output().ok()
}

/// What only shows processes, as with `subset=pid`, does not say which number was given out last.
#[test]
fn though_nobody_tells_who_is_the_newest() {
    let place = Place::new();
    let mut session = Session::start(&place, &[], "trap '' TERM; echo up; sleep 100 & wait; wait");
    session.crash();
    session.wrapper.wait().unwrap();
    let Some(_said) = blind_ps(&place, "/proc/loadavg", "ENOENT") else { return };
    session.assert_gone();
    assert_swept(&place);
}

/// One command cannot read this; it forgets nobody, and the next can.
#[track_caller]
fn assert_not_forgotten(path: &str, error: &str) {
    let place = Place::new();
    let mut session = Session::start(&place, &[], "trap '' TERM; echo up; sleep 100 & wait; wait");
    session.crash();
    session.wrapper.wait().unwrap();
    let Some(_said) = blind_ps(&place, path, error) else { return };
    assert_eq!(sessions(&place), 1);
    ps(&place);
    session.assert_gone();
    assert_nothing_left(&place);
}

#[test]
fn though_one_could_not_tell_which_boot_it_was() {
    assert_not_forgotten("/proc/sys/kernel/random/boot_id", "ENFILE");
}

#[test]
fn though_one_could_not_list_the_processes() {
    assert_not_forgotten("/proc", "EMFILE");
}
