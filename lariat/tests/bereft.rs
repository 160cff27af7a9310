//! What the wrapper does after its guardian alone was killed: the same as that, with those children around that it
//! had before, which stay.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host/books.rs"]
mod books;
#[path = "host/place.rs"]
mod place;

use books::{assert_nothing_left, events};
use place::{PATIENCE, Place};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use trials::{Process, Witness, until};

/// Whoever a shell has started before it became the wrapper is not the server's.
const BEFORE: &str = "sleep 100 & exec \"$@\"";

/// A member that has the limit which the mark is written into, and one of another session of Lariat's below this one.
const SCRIPTS: [&str; 2] = [
    "trap '' TERM; \
     prlimit --rttime=200000:unlimited sh -c 'trap \"\" TERM; echo up; sleep 100 & wait; wait' \"$1\" & wait; wait",
    "trap '' TERM; \"$0\" run --backend descent --max-starts off -- \
     sh -c 'trap \"\" TERM; echo up; sleep 100 & wait; wait' \"$1\" & wait; wait",
];

#[test]
fn who_is_below_a_member_is_one_and_who_was_there_before_is_not() {
    for script in SCRIPTS {
        let place = Place::new();
        let token = format!("bereft-{}-token", place.path("").display());
        let run = place.lariat("run");
        let mut host = Command::new("sh");
        host.args(["-c", BEFORE, "sh"]).arg(run.get_program()).args(run.get_args());
        host.args(["--backend", "descent", "--grace", "200ms", "--term-grace", "200ms", "--"]);
        host.args(["sh", "-c", script]).arg(env!("CARGO_BIN_EXE_lariat")).arg(&token);
        host.env("XDG_STATE_HOME", place.path("inner")).current_dir(place.path(""));
        let mut wrapper = host.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(wrapper.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        let mut witness = Witness::new(&token, &[]);
        let pid = wrapper.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let children: Vec<i32> = children.split(' ').filter_map(|pid| pid.parse().ok()).collect();
        let [before, guardian] = children[..] else { panic!("{children:?}") };
        let before = Process::now(before).unwrap();
        kill_process(Pid::from_raw(guardian).unwrap(), Signal::KILL).unwrap();
        drop(wrapper.stdin.take());
        assert!(until(PATIENCE, || wrapper.try_wait().unwrap().is_some()), "it stays");
        let left = witness.look();
        let _nobody = witness.end_all();
        assert_eq!(left, [], "{script}");
        assert!(before.is_alive(), "{script}: a bystander was harmed");
        kill_process(Pid::from_raw(before.pid).unwrap(), Signal::KILL).unwrap();
        let events = events(&place);
        let receipt = events.iter().find(|event| event["event"] == "ended").unwrap();
        assert_eq!(receipt["survivors"], serde_json::json!([]), "{receipt}");
        assert_nothing_left(&place);
    }
}
