//! `--lazy`: nothing runs until it is needed, and the host hears what the last run said.

use crate::host::Host;
use crate::kit::{PATIENCE, Place, trial};
use libtest_mimic::Trial;
use serde_json::json;
use std::time::Duration;
use trials::until;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial("lazy::what_is_known_starts_nothing", what_is_known),
        trial("lazy::without_a_cache_it_starts_with_the_first_message", without_a_cache),
        trial("lazy::another_command_is_another_cache", another_command),
        trial("lazy::a_server_that_changed_is_told", a_server_that_changed),
        trial("lazy::a_host_that_asks_nothing_leaves_nothing", asks_nothing),
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
