//! The report, as written: a host starts servers by `npm exec`, each server starts containers, the
//! sessions end in whatever way, npm is gone, and so must be the containers.

use crate::ends::{Death, PACE, assert_ended_within, time_for};
use crate::engine::{Engine, Kind};
use crate::eyes::Bystanders;
use crate::machine::{at_times, on_path};
use crate::session::{Session, Start, strike};
use crate::{PATIENCE, PROMISE};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/engine/npm-server");
const SERVER: &str = "report";
const BYSTANDERS: usize = 20;
/// Two containers, two networks and two volumes.
const MADE: usize = 6;

/// Why the report cannot be played.
pub(crate) fn missing() -> Option<String> {
    let gone = ["node", "npm"].into_iter().find(|program| on_path(program).is_empty())?;
    Some(format!("{gone} is not installed"))
}

/// Why it cannot be played without Lariat: by itself the server speaks only to a socket.
pub(crate) fn missing_bare(kind: Kind) -> Option<String> {
    let silent = kind == Kind::Far && python().is_none();
    missing().or_else(|| silent.then(|| "no Python with Docker's SDK (see ./test)".into()))
}

/// A Python with Docker's SDK, where `./test` has put it. Without it the server speaks the API
/// itself.
fn python() -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "how ./test tells where the packages are")]
    let home = PathBuf::from(std::env::var_os("LARIAT_CLIENTS")?).join("py");
    let mut versions = fs::read_dir(home.join("lib")).ok()?.flatten();
    let knows = versions.any(|version| version.path().join("site-packages/docker").is_dir());
    knows.then(|| home.join("bin/python"))
}

/// Eight sessions at once, ended one by one, each by another death. Neither the twenty bystanders
/// nor the sessions that are still there lose anything.
pub(crate) fn report(kind: Kind) {
    play(kind, |engine, mut sessions| {
        let mut failed = Vec::new();
        while let Some((death, session)) = sessions.pop() {
            let ended = thread::scope(|scope| {
                let name = format!("{death:?}");
                let end = move || end(engine, session, death, PROMISE);
                thread::Builder::new().name(name).spawn_scoped(scope, end).unwrap().join()
            });
            failed.extend(ended.is_err().then_some(death));
            for (other, session) in &sessions {
                let left = engine.marked("trial", Some(&session.token));
                assert_eq!(left.len(), MADE, "{other:?} has lost something to {death:?}: {left:?}");
            }
        }
        failed
    });
}

/// The same, all ended at once: sixteen containers are some work for the engine alone.
pub(crate) fn at_once(kind: Kind) {
    play(kind, |engine, sessions| {
        let many = time_for(2 * sessions.len());
        thread::scope(|scope| {
            let ends = sessions.into_iter().map(|(death, session)| {
                let thread = thread::Builder::new().name(format!("{death:?}"));
                let end = move || end(engine, session, death, many);
                (death, thread.spawn_scoped(scope, end).unwrap())
            });
            let ends: Vec<_> = ends.collect();
            let ends = ends.into_iter().map(|(death, end)| (death, end.join()));
            ends.filter_map(|(death, end)| end.is_err().then_some(death)).collect()
        })
    });
}

/// Sets the stage, lets `ends` end the sessions, which gives those that failed, and looks around.
fn play(kind: Kind, ends: impl FnOnce(&Engine, Vec<(Death, Session)>) -> Vec<Death>) {
    let engine = Engine::start(kind);
    let mut bystanders = Bystanders::start(&engine, BYSTANDERS, SERVER);
    let volumes = engine.volumes().len();
    let start = |death: Death| {
        let mut start = Start::lariat(&engine).options(&["--name", SERVER]);
        start.hosted = death == Death::Host;
        up(&start, death == Death::Command)
    };
    let sessions: Vec<Session> = thread::scope(|scope| {
        let starts = Death::ALL.map(|death| scope.spawn(move || start(death)));
        let sessions: Vec<_> = starts.into_iter().map(|start| start.join()).collect();
        sessions.into_iter().map(|session| session.expect("all are up")).collect()
    });
    let ids: Vec<String> =
        sessions.iter().map(|session| assert_labelled(&engine, session)).collect();
    // Whoever compares less than the whole word takes these for a session's.
    for (number, id) in [format!("{}0", ids[0]), ids[1][1..].to_owned()].into_iter().enumerate() {
        bystanders.join(&engine, &format!("near-{number}"), &json!({"dev.lariat.session": id}));
    }
    let failed = ends(&engine, Death::ALL.into_iter().zip(sessions).collect());
    assert!(failed.is_empty(), "failed, see above: {failed:?}");
    bystanders.assert_untouched(&engine);
    assert_eq!(engine.volumes().len(), volumes, "volumes without a name are left");
}

/// The same without Lariat: they stay. A trial that cannot fail proves nothing.
pub(crate) fn bare(kind: Kind) {
    let engine = Engine::start(kind);
    let mut session = up(&Start::bare(&engine), false);
    strike(session.first(), Signal::KILL);
    session.hang_up();
    session.assert_tree_gone(PATIENCE);
    let left = || engine.marked("trial", Some(&session.token)).len();
    assert!(!at_times(PACE, PROMISE, || left() < MADE), "containers ended by themselves");
}

/// A server that answers, with all that it makes.
fn up(start: &Start<'_>, attached: bool) -> Session {
    // The place that the session stands in has the cache: sessions share nothing.
    let words = ["npm", "exec", "--yes", "--offline", "--cache", "npm-cache", "--", FOLDER];
    let mut server: Vec<String> = words.iter().map(ToString::to_string).collect();
    server.push(start.token.clone());
    server.extend(attached.then(|| "--attached".to_owned()));
    if let Some(python) = python() {
        server.extend(["--python".into(), python.display().to_string()]);
    }
    let mut session = start.server(&server);
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}});
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    session.say(&hello.to_string());
    let answer = session.hear();
    let answer: Value = serde_json::from_str(&answer)
        .unwrap_or_else(|_| panic!("no answer: {answer}\non stderr: {}", session.stderr()));
    assert!(answer["result"].is_object(), "{answer}\non stderr: {}", session.stderr());
    let all = start.engine.marked("trial", Some(&start.token));
    let running = all.iter().filter(|one| one.ends_with("(running)")).count();
    assert_eq!((all.len(), running), (MADE, 2), "{all:?}");
    session
}

/// All that the session made carries its labels, the same everywhere. Gives the session's id.
fn assert_labelled(engine: &Engine, session: &Session) -> String {
    let ours = engine.marked("trial", Some(&session.token));
    for label in ["dev.lariat.session", "dev.lariat.server", "dev.lariat.owner"] {
        let labelled = engine.marked(label, None);
        let without: Vec<_> = ours.iter().filter(|one| !labelled.contains(one)).collect();
        assert!(without.is_empty(), "without {label}: {without:?}");
    }
    let containers = engine.containers_with("trial", Some(&session.token));
    let id = containers[0].labels["dev.lariat.session"].clone();
    assert_eq!(engine.marked("dev.lariat.session", Some(&id)), ours);
    id
}

fn end(engine: &Engine, mut session: Session, death: Death, promise: Duration) {
    death.strike(engine, &mut session);
    let receipt = assert_ended_within(promise, engine, &session);
    assert_eq!(receipt["containers"], json!({"seen": 2, "removed": 2}), "{receipt}");
}
