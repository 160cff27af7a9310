//! What somebody else has in his grip holds up no end: a command that cannot be executed yet, a dead process that
//! only its tracer may collect, a child of the owner that nobody waits for.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host/books.rs"]
mod books;
#[path = "host/place.rs"]
mod place;

use books::{assert_nothing_left, events};
use place::{PATIENCE, Place};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use trials::{Lease, Traced, until};

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
}

#[track_caller]
fn assert_ends(child: &mut Child) {
    let ended = until(PATIENCE, || child.try_wait().unwrap().is_some());
    if !ended {
        let _nobody = (child.kill(), child.wait());
    }
    assert!(ended, "the wrapper does not end");
}

#[test]
fn a_command_that_cannot_be_executed_yet() {
    for backend in ["cgroup", "descent", "pidns"] {
        if backend != "descent" && !rustix::process::geteuid().is_root() {
            continue;
        }
        let place = Place::new();
        let command = place.path("command");
        fs::write(&command, "#!/bin/sh\nexec sleep 100\n").unwrap();
        fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).unwrap();
        let lease = Lease::take(&command).unwrap();
        let mut run = place.lariat("run");
        run.args(["--backend", backend, "--grace", "100ms", "--term-grace", "100ms", "--"]);
        let mut wrapper = run.arg(&command).stdin(Stdio::piped()).spawn().unwrap();
        let waits = || fs::read_to_string("/proc/locks").unwrap().contains("LEASE  BREAKING");
        assert!(until(PATIENCE, waits), "{backend}: nobody waits for the command");
        signal(&wrapper, Signal::TERM);
        assert_ends(&mut wrapper);
        drop(lease);
        assert_nothing_left(&place);
    }
}

/// Its tracer is this thread, which collects it after the wrapper has left.
#[test]
fn a_dead_process_that_only_its_tracer_may_collect() {
    for backend in ["cgroup", "descent", "pidns"] {
        if backend != "descent" && !rustix::process::geteuid().is_root() {
            continue;
        }
        let place = Place::new();
        let mut run = place.lariat("run");
        run.args(["--backend", backend, "--grace", "100ms", "--term-grace", "100ms", "--"]);
        // The second one is named from outside of its namespace.
        run.args(["sh", "-c", "trap '' TERM; sleep 100 & echo up; wait"]);
        let mut wrapper = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(wrapper.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let child_of = |pid: i32| {
            let path = format!("/proc/{pid}/task/{pid}/children");
            fs::read_to_string(path).unwrap().split(' ').next().unwrap().parse::<i32>().unwrap()
        };
        let sleeper = child_of(child_of(child_of(wrapper.id() as i32)));
        let tracer = Traced::seize(sleeper).unwrap();
        signal(&wrapper, Signal::TERM);
        assert_ends(&mut wrapper);
        drop((tracer, stdout));
        let receipt = events(&place).into_iter().find(|event| event["reason"] == "signal:TERM");
        let receipt = receipt.unwrap_or_else(|| panic!("{backend}: {:?}", events(&place)));
        let named = receipt["survivors"].as_array().unwrap();
        // In a namespace of its own it has another number.
        let is_it = |one: &Value| one["pid"] == sleeper || backend == "pidns";
        assert!(named.iter().all(is_it), "{backend}: {receipt}");
        assert!(until(PATIENCE, || fs::metadata(format!("/proc/{sleeper}")).is_err()), "{backend}");
    }
}
