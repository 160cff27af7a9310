use super::*;
use crate::dice::Dice;
use crate::mcp::reply::{
    INVALID_REQUEST, LONGEST_TOKEN, METHOD_NOT_FOUND, PARSE_ERROR, UNSUPPORTED_VERSION,
};

const CANCEL: &str = "notifications/cancelled";

pub(super) fn mux() -> Mux {
    Mux::new(vec!["*".into()], Company::Kin)
}

/// With two clients.
fn two() -> (Mux, Port, Port) {
    let mut mux = mux();
    let [a, b] = [mux.arrive(), mux.arrive()];
    (mux, a, b)
}

pub(super) fn text(line: &[u8]) -> String {
    String::from_utf8(line.to_vec()).unwrap()
}

/// The only line for the server, and nothing else.
#[track_caller]
pub(super) fn up(routed: Routed) -> String {
    assert!(routed.to_ports.is_empty() && routed.to_us.is_empty(), "{routed:?}");
    assert_eq!(routed.to_server.len(), 1, "{routed:?}");
    text(&routed.to_server[0])
}

/// The only line for a client, and nothing else.
#[track_caller]
pub(super) fn down(routed: Routed) -> (Port, String) {
    assert!(routed.to_server.is_empty() && routed.to_us.is_empty(), "{routed:?}");
    assert_eq!(routed.to_ports.len(), 1, "{routed:?}");
    (routed.to_ports[0].0, text(&routed.to_ports[0].1))
}

#[track_caller]
pub(super) fn nothing(routed: Routed) {
    assert_eq!(routed, Routed::default());
}

impl Mux {
    pub(super) fn port(&mut self, port: Port, line: impl Into<String>) -> Routed {
        self.port_says(port, line.into().into_bytes())
    }

    pub(super) fn server(&mut self, line: impl Into<String>) -> Routed {
        self.server_says(line.into().into_bytes())
    }
}

/// What a refusal says.
#[track_caller]
pub(super) fn code(line: &str, id: &str) -> i64 {
    assert!(line.starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{id},"error":"#)), "{line}");
    serde_json::from_str::<serde_json::Value>(line).unwrap()["error"]["code"].as_i64().unwrap()
}

#[test]
fn ids_come_back_byte_for_byte() {
    let (mut mux, a, _) = two();
    let ids =
        ["1", r#""1""#, "1e2", "-0", r#""\u0041\n""#, "123456789012345678901234567890", r#""""#];
    for (n, id) in (1..).zip(ids) {
        let line = format!(r#"{{"z":1e999, "id": {id} ,"method":"x","params":{{"b":1,"a":[ ]}}}}"#);
        let sent = up(mux.port(a, &*line));
        assert_eq!(sent, line.replacen(&format!(": {id} "), &format!(": {n} "), 1));
        let back = |id: &str| {
            format!(r#"{{"result":{{"id":{n},"big":12345678901234567890123}},"id":{id},"x":null}}"#)
        };
        assert_eq!(down(mux.server(back(&n.to_string()))), (a, back(id)));
    }
    assert!(mux.is_quiet());
}

#[test]
fn two_clients_may_choose_the_same_id() {
    let (mut mux, a, b) = two();
    let line = r#"{"id":7,"method":"x"}"#;
    assert_eq!(up(mux.port(a, line)), r#"{"id":1,"method":"x"}"#);
    assert_eq!(up(mux.port(b, line)), r#"{"id":2,"method":"x"}"#);
    assert_eq!(mux.in_flight(), 2);
    assert_eq!(down(mux.server(r#"{"id":2,"result":2}"#)), (b, r#"{"id":7,"result":2}"#.into()));
    assert_eq!(down(mux.server(r#"{"id":1,"error":1}"#)), (a, r#"{"id":7,"error":1}"#.into()));
}

#[test]
fn an_answer_that_nobody_asked_for_is_dropped_and_counted() {
    let (mut mux, a, _) = two();
    up(mux.port(a, r#"{"id":1,"method":"x"}"#));
    for (n, id) in (1..).zip(["2", "null", r#""1""#, "1.0", "-1", "{}"]) {
        nothing(mux.server(format!(r#"{{"id":{id},"result":1}}"#)));
        assert_eq!(mux.dropped(), n, "{id}");
    }
    nothing(mux.server(r#"{"error":{"code":-32600}}"#));
    assert_eq!(mux.in_flight(), 1);
}

#[test]
fn progress_finds_its_request() {
    let (mut mux, a, b) = two();
    let call = |token: &str| {
        format!(r#"{{"id":1,"method":"x","params":{{"_meta":{{"t":0,"progressToken":{token}}}}}}}"#)
    };
    assert_eq!(up(mux.port(a, call(r#""\u0061""#))), call("1"));
    assert_eq!(up(mux.port(b, call("1"))), call("2").replace(r#""id":1"#, r#""id":2"#));
    let progress = |token: &str| {
        format!(
            r#"{{"method":"notifications/progress","params":{{"progressToken":{token},"p":1}}}}"#
        )
    };
    assert_eq!(down(mux.server(progress("1"))), (a, progress(r#""\u0061""#)));
    assert_eq!(down(mux.server(progress("2"))), (b, progress("1")));
    down(mux.server(r#"{"id":1,"result":1}"#));
    nothing(mux.server(progress("1")));
    nothing(mux.server(progress("3")));
    nothing(mux.server(r#"{"method":"notifications/progress"}"#));
    assert_eq!(mux.dropped(), 3);
    // Who gave no token gets no progress.
    up(mux.port(a, r#"{"id":5,"method":"x","params":{"_meta":{}}}"#));
    nothing(mux.server(progress("3")));
}

#[test]
fn progress_of_a_task_goes_on_after_the_answer() {
    let (mut mux, a, _) = two();
    let meta = r#""_meta":{"progressToken":"t"}"#;
    up(mux.port(a, format!(r#"{{"id":1,"method":"x","params":{{"task":{{}},{meta}}}}}"#)));
    down(mux.server(r#"{"id":1,"result":{"task":{"taskId":"T","status":"working"}}}"#));
    let progress = r#"{"method":"notifications/progress","params":{"progressToken":1}}"#;
    assert_eq!(down(mux.server(progress)), (a, progress.replace(":1", r#":"t""#)));
    mux.depart(a);
    nothing(mux.server(progress));
}

#[test]
fn only_its_own_requests_can_a_client_cancel() {
    let (mut mux, a, b) = two();
    up(mux.port(a, r#"{"id":"r","method":"x"}"#));
    let cancel =
        |id: &str| format!(r#"{{"method":"{CANCEL}","params":{{"reason":"","requestId":{id}}}}}"#);
    nothing(mux.port(b, cancel(r#""r""#)));
    nothing(mux.port(a, cancel("1")));
    assert_eq!(mux.dropped(), 2);
    assert_eq!(up(mux.port(a, cancel(r#""r""#))), cancel("1"));
    assert!(mux.is_quiet());
    // The answer that was already on its way.
    nothing(mux.server(r#"{"id":1,"result":1}"#));
    assert_eq!(mux.dropped(), 2);
    nothing(mux.server(r#"{"id":1,"result":1}"#));
    assert_eq!(mux.dropped(), 3, "once is late, twice is wrong");
}

#[test]
fn few_late_answers_are_remembered() {
    let mut mux = mux();
    for _ in 0..3 * REMEMBERED {
        let (id, _) = mux.ask("x", None).unwrap();
        assert!(mux.cancel(id).is_some());
        assert!(mux.cancel(id).is_none());
    }
    assert_eq!(mux.over.len(), REMEMBERED);
}

#[test]
fn who_leaves_cancels_and_is_excused() {
    let mut mux = mux();
    let a = mux.arrive();
    up(mux.port(a, r#"{"id":1,"method":"x"}"#));
    up(mux.port(a, r#"{"id":2,"method":"y"}"#));
    down(mux.server(r#"{"id":"q","method":"roots/list"}"#));
    let b = mux.arrive();
    up(mux.port(b, r#"{"id":1,"method":"z"}"#));
    let Routed { to_server, to_ports, .. } = mux.depart(a);
    assert!(to_ports.is_empty());
    let lines: Vec<_> = to_server.iter().map(|line| text(line)).collect();
    assert!(lines[0].contains(CANCEL) && lines[0].contains(r#""requestId":1"#), "{lines:?}");
    assert!(lines[1].contains(CANCEL) && lines[1].contains(r#""requestId":2"#), "{lines:?}");
    assert_eq!(code(&lines[2], r#""q""#), INTERNAL_ERROR);
    assert_eq!((lines.len(), mux.in_flight()), (3, 1));
    nothing(mux.port(a, r#"{"id":1,"method":"x"}"#));
    assert_eq!(down(mux.server(r#"{"id":4,"result":1}"#)).0, b);
}

#[test]
fn a_second_handshake_is_answered_with_the_first() {
    let (mut mux, a, _) = two();
    let hello = r#"{"id":"i","method":"initialize","params":{"protocolVersion":"2024-11-05"}}"#;
    assert_eq!(code(&down(mux.port(a, hello)).1, r#""i""#), INTERNAL_ERROR);
    let result = r#"{"serverInfo":{}, "x":1e400,"protocolVersion":"2025-06-18"}"#;
    mux.greeted(serde_json::from_str(result).unwrap());
    let welcome = format!(r#"{{"jsonrpc":"2.0","id":"i","result":{result}}}"#);
    assert_eq!(down(mux.port(a, hello)), (a, welcome));
    nothing(mux.port(a, r#"{"method":"notifications/initialized"}"#));
    assert!(!mux.is_modern());
    mux.greeted_modern();
    assert_eq!(code(&down(mux.port(a, hello)).1, r#""i""#), UNSUPPORTED_VERSION);
    up(mux.port(a, r#"{"id":1,"method":"server/discover"}"#));
}

#[test]
fn a_ping_goes_no_further() {
    let (mut mux, a, _) = two();
    let pong = r#"{"jsonrpc":"2.0","id":"p","result":{}}"#;
    let ping = r#"{"id":"p","method":"ping"}"#;
    assert_eq!(down(mux.port(a, ping)), (a, pong.into()));
    assert_eq!(up(mux.server(ping)), pong);
}

#[test]
fn a_question_needs_exactly_one_client() {
    let mut mux = mux();
    let question = r#"{"method":"sampling/createMessage","id":"q","params":{}}"#;
    assert_eq!(code(&up(mux.server(question)), r#""q""#), METHOD_NOT_FOUND);
    let a = mux.arrive();
    assert_eq!(down(mux.server(question)), (a, question.replace(r#""q""#, "1")));
    let b = mux.arrive();
    assert_eq!(code(&up(mux.server(question)), r#""q""#), METHOD_NOT_FOUND);
    let reply = r#"{"id":1,"result":{"a":1}}"#;
    nothing(mux.port(b, reply));
    assert_eq!(up(mux.port(a, reply)), reply.replace(":1,", r#":"q","#));
    nothing(mux.port(a, reply));
    assert_eq!((mux.dropped(), mux.in_flight()), (2, 0));
}

#[test]
fn a_question_can_be_taken_back() {
    let mut mux = mux();
    let a = mux.arrive();
    down(mux.server(r#"{"method":"elicitation/create","id":"q"}"#));
    let cancel = format!(r#"{{"method":"{CANCEL}","params":{{"requestId":"q"}}}}"#);
    assert_eq!(down(mux.server(&*cancel)), (a, cancel.replace(r#""q""#, "1")));
    assert!(mux.is_quiet());
    nothing(mux.server(&*cancel));
    // A plain request is not the server's to cancel.
    up(mux.port(a, r#"{"id":1,"method":"x"}"#));
    nothing(mux.server(cancel.replace(r#""q""#, "2")));
    assert_eq!(mux.in_flight(), 1);
}

#[test]
fn what_is_for_nobody_is_for_everybody() {
    let (mut mux, a, b) = two();
    for method in ["notifications/message", "notifications/tools/list_changed", "x"] {
        let line = format!(r#"{{ "method":"{method}","params":{{"n":1e400}}}}"#);
        let routed = mux.server(&*line);
        let both = vec![(a, line.clone().into_bytes()), (b, line.into_bytes())];
        assert_eq!(routed.to_ports, both);
        assert_eq!(routed.tools_changed, method.ends_with("list_changed"));
    }
}

#[test]
fn a_clients_own_notifications_are_passed_on() {
    let (mut mux, a, _) = two();
    let line = r#"{ "method":"notifications/roots/list_changed" }"#;
    assert_eq!(up(mux.port(a, line)), line);
    let line = r#"{"id":1,"method":"logging/setLevel","params":{"level":"info"}}"#;
    assert_eq!(up(mux.port(a, line)), line);
}

#[test]
fn a_subscription_is_its_listeners_alone() {
    let (mut mux, _, b) = two();
    up(mux.port(b, r#"{"id":"l","method":"subscriptions/listen"}"#));
    let tagged = |method: &str, id: &str| {
        let meta = format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#);
        format!(r#"{{"method":"{method}","params":{{{meta}}}}}"#)
    };
    let changed = "notifications/tools/list_changed";
    let mut routed = mux.server(tagged(changed, "1"));
    assert!(std::mem::take(&mut routed.tools_changed));
    assert_eq!(down(routed), (b, tagged(changed, r#""l""#)));
    let acknowledged = "notifications/subscriptions/acknowledged";
    assert_eq!(down(mux.server(tagged(acknowledged, "1"))).1, tagged(acknowledged, r#""l""#));
    nothing(mux.server(tagged(acknowledged, "2")));
    // Its end may be said twice, in two ways.
    let cancel = |id: &str| format!(r#"{{"method":"{CANCEL}","params":{{"requestId":{id}}}}}"#);
    assert_eq!(down(mux.server(cancel("1"))), (b, cancel(r#""l""#)));
    assert!(mux.is_quiet());
    let end = |id: &str| {
        let meta = format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#);
        format!(r#"{{"id":{id},"result":{{{meta}}}}}"#)
    };
    assert_eq!(down(mux.server(end("1"))), (b, end(r#""l""#)));
    nothing(mux.server(end("1")));
}

#[test]
fn our_own_subscription_ends_too() {
    let mut mux = mux();
    let (id, _) = mux.ask("subscriptions/listen", None).unwrap();
    let routed = mux.server(format!(r#"{{"method":"{CANCEL}","params":{{"requestId":{id}}}}}"#));
    assert_eq!((routed.to_us.len(), routed.to_ports.len(), mux.in_flight()), (1, 0, 0));
}

#[test]
fn batches_are_split_or_refused() {
    let (mut mux, a, _) = two();
    assert_eq!(code(&down(mux.port(a, r#"[{"id":1,"method":"x"}]"#)).1, "null"), INVALID_REQUEST);
    up(mux.port(a, r#"{"id":"one","method":"x"}"#));
    let routed = mux.server(r#"[{"id":1,"result":1}, 5, [], {"id":2,"method":"ping"}]"#);
    assert_eq!(routed.to_ports, [(a, br#"{"id":"one","result":1}"#.to_vec())]);
    assert_eq!((routed.to_server.len(), mux.dropped()), (1, 2));
    nothing(mux.server("[]"));
    assert_eq!(mux.dropped(), 3);
}

#[test]
fn tools_that_are_not_allowed_are_neither_called_nor_seen() {
    let mut mux = Mux::new(vec!["read".into(), "list_*".into()], Company::Kin);
    let a = mux.arrive();
    let call = |name: &str| {
        format!(r#"{{"id":5,"method":"tools/call","params":{{"name":{name},"arguments":{{}}}}}}"#)
    };
    for name in [r#""write""#, "7", "null", r#""read","name":"write""#] {
        let (port, line) = down(mux.port(a, call(name)));
        assert_eq!((port, code(&line, "5")), (a, -32602), "{name}");
        assert_eq!(line.contains("write"), name == r#""write""#, "{line}");
    }
    assert!(mux.is_quiet());
    up(mux.port(a, call(r#""list_x""#)));
    up(mux.port(a, call(r#""r\u0065ad""#)));
    assert_eq!(
        mux.ask("tools/call", Some(serde_json::from_str(r#"{"name":"write"}"#).unwrap())),
        Err(Unsent::NotAllowed("write".into()))
    );

    let list = r#"{"id":"l","method":"tools/list"}"#;
    up(mux.port(a, list));
    let [read, write, x] =
        [r#"{ "name":"read","n":1e999}"#, r#"{"name":"write"}"#, r#"{"x":[],"name":"list_x"}"#];
    let odd = r#"{"name":"read","name":"write"}"#;
    let sent = format!(r#"{{"result":{{"a":1,"tools":[{write} , {read}, {odd},{x}]}}, "id":3}}"#);
    let seen = format!(r#"{{"result":{{"a":1,"tools":[{read},{x}]}}, "id":"l"}}"#);
    assert_eq!(down(mux.server(sent)).1, seen);
    // What cannot be filtered is not shown.
    for tools in [r#"{"write":1}"#, r#"[],"tools":[{"name":"write"}]"#] {
        let sent = up(mux.port(a, list));
        let id = sent.split(['"', ':', ',']).find(|word| word.parse::<u64>().is_ok()).unwrap();
        let (_, line) = down(mux.server(format!(r#"{{"id":{id},"result":{{"tools":{tools}}}}}"#)));
        assert_eq!(code(&line, r#""l""#), INTERNAL_ERROR);
    }
}

#[test]
fn what_a_server_prints_is_dropped_and_what_a_client_prints_is_refused() {
    let (mut mux, a, _) = two();
    for line in ["Server started on stdio", "{", "1", "{}", r#"{"id":1}"#] {
        nothing(mux.server(line));
    }
    assert_eq!(mux.dropped(), 5);
    assert_eq!(code(&down(mux.port(a, "hello")).1, "null"), PARSE_ERROR);
    for line in ["1", "{}", r#"{"id":null,"method":"x"}"#, r#"{"id":1,"id":1,"method":"x"}"#] {
        assert_eq!(code(&down(mux.port(a, line)).1, "null"), INVALID_REQUEST, "{line}");
    }
    let twice = r#"{"id":1,"method":"x","params":{"_meta":{},"_meta":{}}}"#;
    assert_eq!(code(&down(mux.port(a, twice)).1, "1"), -32602);
    let long = format!(r#"{{"id":"{}","method":"x"}}"#, "x".repeat(LONGEST_TOKEN));
    assert_eq!(code(&down(mux.port(a, long)).1, "null"), INVALID_REQUEST);
    assert!(mux.is_quiet());
}

#[test]
fn there_is_an_end_to_what_can_be_in_flight() {
    let (mut mux, a, b) = two();
    for _ in 0..MOST {
        up(mux.port(a, r#"{"id":1,"method":"x"}"#));
    }
    let (port, line) = down(mux.port(b, r#"{"id":"b","method":"x"}"#));
    assert_eq!((port, code(&line, r#""b""#)), (b, INTERNAL_ERROR));
    assert!(line.contains("too many requests in flight"));
    assert_eq!(mux.ask("x", None), Err(Unsent::TooBusy));
    mux.depart(b);
    assert_eq!(code(&up(mux.server(r#"{"id":1,"method":"roots/list"}"#)), "1"), INTERNAL_ERROR);
    down(mux.server(r#"{"id":1,"result":1}"#));
    assert!(mux.ask("x", None).is_ok());
    assert_eq!(mux.depart(a).to_server.len(), MOST - 1);
    assert_eq!(mux.in_flight(), 1);
}

#[test]
fn our_own_requests_are_lines_too() {
    let mut mux = mux();
    let params: Box<RawValue> =
        serde_json::from_str("{\n\"_meta\":{\"progressToken\":9},\r\n \"a\":\"\\n\"}").unwrap();
    let (id, line) = mux.ask("x\"y", Some(&params)).unwrap();
    let sent = r#"{"jsonrpc":"2.0","id":1,"method":"x\"y","params":{ "_meta":{"progressToken":1},   "a":"\n"}}"#;
    assert_eq!((id, text(&line)), (1, sent.to_string()));
    nothing(mux.server(r#"{"method":"notifications/progress","params":{"progressToken":1}}"#));
    let routed = mux.server(r#"{"id":1,"result":1}"#);
    assert_eq!((routed.to_us.len(), routed.to_us[0].0), (1, 1));
    let (id, _) = mux.ask("initialize", None).unwrap();
    assert!(mux.cancel(id).is_none(), "must not be cancelled");
    assert!(mux.is_quiet());
}

#[test]
fn no_line_breaks_the_mux_and_nothing_is_left_behind() {
    let corpus: &[&[u8]] = &[
        br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","task":{},"_meta":{"progressToken":"t"}}}"#,
        br#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#,
        br#"{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{}}"#,
        br#"{"jsonrpc":"2.0","id":3,"result":{"tools":[{"name":"read"},{"name":"write"}]}}"#,
        br#"{"jsonrpc":"2.0","id":4,"error":{"code":-1,"message":"no"}}"#,
        br#"{"jsonrpc":"2.0","id":5,"method":"roots/list"}"#,
        br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}"#,
        br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}"#,
        br#"{"method":"x","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":3}}}"#,
        br#"[{"id":6,"result":1},{"id":7,"method":"ping"}]"#,
    ];
    let words: Vec<&[u8]> = vec![
        b"null",
        b"\"id\":",
        b"\"method\":",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b"\"",
        b"\\u0000",
        b"\"params\":{",
        b"\"result\":",
        b"1",
        b"9",
        b"\"_meta\":{",
        b"\xff",
        b" ",
    ];
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let (mut delivered, mut forwarded) = (0, 0);
    for round in 0..300 {
        let patterns: &[&str] = if round % 2 == 0 { &["*"] } else { &["read"] };
        let mut mux = Mux::new(patterns.iter().map(|p| p.to_string()).collect(), Company::Kin);
        let mut ports = vec![mux.arrive()];
        for _ in 0..200 {
            let mut line = corpus[dice.next(corpus.len())].to_vec();
            if dice.next(3) > 0 {
                line = dice.mutate(&line, &words);
            }
            // Ids that exist are small.
            if let Some(at) = line.windows(5).position(|w| w == b"\"id\":")
                && line.get(at + 5).is_some_and(u8::is_ascii_digit)
            {
                let id = (1 + dice.next(mux.last_id as usize + 2)).to_string();
                line.splice(at + 5..at + 6, id.into_bytes());
            }
            line.retain(|byte| *byte != b'\n');
            let port = ports.get(dice.next(ports.len())).copied();
            let routed = match (dice.next(40), port) {
                (0, _) => {
                    ports.push(mux.arrive());
                    continue;
                }
                (1, Some(port)) => {
                    ports.retain(|p| *p != port);
                    mux.depart(port)
                }
                (2, _) => {
                    let _busy = mux.ask("x", None);
                    continue;
                }
                (n, Some(port)) if n % 2 == 0 => mux.port_says(port, line),
                _ => mux.server_says(line),
            };
            forwarded += routed.to_server.len();
            delivered += routed.to_ports.len();
            for line in routed.to_server.iter().chain(routed.to_ports.iter().map(|(_, l)| l)) {
                assert!(matches!(envelope::read(line), Line::One(_)), "{}", text(line));
            }
            assert!(routed.to_ports.iter().all(|(port, _)| ports.contains(port)));
            let known = |port: Port| port == Port::OURS || ports.contains(&port);
            assert!(mux.pending.values().all(|pending| known(pending.port)));
            assert!(mux.asked.values().all(|asked| known(asked.port)));
        }
        for port in ports {
            mux.depart(port);
        }
        let ours = mux.pending.keys().copied().collect::<Vec<_>>();
        ours.into_iter().for_each(|id| drop(mux.cancel(id)));
        assert!(mux.is_quiet() && mux.tasks.are_done() && mux.over.len() <= REMEMBERED);
    }
    assert!(delivered > 5_000 && forwarded > 5_000, "{delivered} {forwarded}");
}
