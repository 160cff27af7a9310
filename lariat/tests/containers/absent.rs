//! Sessions without containers: no engine on the machine, or one that nobody speaks to.

use crate::PATIENCE;
use crate::choices::socket_of;
use crate::ends::{Death, assert_ended};
use crate::engine::{Engine, Kind};
use crate::session::Start;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// How much longer than with an engine a session without one may take, from start to end.
const NOTHING: Duration = Duration::from_millis(50);

/// No engine: the server is told of none, and nothing takes longer.
pub(crate) fn no_engine() {
    let engine = Engine::start(Kind::Docker);
    let empty = engine.path("empty");
    fs::create_dir(&empty).unwrap();
    // Programs enough for the server, and no docker among them.
    let bin = engine.path("image/bin").display().to_string();
    // Both in a room that is made in the same way: only the engine differs.
    let with = || {
        let mut start = Start::lariat(&engine).env("XDG_RUNTIME_DIR", None).env("PATH", Some(&bin));
        start.run = Some(empty.clone());
        start
    };
    let without = || with().env("DOCKER_HOST", None);
    let mut session = without().script("echo \"host: $DOCKER_HOST\"; exec cat");
    session.expect("host:");
    assert!(session.proxy().is_none());
    session.hang_up();
    assert_eq!(session.code(), Some(0));
    let receipt = session.await_receipt();
    assert_eq!(receipt["reason"], "stdin-closed", "{receipt}");
    session.assert_nobody();
    // The best of several, in turns: whoever waits for an engine that is not there waits every time, and
    // a busy machine does not have to be quick.
    let (mut alone, mut beside) = (Duration::MAX, Duration::MAX);
    for _ in 0..15 {
        alone = alone.min(to_the_end(&without()));
        beside = beside.min(to_the_end(&with()));
    }
    assert!(alone < beside + NOTHING, "{alone:?} without an engine, {beside:?} with one");
}

/// An engine that is never spoken to: a socket for this user alone, and no process.
pub(crate) fn never_used() {
    let engine = Engine::start(Kind::Docker);
    let mut session = Start::lariat(&engine).script("echo \"$DOCKER_HOST\"; exec cat");
    let socket = socket_of(&mut session);
    let meta = fs::metadata(&socket).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600, "{}", socket.display());
    session.say("hello");
    session.expect("hello");
    assert!(session.proxy().is_none(), "a proxy without a client");
    Death::Eof.strike(&engine, &mut session);
    assert_ended(&engine, &session);
    assert!(!socket.exists(), "the socket is left");
}

/// An engine that is dead from the start: an error at once, as without Lariat, and no longer end.
pub(crate) fn dead_engine() {
    let engine = Engine::start(Kind::Docker);
    let nowhere = format!("unix://{}", engine.path("nowhere.sock").display());
    let start = Start::lariat(&engine).env("DOCKER_HOST", Some(&nowhere));
    let began = Instant::now();
    let mut session = start.script("docker ps >&2 2>&1 && echo fine || echo failed; exec cat");
    session.expect("failed");
    session.hang_up();
    assert_eq!(session.code(), Some(0), "{}", session.stderr());
    assert!(began.elapsed() < PATIENCE / 6, "{:?}", began.elapsed());
    session.assert_nobody();
}

/// How long a session takes that has nothing to do.
fn to_the_end(start: &Start<'_>) -> Duration {
    let began = Instant::now();
    let mut session = start.script("true");
    assert_eq!(session.code(), Some(0), "{}", session.stderr());
    began.elapsed()
}
