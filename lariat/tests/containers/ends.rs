//! Ending sessions, and what has to be true then.

use crate::engine::Engine;
use crate::machine::{at_times, run};
use crate::session::{Session, strike};
use crate::{PATIENCE, PROMISE};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::thread;
use std::time::Duration;
use trials::{Watch, until};

/// How often an engine is looked at.
pub(crate) const PACE: Duration = Duration::from_millis(100);

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Death {
    Eof,
    Term,
    Wrapper,
    Guardian,
    Both,
    /// The docker command, then the end of stdin.
    Command,
    Host,
    /// The server leaves by itself when it is told to.
    Leaves,
}

impl Death {
    pub(crate) const ALL: [Death; 8] = [
        Death::Eof,
        Death::Term,
        Death::Wrapper,
        Death::Guardian,
        Death::Both,
        Death::Command,
        Death::Host,
        Death::Leaves,
    ];

    /// Brings it about.
    pub(crate) fn strike(self, engine: &Engine, session: &mut Session) {
        match self {
            Death::Eof => session.hang_up(),
            Death::Term => strike(session.wrapper(), Signal::TERM),
            Death::Wrapper => strike(session.wrapper(), Signal::KILL),
            Death::Guardian => strike(session.guardian(), Signal::KILL),
            Death::Both => {
                let (wrapper, guardian) = (session.wrapper(), session.guardian());
                // Stopped first: it must not see the other die.
                strike(guardian, Signal::STOP);
                strike(wrapper, Signal::KILL);
                strike(guardian, Signal::KILL);
                let dead = || !wrapper.is_alive() && !guardian.is_alive();
                assert!(until(PATIENCE, dead), "they do not die");
                run(&mut session.another(engine));
            }
            Death::Command => {
                let tree = session.tree();
                let docker: Vec<_> = tree.iter().filter(|one| one.name == "docker").collect();
                assert_eq!(docker.len(), 1, "{tree:?}");
                strike(docker[0].process, Signal::KILL);
                session.hang_up();
            }
            Death::Host => strike(session.first(), Signal::KILL),
            Death::Leaves => session.say(&json!({"method": "notifications/leave"}).to_string()),
        }
    }
}

/// The promise, where there are so many containers that the engine itself takes longer on two busy
/// cores.
pub(crate) fn time_for(containers: usize) -> Duration {
    PROMISE + Duration::from_millis(250) * containers as u32
}

/// The session's processes end, then, within the promise, all that it made; nobody is left.
/// Gives the receipt, which counts no survivor.
#[track_caller]
pub(crate) fn assert_ended(engine: &Engine, session: &Session) -> Value {
    assert_ended_within(PROMISE, engine, session)
}

/// The same with another promise.
#[track_caller]
pub(crate) fn assert_ended_within(promise: Duration, engine: &Engine, session: &Session) -> Value {
    session.assert_tree_gone(PATIENCE);
    let left = || engine.marked("trial", Some(&session.token));
    let watch = Watch::start();
    let gone = at_times(PACE, promise, || !engine.has_any(&session.token));
    let (took, stderr) = (watch.elapsed(), session.stderr());
    // An engine that is busy answers late, too: that counts.
    if !gone || took > promise + PACE {
        let then = left();
        let later = at_times(PACE, PATIENCE, || left().is_empty());
        let later =
            if later { format!("gone after {:?}", watch.elapsed()) } else { "staying".into() };
        panic!("left {promise:?} after the processes, {later}: {then:#?}\non stderr: {stderr}");
    }
    assert_eq!(left(), [""; 0], "its own index does not show it");
    eprintln!("{}: gone {took:?} after the processes", thread::current().name().unwrap_or(""));
    let receipt = session.await_receipt();
    assert_eq!(receipt["survivors"], json!([]), "{receipt}");
    session.assert_nobody();
    receipt
}

/// Something to do at the same time as others, with its name.
pub(crate) type Part<'a> = (&'static str, Box<dyn FnOnce() + Send + 'a>);

/// Plays all of them at once; every one that fails is named.
pub(crate) fn together(parts: Vec<Part<'_>>) {
    let failed: Vec<&str> = thread::scope(|scope| {
        let playing = parts.into_iter().map(|(name, part)| {
            let thread = thread::Builder::new().name(name.into());
            (name, thread.spawn_scoped(scope, part).unwrap())
        });
        let playing: Vec<_> = playing.collect();
        playing
            .into_iter()
            .filter_map(|(name, part)| part.join().is_err().then_some(name))
            .collect()
    });
    assert!(failed.is_empty(), "failed, see above: {failed:?}");
}
