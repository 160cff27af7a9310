//! Sessions that live: opened, looked at, called, refreshed, spoken with, watched.

use crate::http::Wire;
use crate::kit::Daemon;
use crate::schema;
use serde_json::{Value, json};

/// A path below a session.
fn path(session: &Value, rest: &str) -> String {
    format!("/v1/sessions/{}{rest}", session["id"].as_str().unwrap())
}

#[test]
fn a_session_is_opened_looked_at_and_closed() {
    let daemon = Daemon::new();
    let mut wire = daemon.wire();
    let body = json!({ "name": "n", "servers": { "a": daemon.server("polite") } }).to_string();
    let asked = wire.ask("POST", "/v1/sessions", &body);
    let opened = asked.expect(201);
    assert_eq!(asked.headers["location"], path(&opened, ""));
    assert_eq!((&opened["name"], &opened["state"]), (&json!("n"), &json!("open")));
    assert_eq!(opened["owner"]["pid"], std::process::id(), "who asked is the owner");
    assert_eq!(opened["owner"]["lease"], "process");
    let server = &opened["servers"]["a"];
    assert_eq!((&server["state"], &server["tools"]), (&json!("ready"), &json!(["echo", "hang"])));
    assert_eq!(wire.ask("GET", &path(&opened, ""), "").expect(200), opened);
    assert_eq!(wire.ask("GET", "/v1/sessions", "").expect(200), json!({ "sessions": [opened] }));
    let snapshot = wire.ask("GET", "/v1/snapshot", "").expect(200);
    let seen = &snapshot["sessions"][0];
    assert_eq!((&seen["id"], &seen["owner"]["pid"]), (&opened["id"], &opened["owner"]["pid"]));
    assert_eq!(seen["servers"][0]["processes"][0]["pid"], server["pid"]);
    let closed = wire.ask("DELETE", &path(&opened, ""), "").expect(200);
    assert_eq!(closed["survivors"], json!([]));
    assert_eq!(closed["receipts"][0]["server"], "a");
    assert_eq!(daemon.alive(), 0, "gone when it is answered");
    wire.ask("DELETE", &path(&opened, ""), "").problem(404);
    assert_eq!(daemon.sessions(), 0);
}

#[test]
fn a_server_that_fails_says_why_and_the_others_are_there() {
    let daemon = Daemon::new();
    let bad = json!({ "command": "/no/such/server" });
    let body = json!({ "servers": { "a": daemon.server("polite"), "b": bad } }).to_string();
    let opened = daemon.wire().ask("POST", "/v1/sessions", &body).expect(201);
    assert_eq!(opened["servers"]["a"]["state"], "ready");
    assert_eq!(opened["servers"]["b"]["state"], "failed");
    assert!(!opened["servers"]["b"]["error"].as_str().unwrap().is_empty());
    let call = path(&opened, "/servers/b/call");
    daemon.wire().ask("POST", &call, r#"{"tool":"echo"}"#).problem(409);
}

#[test]
fn tools_are_called_and_refused() {
    let daemon = Daemon::new();
    let mut wire = daemon.wire();
    let mut server = daemon.server("polite");
    server["tools"] = json!(["echo", "hang"]);
    server["tool_timeout_ms"] = json!(200);
    let body = json!({ "servers": { "a": server } }).to_string();
    let opened = wire.ask("POST", "/v1/sessions", &body).expect(201);
    let call = path(&opened, "/servers/a/call");
    let result = wire.ask("POST", &call, r#"{"tool":"echo","arguments":{"x":1}}"#);
    // To the byte.
    assert_eq!(result.text, r#"{"content":[{"type":"text","text":"done"}]}"#);
    wire.ask("POST", &call, r#"{"tool":"echo"}"#).expect(200);
    assert!(wire.ask("POST", &call, r#"{"tool":"rm"}"#).problem(403).contains("`rm`"));
    assert!(wire.ask("POST", &call, r#"{"tool":"hang"}"#).problem(504).contains("200 ms"));
    wire.ask("POST", &call, r#"{"tool":"echo","arguments":[]}"#).problem(422);
    wire.ask("POST", &call, "{").problem(400);
    wire.ask("POST", &path(&opened, "/servers/b/call"), r#"{"tool":"echo"}"#).problem(404);
}

#[test]
fn what_a_server_refuses_is_502_with_its_words() {
    let daemon = Daemon::new();
    let mut wire = daemon.wire();
    // One that knows no calls, in a few lines of shell.
    let script = r#"while read -r line; do
        case $line in
            *'"initialize"'*) echo '{"jsonrpc":"2.0","id":'"$(id "$line")"',"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"0"}}}' ;;
            *'"tools/list"'*) echo '{"jsonrpc":"2.0","id":'"$(id "$line")"',"result":{"tools":[]}}' ;;
            *'"id"'*) echo '{"jsonrpc":"2.0","id":'"$(id "$line")"',"error":{"code":-32602,"message":"not here"}}' ;;
        esac
    done"#;
    let id = r#"id() { printf '%s' "$1" | sed 's/.*"id":\([0-9]*\).*/\1/'; }"#;
    let server = json!({ "command": "sh", "args": ["-c", format!("{id}\n{script}")] });
    let body = json!({ "servers": { "a": server } }).to_string();
    let opened = wire.ask("POST", "/v1/sessions", &body).expect(201);
    assert_eq!(opened["servers"]["a"]["state"], "ready", "{opened:#}");
    let asked = wire.ask("POST", &path(&opened, "/servers/a/call"), r#"{"tool":"x"}"#);
    asked.problem(502);
    let problem = asked.json();
    assert_eq!((&problem["code"], &problem["message"]), (&json!(-32602), &json!("not here")));
}

#[test]
fn a_refresh_keeps_what_is_the_same() {
    let daemon = Daemon::new();
    let mut wire = daemon.wire();
    let with = |names: &[(&str, &str)]| {
        let servers = names.iter().map(|(name, verb)| ((*name).to_owned(), daemon.server(verb)));
        json!({ "servers": servers.collect::<serde_json::Map<_, _>>() }).to_string()
    };
    let before = with(&[("a", "polite"), ("b", "polite"), ("c", "polite")]);
    let opened = wire.ask("POST", "/v1/sessions", &before).expect(201);
    let after = with(&[("a", "polite"), ("b", "ignores-eof"), ("d", "polite")]);
    let changed = wire.ask("POST", &path(&opened, "/refresh"), &after).expect(200);
    let pid = |session: &Value, name: &str| session["servers"][name]["pid"].clone();
    assert_eq!(pid(&changed, "a"), pid(&opened, "a"));
    assert_ne!(pid(&changed, "b"), pid(&opened, "b"));
    assert_eq!(changed["servers"]["c"], Value::Null);
    assert_eq!(changed["servers"]["d"]["state"], "ready");
    let receipts = changed["receipts"].as_array().unwrap();
    let mut ended: Vec<&str> = receipts.iter().map(|r| r["server"].as_str().unwrap()).collect();
    ended.sort_unstable();
    assert_eq!(ended, ["b", "c"]);
    assert_eq!(daemon.alive(), 3);
    wire.ask("POST", &path(&opened, "/refresh"), r#"{"servers":{},"name":"x"}"#).problem(422);
    wire.ask("POST", &path(&opened, "/refresh"), r#"{"servers":{}}"#).expect(200);
    assert_eq!((daemon.alive(), daemon.sessions()), (0, 1));
}

#[test]
fn a_connection_becomes_one_to_a_server() {
    let daemon = Daemon::new();
    let opened = daemon.wire().ask("POST", "/v1/sessions", &daemon.one("polite")).expect(201);
    let mcp = path(&opened, "/servers/a/mcp");
    let plain = daemon.wire().ask("GET", &mcp, "");
    plain.problem(426);
    assert_eq!(plain.headers["upgrade"], "mcp");
    let upgrade = "Connection: Upgrade\r\nUpgrade: mcp\r\n";
    daemon.wire().ask_with("GET", &path(&opened, "/servers/b/mcp"), "", upgrade).problem(404);
    let mut wire = daemon.wire();
    wire.send("GET", &mcp, "", upgrade);
    let (status, headers) = wire.head().unwrap();
    assert_eq!((status, headers["upgrade"].as_str()), (101, "mcp"));
    let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": {},
                        "clientInfo": { "name": "x", "version": "0" } });
    let said = speak(&mut wire, "mine", "initialize", &hello);
    assert_eq!(said["result"]["serverInfo"]["name"], "polite");
    let said = speak(&mut wire, "more", "tools/list", &json!({}));
    assert_eq!(said["result"]["tools"][0]["name"], "echo");
    // Two at once do not mind each other, and the server outlives both.
    let mut other = daemon.wire();
    other.send("GET", &mcp, "", upgrade);
    assert_eq!(other.head().unwrap().0, 101);
    speak(&mut other, "mine", "initialize", &hello);
    drop(wire);
    speak(&mut other, "more", "ping", &json!({}));
    drop(other);
    let now = daemon.wire().ask("GET", &path(&opened, ""), "").expect(200);
    assert_eq!(now["servers"]["a"]["pid"], opened["servers"]["a"]["pid"]);
    // The session's end is theirs too.
    let mut wire = daemon.wire();
    wire.send("GET", &mcp, "", upgrade);
    assert_eq!(wire.head().unwrap().0, 101);
    daemon.wire().ask("DELETE", &path(&opened, ""), "").expect(200);
    assert_eq!(wire.line().unwrap(), "");
}

/// Asks a server, and gives its answer.
#[track_caller]
fn speak(wire: &mut Wire, id: &str, method: &str, params: &Value) -> Value {
    let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    wire.raw(format!("{request}\n").as_bytes()).unwrap();
    let said: Value = serde_json::from_str(&wire.line().unwrap()).unwrap();
    assert_eq!(said["id"], id, "{said}");
    said
}

#[test]
fn events_are_a_stream_with_the_receipt_at_its_end() {
    let mut daemon = Daemon::new();
    let mut stream = daemon.wire();
    stream.send("GET", "/v1/events", "", "");
    let (status, headers) = stream.head().unwrap();
    assert_eq!((status, headers["content-type"].as_str()), (200, "application/x-ndjson"));
    let mut wire = daemon.wire();
    let opened = wire.ask("POST", "/v1/sessions", &daemon.one("polite")).expect(201);
    wire.ask("DELETE", &path(&opened, ""), "").expect(200);
    daemon.signal(rustix::process::Signal::TERM);
    let mut text = String::new();
    while let Some(chunk) = stream.chunk().unwrap() {
        text += &String::from_utf8(chunk).unwrap();
    }
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    events.iter().for_each(schema::check_event);
    assert!(events.iter().all(|event| event["session"] == opened["id"]));
    let words: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    let at = |word: &str| words.iter().position(|w| *w == word).unwrap_or_else(|| panic!("{text}"));
    assert!(at("opened") < at("ready") && at("ready") < at("ending"), "{text}");
    assert!(at("ending") < at("ended") && at("ended") < at("closed"), "{text}");
    assert_eq!(events[at("ended")]["receipt"]["survivors"], json!([]));
    assert!(daemon.ended().success());
}

#[test]
fn the_document_is_served() {
    let daemon = Daemon::new();
    let served = daemon.wire().ask("GET", "/v1/openapi.json", "").expect(200);
    assert_eq!(served["openapi"], "3.1.0");
}
