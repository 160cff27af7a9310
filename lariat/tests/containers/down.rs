//! Engines that come and go: during the end of a session, and in the middle of one.

use crate::PATIENCE;
use crate::PROMISE;
use crate::ends::{Death, PACE, assert_ended};
use crate::engine::{Engine, Kind};
use crate::eyes::Bystanders;
use crate::kinds::shell;
use crate::machine::{at_times, output};
use crate::session::{Session, Start};
use serde_json::Value;
use trials::until;

/// A server with one container, ready to be ended.
fn up(engine: &Engine) -> Session {
    let mut session =
        Start::lariat(engine).script(&shell("box 'run -d' --name it-$T; echo up; exec cat"));
    session.expect("up");
    session
}

/// Down when the session ends, whoever ends it; later there again: the next command finishes the
/// work, and both the receipt and the log say what happened.
pub(crate) fn at_the_end(death: Death) {
    let mut engine = Engine::start(Kind::Docker);
    let bystanders = Bystanders::start(&engine, 2, "sh");
    let mut session = up(&engine);
    let token = session.token.clone();
    engine.stop();
    death.strike(&engine, &mut session);
    session.assert_tree_gone(PATIENCE);
    let receipt = session.await_receipt();
    let survivors = receipt["survivors"].as_array().unwrap();
    let named = |one: &Value| one["kind"] == "container";
    assert!(survivors.iter().any(named), "nobody says what could not be done: {receipt}");
    // Not even then does Lariat stay around.
    session.assert_nobody();
    engine.start_again();
    let left = || engine.marked("trial", Some(&token));
    assert_eq!(left().len(), 1, "it was to survive its engine's absence");
    let ended = session.events().len();
    let next = output(&mut session.another(&engine));
    assert!(next.status.success(), "{next:?}");
    assert!(
        at_times(PACE, PROMISE, || left().is_empty()),
        "left by the next command: {:?}",
        left()
    );
    let id = &receipt["session"];
    // The engine knows first, the log a moment later.
    let is_it = |event: &Value| event["session"] == *id && event["containers"]["removed"] == 1;
    let told = until(PATIENCE, || session.events()[ended..].iter().any(is_it));
    assert!(told, "the log does not say it: {:#?}", &session.events()[ended..]);
    bystanders.assert_untouched(&engine);
}

/// Down and up again, asked to or not: the server's next call works, and the end is complete.
pub(crate) fn in_the_middle() {
    for crash in [false, true] {
        let mut engine = Engine::start(Kind::Docker);
        let script = "box 'run -d' --name before-$T
            echo up
            read -r go
            box 'run -d' --name after-$T
            docker exec before-$T echo alive
            exec cat";
        let mut session = Start::lariat(&engine).script(&shell(script));
        session.expect("up");
        if crash {
            engine.kill()
        } else {
            engine.stop()
        }
        engine.start_again();
        session.say("go");
        session.expect("alive");
        assert_eq!(engine.containers_with("trial", Some(&session.token)).len(), 2);
        Death::Eof.strike(&engine, &mut session);
        let receipt = assert_ended(&engine, &session);
        assert_eq!(receipt["containers"]["removed"], 2, "{receipt}");
    }
}
