//! Who gets what, row by row: strangers on a shared server, a client that shakes hands itself, and
//! where kin are treated otherwise.

use super::tests::{code, down, mux as kin, nothing, text, up};
use super::*;
use crate::mcp::reply::{INVALID_PARAMS, METHOD_NOT_FOUND, UNSUPPORTED_VERSION};

const RESULT: &str = r#"{"protocolVersion":"2025-11-25","serverInfo":{"name":"s"}}"#;
const META: &str = "io.modelcontextprotocol/";

fn strangers() -> Mux {
    Mux::new(vec!["*".into()], Company::Strangers)
}

/// Two strangers on a server of the legacy era, both greeted.
fn legacy() -> (Mux, Port, Port) {
    let mut mux = strangers();
    mux.greeted(serde_json::from_str(RESULT).unwrap());
    let [a, b] = [mux.arrive(), mux.arrive()];
    for port in [a, b] {
        down(mux.port(port, r#"{"id":0,"method":"initialize"}"#));
    }
    (mux, a, b)
}

fn modern() -> (Mux, Port, Port) {
    let mut mux = strangers();
    mux.greeted_modern();
    let [a, b] = [mux.arrive(), mux.arrive()];
    (mux, a, b)
}

/// A client with a server to itself.
fn private() -> (Mux, Port) {
    let mut mux = strangers();
    mux.greeted_by_client();
    let a = mux.arrive();
    (mux, a)
}

fn call(id: &str, method: &str, params: &str) -> String {
    format!(r#"{{"id":{id},"method":"{method}","params":{{{params}}}}}"#)
}

fn note(method: &str, params: &str) -> String {
    format!(r#"{{"method":"notifications/{method}","params":{{{params}}}}}"#)
}

fn result(id: &str, result: &str) -> String {
    format!(r#"{{"id":{id},"result":{result}}}"#)
}

fn failure(id: &str, code: i64, data: &str) -> String {
    format!(r#"{{"id":{id},"error":{{"code":{code},"message":"","data":{data}}}}}"#)
}

/// What the mux answers by itself where a server would say yes.
fn yes(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

/// Who hears something, and all the same.
fn who(routed: Routed) -> Vec<Port> {
    assert!(routed.to_server.is_empty(), "{routed:?}");
    assert!(routed.to_ports.windows(2).all(|two| two[0].1 == two[1].1), "{routed:?}");
    routed.to_ports.into_iter().map(|(port, _)| port).collect()
}

#[test]
fn initialize_is_answered_with_what_the_server_told_us_and_goes_no_further() {
    let (mut mux, a, _) = legacy();
    let welcome = format!(r#"{{"jsonrpc":"2.0","id":"i","result":{RESULT}}}"#);
    assert_eq!(down(mux.port(a, call(r#""i""#, "initialize", ""))), (a, welcome));
    nothing(mux.port(a, note("initialized", "")));
    let (mut mux, a, _) = modern();
    assert_eq!(code(&down(mux.port(a, call("1", "initialize", ""))).1, "1"), UNSUPPORTED_VERSION);
}

#[test]
fn a_ping_is_answered_here_but_in_the_modern_era_it_is_like_any_other() {
    let (mut mux, a, _) = legacy();
    assert_eq!(down(mux.port(a, call("5", "ping", ""))), (a, yes("5")));
    assert_eq!(up(mux.server(call("6", "ping", ""))), yes("6"));
    let (mut mux, a, _) = modern();
    assert_eq!(up(mux.port(a, call("5", "ping", ""))), call("1", "ping", ""));
    assert_eq!(up(mux.server(call("6", "ping", ""))), yes("6"));
}

#[test]
fn what_a_server_asks_is_nobodys_among_strangers() {
    let (mut mux, a, b) = legacy();
    // Not even if only one of them could have caused it.
    up(mux.port(a, call("1", "tools/call", "")));
    for method in ["roots/list", "sampling/createMessage", "elicitation/create", "x"] {
        assert_eq!(code(&up(mux.server(call("9", method, ""))), "9"), METHOD_NOT_FOUND);
    }
    assert_eq!(mux.hazards().len(), 4);
    assert_eq!(mux.take_hazard(), Some("the server asks for roots"));
    assert_eq!(std::iter::from_fn(|| mux.take_hazard()).count(), 3);
    assert_eq!((mux.take_hazard(), mux.hazards().len()), (None, 4));
    down(mux.server(result("1", "1")));
    mux.depart(a);
    // What it is about may have been begun for who has left.
    assert_eq!(code(&up(mux.server(call("9", "roots/list", ""))), "9"), METHOD_NOT_FOUND);
    mux.server_left("it is another now");
    assert_eq!(down(mux.server(call("9", "roots/list", ""))), (b, call("2", "roots/list", "")));
    assert_eq!(up(mux.port(b, result("2", "7"))), result("9", "7"));
}

#[test]
fn who_has_left_may_still_be_meant() {
    let (mut mux, a, b) = legacy();
    up(mux.port(a, call("1", "tools/call", "")));
    assert_eq!(mux.depart(a).to_server.len(), 1);
    // What was begun for the one may be what the server speaks of.
    assert_eq!(code(&up(mux.server(call("9", "roots/list", ""))), "9"), METHOD_NOT_FOUND);
    nothing(mux.server(note("message", r#""level":"error""#)));
    nothing(mux.server(note("vendor", "")));
    assert_eq!((mux.hazards().len(), mux.dropped()), (2, 2));
    // Also when it has answered: nothing says that it speaks of that no more.
    nothing(mux.server(failure("1", -1, "0")));
    nothing(mux.server(note("vendor", "")));
    mux.server_left("it is another now");
    assert_eq!(down(mux.server(note("vendor", ""))).0, b);
}

#[test]
fn a_question_about_a_task_is_its_owners() {
    let (mut mux, a, b) = legacy();
    up(mux.port(b, call("1", "tools/call", r#""task":{}"#)));
    down(mux.server(result("1", r#"{"task":{"taskId":"T","status":"working"}}"#)));
    let about = |task: &str| format!(r#""_meta":{{"{META}related-task":{{"taskId":"{task}"}}}}"#);
    let (port, line) = down(mux.server(call(r#""q""#, "elicitation/create", &about("T"))));
    assert_eq!((port, line), (b, call("2", "elicitation/create", &about("T"))));
    nothing(mux.port(a, result("2", "1")));
    assert_eq!(up(mux.port(b, result("2", "1"))), result(r#""q""#, "1"));
    up(mux.server(call("7", "elicitation/create", &about("U"))));
    assert_eq!(mux.hazards(), ["the server asks the user"]);
}

#[test]
fn roots_that_change_are_not_a_shared_servers() {
    let (mut mux, a, _) = legacy();
    nothing(mux.port(a, note("roots/list_changed", "")));
    let (mut mux, a) = private();
    assert_eq!(up(mux.port(a, note("roots/list_changed", ""))), note("roots/list_changed", ""));
}

/// A server that looks at the method alone would end what is somebody else's.
#[test]
fn what_is_said_in_the_wrong_kind_does_not_reach_a_shared_server() {
    let (mut mux, a, b) = legacy();
    up(mux.port(a, call("1", "tools/call", r#""task":{}"#)));
    down(mux.server(result("1", r#"{"task":{"taskId":"T","status":"working"}}"#)));
    up(mux.port(a, call("2", "tools/call", "")));
    let refused = |line: String| code(&line, "9");
    let cancelled = call("9", "notifications/cancelled", r#""requestId":2"#);
    assert_eq!(refused(down(mux.port(b, cancelled)).1), -32600);
    assert_eq!(refused(down(mux.port(b, call("9", "$/cancelRequest", r#""id":2"#))).1), -32600);
    for method in ["tasks/cancel", "resources/unsubscribe", "logging/setLevel", "tools/call", "x/y"]
    {
        let params = r#""taskId":"T","uri":"u","level":"debug","_meta":{"progressToken":2}"#;
        nothing(mux.port(b, format!(r#"{{"method":"{method}","params":{{{params}}}}}"#)));
    }
    for method in ["vendor", "tasks/status", "progress"] {
        nothing(mux.port(b, note(method, r#""taskId":"T","progressToken":2"#)));
    }
    let vague = call("9", "resources/unsubscribe", r#""uri":["u"]"#);
    assert_eq!(refused(down(mux.port(b, vague)).1), -32602);
    // Who is alone may say whatever the server bears.
    let (mut mux, a) = private();
    assert_eq!(up(mux.port(a, note("vendor", ""))), note("vendor", ""));
}

#[test]
fn the_server_gets_the_most_verbose_level() {
    let (mut mux, a, b) = legacy();
    let set =
        |id: &str, level: &str| call(id, "logging/setLevel", &format!(r#""level":"{level}""#));
    assert_eq!(up(mux.port(a, set("5", "warning"))), set("1", "warning"));
    // Nobody knows yet whether the server agrees.
    assert_eq!(up(mux.port(b, set("5", "error"))), set("2", "warning"));
    assert_eq!(down(mux.server(result("1", "{}"))).0, a);
    assert_eq!(down(mux.server(result("2", "{}"))).0, b);
    assert_eq!(down(mux.port(b, set("6", "critical"))), (b, yes("6")));
    assert_eq!(up(mux.port(b, set("7", "debug"))), set("3", "debug"));
    assert_eq!(down(mux.server(failure("3", -32601, "0"))), (b, failure("7", -32601, "0")));
    // It was refused and does not count, so this is what the server does already.
    assert_eq!(down(mux.port(a, set("8", "warning"))), (a, yes("8")));
    // A level that we do not know could be one for everybody.
    assert_eq!(code(&down(mux.port(a, set("9", "loud"))).1, "9"), -32602);
}

#[test]
fn the_level_that_was_asked_for_last_is_in_force_whichever_answer_comes_last() {
    let (mut mux, a, _) = legacy();
    let set =
        |id: &str, level: &str| call(id, "logging/setLevel", &format!(r#""level":"{level}""#));
    up(mux.port(a, set("1", "info")));
    up(mux.port(a, set("2", "error")));
    down(mux.server(result("2", "{}")));
    down(mux.server(result("1", "{}")));
    assert_eq!(down(mux.port(a, set("3", "error"))), (a, yes("3")));
}

#[test]
fn a_fresh_server_is_not_believed_to_know_what_the_one_before_knew() {
    let (mut mux, a, b) = legacy();
    let set = |id: &str| call(id, "logging/setLevel", r#""level":"debug""#);
    up(mux.port(a, set("1")));
    down(mux.server(result("1", "{}")));
    up(mux.port(a, call("2", "x", "")));
    mux.depart(a);
    assert!(mux.may_sleep());
    nothing(mux.server_left("asleep"));
    assert!(mux.replay().is_empty());
    assert_eq!(up(mux.port(b, set("3"))), set("3"));
    // And what one that left has left behind went with it.
    assert_eq!(down(mux.server(note("vendor", ""))).0, b);
}

#[test]
fn a_log_message_is_heard_by_one_that_is_alone_and_wants_it() {
    let (mut mux, a, b) = legacy();
    let message = |level: &str| note("message", &format!(r#""level":"{level}","data":1"#));
    nothing(mux.server(message("error")));
    assert_eq!((mux.dropped(), mux.hazards().len()), (1, 0));
    mux.depart(a);
    nothing(mux.server(message("debug")));
    mux.server_left("it is another now");
    assert_eq!(down(mux.server(message("debug"))).0, b);
    up(mux.port(b, call("1", "logging/setLevel", r#""level":"warning""#)));
    down(mux.server(result("1", "{}")));
    nothing(mux.server(message("debug")));
    assert_eq!(down(mux.server(message("warning"))).0, b);
    assert_eq!(down(mux.server(message("no level"))).0, b);
    let mut mux = kin();
    let all = vec![mux.arrive(), mux.arrive()];
    assert_eq!(who(mux.server(message("debug"))), all);
}

#[test]
fn a_modern_log_message_is_for_the_only_client_that_asked_for_some() {
    let (mut mux, a, b) = modern();
    let logs = format!(r#""_meta":{{"{META}logLevel":"info"}}"#);
    let message = note("message", r#""level":"info""#);
    nothing(mux.server(&*message));
    up(mux.port(a, call("1", "x", "")));
    up(mux.port(b, call("1", "x", &logs)));
    assert_eq!(down(mux.server(&*message)).0, b);
    up(mux.port(a, call("2", "x", &logs)));
    nothing(mux.server(&*message));
    // The request is over for its client, and perhaps not for the server.
    up(mux.port(a, note("cancelled", r#""requestId":2"#)));
    nothing(mux.server(&*message));
    nothing(mux.server(failure("3", 0, "0")));
    assert_eq!(down(mux.server(&*message)).0, b);
    down(mux.server(result("2", "1")));
    nothing(mux.server(&*message));
    assert_eq!((mux.dropped(), mux.hazards().len()), (4, 0));
}

#[test]
fn the_first_subscribes_and_the_last_unsubscribes() {
    let (mut mux, a, b) = legacy();
    let subscribe = |id: &str| call(id, "resources/subscribe", r#""uri":"f:/a""#);
    let unsubscribe = |id: &str| call(id, "resources/unsubscribe", r#""uri":"f:\/a""#);
    let updated = |uri: &str| note("resources/updated", &format!(r#""uri":"{uri}""#));
    assert_eq!(down(mux.port(a, unsubscribe("1"))), (a, yes("1")));
    assert_eq!(up(mux.port(a, subscribe("2"))), subscribe("1"));
    down(mux.server(result("1", "{}")));
    assert_eq!(down(mux.port(b, subscribe("3"))), (b, yes("3")));
    assert_eq!(who(mux.server(updated("f:/a"))), [a, b]);
    assert_eq!(who(mux.server(updated("f:/a/part"))), [a, b], "a part of it");
    nothing(mux.server(updated("f:/ab")));
    assert_eq!(down(mux.port(a, unsubscribe("4"))), (a, yes("4")));
    assert_eq!(who(mux.server(updated("f:/a"))), [b]);
    assert_eq!(up(mux.port(b, unsubscribe("5"))), unsubscribe("2"));
    assert_eq!(down(mux.server(result("2", "{}"))).0, b);
    nothing(mux.server(updated("f:/a")));
    assert_eq!(mux.dropped(), 2);
}

#[test]
fn a_subscription_that_is_refused_is_none() {
    let (mut mux, a, b) = legacy();
    let subscribe = |id: &str| call(id, "resources/subscribe", r#""uri":"u""#);
    up(mux.port(a, subscribe("1")));
    up(mux.port(b, subscribe("1")));
    down(mux.server(result("1", "{}")));
    // Another still wants to know, it seems.
    down(mux.port(a, call("2", "resources/unsubscribe", r#""uri":"u""#)));
    let Routed { to_server, to_ports, .. } = mux.server(failure("2", -1, "0"));
    assert_eq!(to_ports, [(b, failure("1", -1, "0").into_bytes())]);
    assert!(text(&to_server[0]).contains("resources/unsubscribe"), "{to_server:?}");
    nothing(mux.server(result("3", "{}")));
    assert!(mux.is_quiet());
    up(mux.port(b, subscribe("9")));
    // Whether the server has heeded it is not known.
    let cancelled = mux.port(b, note("cancelled", r#""requestId":9"#));
    assert_eq!(cancelled.to_server.len(), 2);
}

#[test]
fn who_vanishes_is_cancelled_unsubscribed_and_not_listened_for() {
    let (mut mux, a, b) = legacy();
    for (port, uri) in [(a, "both"), (b, "both"), (a, "own"), (b, "other")] {
        let routed = mux.port(port, call("1", "resources/subscribe", &format!(r#""uri":"{uri}""#)));
        if !routed.to_server.is_empty() {
            down(mux.server(result(&mux.last_id.to_string(), "{}")));
        }
    }
    up(mux.port(a, call("7", "resources/subscribe", r#""uri":"not yet""#)));
    up(mux.port(a, call("8", "subscriptions/listen", "")));
    assert_eq!((mux.in_flight_of(a), mux.in_flight_of(b)), (2, 0));
    let lines: Vec<_> = mux.depart(a).to_server.iter().map(|line| text(line)).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines[0].contains(r#""requestId":4"#) && lines[1].contains(r#""requestId":5"#));
    assert!(lines[2].contains(r#""uri":"not yet""#) && lines[2].contains("/unsubscribe"));
    assert!(lines[3].contains(r#""uri":"own""#) && lines[3].contains("/unsubscribe"));
}

#[test]
fn lists_that_change_concern_whoever_was_greeted() {
    let (mut mux, a, b) = legacy();
    let c = mux.arrive();
    for list in ["tools", "prompts", "resources"] {
        let mut routed = mux.server(note(&format!("{list}/list_changed"), ""));
        assert_eq!(std::mem::take(&mut routed.tools_changed), list == "tools");
        assert_eq!(who(routed), [a, b], "{c:?} does not know the server yet");
    }
}

#[test]
fn a_listen_is_rewritten_in_three_places() {
    let (mut mux, a, b) = modern();
    up(mux.port(a, call("1", "subscriptions/listen", "")));
    up(mux.port(b, call(r#""l""#, "subscriptions/listen", "")));
    let tag = |id: &str| format!(r#""_meta":{{"{META}subscriptionId":{id}}}"#);
    let changed = |id: &str| note("resources/updated", &format!(r#""uri":"u",{}"#, tag(id)));
    assert_eq!(down(mux.server(changed("2"))), (b, changed(r#""l""#)));
    let end = |id: &str| note("cancelled", &format!(r#""requestId":{id}"#));
    assert_eq!(down(mux.server(end("2"))), (b, end(r#""l""#)));
    let last = |id: &str| result(id, &format!("{{{}}}", tag(id)));
    assert_eq!(down(mux.server(last("2"))), (b, last(r#""l""#)));
    assert!(!mux.may_sleep(), "one still listens");
    // Untagged, it is nobody's: in the modern era it should not have been said.
    nothing(mux.server(note("resources/list_changed", "")));
}

#[test]
fn a_task_is_its_owners_until_its_end_and_after() {
    let (mut mux, a, b) = legacy();
    let token = r#""task":{},"_meta":{"progressToken":"t"}"#;
    up(mux.port(a, call("1", "tools/call", token)));
    down(mux.server(result("1", r#"{"task":{"taskId":"T","status":"working"}}"#)));
    assert!(mux.is_quiet() && !mux.may_sleep());
    let about = |id: &str, what: &str| call(id, &format!("tasks/{what}"), r#""taskId":"T""#);
    for what in ["get", "result", "cancel", "update"] {
        let (port, line) = down(mux.port(b, about("9", what)));
        assert_eq!((port, code(&line, "9")), (b, INVALID_PARAMS));
    }
    let status =
        |status: &str| note("tasks/status", &format!(r#""taskId":"T","status":"{status}""#));
    assert_eq!(down(mux.server(status("working"))).0, a);
    let progress = |token: &str| note("progress", &format!(r#""progressToken":{token}"#));
    assert_eq!(down(mux.server(progress("1"))), (a, progress(r#""t""#)));

    // Lists show each what is its own.
    up(mux.port(b, call("2", "tools/call", r#""task":{}"#)));
    down(mux.server(result("2", r#"{"task":{"taskId":"U","status":"completed"}}"#)));
    up(mux.port(a, call("3", "tasks/list", "")));
    let [t, u] = [r#"{ "taskId":"T","x":1e999}"#, r#"{"taskId":"U"}"#];
    let list = |id: &str, tasks: &str| result(id, &format!(r#"{{"tasks":[{tasks}]}}"#));
    assert_eq!(down(mux.server(list("3", &format!("{u}, {t}")))), (a, list("3", t)));
    up(mux.port(a, call("4", "tasks/list", "")));
    assert_eq!(code(&down(mux.server(result("4", r#"{"tasks":{}}"#))).1, "4"), INTERNAL_ERROR);

    up(mux.port(a, about("5", "result")));
    down(mux.server(result("5", "{}")));
    assert!(mux.may_sleep());
    nothing(mux.server(progress("1")));
    assert_eq!(down(mux.server(status("completed"))).0, a);
    // Another cannot have it by being answered the same.
    up(mux.port(b, call("6", "x", "")));
    down(mux.server(result("6", r#"{"taskId":"T","status":"working"}"#)));
    assert_eq!(down(mux.server(status("completed"))).0, a);
    mux.depart(a);
    nothing(mux.server(status("completed")));
    nothing(mux.server(note("tasks/status", r#""taskId":"never""#)));
}

#[test]
fn a_modern_task_outlives_the_client_that_began_it() {
    let (mut mux, a, b) = modern();
    up(mux.port(a, call("1", "tools/call", "")));
    down(mux.server(result("1", r#"{"resultType":"task","taskId":"T","status":"working"}"#)));
    let get = |id: &str| call(id, "tasks/get", r#""taskId":"T""#);
    assert_eq!(code(&down(mux.port(b, get("1"))).1, "1"), INVALID_PARAMS);
    mux.depart(a);
    assert!(!mux.may_sleep());
    // It had no more than this request, so whoever comes for its task next is the same as before.
    assert_eq!(up(mux.port(b, get("1"))), get("2"));
    down(mux.server(result("2", r#"{"taskId":"T","status":"completed"}"#)));
    assert!(mux.may_sleep());
}

#[test]
fn a_page_that_was_visited_concerns_who_was_sent_there() {
    let (mut mux, a, b) = legacy();
    up(mux.port(b, call("1", "tools/call", "")));
    let pages = r#"{"elicitations":[{"mode":"url","elicitationId":"E"}]}"#;
    down(mux.server(failure("1", -32042, pages)));
    let complete = |id: &str| note("elicitation/complete", &format!(r#""elicitationId":"{id}""#));
    assert_eq!(down(mux.server(complete("E"))).0, b);
    nothing(mux.server(complete("F")));
    mux.depart(b);
    nothing(mux.server(complete("E")));
    mux.server_left("it is another now");
    let asked = call("7", "elicitation/create", r#""elicitationId":"F""#);
    assert_eq!(down(mux.server(asked)).0, a);
    mux.arrive();
    assert_eq!(down(mux.server(complete("F"))).0, a);
}

#[test]
fn what_nobody_knows_is_heard_by_one_that_is_alone() {
    let (mut mux, a, b) = legacy();
    assert_eq!(up(mux.port(a, call("1", "vendor/x", ""))), call("1", "vendor/x", ""));
    assert_eq!(down(mux.server(result("1", "1"))).0, a);
    nothing(mux.server(note("vendor", "")));
    assert_eq!(mux.hazards(), ["the server notifies its client of something unknown"]);
    mux.depart(a);
    nothing(mux.server(note("vendor", "")));
    mux.server_left("it is another now");
    assert_eq!(down(mux.server(note("vendor", ""))).0, b);
}

#[test]
fn batches_are_split_where_the_revision_has_them() {
    let batch = r#"[{"id":1,"method":"x"}, 5,{"id":2,"method":"y"}]"#;
    let (mut mux, a, _) = legacy();
    assert_eq!(code(&down(mux.port(a, batch)).1, "null"), -32600);
    mux.greeted(serde_json::from_str(r#"{"protocolVersion":"2025-03-26"}"#).unwrap());
    let Routed { to_server, to_ports, .. } = mux.port(a, batch);
    let lines: Vec<_> = to_server.iter().map(|line| text(line)).collect();
    assert_eq!(lines, [r#"{"id":1,"method":"x"}"#, r#"{"id":2,"method":"y"}"#]);
    assert_eq!(to_ports.len(), 1);
}

#[test]
fn a_clients_own_handshake_goes_through_and_can_be_repeated() {
    let (mut mux, a) = private();
    assert!(!mux.may_sleep() && mux.greeting_again().is_none());
    let hello = |id: &str| call(id, "initialize", r#""capabilities":{"roots":{}}"#);
    assert_eq!(up(mux.port(a, hello(r#""i""#))), hello("1"));
    nothing(mux.port(a, note("cancelled", r#""requestId":"i""#)));
    assert!(mux.greeting_again().is_none(), "not answered yet");
    assert_eq!(down(mux.server(result("1", RESULT))), (a, result(r#""i""#, RESULT)));
    assert_eq!(up(mux.port(a, note("initialized", ""))), note("initialized", ""));
    assert_eq!(down(mux.server(call("0", "roots/list", ""))), (a, call("2", "roots/list", "")));
    up(mux.port(a, result("2", "{}")));
    // What is for nobody in particular is for the only one.
    for method in ["message", "resources/updated", "tasks/status", "vendor", "elicitation/complete"]
    {
        assert_eq!(down(mux.server(note(method, ""))), (a, note(method, "")));
    }
    up(mux.port(a, call("3", "tasks/get", r#""taskId":"whichever""#)));
    down(mux.server(result("3", "{}")));
    let subscribe = |id: &str| call(id, "resources/subscribe", r#""uri":"u""#);
    for id in ["4", "5"] {
        assert_eq!(up(mux.port(a, subscribe(id))), subscribe(id));
        down(mux.server(result(id, "{}")));
    }
    up(mux.port(a, call("6", "logging/setLevel", r#""level":"info""#)));
    down(mux.server(result("6", "{}")));
    assert!(mux.may_sleep());

    nothing(mux.server_left("asleep"));
    let again = mux.greeting_again().unwrap();
    assert_eq!((again.id, text(&again.initialize)), (7, hello("7")));
    assert_eq!(again.initialized, Some(note("initialized", "").into_bytes()));
    let routed =
        mux.server(result("7", r#"{"serverInfo":{"name":"s"},"protocolVersion":"2025-11-25"}"#));
    assert!(routed.to_ports.is_empty());
    assert!(mux.is_same_greeting(&routed.to_us[0].1));
    assert!(!mux.is_same_greeting(&result("7", "{}").into_bytes()));
    let lines: Vec<_> = mux.replay().iter().map(|line| text(line)).collect();
    assert!(lines[0].contains("logging/setLevel") && lines[0].contains("info"), "{lines:?}");
    assert!(lines[1].contains("resources/subscribe") && lines[1].contains(r#""uri":"u""#));
    assert_eq!(lines.len(), 2);
    assert!(!mux.may_sleep());
    nothing(mux.server(result("8", "{}")));
    nothing(mux.server(failure("9", -1, "0")));
    assert!(mux.may_sleep());
    // Should there be another after all, neither hears what may be the other's.
    let b = mux.arrive();
    nothing(mux.server(note("vendor", "")));
    assert_eq!(down(mux.port(b, call("1", "initialize", ""))).0, b);
}

#[test]
fn a_handshake_that_is_too_long_is_not_kept_and_prevents_sleep() {
    let (mut mux, a) = private();
    let long = format!(r#""x":"{}""#, "x".repeat(LONGEST_HANDSHAKE));
    up(mux.port(a, call("1", "initialize", &long)));
    down(mux.server(result("1", RESULT)));
    assert!(mux.is_quiet() && !mux.may_sleep() && mux.greeting_again().is_none());
}

#[test]
fn who_waits_is_told_that_the_server_left() {
    let (mut mux, a, b) = legacy();
    up(mux.port(b, call(r#""b""#, "x", "")));
    up(mux.port(a, call("1", "subscriptions/listen", "")));
    let (ours, _) = mux.ask("x", None).unwrap();
    up(mux.port(a, call("2", "x", "")));
    up(mux.port(a, note("cancelled", r#""requestId":2"#)));
    let Routed { to_server, to_ports, to_us, .. } = mux.server_left("it crashed");
    assert!(to_server.is_empty());
    assert_eq!(code(&text(&to_ports[0].1), r#""b""#), NO_SERVER);
    assert_eq!(code(&text(&to_ports[1].1), "1"), NO_SERVER);
    assert_eq!((to_ports[0].0, to_ports[1].0, to_ports.len()), (b, a, 2));
    assert_eq!((to_us.len(), to_us[0].0), (1, ours));
    assert!(mux.may_sleep() && mux.over.is_empty() && mux.in_flight_of(a) == 0);
    nothing(mux.server(result("1", "1")));
    assert_eq!(mux.dropped(), 1);
}

#[test]
fn subscriptions_and_tasks_have_an_end() {
    let (mut mux, a, b) = legacy();
    let subscribe = |n: usize| call("1", "resources/subscribe", &format!(r#""uri":"{n}""#));
    for n in 0..10_000 {
        up(mux.port(a, subscribe(n)));
        down(mux.server(result(&mux.last_id.to_string(), "{}")));
    }
    let (port, line) = down(mux.port(b, subscribe(0)));
    assert_eq!((port, code(&line, "1")), (b, INTERNAL_ERROR));
    assert_eq!(mux.depart(a).to_server.len(), 10_000);
    mux.server_left("gone");
    // The oldest task of the same client makes room; another client's does not.
    for port in std::iter::once(mux.arrive()).chain(std::iter::repeat_n(b, 1_001)) {
        up(mux.port(port, call("1", "x", "")));
        let id = mux.last_id;
        down(mux.server(result(
            &id.to_string(),
            &format!(r#"{{"taskId":"{id}","status":"working"}}"#),
        )));
    }
    let gone = mux.last_id - 1_000;
    let status = |id: u64| note("tasks/status", &format!(r#""taskId":"{id}","status":"working""#));
    nothing(mux.server(status(gone)));
    assert_eq!(down(mux.server(status(gone + 1))).0, b);
    assert_eq!(who(mux.server(status(gone - 1))).len(), 1);
}
