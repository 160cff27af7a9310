//! What speaks for a server's being forgotten, under `--idle auto`: another one was started since, an
//! ancestor of the host has died. What was watched is watched again.

use crate::eyes;
use crate::host::{Host, request};
use crate::kept::modern;
use crate::kit::{PATIENCE, PROMISE, Place, trial};
use crate::wakes::ps;
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use trials::until;

/// Silence that is waited for here.
const AUTO: [&str; 4] = ["--idle", "auto", "--idle-after", "200ms"];

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial("evidence::another_was_started_since", another_was_started_since),
        trial("evidence::an_ancestor_has_died", an_ancestor_has_died),
        trial("evidence::nobody_reads_stderr", nobody_reads_stderr),
        trial("evidence::a_subscription_is_made_again", a_subscription_is_made_again),
        trial("evidence::a_listen_is_begun_again", a_listen_is_begun_again),
        trial("evidence::end_of_file_while_it_wakes", end_of_file_while_it_wakes),
        trial("evidence::the_last_word_is_heard", the_last_word_is_heard),
    ]
}

/// A host of the same server, in notes of its own.
fn start(place: &Place) -> Host {
    let words = place.wrapped(&AUTO, &place.server("plain"));
    let mut host = Host::start(place, &words, &[]);
    host.shake_hands(&json!({}));
    host
}

/// What `ps` says of the one with this wrapper.
fn said_of(place: &Place, wrapper: i32) -> Value {
    ps(place).into_iter().find(|one| one["wrapper"] == json!(wrapper)).unwrap_or_default()
}

#[track_caller]
fn assert_asleep_for(place: &Place, wrapper: i32, evidence: &str) {
    let told = until(PATIENCE, || said_of(place, wrapper)["state"] == "asleep");
    let said = said_of(place, wrapper);
    assert!(told, "{said}");
    assert_eq!(said["evidence"], json!([evidence]), "{said}");
    assert!(said["idle_s"].as_f64().is_some_and(|idle| idle > 0.1), "{said}");
}

fn another_was_started_since() {
    let place = Place::new();
    let mut first = start(&place);
    first.assert_awake_for(std::time::Duration::from_millis(700));
    let second = start(&place);
    first.await_sleep();
    assert_asleep_for(&place, first.wrapper().pid, "superseded");
    assert_eq!(said_of(&place, second.wrapper().pid)["state"], "ready");
    assert_eq!(first.call(1, "echo", &json!({"text": "still here"})), "still here");
    first.leave();
    second.leave();
    place.assert_gone(PROMISE);
}

fn an_ancestor_has_died() {
    let place = Place::new();
    let me = std::env::current_exe().unwrap().display().to_string();
    let wrapped = place.wrapped(&AUTO, &place.server("plain"));
    // The shell is the host's parent; the host itself has our pipes.
    let shell = ["sh", "-c", "exec 3<&0; \"$@\" <&3 & wait", "sh"].map(str::to_owned);
    let words = [shell.to_vec(), vec![me, "__between".into()], wrapped].concat();
    let mut host = Host::start(&place, &words, &[]);
    host.shake_hands(&json!({}));
    let wrapper = host.wrapper();
    assert_eq!(said_of(&place, wrapper.pid)["state"], "ready");
    eyes::signal(host.first, Signal::KILL);
    assert!(until(PATIENCE, || eyes::below(wrapper).is_empty()), "{:#?}", place.crowd());
    assert_asleep_for(&place, wrapper.pid, "host-orphaned");
    assert_eq!(host.call(1, "echo", &json!({"text": "alone"})), "alone");
    drop(host.hang_up().wait());
    place.assert_gone(PROMISE);
}

fn nobody_reads_stderr() {
    let place = Place::new();
    let words = place.wrapped(&AUTO, &place.server("plain"));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stderr(Stdio::piped());
    let (mut host, stderr) = Host::start_with_stderr(&place, command);
    host.shake_hands(&json!({}));
    host.assert_awake_for(std::time::Duration::from_millis(700));
    drop(stderr);
    host.await_sleep();
    assert_asleep_for(&place, host.wrapper().pid, "ends-closed");
    host.leave();
    place.assert_gone(PROMISE);
}

fn a_subscription_is_made_again() {
    let place = Place::new();
    let mut first = start(&place);
    first.ask(1, "resources/subscribe", &json!({"uri": "test://one"}));
    first.ask(2, "resources/subscribe", &json!({"uri": "test://two"}));
    first.ask(3, "resources/unsubscribe", &json!({"uri": "test://one"}));
    let second = start(&place);
    first.await_sleep();
    assert_eq!(first.call(4, "echo", &json!({"text": "on"})), "on");
    let updated = first.told("notifications/resources/updated");
    assert_eq!(updated.len(), 1, "{updated:?}");
    assert_eq!(updated[0]["params"]["uri"], "test://two");
    let lives = place.lives();
    let heard = place.heard_by_server(lives);
    let subscribes: Vec<&String> =
        heard.iter().filter(|line| line.contains("/subscribe")).collect();
    assert_eq!(subscribes.len(), 1, "{heard:#?}");
    assert!(subscribes[0].contains("test://two"), "{heard:#?}");
    let answers = first.heard.iter().filter(|line| line.contains("lariat:"));
    assert_eq!(answers.count(), 0, "what we ask ourselves reached the host");
    first.leave();
    second.leave();
    place.assert_gone(PROMISE);
}

fn a_listen_is_begun_again() {
    let place = Place::new();
    let words = place.wrapped(&AUTO, &place.server("plain"));
    let mut first = Host::start(&place, &words, &[]);
    first.say(&request(1, "tools/list", &modern(json!({}))));
    first.answer_to(&json!(1));
    first.say(&request(7, "subscriptions/listen", &modern(json!({}))));
    let acknowledged = "notifications/subscriptions/acknowledged";
    assert!(until(PATIENCE, || {
        first.attend(std::time::Duration::ZERO);
        !first.told(acknowledged).is_empty()
    }));
    first.assert_awake_for(std::time::Duration::from_millis(700));
    let mut second = Host::start(&place, &words, &[]);
    second.say(&request(1, "tools/list", &modern(json!({}))));
    second.answer_to(&json!(1));
    // Its own sleep is its own business: it has nothing open.
    first.await_sleep();
    let lives = place.lives();
    first.say(&request(
        8,
        "tools/call",
        &modern(json!({"name": "echo", "arguments": {"text": "x"}})),
    ));
    first.answer_to(&json!(8));
    let heard = place.heard_by_server(lives + 1);
    let listens: Vec<&String> = heard.iter().filter(|line| line.contains("/listen")).collect();
    assert_eq!(listens, [&request(7, "subscriptions/listen", &modern(json!({})))]);
    assert_eq!(first.told(acknowledged).len(), 1, "it was acknowledged before");
    first.leave();
    second.leave();
    place.assert_gone(PROMISE);
}

/// The ladder begins when the host says that it has no more to say, whatever the server is doing.
fn end_of_file_while_it_wakes() {
    let place = Place::new();
    let server = place.server("greets-once");
    let mut host = Host::start(&place, &place.wrapped(&["--idle", "200ms"], &server), &[]);
    host.shake_hands(&json!({}));
    host.await_sleep();
    host.say(&request(5, "tools/call", &json!({"name": "echo"})));
    assert!(until(PATIENCE, || place.lives() == 2), "{:#?}", place.crowd());
    host.close_stdin();
    let left = until(PROMISE, || host.child.try_wait().unwrap().is_some());
    assert!(left, "{:#?}", place.crowd());
    place.assert_gone(PROMISE);
    place.assert_accounted();
}

/// A host that says something and goes has said it, also to a server that sleeps.
fn the_last_word_is_heard() {
    for stdin_alone in [true, false] {
        let place = Place::new();
        let server = place.server("plain");
        let mut host = Host::start(&place, &place.wrapped(&["--idle", "200ms"], &server), &[]);
        host.shake_hands(&json!({}));
        host.await_sleep();
        let last = request(5, "tools/call", &json!({"name": "echo", "arguments": {"text": "bye"}}));
        host.say(&last);
        if stdin_alone {
            host.close_stdin();
            host.answer_to(&json!(5));
        }
        drop(host.hang_up().wait());
        let heard = place.heard_by_server(2);
        assert!(heard.contains(&last), "{heard:#?}");
        place.assert_gone(PROMISE);
        place.assert_accounted();
    }
}
