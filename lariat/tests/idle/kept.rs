//! What is in use is not put to sleep: a call, a question to the host, a subscription, a task, a
//! listen. When it is over, it is.

use crate::host::{Host, Manners};
use crate::kit::{Place, trial};
use crate::packages::{Package, Packages};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::time::Duration;
use trials::until;

/// Silence after which a server is put to sleep here.
pub(crate) const IDLE: &str = "100ms";
/// Much longer than that.
const LONG: Duration = Duration::from_millis(900);

pub(crate) fn tests() -> Vec<Trial> {
    let packages = Packages::find();
    vec![
        trial("kept::a_call", a_call),
        trial("kept::a_call_in_a_batch", a_call_in_a_batch),
        trial("kept::a_call_whose_neighbour_is_cancelled", a_call_whose_neighbour_is_cancelled),
        trial("kept::a_question_to_the_host", a_question_to_the_host),
        trial("kept::a_subscription", a_subscription),
        trial("kept::a_task", a_task),
        trial("kept::a_listen", a_listen),
        packages.trial("kept::everything::progress", Package::Everything, progress),
        packages.trial("kept::everything::questions_to_the_host", Package::Everything, questions),
        packages.trial("kept::everything::a_task", Package::Everything, real_task),
        packages.trial("kept::everything::a_subscription", Package::Everything, real_subscription),
    ]
}

/// A host that has shaken hands with a server of ours under `--idle`.
pub(crate) fn forgetful(place: &Place, manner: &str) -> Host {
    let server = place.server(manner);
    let mut host = Host::start(place, &place.wrapped(&["--idle", IDLE], &server), &[]);
    host.shake_hands(&json!({"sampling": {}}));
    host
}

fn a_call() {
    let place = Place::new();
    let mut host = forgetful(&place, "plain");
    assert_eq!(host.call(1, "wait", &json!({"ms": LONG.as_millis() as u64})), "waited");
    assert_eq!(place.lives(), 1);
    host.await_sleep();
    place.assert_reasons(&["idle"]);
    host.leave();
}

fn a_call_in_a_batch() {
    let place = Place::new();
    let mut host = forgetful(&place, "plain");
    let one = |id: u64, ms: u64| {
        let params = json!({"name": "wait", "arguments": {"ms": ms}});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    };
    host.say(&json!([one(1, 0), one(2, LONG.as_millis() as u64)]).to_string());
    host.answer_to(&json!(1));
    host.answer_to(&json!(2));
    assert_eq!(place.lives(), 1);
    host.await_sleep();
    host.leave();
}

fn a_call_whose_neighbour_is_cancelled() {
    let place = Place::new();
    let mut host = forgetful(&place, "plain");
    let wait = json!({"name": "wait", "arguments": {"ms": LONG.as_millis() as u64}});
    host.say(&crate::host::request(1, "tools/call", &json!({"name": "hang"})));
    host.say(&crate::host::request(2, "tools/call", &wait));
    host.say(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#);
    host.answer_to(&json!(2));
    assert_eq!(place.lives(), 1);
    // The cancelled one is never answered, and keeps nobody awake.
    host.await_sleep();
    assert_eq!(host.call(3, "life", &json!({})), "2");
    host.leave();
}

fn a_question_to_the_host() {
    let place = Place::new();
    let mut host = forgetful(&place, "plain");
    host.manners = Manners { answers_after: LONG };
    assert_eq!(host.call(1, "ask", &json!({})), r#""as you wish""#);
    assert_eq!(place.lives(), 1);
    host.await_sleep();
    // And in the next life.
    assert_eq!(host.call(2, "ask", &json!({})), r#""as you wish""#);
    assert_eq!(place.lives(), 2);
    host.leave();
}

fn a_subscription() {
    let place = Place::new();
    let mut host = forgetful(&place, "plain");
    let uri = json!({"uri": "test://one"});
    host.ask(1, "resources/subscribe", &uri);
    host.assert_awake_for(LONG);
    host.call(2, "touch", &uri);
    assert_eq!(host.told("notifications/resources/updated").len(), 1);
    host.ask(3, "resources/unsubscribe", &uri);
    host.await_sleep();
    host.call(4, "touch", &uri);
    assert_eq!(host.told("notifications/resources/updated").len(), 1);
    host.leave();
}

fn a_task() {
    let place = Place::new();
    let mut host = forgetful(&place, "plain");
    let call = json!({
        "name": "wait", "arguments": {"ms": LONG.as_millis() as u64}, "task": {"ttl": 60000},
    });
    let made = host.ask(1, "tools/call", &call);
    let task = json!({"taskId": made["result"]["task"]["taskId"]});
    assert_eq!(made["result"]["task"]["status"], "working", "{made}");
    // Nobody asks for it, and it is not over: that is the host's business.
    host.assert_awake_for(LONG * 2);
    let mut id = 2;
    let over = until(LONG, || {
        id += 1;
        host.ask(id, "tasks/get", &task)["result"]["status"] == "completed"
    });
    assert!(over, "{:#?}", host.heard);
    assert_eq!(host.ask(1000, "tasks/result", &task)["result"]["content"][0]["text"], "task done");
    assert_eq!(place.lives(), 1);
    host.await_sleep();
    host.leave();
}

/// What every request of the modern era carries.
pub(crate) fn modern(mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "forgetful", "version": "1"},
    });
    params
}

fn a_listen() {
    let place = Place::new();
    let server = place.server("plain");
    let mut host = Host::start(&place, &place.wrapped(&["--idle", IDLE], &server), &[]);
    host.ask(1, "tools/list", &modern(json!({})));
    host.await_sleep();
    let listen = modern(json!({"notifications": {"resourceSubscriptions": ["test://one"]}}));
    host.say(&crate::host::request(2, "subscriptions/listen", &listen));
    let first = host.attend(crate::kit::PATIENCE).expect("an acknowledgement");
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    host.assert_awake_for(LONG);
    let touch = modern(json!({"name": "touch", "arguments": {"uri": "test://one"}}));
    host.ask(3, "tools/call", &touch);
    let told = host.told("notifications/resources/updated");
    assert_eq!(told[0]["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 2);
    host.say(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}"#);
    host.await_sleep();
    assert_eq!(place.lives(), 2);
    host.leave();
}

/// A host that has shaken hands with server-everything under `--idle`.
fn with_everything(place: &Place, packages: &Packages) -> Host {
    let server = packages.command(Package::Everything, place);
    let mut host = Host::start(place, &place.wrapped(&["--idle", IDLE], &server), &[]);
    host.shake_hands(&json!({"sampling": {}, "elicitation": {}}));
    host
}

fn progress(packages: &Packages) {
    let place = Place::new();
    let mut host = with_everything(&place, packages);
    let call = json!({
        "name": "trigger-long-running-operation", "arguments": {"duration": 1.2, "steps": 3},
        "_meta": {"progressToken": "p"},
    });
    let answer = host.ask(1, "tools/call", &call);
    assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("completed"));
    assert_eq!(host.told("notifications/progress").len(), 3, "{:#?}", host.heard);
    assert_eq!(place.events("started").len(), 1);
    host.await_sleep();
    place.assert_reasons(&["idle"]);
    host.leave();
}

fn questions(packages: &Packages) {
    let place = Place::new();
    let mut host = with_everything(&place, packages);
    host.manners = Manners { answers_after: LONG };
    let said = host.call(1, "trigger-sampling-request", &json!({"prompt": "a word"}));
    assert!(said.contains("as you wish"), "{said}");
    assert_eq!(place.events("started").len(), 1);
    host.await_sleep();
    let said = host.call(2, "trigger-elicitation-request", &json!({}));
    assert!(said.contains("provided the requested information"), "{said}");
    assert_eq!(place.events("started").len(), 2);
    host.leave();
}

fn real_task(packages: &Packages) {
    let place = Place::new();
    let mut host = with_everything(&place, packages);
    let call = json!({
        "name": "simulate-research-query", "arguments": {"topic": "oxen"}, "task": {"ttl": 60000},
    });
    let made = host.ask(1, "tools/call", &call);
    let task = json!({"taskId": made["result"]["task"]["taskId"]});
    // It works for four seconds; tasks/result waits for it.
    let done = host.ask(2, "tasks/result", &task);
    assert!(
        done["result"]["content"][0]["text"].as_str().is_some_and(|t| t.contains("oxen")),
        "{done}"
    );
    assert_eq!(place.events("started").len(), 1);
    host.await_sleep();
    host.leave();
}

fn real_subscription(packages: &Packages) {
    let place = Place::new();
    let mut host = with_everything(&place, packages);
    let uri = json!({"uri": "demo://resource/dynamic/text/1"});
    host.ask(1, "resources/subscribe", &uri);
    host.assert_awake_for(LONG);
    host.ask(2, "resources/unsubscribe", &uri);
    host.await_sleep();
    host.leave();
}
