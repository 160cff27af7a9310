//! What `lariat run` promises whoever starts it: the server's exit code, a receipt of a fixed shape
//! with the reason, signals passed on, and books that bear being shared, cut off and misplaced.
//!
//! What it must not change is in `untouched.rs`, how it refuses in `refused.rs`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host/books.rs"]
mod books;
#[path = "host/finish.rs"]
mod finish;
#[path = "host/page.rs"]
mod page;
#[path = "host/place.rs"]
mod place;

use books::{assert_nothing_left, events, pages};
use finish::finish;
use page::documented;
use place::{PATIENCE, Place};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::Timespec;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use trials::until;

const TOP: [&str; 11] = [
    "session",
    "server",
    "reason",
    "backend",
    "started",
    "ended",
    "duration_ms",
    "teardown_ms",
    "processes",
    "containers",
    "survivors",
];

#[test]
fn the_exit_code_is_the_servers() {
    let place = Place::new();
    for code in [0, 1, 2, 42, 124, 125, 126, 127, 128, 137, 143, 254, 255] {
        let script = format!("exit {code}");
        assert_eq!(exit_code(&place, &["sh", "-c", &script]), code);
    }
}

#[test]
fn the_exit_code_is_128_and_the_signal_that_ended_the_server() {
    let place = Place::new();
    // HUP, INT, QUIT, ABRT, KILL, USR1, SEGV, PIPE, TERM and the last real-time one.
    for signal in [1, 2, 3, 6, 9, 10, 11, 13, 15, 64] {
        let script = format!("ulimit -c 0; kill -{signal} $$");
        let code = exit_code(&place, &["sh", "-c", &script]);
        assert_eq!(code, 128 + signal, "signal {signal}");
    }
}

#[test]
fn a_receipt_is_one_object_with_the_fields_of_the_contract() {
    let place = Place::new();
    let options = ["--name", "worker", "--receipt", "receipt.json"];
    let output = finish(place.lariat("run").args(options).args(["--", "true"]));
    assert!(output.status.success());
    // A relative path is where the host was when it started us.
    let text = fs::read_to_string(place.path("receipt.json")).unwrap();
    assert_eq!(text.find('\n'), Some(text.len() - 1), "one line: {text}");
    let receipt: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(fields(&receipt), BTreeSet::from(TOP));
    assert!(documented("A receipt").is_superset(&BTreeSet::from(TOP)), "docs/guide/json.md");
    let ways = BTreeSet::from(["seen", "left", "asked", "killed"]);
    assert_eq!(fields(&receipt["processes"]), ways);
    assert_eq!(receipt["server"], "worker");
    assert_eq!(receipt["reason"], "exited");
    assert_eq!(receipt["survivors"], json!([]));
    let left = json!({"seen": 1, "left": 1, "asked": 0, "killed": 0});
    assert_eq!(receipt["processes"], left);
    let backends = ["cgroup", "descent", "pidns"];
    assert!(backends.contains(&receipt["backend"].as_str().unwrap()));
    assert!(receipt["duration_ms"].is_u64());
    assert!(!receipt["session"].as_str().unwrap().is_empty());
    let moment = |field: &str| receipt[field].as_str().unwrap().to_owned();
    for field in ["started", "ended"] {
        let written = moment(field);
        assert!(written.len() == 24 && written.ends_with('Z'), "{written}");
    }
    assert!(moment("started") <= moment("ended"));
    assert_nothing_left(&place);
}

#[test]
fn the_event_log_has_the_receipt_and_the_start_before_it() {
    let place = Place::new();
    let options = ["--receipt", "receipt.json", "--", "true"];
    assert!(finish(place.lariat("run").args(options)).status.success());
    let mut events = events(&place);
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(events[0]["event"], "started");
    let mut ended = events.remove(1);
    let ended = ended.as_object_mut().unwrap();
    assert_eq!(ended.remove("event"), Some(json!("ended")));
    assert!(ended.remove("time").is_some_and(|time| time.is_string()));
    assert_eq!(Value::from(ended.clone()), receipt(&place));
    assert_eq!(events[0]["session"], ended["session"]);
}

#[test]
fn closing_stdin_is_a_reason() {
    for mode in MODES {
        let place = Place::new();
        let mut session = Session::start(&place, mode, &["cat"]);
        session.say("hello");
        assert_eq!(session.hear(), "hello");
        session.hang_up();
        assert_eq!(session.code(), 0);
        assert_ended_by(&place, "stdin-closed");
    }
}

#[test]
fn a_signal_is_a_reason_and_reaches_the_server() {
    for (signal, name) in
        [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP"), (Signal::QUIT, "QUIT")]
    {
        let place = Place::new();
        let mut session = Session::start(&place, &[], &["sh", "-c", "echo up; exec cat"]);
        assert_eq!(session.hear(), "up");
        session.signal(signal);
        assert_eq!(session.code(), 128 + signal.as_raw(), "SIG{name}");
        assert_ended_by(&place, &format!("signal:{name}"));
    }
}

#[test]
fn a_server_that_handles_a_signal_has_the_last_word() {
    let place = Place::new();
    let script = "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 1; done";
    let mut session = Session::start(&place, &[], &["sh", "-c", script]);
    assert_eq!(session.hear(), "up");
    session.signal(Signal::TERM);
    assert_eq!(session.hear(), "bye");
    assert_eq!(session.code(), 5);
    assert_ended_by(&place, "signal:TERM");
}

#[test]
fn the_second_sigterm_skips_the_grace() {
    let place = Place::new();
    let patient = ["--grace", "30s", "--term-grace", "30s"];
    let script = "trap 'echo no' TERM; echo up; while :; do sleep 1; done";
    let mut session = Session::start(&place, &patient, &["sh", "-c", script]);
    assert_eq!(session.hear(), "up");
    session.signal(Signal::TERM);
    // Two at once would be one: the kernel does not count them.
    assert_eq!(session.hear(), "no");
    session.signal(Signal::TERM);
    assert_eq!(session.code(), 137);
    assert_ended_by(&place, "signal:TERM");
    assert!(receipt(&place)["processes"]["killed"].as_u64() >= Some(1));
}

#[test]
fn signals_that_do_not_mean_stop_are_passed_on() {
    for (signal, name) in [(Signal::USR1, "USR1"), (Signal::USR2, "USR2"), (Signal::WINCH, "WINCH")]
    {
        let place = Place::new();
        // A trap may interrupt the read.
        let read = "until read line; do :; done";
        let script = format!("trap 'echo {name}' {name}; echo up; {read}; echo $line; exit 7");
        let mut session = Session::start(&place, &[], &["sh", "-c", &script]);
        assert_eq!(session.hear(), "up");
        session.signal(signal);
        assert_eq!(session.hear(), name);
        // And the conversation goes on.
        session.say("still here");
        assert_eq!(session.hear(), "still here");
        assert_eq!(session.code(), 7);
        assert_ended_by(&place, "exited");
    }
}

#[test]
fn a_server_sees_that_its_host_reads_no_more() {
    // Bare, the next write fails. Nobody has to wait for the grace to end.
    let script = "trap '' PIPE TERM; while echo words; do sleep 0.05; done; exit 6";
    for mode in MODES {
        let place = Place::new();
        let options = [&["--grace", "60s"], mode].concat();
        let mut session = Session::start(&place, &options, &["sh", "-c", script]);
        assert_eq!(session.hear(), "words");
        session.stop_reading();
        assert_eq!(session.code(), 6, "{mode:?}");
        assert_ended_by(&place, "failed:stdout-closed");
    }
}

#[test]
fn the_hosts_death_is_a_reason_even_if_its_pipe_stays_open() {
    for mode in MODES {
        let place = Place::new();
        let mut run = place.lariat("run");
        run.args(mode).args(["--receipt", "receipt.json"]);
        run.args(["--", "sh", "-c", "echo up; exec cat"]);
        // The host is a shell; the pipe's other end is ours and stays open.
        let mut host = Command::new("sh");
        host.args(["-c", "exec 3<&0; \"$@\" <&3 3<&- & wait", "sh"]);
        host.arg(run.get_program()).args(run.get_args());
        host.current_dir(run.get_current_dir().unwrap());
        let mut host = Session::of(host);
        assert_eq!(host.hear(), "up");
        host.signal(Signal::KILL);
        await_receipt(&place);
        assert_ended_by(&place, "host-died");
        host.hang_up();
    }
}

#[test]
fn the_wrappers_death_is_a_reason_that_its_guardian_writes_down() {
    for mode in MODES {
        let place = Place::new();
        let server = ["sh", "-c", "echo up; exec cat"];
        let mut session = Session::start(&place, mode, &server);
        assert_eq!(session.hear(), "up");
        session.signal(Signal::KILL);
        await_receipt(&place);
        assert_ended_by(&place, "wrapper-died");
        // The guardian asked first, and nothing had to be killed.
        assert_eq!(receipt(&place)["processes"]["killed"], 0);
    }
}

#[test]
fn two_sessions_of_one_name_do_not_meet() {
    let place = Place::new();
    let script = "echo $0 >&2; echo up; exec cat";
    let start = |receipt: &str, word: &str| {
        let mut run = place.lariat("run");
        run.args(["--name", "twin", "--receipt", receipt, "--"]);
        run.args(["sh", "-c", script, word]).stderr(Stdio::null());
        Session::of(run)
    };
    let mut twins = [start("a.json", "one"), start("b.json", "two")];
    for twin in &mut twins {
        assert_eq!(twin.hear(), "up");
    }
    assert_eq!(pages(&place).len(), 2);
    for (number, twin) in twins.iter_mut().enumerate() {
        let word = number.to_string();
        twin.say(&word);
        assert_eq!(twin.hear(), word);
    }
    for twin in &mut twins {
        twin.hang_up();
        assert_eq!(twin.code(), 0);
    }
    let [a, b] = ["a.json", "b.json"].map(|name| read_json(&place.path(name)));
    assert_eq!((&a["server"], &b["server"]), (&json!("twin"), &json!("twin")));
    assert_ne!(a["session"], b["session"]);
    let log = fs::read_to_string(place.path("state/logs/twin.log")).unwrap();
    assert_eq!(BTreeSet::from_iter(log.lines()), BTreeSet::from(["one", "two"]));
    assert_nothing_left(&place);
}

#[test]
fn garbage_in_the_books_harms_nobody() {
    let place = Place::new();
    let sessions = place.path("state/sessions");
    fs::create_dir_all(sessions.join("directory.json")).unwrap();
    for (name, text) in [
        ("empty.json", ""),
        ("text.json", "what is this"),
        ("list.json", "[1, 2, 3]"),
        ("other.json", "{\"session\": 1}"),
        ("binary.json", "\0\0\0\0"),
        ("draft.new", "{"),
        ("README", "not a session"),
    ] {
        fs::write(sessions.join(name), text).unwrap();
    }
    let output = finish(place.lariat("run").args(["--", "echo", "fine"]));
    assert_eq!((output.status.code(), output.stdout), (Some(0), b"fine\n".to_vec()));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    // What cannot be read is not ours to judge, until it is old.
    assert!(sessions.join("text.json").exists());
    let of_garbage = |event: &Value| event["server"] != "echo";
    assert!(!events(&place).iter().any(of_garbage));
}

#[test]
fn a_crashed_sessions_page_does_not_harm_whoever_has_its_pids_now() {
    let place = Place::new();
    let mut session = Session::start(&place, &[], &["cat"]);
    session.say("up");
    assert_eq!(session.hear(), "up");
    let mut page = read_json(&pages(&place)[0]);
    session.hang_up();
    assert_eq!(session.code(), 0);
    let mut bystander = Session::of(Command::new("cat"));
    // The same page as a crash would leave it, except that its numbers are the bystander's by now.
    page["session"] = json!("0123456789abcde");
    page["mark"] = json!(page["mark"].as_u64().unwrap() ^ 1);
    page["wrapper"][0] = json!(bystander.child.id());
    page["host"][0] = json!(bystander.child.id());
    page["receipt"] = Value::Null;
    page["leaf"] = Value::Null;
    let path = place.path("state/sessions/0123456789abcde.json");
    fs::write(&path, page.to_string()).unwrap();
    assert!(finish(place.lariat("run").args(["--", "true"])).status.success());
    assert!(!path.exists(), "the crash was not dealt with");
    let swept =
        |event: &Value| event["session"] == "0123456789abcde" && event["reason"] == "wrapper-died";
    assert_eq!(events(&place).iter().filter(|event| swept(event)).count(), 1);
    bystander.say("alive");
    assert_eq!(bystander.hear(), "alive");
    bystander.hang_up();
    assert_eq!(bystander.code(), 0);
}

#[test]
fn a_state_directory_may_have_any_name() {
    let place = Place::new();
    for name in ["with a space", "Zustände 目录", "-dash", "new\nline"] {
        let dir = place.path(name);
        fs::create_dir(&dir).unwrap();
        let mut run = Command::new(env!("CARGO_BIN_EXE_lariat"));
        run.arg("run").arg("--state-dir").arg(&dir);
        run.arg("--receipt").arg(dir.join("a receipt.json"));
        let output = finish(run.args(["--", "echo", "fine"]));
        assert_eq!(output.stdout, b"fine\n", "{name}");
        assert_eq!(read_json(&dir.join("a receipt.json"))["reason"], "exited");
        assert_eq!(fs::read_dir(dir.join("sessions")).unwrap().count(), 0);
    }
}

/// Options of every mode.
const MODES: [&[&str]; 3] = [&[], &["--relay"], &["--idle", "1h"]];

/// A process and the pipes that we as its host have.
struct Session {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Session {
    /// A wrapped server with its receipt in `receipt.json`.
    fn start(place: &Place, options: &[&str], server: &[&str]) -> Session {
        let mut run = place.lariat("run");
        run.args(options).args(["--receipt", "receipt.json", "--"]);
        run.args(server);
        Session::of(run)
    }

    fn of(mut command: Command) -> Session {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Session { child, stdout }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next line, empty at the end.
    fn hear(&mut self) -> String {
        if self.stdout.buffer().is_empty() {
            let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            let mut fds = [PollFd::new(self.stdout.get_ref(), PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&patience)), Ok(1), "nothing was said");
        }
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn hang_up(&mut self) {
        self.child.stdin = None;
    }

    fn stop_reading(&mut self) {
        let (nothing, _) = std::io::pipe().unwrap();
        self.stdout = BufReader::new(std::os::fd::OwnedFd::from(nothing).into());
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn code(&mut self) -> i32 {
        let left = until(PATIENCE, || self.child.try_wait().unwrap().is_some());
        assert!(left, "the wrapper does not end");
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // After a failed check: whatever is left of it must not stay.
        let _left = self.child.kill();
        let _left = self.child.wait();
    }
}

fn exit_code(place: &Place, server: &[&str]) -> i32 {
    finish(place.lariat("run").arg("--").args(server)).status.code().unwrap()
}

fn fields(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn receipt(place: &Place) -> Value {
    read_json(&place.path("receipt.json"))
}

/// Waits for the receipt of a session whose wrapper we cannot wait for.
#[track_caller]
fn await_receipt(place: &Place) {
    let (path, sessions) = (place.path("receipt.json"), place.path("state/sessions"));
    let is_over = || path.exists() && fs::read_dir(&sessions).unwrap().count() == 0;
    assert!(until(PATIENCE + Duration::from_secs(5), is_over), "no receipt");
}

/// The receipt and the last event give this reason, once, and nothing is left.
#[track_caller]
fn assert_ended_by(place: &Place, reason: &str) {
    assert_eq!(receipt(place)["reason"], reason);
    let ends: Vec<Value> = events(place).into_iter().filter(|e| e["event"] == "ended").collect();
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0]["reason"], reason);
    assert_eq!(ends[0]["survivors"], json!([]));
    assert_nothing_left(place);
}
