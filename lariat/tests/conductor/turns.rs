//! Turns that go well.

use crate::kit::{PATIENCE, PROMISE, Place, rounds};
use crate::stage::{Conductor, Daemon, LARIAT, Said, Watcher, others, socket};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Signal, kill_process};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use trials::{Process, until};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("turns::as-in-the-report", report),
    ("turns::servers-with-children-that-stay", children),
    ("turns::the-daemon-is-started-on-demand", on_demand),
    ("turns::a-server-that-fails-is-named", failing),
];

/// How long so many turns may take.
const RUN: Duration = Duration::from_secs(100);

/// As in github/copilot-sdk #1132, or a few if there is no time.
fn turns() -> usize {
    if rounds() > 1 { 24 } else { 4 }
}

#[track_caller]
fn assert_well(said: &Said, turns: usize) {
    assert!(said.status.is_some_and(|status| status.success()), "{said:?}");
    let last = format!("{turns} turns, at most 3 servers at once, survivors: []");
    assert_eq!(said.out.lines().last(), Some(last.as_str()), "{said:?}");
    assert_eq!(said.out.lines().count(), turns + 1, "{said:?}");
    assert_eq!(said.err, "");
}

fn report() {
    let place = Place::new("turns");
    let daemon = Daemon::start(&place);
    let (turns, socket) = (turns(), socket(&place).display().to_string());
    let words = ["--turns", &turns.to_string(), "--socket", &socket];
    let conductor = Conductor::start(&place, &words);
    let watcher = Watcher::start(&place, &conductor);
    let said = conductor.said(RUN);
    let seen = watcher.stop();
    assert_well(&said, turns);
    // Each server is one process, so these are servers. That it saw most of them shows that it looked.
    assert!(seen.most <= 3, "{seen:?}");
    assert!(seen.distinct > 3 * turns / 2, "{seen:?}");
    // Not even a guardian is left, and nobody had to wait for that.
    assert!(until(PROMISE, || others(&place, &[daemon.pid()]).is_empty()));
    drop(daemon);
    place.assert_gone(PROMISE);
}

fn children() {
    let place = Place::new("children");
    let _daemon = Daemon::start(&place);
    let turns = if rounds() > 5 { 24 } else { 4 };
    let words = ["--turns", &turns.to_string()];
    let conductor = Conductor::with(&place, "setsid-child", &words);
    let watcher = Watcher::start(&place, &conductor);
    let said = conductor.said(RUN);
    let seen = watcher.stop();
    assert_well(&said, turns);
    // Each has a child that left its session. A look on a busy machine may miss one of them.
    assert!(seen.most <= 6 && seen.distinct > 3 * turns, "{seen:?}");
    assert!(said.out.contains(" 6 processes, "), "{said:?}");
    place.assert_gone(PROMISE);
}

fn on_demand() {
    let place = Place::new("on-demand");
    for round in 0..2 {
        let conductor = Conductor::start(&place, &["--turns", "2", "--lariat", LARIAT]);
        assert_well(&conductor.said(RUN), 2);
        let socket = place.dir.join(".local/state/lariat/daemon.sock");
        let stream = UnixStream::connect(&socket).expect("a daemon that has outlived its starter");
        let peer = socket_peercred(&stream).expect("who it is").pid;
        if round == 1 {
            let daemon = Process::now(peer.as_raw_pid()).expect("a process");
            kill_process(peer, Signal::TERM).expect("a signal");
            assert!(until(PATIENCE, || !daemon.is_alive()), "it stays");
        }
    }
    place.assert_gone(PROMISE);
}

fn failing() {
    let place = Place::new("failing");
    let _daemon = Daemon::start(&place);
    let broken = ["--server", "broken=/no/such/program"];
    let said = Conductor::with(&place, "polite", &broken).said(PATIENCE);
    assert_eq!(said.status.and_then(|status| status.code()), Some(1), "{said:?}");
    assert!(said.err.contains("server broken is failed: "), "{said:?}");
    // It let go of the others.
    place.assert_gone(PROMISE);
}
