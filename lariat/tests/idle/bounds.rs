//! Bounds: a tree that eats, spins, breeds or never greets is ended with a reason, and the host
//! gets an error that it can show.

use crate::host::{Host, request};
use crate::kit::{PATIENCE, PROMISE, Place, WORD, trial};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::process::{Child, Command};
use std::time::Duration;
use trials::until;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial("bounds::a_hung_handshake", a_hung_handshake),
        trial("bounds::a_hung_call", a_hung_call),
        trial("bounds::memory", || greedy("eat", &["--memory", "128m"], "limit:memory")),
        trial("bounds::memory_by_watching", || {
            greedy("eat", &["--memory", "128m", "--backend", "descent"], "limit:memory");
        }),
        trial("bounds::processes", || greedy("breed", &["--pids", "50"], "limit:pids")),
        trial("bounds::processes_by_watching", || {
            greedy("breed", &["--pids", "50", "--backend", "descent"], "limit:pids");
        }),
        trial("bounds::a_spin_with_nothing_in_flight", || a_spin(&["--idle", "1h"])),
        trial("bounds::a_spin_limit_alone_is_heeded", || a_spin(&[])),
        trial("bounds::a_spin_that_gets_little_of_a_cpu", a_starved_spin),
        trial("bounds::little_to_do_on_a_busy_machine_is_no_spin", a_starved_trickle),
        trial("bounds::a_spin_with_a_call_in_flight_is_work", a_working_spin),
        trial("bounds::a_spin_for_a_task_is_work", a_spin_for_a_task),
        trial("bounds::a_call_to_one_that_does_not_read", a_call_to_the_deaf),
    ]
}

fn start(place: &Place, manner: &str, options: &[&str]) -> Host {
    Host::start(place, &place.wrapped(options, &place.server(manner)), &[])
}

/// An error that says who speaks.
#[track_caller]
fn assert_refused(answer: &Value) {
    assert!(answer["error"]["code"].is_i64(), "{answer}");
    let said = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(said.contains("lariat"), "{answer}");
}

/// The tree has ended for this reason, before the wrapper leaves or after.
#[track_caller]
fn assert_ended(place: &Place, reason: &str) {
    let ended = until(PATIENCE, || !place.reasons().is_empty());
    assert!(ended, "no receipt: {:#?}", place.crowd());
    assert!(place.reasons()[0].starts_with(reason), "{:?} and not {reason}", place.reasons());
}

fn a_hung_handshake() {
    let place = Place::new();
    let mut host = start(&place, "never-greets", &["--init-timeout", "300ms"]);
    let hello = json!({
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "patient", "version": "1"},
    });
    host.say(&request(7, "initialize", &hello));
    assert_refused(&host.answer_to(&json!(7)));
    assert_ended(&place, "init-timeout");
    assert!(until(PROMISE, || host.tree().is_empty()), "{:#?}", place.crowd());
    host.leave();
    place.assert_gone(PROMISE);
    place.assert_accounted();
}

fn a_hung_call() {
    let place = Place::new();
    let mut host = start(&place, "plain", &["--call-timeout", "300ms"]);
    host.shake_hands(&json!({}));
    assert_refused(&host.ask(1, "tools/call", &json!({"name": "hang"})));
    // Others are not harmed by it.
    assert_eq!(host.call(2, "echo", &json!({"text": "here"})), "here");
    host.leave();
    place.assert_gone(PROMISE);
    place.assert_accounted();
}

/// A call that takes more than it may: the host hears of it, the tree ends.
fn greedy(tool: &str, options: &[&str], reason: &str) {
    let place = Place::new();
    let mut host = start(&place, "plain", options);
    host.shake_hands(&json!({}));
    assert_refused(&host.ask(1, "tools/call", &json!({"name": tool})));
    assert_ended(&place, reason);
    assert!(until(PROMISE, || host.tree().is_empty()), "{:#?}", place.crowd());
    host.leave();
    place.assert_gone(PROMISE);
    place.assert_accounted();
}

fn a_spin(options: &[&str]) {
    let place = Place::new();
    let mut host = start(&place, "plain", &[options, &["--spin-limit", "1s"]].concat());
    host.shake_hands(&json!({}));
    assert_eq!(host.call(1, "spin", &json!({})), "spinning");
    assert_ended(&place, "limit:cpu");
    host.leave();
    place.assert_gone(PROMISE);
    place.assert_accounted();
}

/// Others that want the one CPU on which the server runs, each with a share of its own. They end with this.
struct Rivals(Vec<Child>);

/// Five shares of six are theirs.
const RIVALS: usize = 5;

impl Rivals {
    fn start(place: &Place) -> Rivals {
        let rival = |_| {
            let mut command = Command::new("taskset");
            command.args(["-c", "0", "setsid", "timeout", "60", "sh", "-c", "while :; do :; done"]);
            command.env(WORD, &place.token).spawn().unwrap()
        };
        Rivals((0..RIVALS).map(rival).collect())
    }
}

impl Drop for Rivals {
    fn drop(&mut self) {
        for rival in &mut self.0 {
            // `timeout` passes it on.
            let _gone = kill_process(Pid::from_child(rival), Signal::TERM);
            let _left = rival.wait();
        }
    }
}

/// A server on the CPU that the rivals have, with short patience for who spins.
fn start_starved(place: &Place, tool: &str) -> (Host, Rivals) {
    let server =
        [["taskset", "-c", "0"].map(str::to_owned).to_vec(), place.server("plain")].concat();
    let mut host = Host::start(place, &place.wrapped(&["--spin-limit", "1s"], &server), &[]);
    host.shake_hands(&json!({}));
    let rivals = Rivals::start(place);
    host.call(1, tool, &json!({}));
    (host, rivals)
}

fn a_starved_spin() {
    let place = Place::new();
    let (host, rivals) = start_starved(&place, "spin");
    assert_ended(&place, "limit:cpu");
    drop(rivals);
    host.leave();
    place.assert_gone(PROMISE);
    place.assert_accounted();
}

fn a_starved_trickle() {
    let place = Place::new();
    let (mut host, rivals) = start_starved(&place, "trickle");
    host.assert_awake_for(Duration::from_secs(3));
    drop(rivals);
    assert_eq!(place.reasons(), Vec::<String>::new());
    host.leave();
    place.assert_gone(PROMISE);
}

fn a_working_spin() {
    let place = Place::new();
    let mut host = start(&place, "plain", &["--idle", "1h", "--spin-limit", "500ms"]);
    host.shake_hands(&json!({}));
    // First in flight, then the spin: it is never without work.
    let wait = json!({"name": "wait", "arguments": {"ms": 3000}});
    host.say(&request(1, "tools/call", &wait));
    assert_eq!(host.call(2, "spin", &json!({})), "spinning");
    let answer = host.answer_to(&json!(1));
    assert_eq!(answer["result"]["content"][0]["text"], "waited", "{answer}");
    host.leave();
    place.assert_gone(PROMISE);
    place.assert_accounted();
}

fn a_spin_for_a_task() {
    let place = Place::new();
    let mut host = start(&place, "plain", &["--spin-limit", "500ms"]);
    host.shake_hands(&json!({}));
    let task = json!({"name": "wait", "arguments": {"ms": 60000}, "task": {"ttl": 60000}});
    host.ask(1, "tools/call", &task);
    assert_eq!(host.call(2, "spin", &json!({})), "spinning");
    host.assert_awake_for(Duration::from_millis(2500));
    assert_eq!(place.reasons(), Vec::<String>::new());
    host.leave();
    place.assert_gone(PROMISE);
}

/// More waits for it than it will ever read, and the host's last line is not even whole.
fn a_call_to_the_deaf() {
    let place = Place::new();
    let mut host = start(&place, "plain", &["--call-timeout", "400ms"]);
    host.shake_hands(&json!({}));
    host.say(&request(1, "tools/call", &json!({"name": "deafen"})));
    host.write(&vec![b' '; 150 << 10]);
    assert_refused(&host.answer_to(&json!(1)));
    host.leave();
    place.assert_gone(PROMISE);
    place.assert_accounted();
}
