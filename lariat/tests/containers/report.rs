//! As in openclaw/openclaw #75323: a host starts servers by `npm exec`, each server starts containers, the
//! sessions end in whatever way, npm is gone, and so must be the containers.

use crate::ends::{Death, PACE, assert_ended_within, time_for};
use crate::engine::{Engine, Kind};
use crate::eyes::{Bystanders, Stock};
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
    play(kind, BYSTANDERS, |engine, mut sessions| {
        let mut failed = Vec::new();
        while let Some((death, session)) = sessions.pop() {
            let ended = thread::scope(|scope| {
                let name = format!("{death:?}");
                let end = move || end(engine, session, death, PROMISE);
                thread::Builder::new().name(name).spawn_scoped(scope, end).unwrap().join()
            });
            failed.extend(ended.is_err().then_some(death));
            let stock = engine.stock();
            for (_, session) in &sessions {
                assert_made(&stock, session);
            }
        }
        failed
    });
}

/// The same, all ended at once: sixteen containers are some work for the engine alone.
pub(crate) fn at_once(kind: Kind) {
    play(kind, 3, |engine, sessions| {
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
fn play(
    kind: Kind,
    others: usize,
    ends: impl FnOnce(&Engine, Vec<(Death, Session)>) -> Vec<Death>,
) {
    let engine = Engine::start(kind);
    let mut bystanders = Bystanders::start(&engine, others, SERVER);
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
    let mut stock = engine.stock();
    // A container's first words may come before its engine lists it as running.
    at_times(PACE, PATIENCE, || {
        stock = engine.stock();
        sessions.iter().all(|session| made(&stock, session) == (MADE, 2))
    });
    let ids: Vec<String> =
        sessions.iter().map(|session| assert_labelled(&stock, session)).collect();
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
    assert_made(&engine.stock(), &session);
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
    session
}

/// All that a session makes is there, and its containers run.
#[track_caller]
fn assert_made(stock: &Stock, session: &Session) {
    let all = stock.marked("trial", Some(&session.token));
    assert_eq!(made(stock, session), (MADE, 2), "{all:?}");
}

/// How much of a session is there, and how much of that runs.
fn made(stock: &Stock, session: &Session) -> (usize, usize) {
    let all = stock.marked("trial", Some(&session.token));
    let running = all.iter().filter(|one| one.ends_with("(running)")).count();
    (all.len(), running)
}

/// All that the session made carries its labels, the same everywhere. Gives the session's id.
fn assert_labelled(stock: &Stock, session: &Session) -> String {
    assert_made(stock, session);
    let one = |label: &str| {
        let values = stock.values(&session.token, label);
        assert_eq!(values.len(), 1, "{label}: {values:?}");
        values.into_iter().next().filter(|value| !value.is_empty()).expect("a value")
    };
    assert_eq!(one("dev.lariat.server"), SERVER);
    one("dev.lariat.owner");
    let id = one("dev.lariat.session");
    let trial = stock.marked("trial", Some(&session.token));
    assert_eq!(stock.marked("dev.lariat.session", Some(&id)), trial);
    id
}

fn end(engine: &Engine, mut session: Session, death: Death, promise: Duration) {
    death.strike(engine, &mut session);
    let receipt = assert_ended_within(promise, engine, &session);
    assert_eq!(receipt["containers"], json!({"seen": 2, "removed": 2}), "{receipt}");
}
