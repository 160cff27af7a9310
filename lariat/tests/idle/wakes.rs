//! Asleep and awake again: what is answered without waking, what a wake tells the server, in which
//! order the host is served, and what it hears if the server is another one or none.

use crate::host::{Host, request};
use crate::kept::{IDLE, forgetful, modern};
use crate::kit::{LARIAT, PATIENCE, Place, trial};
use crate::packages::{Package, Packages};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use trials::until;

pub(crate) fn tests() -> Vec<Trial> {
    let packages = Packages::find();
    vec![
        packages.trial("wakes::filesystem::roots_are_known", Package::Filesystem, roots),
        trial("asleep::pings_are_answered", pings_are_answered),
        trial("asleep::lists_are_answered", lists_are_answered),
        trial("asleep::ps_says_so", ps_says_so),
        trial("asleep::a_notification_starts_nothing_that_answers", a_notification),
        trial("awake::idle_off_is_never_asleep", idle_off),
        trial("awake::auto_without_evidence_is_never_asleep", auto_without_evidence),
        trial("asleep::auto_with_the_modern_era_is_evidence", auto_with_the_modern_era),
        trial("wakes::the_handshake_is_replayed_byte_for_byte", handshake_is_replayed),
        trial("wakes::without_a_handshake_nothing_is_replayed", nothing_is_replayed),
        trial("wakes::the_log_level_is_in_force", log_level),
        trial("wakes::messages_keep_their_order", order),
        trial("wakes::half_a_message_is_kept", half_a_message),
        trial("wakes::a_batch_is_answered", a_batch),
        trial("wakes::a_large_message_is_whole", a_large_message),
        trial("wakes::a_server_that_changed_is_told", a_server_that_changed),
        trial("wakes::a_server_that_fails_is_an_error_and_tried_again", a_server_that_fails),
    ]
}

fn pings_are_answered() {
    let place = Place::new();
    let mut host = forgetful(&place, "plain");
    host.await_sleep();
    for id in [json!(7), json!("seven"), json!(12345678901234567u64)] {
        host.say(&json!({"jsonrpc": "2.0", "id": id, "method": "ping"}).to_string());
        let answer = host.answer_to(&id);
        assert_eq!(answer, json!({"jsonrpc": "2.0", "id": id, "result": {}}));
    }
    assert_eq!(host.tree(), [], "a ping woke it");
    assert_eq!(place.lives(), 1);
    host.leave();
    place.assert_accounted();
}

fn lists_are_answered() {
    let place = Place::new();
    let mut host = forgetful(&place, "plain");
    let methods = ["tools/list", "prompts/list", "resources/list"];
    let known = methods.map(|method| host.ask(1, method, &json!({}))["result"].clone());
    host.await_sleep();
    for (method, known) in methods.iter().zip(known) {
        assert_eq!(host.ask(2, method, &json!({}))["result"], known, "{method}");
    }
    // The older era says that a list that changes is told of. These were heard in this conversation.
    assert_eq!(place.lives(), 1, "a list woke it");
    // One that was never asked for is not known.
    let answer = host.ask(3, "resources/templates/list", &json!({}));
    assert_eq!(answer["error"]["code"], -32601);
    assert_eq!(place.lives(), 2);
    host.leave();
}

/// What `lariat ps` says of the sessions of a place.
pub(crate) fn ps(place: &Place) -> Vec<Value> {
    let mut command = Command::new(LARIAT);
    command.args(["ps", "--json", "--state-dir"]).arg(place.path("state"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ps: {said}");
    serde_json::from_slice(&output.stdout).expect("an array")
}

fn ps_says_so() {
    let place = Place::new();
    let mut host = forgetful(&place, "plain");
    host.call(1, "wait", &json!({"ms": 0}));
    host.await_sleep();
    let mut seen = Vec::new();
    let told = until(PATIENCE, || {
        seen = ps(&place);
        seen.len() == 1 && seen[0]["state"] == "asleep" && seen[0]["idle_s"].as_f64() >= Some(1.0)
    });
    assert!(told, "{seen:#?}");
    assert_eq!(seen[0]["evidence"], json!(["asked"]));
    assert_eq!(seen[0]["wrapper"], json!(host.wrapper().pid), "{seen:#?}");
    assert_eq!(seen[0]["host"]["pid"], json!(std::process::id()), "{seen:#?}");
    host.call(2, "life", &json!({}));
    let call = json!({"name": "hang", "arguments": {}});
    host.say(&request(3, "tools/call", &call));
    assert!(until(PATIENCE, || ps(&place)[0]["state"] == "busy"), "{:#?}", ps(&place));
    host.leave();
    assert_eq!(ps(&place), Vec::<Value>::new());
}

/// Whether it wakes the server is not promised; that nothing is answered is.
fn a_notification() {
    let place = Place::new();
    let mut host = forgetful(&place, "plain");
    host.await_sleep();
    host.say(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}"#);
    host.say(r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#);
    assert_eq!(host.call(1, "echo", &json!({"text": "still there"})), "still there");
    assert_eq!(host.heard.len(), 2, "{:#?}", host.heard);
    host.leave();
}

fn idle_off() {
    let place = Place::new();
    let server = place.server("plain");
    let mut host = Host::start(&place, &place.wrapped(&["--relay", "--idle", "off"], &server), &[]);
    host.shake_hands(&json!({}));
    host.call(1, "life", &json!({}));
    host.assert_awake_for(std::time::Duration::from_millis(800));
    host.leave();
}

fn auto_without_evidence() {
    let place = Place::new();
    let server = place.server("plain");
    let options = ["--idle", "auto", "--idle-after", IDLE];
    let mut host = Host::start(&place, &place.wrapped(&options, &server), &[]);
    host.shake_hands(&json!({}));
    host.call(1, "life", &json!({}));
    host.assert_awake_for(std::time::Duration::from_millis(800));
    host.leave();
}

fn auto_with_the_modern_era() {
    let place = Place::new();
    let server = place.server("plain");
    let options = ["--idle", "auto", "--idle-after", IDLE];
    let mut host = Host::start(&place, &place.wrapped(&options, &server), &[]);
    host.ask(1, "tools/call", &modern(json!({"name": "life"})));
    host.await_sleep();
    let told = until(PATIENCE, || ps(&place)[0]["evidence"] == json!(["stateless"]));
    assert!(told, "{:#?}", ps(&place));
    host.leave();
}

fn handshake_is_replayed() {
    let place = Place::new();
    let server = place.server("plain");
    let mut host = Host::start(&place, &place.wrapped(&["--idle", IDLE], &server), &[]);
    // Spaces, an odd order, an unknown field, a number that no float holds.
    let hello = concat!(
        r#"{ "id": "first", "params": {"clientInfo": {"version": "1", "name": "odd"}, "#,
        r#""capabilities": {"experimental": {"n": 12345678901234567890123}}, "#,
        r#""protocolVersion": "2025-06-18", "x": "é"}, "method": "initialize", "jsonrpc": "2.0"}"#
    );
    let ready = r#"{"method": "notifications/initialized","jsonrpc":"2.0"}"#;
    host.say(hello);
    host.answer_to(&json!("first"));
    host.say(ready);
    host.call(1, "echo", &json!({"text": "one"}));
    let said = host.heard.len();
    for life in 2..4 {
        host.await_sleep();
        host.call(life, "echo", &json!({"text": "more"}));
        let heard = place.heard_by_server(life as usize);
        assert_eq!(heard[..2], [hello, ready], "life {life}");
        assert_eq!(
            heard[2],
            request(life, "tools/call", &json!({"name": "echo", "arguments": {"text": "more"}}))
        );
    }
    // The host hears one answer to each call, and nothing of the handshakes.
    assert_eq!(host.heard.len(), said + 2, "{:#?}", host.heard);
    host.leave();
    place.assert_accounted();
}

fn nothing_is_replayed() {
    let place = Place::new();
    let server = place.server("plain");
    let mut host = Host::start(&place, &place.wrapped(&["--idle", IDLE], &server), &[]);
    host.ask(1, "server/discover", &modern(json!({})));
    host.await_sleep();
    let call = modern(json!({"name": "life"}));
    assert_eq!(host.ask(2, "tools/call", &call)["result"]["content"][0]["text"], "2");
    let heard = place.heard_by_server(2);
    assert!(heard.iter().all(|line| !line.contains("initialize")), "{heard:#?}");
    assert_eq!(heard.last(), Some(&request(2, "tools/call", &call)));
    host.leave();
}

fn log_level() {
    let place = Place::new();
    let mut host = forgetful(&place, "plain");
    let levels = |host: &Host| {
        let told = host.told("notifications/message");
        told.iter().map(|one| one["params"]["level"].clone()).collect::<Vec<Value>>()
    };
    host.ask(1, "logging/setLevel", &json!({"level": "info"}));
    host.ask(2, "logging/setLevel", &json!({"level": "alert"}));
    host.call(3, "log", &json!({}));
    assert_eq!(levels(&host), ["alert", "emergency"]);
    let before = host.heard.len();
    host.await_sleep();
    host.call(4, "log", &json!({}));
    assert_eq!(levels(&host), ["alert", "emergency", "alert", "emergency"]);
    // Two messages and an answer: the answer to a restored level is not the host's.
    assert_eq!(host.heard.len(), before + 3, "{:#?}", host.heard);
    host.leave();
}

fn order() {
    let place = Place::new();
    let mut host = forgetful(&place, "slow");
    host.await_sleep();
    let echo = |id: u64| {
        request(id, "tools/call", &json!({"name": "echo", "arguments": {"text": id.to_string()}}))
    };
    let note = |id: u64| {
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/x","params":{{"n":{id}}}}}"#)
    };
    let mut said = Vec::new();
    for id in 1..=30 {
        said.extend([echo(id), note(id)]);
    }
    // The first alone begins the wake; others come while it lasts.
    host.say(&said[0]);
    assert!(until(PATIENCE, || place.lives() == 2), "not woken");
    for line in &said[1..] {
        host.say(line);
    }
    for id in 1..=30 {
        host.answer_to(&json!(id));
    }
    let all_heard = || place.heard_by_server(2).len() >= 2 + said.len();
    assert!(until(PATIENCE, all_heard), "{:#?}", place.heard_by_server(2));
    assert_eq!(place.heard_by_server(2)[2..], said[..]);
    assert_eq!(place.lives(), 2);
    host.leave();
}

fn half_a_message() {
    let place = Place::new();
    let mut host = forgetful(&place, "plain");
    host.await_sleep();
    let line = request(1, "tools/call", &json!({"name": "echo", "arguments": {"text": "whole"}}));
    let (one, other) = line.split_at(40);
    host.write(one.as_bytes());
    // In the middle of a line, for longer than the silence lasts.
    crate::kit::let_pass(std::time::Duration::from_millis(500));
    host.write(other.as_bytes());
    host.write(b"\n");
    let answer = host.answer_to(&json!(1));
    assert_eq!(answer["result"]["content"][0]["text"], "whole");
    host.leave();
}

fn a_batch() {
    let place = Place::new();
    let mut host = forgetful(&place, "plain");
    host.await_sleep();
    let call = |id: u64| {
        let params = json!({"name": "echo", "arguments": {"text": "x"}});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    };
    host.say(&json!([call(1), {"jsonrpc": "2.0", "id": 2, "method": "ping"}]).to_string());
    host.answer_to(&json!(1));
    host.answer_to(&json!(2));
    host.await_sleep();
    host.leave();
}

fn a_large_message() {
    let place = Place::new();
    let mut host = forgetful(&place, "plain");
    let text = "grüße, 世界 ".repeat(200_000);
    for id in 1..3 {
        host.await_sleep();
        assert!(host.call(id, "echo", &json!({"text": text})) == text, "not the same text");
    }
    host.leave();
}

fn a_server_that_changed() {
    let place = Place::new();
    let mut host = forgetful(&place, "changes");
    let tools = host.ask(1, "tools/list", &json!({}))["result"]["tools"].clone();
    host.await_sleep();
    assert_eq!(host.call(2, "life", &json!({})), "2");
    // It may come after the answer, and it comes once.
    let told = until(PATIENCE, || {
        host.attend(std::time::Duration::from_millis(20));
        !host.told("notifications/tools/list_changed").is_empty()
    });
    assert!(told, "{:#?}", host.heard);
    let now = host.ask(3, "tools/list", &json!({}))["result"]["tools"].clone();
    assert_eq!(now.as_array().unwrap().len(), tools.as_array().unwrap().len() + 1);
    host.await_sleep();
    // The list is as the host knows it now.
    assert_eq!(host.ask(4, "tools/list", &json!({}))["result"]["tools"], now);
    host.call(5, "life", &json!({}));
    assert_eq!(host.told("notifications/tools/list_changed").len(), 1, "{:#?}", host.heard);
    host.leave();
}

fn a_server_that_fails() {
    let place = Place::new();
    let mut host = forgetful(&place, "fails-once");
    host.await_sleep();
    let call = json!({"name": "echo", "arguments": {"text": "back"}});
    for id in 1..=3 {
        host.say(&request(id, "tools/call", &call));
    }
    // The first is refused; what comes with it may be refused with it, or served by the next try.
    let first = host.answer_to(&json!(1));
    assert!(first["error"]["code"].is_i64(), "{first}");
    assert!(
        first["error"]["message"].as_str().is_some_and(|said| said.contains("lariat")),
        "{first}"
    );
    for id in 2..=3 {
        host.answer_to(&json!(id));
    }
    let mut id = 10;
    let back = until(PATIENCE, || {
        id += 1;
        host.ask(id, "tools/call", &call)["result"]["content"][0]["text"] == "back"
    });
    assert!(back, "{:#?}", host.heard);
    host.await_sleep();
    assert_eq!(host.call(1000, "echo", &json!({"text": "again"})), "again");
    host.leave();
    place.assert_accounted();
}

/// A server that asks for the host's roots after each handshake and answers by them: the first call
/// after a wake must not come before it has them.
fn roots(packages: &Packages) {
    let place = Place::new();
    let (files, other) = (place.path("files"), place.path("other"));
    for dir in [&files, &other] {
        fs::create_dir(dir).unwrap();
    }
    fs::write(files.join("page"), "an ox").unwrap();
    let mut server = packages.command(Package::Filesystem, &place);
    *server.last_mut().unwrap() = other.display().to_string();
    let mut host = Host::start(&place, &place.wrapped(&["--idle", IDLE], &server), &[]);
    host.shake_hands(&json!({"roots": {}}));
    let mut id = 0;
    let known = until(PATIENCE, || {
        id += 1;
        host.call(id, "list_allowed_directories", &json!({})).contains("/files")
    });
    assert!(known, "{:#?}", host.heard);
    for _ in 0..3 {
        host.await_sleep();
        id += 1;
        let path = json!({"path": files.join("page")});
        assert_eq!(host.call(id, "read_text_file", &path), "an ox");
    }
    host.leave();
}
