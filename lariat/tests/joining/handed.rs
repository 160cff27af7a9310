//! A daemon becomes the next, or makes way for it: nobody who has joined notices.

use crate::kit::{Stage, request};
use crate::place::PATIENCE;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::process::Stdio;
use trials::until;

#[test]
fn the_daemon_becomes_the_next_and_its_servers_stay() {
    let mut stage = Stage::new();
    let mut early = stage.host();
    let place = early.where_is_it();
    early.say(&request(3, "slow"));
    let mut elder = stage.replace();
    let mut late = stage.host();
    assert_eq!(early.hear()["result"], json!({ "slow": true }));
    assert_eq!(late.where_is_it()["pid"], place["pid"]);
    assert_eq!(early.ask(&request(4, "where"))["result"], place);
    // Whoever stands for it is told to end, and everything ends in good order.
    stage.end_daemon();
    assert!(crate::kit::ended(&mut elder).success());
    for host in [early, late] {
        assert_eq!(host.ended().0.code(), Some(125));
    }
}

/// As whoever asks it does that does not know how to become it.
#[test]
fn one_that_cannot_become_the_next_makes_way() {
    let mut stage = Stage::new();
    let mut early = stage.host();
    let place = early.where_is_it();
    // In flight while the daemon changes.
    early.say(&request(3, "slow"));
    let mut elder = stage.make_way();
    let mut late = stage.host();
    assert_ne!(late.where_is_it()["pid"], place["pid"]);
    assert_eq!(early.hear()["result"], json!({ "slow": true }));
    assert_eq!(early.ask(&request(4, "where"))["result"], place);
    assert!(elder.try_wait().unwrap().is_none(), "it left before its last host");
    early.stdin = None;
    assert_eq!(early.hear(), Value::Null);
    assert!(early.ended().0.success());
    assert!(crate::kit::ended(&mut elder).success());
    assert_eq!(late.ask(&request(3, "where"))["id"], 3);
}

#[test]
fn one_that_became_the_next_can_make_way_too() {
    let mut stage = Stage::new();
    let mut early = stage.host();
    let place = early.where_is_it();
    let mut elder = stage.replace();
    let mut stand_in = stage.make_way_by(Pid::from_child(&elder));
    let mut late = stage.host();
    assert_ne!(late.where_is_it()["pid"], place["pid"]);
    assert_eq!(early.ask(&request(3, "where"))["result"], place);
    early.stdin = None;
    assert_eq!(early.hear(), Value::Null);
    assert!(crate::kit::ended(&mut elder).success());
    assert!(crate::kit::ended(&mut stand_in).success());
}

/// They ask one after the other, also while it is becoming another's.
#[test]
fn several_can_want_to_be_the_next_at_once() {
    let mut stage = Stage::new();
    let mut host = stage.host();
    let place = host.where_is_it();
    let mut wants: Vec<_> = (0..4)
        .map(|_| {
            let mut command = stage.place.lariat("daemon");
            command.args(["--replace", "--containers", "leave"]).stdin(Stdio::null());
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    // One of them stands for it in the end; the others have gone home, or have made way for it.
    assert!(until(PATIENCE, || {
        let there = wants.iter_mut().map(|one| usize::from(one.try_wait().unwrap().is_none()));
        there.sum::<usize>() <= 1
    }));
    assert_eq!(host.ask(&request(3, "where"))["result"], place);
    stage.kill_daemon();
    assert_eq!(host.ended().0.code(), Some(125));
    for mut want in wants {
        crate::kit::ended(&mut want);
    }
}

/// A daemon that is slow hears of it when nobody would stand for it any more.
#[test]
fn who_has_given_up_is_not_become() {
    let mut stage = Stage::new();
    let mut host = stage.host();
    let place = host.where_is_it();
    let daemon = Pid::from_child(&stage.daemon);
    kill_process(daemon, Signal::STOP).unwrap();
    let mut command = stage.place.lariat("daemon");
    command.args(["--replace", "--containers", "leave"]).stdin(Stdio::null());
    let mut want = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // It has asked: what it says is in the socket's queue, which only the daemon could empty.
    assert!(until(PATIENCE, || is_waiting(want.id())));
    want.kill().unwrap();
    want.wait().unwrap();
    kill_process(daemon, Signal::CONT).unwrap();
    assert_eq!(host.ask(&request(3, "where"))["result"], place);
    // And again, after it must have dealt with that.
    assert_eq!(stage.host().where_is_it()["pid"], place["pid"]);
    assert_eq!(host.ask(&request(4, "where"))["result"], place);
    assert!(stage.daemon_is_there());
}

/// Whether a process waits for something to come (it sleeps in `poll`), and has a socket.
fn is_waiting(pid: u32) -> bool {
    let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let waits = ["7 ", "271 "].iter().any(|poll| call.starts_with(poll));
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut sockets = files.filter_map(|file| fs::read_link(file.path()).ok());
    waits && sockets.any(|file| file.to_string_lossy().starts_with("socket:"))
}

#[test]
fn where_nobody_is_there_is_nobody_to_replace() {
    let mut stage = Stage::new();
    stage.kill_daemon();
    crate::kit::ended(&mut stage.replace());
    assert!(stage.host().where_is_it()["pid"].is_number());
}
