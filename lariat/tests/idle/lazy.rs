//! `--lazy`: nothing runs until it is needed, and the host hears what the last run said.

use crate::host::Host;
use crate::kit::{LARIAT, PATIENCE, Place, trial};
use libtest_mimic::Trial;
use serde_json::json;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use trials::until;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial("lazy::what_is_known_starts_nothing", what_is_known),
        trial("lazy::without_a_cache_it_starts_with_the_first_message", without_a_cache),
        trial("lazy::another_command_is_another_cache", another_command),
        trial("lazy::a_server_that_changed_is_told", a_server_that_changed),
        trial("lazy::a_host_that_asks_nothing_leaves_nothing", asks_nothing),
        trial("lazy::what_comes_during_the_start_stays_in_order", in_order),
        trial("lazy::a_command_that_is_not_there_is_told", not_there),
    ]
}

fn start(place: &Place, server: &[String]) -> Host {
    Host::start(place, &place.wrapped(&["--lazy"], server), &[])
}

/// A run that leaves a cache; the handshake and the tools that it heard.
fn first_run(place: &Place, server: &[String]) -> [serde_json::Value; 2] {
    let mut host = start(place, server);
    let hello = host.shake_hands(&json!({}));
    let tools = host.ask(1, "tools/list", &json!({}));
    host.call(2, "life", &json!({}));
    host.leave();
    [hello, tools]
}

fn what_is_known() {
    let place = Place::new();
    let server = place.server("plain");
    let known = first_run(&place, &server);
    assert_eq!(place.lives(), 1);
    let mut host = start(&place, &server);
    assert_eq!(host.shake_hands(&json!({})), known[0]);
    assert_eq!(host.ask(1, "tools/list", &json!({})), known[1]);
    host.ask(2, "ping", &json!({}));
    crate::kit::let_pass(Duration::from_millis(300));
    assert_eq!((place.lives(), host.tree()), (1, vec![]), "something was started");
    assert_eq!(host.call(3, "life", &json!({})), "2");
    let said = host.heard.len();
    crate::kit::let_pass(Duration::from_millis(300));
    host.attend(Duration::from_millis(1));
    assert_eq!(host.heard.len(), said, "nothing changed, and the host was told something");
    let heard = place.heard_by_server(2);
    assert!(heard[0].contains("initialize") && heard[1].contains("initialized"), "{heard:#?}");
    host.leave();
    place.assert_accounted();
}

fn without_a_cache() {
    let place = Place::new();
    let server = place.server("plain");
    let mut host = start(&place, &server);
    crate::kit::let_pass(Duration::from_millis(300));
    assert_eq!((place.lives(), host.tree()), (0, vec![]), "something was started");
    host.shake_hands(&json!({}));
    assert_eq!(place.lives(), 1);
    host.leave();
    place.assert_accounted();
}

fn another_command() {
    let place = Place::new();
    first_run(&place, &place.server("plain"));
    let mut host = start(&place, &[place.server("plain"), vec!["another".into()]].concat());
    host.shake_hands(&json!({}));
    assert_eq!(place.lives(), 2, "it was answered with what another command said");
    host.leave();
}

fn a_server_that_changed() {
    let place = Place::new();
    let server = place.server("changes");
    first_run(&place, &server);
    let mut host = start(&place, &server);
    host.shake_hands(&json!({}));
    let tools = host.ask(1, "tools/list", &json!({}))["result"]["tools"].clone();
    assert_eq!(place.lives(), 1);
    assert_eq!(host.call(2, "life", &json!({})), "2");
    let told = until(PATIENCE, || {
        host.attend(Duration::from_millis(20));
        !host.told("notifications/tools/list_changed").is_empty()
    });
    assert!(told, "{:#?}", host.heard);
    let now = host.ask(3, "tools/list", &json!({}))["result"]["tools"].clone();
    assert_eq!(now.as_array().unwrap().len(), tools.as_array().unwrap().len() + 1);
    host.leave();
}

fn asks_nothing() {
    let place = Place::new();
    let server = place.server("plain");
    start(&place, &server).leave();
    assert_eq!(place.lives(), 0);
    place.assert_gone(crate::kit::PROMISE);
    place.assert_accounted();
}

/// What a host hears that says this, all of it at once, and then nothing more.
fn told(place: &Place, server: &str, said: &[u8]) -> Output {
    let state = place.path("state").display().to_string();
    let mut wrapped = Command::new(LARIAT);
    wrapped.args(["run", "--grace", "30s", "--state-dir", &state, "--lazy", "--", server]);
    wrapped.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = wrapped.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(said));
        child.wait_with_output().unwrap()
    })
}

/// Lines, and the half of one, that come while the server is being started.
fn in_order() {
    let place = Place::new();
    let mut said = Vec::new();
    for number in 0..40_000 {
        let width = number % 150;
        said.extend_from_slice(format!("{number:0>width$}\n").as_bytes());
    }
    let heard = told(&place, "cat", &said);
    let first = heard.stdout.iter().zip(&said).position(|(heard, said)| heard != said);
    assert_eq!((heard.status.code(), heard.stdout.len(), first), (Some(0), said.len(), None));
    place.assert_accounted();
}

fn not_there() {
    let place = Place::new();
    let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}});
    let heard = told(&place, "/no/such/program", format!("{ask}\n").as_bytes());
    let complaint = String::from_utf8_lossy(&heard.stderr);
    assert_eq!(heard.status.code(), Some(127), "{complaint}");
    assert!(complaint.contains("/no/such/program"), "{complaint}");
    let answer: serde_json::Value = serde_json::from_slice(&heard.stdout).unwrap();
    assert_eq!(answer["id"], 1);
    let why = answer["error"]["message"].as_str().unwrap();
    assert!(why.contains("`/no/such/program` was not found"), "{why}");
    place.assert_accounted();
}
