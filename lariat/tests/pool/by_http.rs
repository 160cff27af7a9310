//! The daemon becomes the next one: whoever is served by HTTP does not notice.

use crate::checker::modern_meta;
use crate::handed::descriptors;
use crate::handover::ask_to_become;
use crate::stage::{PATIENCE, Stage, is_full, trial};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use trials::until;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial("handover::http_sessions", sessions),
        trial("handover::http_half_a_request", half_a_request),
        trial("handover::http_in_flight", in_flight),
        trial("handover::http_plain", plain),
        trial("handover::http_streams", streams),
        trial("handover::http_all", all),
        trial("handover::http_gone", gone),
        trial("handover::http_too_long", too_long),
        trial("handover::http_no_program", no_program),
        trial("handover::http_floods", floods),
    ]
}

const BOTH: [(&str, bool); 2] = [("own", false), ("shared", true)];

/// A connection by TCP, with the token and perhaps a session.
struct Caller {
    stream: BufReader<TcpStream>,
    token: String,
    path: String,
    session: Option<String>,
    id: u64,
}

impl Caller {
    fn new(stage: &Stage, path: &str) -> Caller {
        let stream = TcpStream::connect(stage.page()).expect("a page");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let token = fs::read_to_string(stage.path("state/token")).expect("a token");
        let (token, path) = (token.trim().to_owned(), path.to_owned());
        Caller { stream: BufReader::new(stream), token, path, session: None, id: 0 }
    }

    /// One that has shaken hands.
    fn greeted(stage: &Stage, path: &str) -> Caller {
        let mut caller = Caller::new(stage, path);
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "trial", "version": "1"}});
        caller.post("initialize", &hello, "");
        let (status, headers) = caller.head();
        assert_eq!(status, 200);
        caller.session = header(&headers, "mcp-session-id");
        assert!(caller.session.is_some(), "{headers:?}");
        let length = header(&headers, "content-length").expect("a length").parse().expect("one");
        let mut body = vec![0; length];
        caller.stream.read_exact(&mut body).expect("a body");
        let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        caller.send("POST", &note.to_string(), "");
        assert_eq!(caller.head().0, 202);
        caller
    }

    fn text(&self, verb: &str, body: &str, more: &str) -> String {
        let session = self.session.as_ref().map(|it| format!("Mcp-Session-Id: {it}\r\n"));
        let (session, length) = (session.unwrap_or_default(), body.len());
        let (path, token) = (&self.path, &self.token);
        let accept = if more.contains("Accept") {
            ""
        } else {
            "Accept: application/json, text/event-stream\r\n"
        };
        let port = self.stream.get_ref().peer_addr().expect("a peer");
        format!(
            "{verb} {path} HTTP/1.1\r\nHost: {port}\r\nAuthorization: Bearer {token}\r\n{session}{accept}\
             Content-Type: application/json\r\nContent-Length: {length}\r\n{more}\r\n{body}"
        )
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("somebody who listens");
    }

    fn send(&mut self, verb: &str, body: &str, more: &str) {
        let text = self.text(verb, body, more);
        self.raw(text.as_bytes());
    }

    /// Asks, and does not wait.
    fn post(&mut self, method: &str, params: &Value, more: &str) {
        self.id += 1;
        let body = json!({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params});
        self.send("POST", &body.to_string(), more);
    }

    fn send_call(&mut self, tool: &str, arguments: &Value) {
        self.post("tools/call", &json!({"name": tool, "arguments": arguments}), "");
    }

    /// The same in the other era.
    fn send_modern(&mut self, tool: &str, arguments: &Value) {
        let params = json!({"name": tool, "arguments": arguments, "_meta": modern_meta()});
        let more = format!(
            "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: {tool}\r\n"
        );
        self.post("tools/call", &params, &more);
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a line");
        line.trim_end_matches(['\r', '\n']).to_owned()
    }

    fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let first = self.line();
        let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no answer: {first:?}"));
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(": ") else { return (status, headers) };
            headers.push((name.to_lowercase(), value.to_owned()));
        }
    }

    /// The next piece of a stream; nothing at its end.
    fn chunk(&mut self) -> Option<String> {
        let length = self.line();
        let length = usize::from_str_radix(&length, 16).unwrap_or_else(|e| panic!("{e}: {length}"));
        let mut piece = vec![0; length];
        self.stream.read_exact(&mut piece).expect("a piece");
        assert_eq!(self.line(), "", "after a piece");
        (length > 0).then(|| String::from_utf8(piece).expect("text"))
    }

    /// The next message of a stream; nothing at its end.
    fn event(&mut self) -> Option<Value> {
        loop {
            let chunk = self.chunk()?;
            let data = chunk.lines().find_map(|line| line.strip_prefix("data: "));
            if let Some(data) = data.filter(|data| !data.is_empty()) {
                return Some(serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {chunk}")));
            }
        }
    }

    /// The whole answer to what was asked last, plain or as a stream.
    #[track_caller]
    fn answer(&mut self) -> Value {
        let (status, headers) = self.head();
        assert_eq!(status, 200);
        let answer = match header(&headers, "content-length") {
            Some(length) => {
                let mut body = vec![0; length.parse().expect("a length")];
                self.stream.read_exact(&mut body).expect("a body");
                serde_json::from_slice(&body).expect("JSON")
            }
            None => {
                let answer = self.event().expect("an answer");
                assert_eq!(self.event(), None, "an answer is the last");
                answer
            }
        };
        assert_eq!(answer["id"], json!(self.id), "{answer}");
        answer
    }

    /// Calls, and gives what came back.
    #[track_caller]
    fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        self.send_call(tool, arguments);
        self.answer()["result"]["structuredContent"].clone()
    }

    /// Who answers; and it is the answer to this.
    #[track_caller]
    fn whoami(&mut self, tool: &str, nonce: u64, late: u64) -> i64 {
        let told = self.call(tool, &json!({"who": "me", "nonce": nonce, "late": late}));
        assert_eq!((&told["who"], &told["nonce"]), (&json!("me"), &json!(nonce)), "{told}");
        told["pid"].as_i64().expect("a pid")
    }
}

fn header(headers: &[(String, String)], name: &str) -> Option<String> {
    headers.iter().find(|(it, _)| it == name).map(|(_, value)| value.clone())
}

/// Same sessions, same processes, same connections.
fn sessions() {
    let mut stage = Stage::offering(&BOTH);
    let mut callers = ["/servers/own/mcp", "/servers/shared/mcp", "/servers/shared/mcp"]
        .map(|path| Caller::greeted(&stage, path));
    let pids: Vec<i64> = callers.iter_mut().map(|one| one.whoami("whoami", 0, 0)).collect();
    assert_eq!(pids[1], pids[2], "one is shared");
    let page = stage.page();
    for nonce in 1..5 {
        stage.replace();
        assert_eq!(stage.page(), page, "the same port");
        for (caller, pid) in callers.iter_mut().zip(&pids) {
            assert_eq!(caller.whoami("whoami", nonce, 0), *pid);
            let about = caller.call("about", &json!({}));
            assert_eq!((&about["sins"], &about["greetings"]), (&json!([]), &json!(1)), "{about}");
        }
        // By another connection it is the same session.
        let mut other = Caller::new(&stage, "/servers/own/mcp");
        other.session = callers[0].session.clone();
        other.id = 1000 + nonce;
        assert_eq!(other.whoami("whoami", nonce, 0), pids[0]);
        drop(other);
    }
    callers[0].send("DELETE", "", "");
    assert_eq!(callers[0].head().0, 204);
    assert!(until(PATIENCE, || stage.servers().len() == 1), "it has ended");
    callers[0].post("ping", &json!({}), "");
    assert_eq!(callers[0].head().0, 404, "and is not known any more");
    assert_eq!(callers[1].whoami("whoami", 9, 0), pids[1]);
    stage.close();
}

/// A request whose head is only begun goes on afterwards.
fn half_a_request() {
    let mut stage = Stage::offering(&BOTH);
    let mut caller = Caller::greeted(&stage, "/servers/own/mcp");
    caller.id += 1;
    let params = json!({"name": "whoami", "arguments": {"who": "me", "nonce": 3}});
    let body = json!({"jsonrpc": "2.0", "id": caller.id, "method": "tools/call", "params": params});
    let text = caller.text("POST", &body.to_string(), "");
    caller.raw(&text.as_bytes()[..40]);
    stage.replace();
    caller.raw(&text.as_bytes()[40..]);
    assert_eq!(caller.answer()["result"]["structuredContent"]["nonce"], json!(3));
    // Nothing but a connection.
    let mut silent = Caller::new(&stage, "/servers/own/mcp");
    stage.replace();
    silent.send_modern("whoami", &json!({"who": "me", "nonce": 4}));
    assert_eq!(silent.answer()["result"]["structuredContent"]["nonce"], json!(4));
    stage.close();
}

/// What was asked is answered by the same connection, in either era, however late.
fn in_flight() {
    let mut stage = Stage::offering(&BOTH);
    let paths = ["/servers/own/mcp", "/servers/shared/mcp"];
    let mut legacy = paths.map(|path| Caller::greeted(&stage, path));
    let mut modern = paths.map(|path| Caller::new(&stage, path));
    // The modern era has processes of its own.
    for caller in &mut modern {
        caller.send_modern("whoami", &json!({"who": "me", "nonce": 0}));
        caller.answer();
    }
    for nonce in 1..4 {
        let asked = json!({"who": "me", "nonce": nonce, "late": 7000 / nonce});
        legacy.iter_mut().for_each(|caller| caller.send_call("whoami", &asked));
        modern.iter_mut().for_each(|caller| caller.send_modern("whoami", &asked));
        stage.replace();
        if nonce == 2 {
            // Midway it rests once more.
            stage.replace();
        }
        for caller in legacy.iter_mut().chain(&mut modern) {
            let told = caller.answer()["result"]["structuredContent"].clone();
            assert_eq!(told["nonce"], json!(nonce), "{told}");
        }
    }
    for caller in &mut legacy {
        let about = caller.call("about", &json!({}));
        assert_eq!((&about["sins"], &about["cancelled"]), (&json!([]), &json!(0)), "{about}");
    }
    stage.close();
}

/// Whoever takes no events is answered first.
fn plain() {
    let mut stage = Stage::offering(&BOTH);
    let mut caller = Caller::greeted(&stage, "/servers/own/mcp");
    let params = json!({"name": "whoami", "arguments": {"who": "me", "nonce": 3, "late": 1500}});
    caller.post("tools/call", &params, "Accept: application/json\r\n");
    stage.replace();
    assert_eq!(caller.answer()["result"]["structuredContent"]["nonce"], json!(3));
    stage.close();
}

/// The stream that belongs to no request goes on, and misses nothing.
fn streams() {
    let mut stage = Stage::offering(&BOTH);
    let daemon = stage.daemon();
    // There is a way to whoever stands for it, from here on.
    stage.replace();
    let before = descriptors(daemon);
    let mut caller = Caller::greeted(&stage, "/servers/own/mcp");
    let mut listener = Caller::new(&stage, "/servers/own/mcp");
    listener.session = caller.session.clone();
    listener.send("GET", "", "Accept: text/event-stream\r\n");
    assert_eq!(listener.head().0, 200);
    let method = "notifications/tools/list_changed";
    let tell = |caller: &mut Caller, number: u64| {
        let told = json!({"method": method, "params": {"number": number}});
        caller.call("tell", &told);
    };
    let mut ids = Vec::new();
    let mut number = 0;
    for _ in 0..4 {
        for _ in 0..3 {
            number += 1;
            tell(&mut caller, number);
        }
        stage.replace();
        for expected in number - 2..=number {
            let chunk = loop {
                let chunk = listener.chunk().expect("an event");
                if chunk.contains(method) {
                    break chunk;
                }
            };
            assert!(chunk.contains(&format!("\"number\":{expected}")), "{chunk}");
            ids.push(chunk.lines().find_map(|line| line.strip_prefix("id: ")).map(str::to_owned));
        }
    }
    // One that broke can be resumed at what the program before has said.
    drop(listener);
    let mut again = Caller::new(&stage, "/servers/own/mcp");
    again.session = caller.session.clone();
    let last = ids[1].clone().expect("an id");
    again.send("GET", "", &format!("Accept: text/event-stream\r\nLast-Event-ID: {last}\r\n"));
    assert_eq!(again.head().0, 200);
    for expected in 3..=number {
        let event = again.event().expect("an event");
        assert_eq!(event["params"]["number"], json!(expected), "{event}");
    }
    caller.send("DELETE", "", "");
    assert_eq!(caller.head().0, 204);
    drop((caller, again));
    let more = || descriptors(daemon).saturating_sub(before);
    assert!(until(PATIENCE, || more() == 0), "{} descriptors more", more());
    stage.close();
}

/// A session at all servers, with something under way at each of them.
fn all() {
    let mut stage = Stage::offering(&BOTH);
    let mut caller = Caller::greeted(&stage, "/mcp");
    let tools = ["own__whoami", "shared__whoami"];
    let pids = tools.map(|tool| caller.whoami(tool, 0, 0));
    assert_eq!(stage.servers().len(), 2);
    let mut others: Vec<Caller> = tools
        .map(|_| {
            let mut other = Caller::new(&stage, "/mcp");
            other.session = caller.session.clone();
            other
        })
        .into();
    for nonce in 1..4 {
        for (at, (other, tool)) in others.iter_mut().zip(tools).enumerate() {
            other.id = 1000 * (at as u64 + 1) + nonce;
            other.send_call(tool, &json!({"who": "me", "nonce": nonce, "late": 500}));
        }
        stage.replace();
        for (other, pid) in others.iter_mut().zip(pids) {
            let told = other.answer()["result"]["structuredContent"].clone();
            assert_eq!((&told["nonce"], &told["pid"]), (&json!(nonce), &json!(pid)), "{told}");
        }
        caller.post("tools/list", &json!({}), "");
        let tools = caller.answer()["result"]["tools"].as_array().map(Vec::len);
        assert_eq!(tools, Some(12));
    }
    caller.send("DELETE", "", "");
    assert_eq!(caller.head().0, 204);
    assert!(until(PATIENCE, || stage.servers().len() <= 1), "its own has ended");
    stage.close();
}

/// A next daemon that would not listen for clients by HTTP, or could not, is refused, and nobody notices. Where
/// there are no such clients, nobody listens any more.
fn gone() {
    let mut stage = Stage::offering(&BOTH);
    let mut caller = Caller::greeted(&stage, "/servers/own/mcp");
    let own = caller.whoami("whoami", 0, 0);
    let mut host = stage.join();
    let server = host.server();
    stage.forget_options();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("one").to_string();
    let said = stage.refused(&["--http", &address]);
    assert!(said.contains("could not listen at"), "{said}");
    assert_eq!(caller.whoami("whoami", 1, 0), own);
    let said = stage.refused(&[]);
    assert!(said.contains("would not listen there"), "{said}");
    assert_eq!(caller.whoami("whoami", 2, 0), own);
    caller.send("DELETE", "", "");
    assert_eq!(caller.head().0, 204);
    stage.replace();
    assert!(TcpStream::connect(stage.page()).is_err(), "somebody listens there");
    let said = fs::read_to_string(stage.path("stderr")).unwrap_or_default();
    assert!(said.contains("nobody listens at"), "{said}");
    assert!(until(PATIENCE, || stage.servers().len() == 1), "its server has ended");
    assert_eq!(host.server(), server, "who has joined stays");
    drop(host);
    stage.close();
}

/// Somebody who takes no events and waits for long keeps the daemon what it is, until he is answered: clients by
/// HTTP would not be known to the next.
fn too_long() {
    let mut stage = Stage::offering(&BOTH);
    let mut caller = Caller::greeted(&stage, "/servers/own/mcp");
    let mut other = Caller::greeted(&stage, "/servers/own/mcp");
    let own = other.whoami("whoami", 0, 0);
    let mut host = stage.join();
    let server = host.server();
    let params = json!({"name": "whoami", "arguments": {"who": "me", "nonce": 3, "late": 7000}});
    caller.post("tools/call", &params, "Accept: application/json\r\n");
    let said = stage.refused(&[]);
    assert!(said.contains("waits for an answer by HTTP"), "{said}");
    assert_eq!(caller.answer()["result"]["structuredContent"]["nonce"], json!(3));
    stage.replace();
    assert_eq!(other.whoami("whoami", 1, 0), own);
    assert_eq!(host.server(), server, "who has joined stays");
    drop((caller, other));
    host.leave();
    stage.close();
}

/// What is no program cannot be become: everybody goes on as if nothing had happened.
fn no_program() {
    let stage = Stage::offering(&BOTH);
    let mut callers = ["/servers/own/mcp", "/mcp"].map(|path| Caller::greeted(&stage, path));
    let tools = ["whoami", "shared__whoami"];
    let mut modern = Caller::new(&stage, "/servers/own/mcp");
    let mut silent = Caller::new(&stage, "/servers/own/mcp");
    for nonce in 1..5 {
        let asked = json!({"who": "me", "nonce": nonce, "late": 300});
        callers.iter_mut().zip(tools).for_each(|(caller, tool)| caller.send_call(tool, &asked));
        modern.send_modern("whoami", &asked);
        // Whether it is asked while they wait, while they are answered or afterwards.
        for _ in 0..nonce {
            let program = fs::File::open("/proc/self/status").expect("no program");
            let said = ask_to_become(&stage, &program);
            let why = said["no"]["why"].as_str();
            assert!(why.is_some_and(|why| why.contains("Permission")), "{said}");
        }
        for caller in callers.iter_mut().chain([&mut modern]) {
            let told = caller.answer()["result"]["structuredContent"].clone();
            assert_eq!(told["nonce"], json!(nonce), "{told}");
        }
    }
    silent.send_modern("about", &json!({}));
    let about = silent.answer()["result"]["structuredContent"].clone();
    assert_eq!((&about["sins"], &about["cancelled"]), (&json!([]), &json!(0)), "{about}");
    stage.close();
}

/// Everybody asks as fast as it goes, and is answered once, however often the daemon changes.
fn floods() {
    let mut stage = Stage::offering(&BOTH);
    let changes = if is_full() { 40 } else { 15 };
    let (over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let paths = ["/servers/own/mcp", "/servers/shared/mcp", "/mcp"];
    let callers: Vec<Caller> =
        (0..6).map(|at| Caller::greeted(&stage, paths[at % paths.len()])).collect();
    let modern: Vec<Caller> = (0..2).map(|at| Caller::new(&stage, paths[at])).collect();
    thread::scope(|scope| {
        let (over, calls) = (&over, &calls);
        let calling = callers.into_iter().enumerate().map(|(at, mut caller)| {
            scope.spawn(move || {
                let tool = if caller.path == "/mcp" { "shared__whoami" } else { "whoami" };
                let pid = caller.whoami(tool, 0, 0);
                let mut nonce = 0;
                while !over.load(Ordering::Relaxed) {
                    nonce += 1;
                    let late = if nonce % 7 == at as u64 { 20 } else { 0 };
                    assert_eq!(caller.whoami(tool, nonce, late), pid);
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let calling: Vec<_> = calling.collect();
        let asking = modern.into_iter().map(|mut caller| {
            scope.spawn(move || {
                let mut nonce = 0;
                while !over.load(Ordering::Relaxed) {
                    nonce += 1;
                    caller.send_modern("whoami", &json!({"who": "me", "nonce": nonce}));
                    let told = caller.answer()["result"]["structuredContent"].clone();
                    assert_eq!(told["nonce"], json!(nonce), "{told}");
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let asking: Vec<_> = asking.collect();
        for _ in 0..changes {
            let before = calls.load(Ordering::Relaxed);
            stage.replace();
            until(PATIENCE, || calls.load(Ordering::Relaxed) > before + 100);
        }
        over.store(true, Ordering::Relaxed);
        calling.into_iter().chain(asking).for_each(|one| one.join().expect("all of it"));
        println!("{} calls, {changes} changes", calls.load(Ordering::Relaxed));
    });
    stage.close();
}
