//! Turns that are cut short: by the end of the Python, or of the daemon.

use crate::kit::{self, PATIENCE, PROMISE, Place, rounds};
use crate::stage::{Conductor, Daemon, connect, others, until_called};
use std::fs;
use std::time::{Duration, Instant};
use trials::until;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("ends::python-killed-in-a-call", python_in_a_call),
    ("ends::python-killed-while-servers-start", python_while_starting),
    ("ends::daemon-killed-in-a-call", daemon_killed),
    ("ends::daemon-asked-to-leave-in-a-call", daemon_asked),
];

/// Three servers of two processes with two that hold each, and the daemon.
const CROWD: usize = 3 * (2 + 2) + 1;

/// Nobody who has the word is left in time, but for these.
#[track_caller]
fn assert_others_gone(place: &Place, but: &[u32], since: Instant) {
    let left = PROMISE.saturating_sub(since.elapsed());
    let gone = until(left, || others(place, but).is_empty());
    assert!(gone, "{PROMISE:?} later: {:?}", others(place, but));
}

/// A conductor in the middle of a call that is never answered.
fn in_a_call(place: &Place) -> Conductor {
    let conductor = Conductor::with(place, "setsid-child", &["--call", "hang"]);
    until_called(place);
    let crowd = others(place, &[conductor.child.id()]);
    assert_eq!(crowd.len(), CROWD, "the witness sees {crowd:?}");
    conductor
}

/// The daemon has noticed that nobody needs its sessions. It hears of the last process a moment after
/// that has left.
#[track_caller]
fn assert_no_sessions(place: &Place) {
    let mut listed = Vec::new();
    let noticed = until(PROMISE, || {
        listed = kit::runtime().block_on(async {
            let mut client = connect(place).await;
            client.list().await.expect("a list").sessions
        });
        listed.is_empty()
    });
    assert!(noticed, "{listed:?}");
}

fn python_in_a_call() {
    let place = Place::new("py-call");
    let daemon = Daemon::start(&place);
    for _ in 0..rounds() {
        let mut conductor = in_a_call(&place);
        let since = Instant::now();
        conductor.child.kill().expect("it can be killed");
        conductor.child.wait().expect("it can be waited for");
        assert_others_gone(&place, &[daemon.pid()], since);
        assert_no_sessions(&place);
    }
    drop(daemon);
    place.assert_gone(PROMISE);
}

fn python_while_starting() {
    let place = Place::new("py-start");
    let daemon = Daemon::start(&place);
    for round in 0..rounds().max(3) {
        let mut conductor = Conductor::with(&place, "setsid-child", &["--call", "hang"]);
        // The first of them is there; later rounds find more of them, and in a later state.
        let but = [daemon.pid(), conductor.child.id()];
        let some = 1 + round * 3 % (CROWD - 1);
        assert!(until(PATIENCE, || others(&place, &but).len() >= some), "nobody started");
        let since = Instant::now();
        conductor.child.kill().expect("it can be killed");
        conductor.child.wait().expect("it can be waited for");
        assert_others_gone(&place, &[daemon.pid()], since);
        assert_no_sessions(&place);
    }
    drop(daemon);
    place.assert_gone(PROMISE);
}

fn daemon_killed() {
    let place = Place::new("d-kill");
    for _ in 0..rounds() {
        // Each finds the socket that the one before it left behind.
        let mut daemon = Daemon::start(&place);
        let conductor = in_a_call(&place);
        let since = Instant::now();
        daemon.kill();
        let said = conductor.said(PROMISE);
        assert_eq!(said.status.and_then(|status| status.code()), Some(1), "{said:?}");
        let clear = "conductor: the connection to the daemon broke";
        assert!(said.err.starts_with(clear) && said.err.lines().count() == 1, "{said:?}");
        assert_others_gone(&place, &[], since);
    }
    place.assert_gone(PROMISE);
}

fn daemon_asked() {
    let place = Place::new("d-term");
    for round in 1..=rounds() {
        let mut daemon = Daemon::start(&place);
        let conductor = in_a_call(&place);
        let since = Instant::now();
        let ended = daemon.terminate(PROMISE + Duration::from_secs(1));
        // It leaves when the servers have; who held them may be a moment behind.
        let mut witness = place.witness();
        witness.spare(conductor.process());
        let left: Vec<_> = witness.look().iter().map(|p| witness.describe(*p)).collect();
        assert!(left.is_empty(), "{left:?}");
        assert_others_gone(&place, &[conductor.child.id()], since);
        assert!(
            ended.is_some_and(|status| status.success()),
            "{ended:?} after {:?}",
            since.elapsed()
        );
        let said = conductor.said(PROMISE);
        assert_eq!(said.status.and_then(|status| status.code()), Some(1), "{said:?}");
        let clear = "conductor: The session is ending or has ended.";
        assert!(said.err.starts_with(clear) && said.err.lines().count() == 1, "{said:?}");
        let events = fs::read_to_string(place.state().join("events.jsonl")).expect("events");
        let receipts = events.lines().filter(|line| line.contains(r#""reason":"closed""#)).count();
        assert_eq!(receipts, 3 * round, "{events}");
    }
    place.assert_gone(PROMISE);
}
