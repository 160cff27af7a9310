//! The daemon becomes the next one: its sessions, their servers, their leases and whoever speaks with them
//! are as they were.

use crate::stage::{PATIENCE, Stage, is_full, signal, trial};
use crate::wire::{Wire, request};
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use trials::{Process, until};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial("handover::sessions", sessions),
        trial("handover::sessions_half_a_request", half_a_request),
        trial("handover::sessions_pipelined", pipelined),
        trial("handover::sessions_attached", attached),
        trial("handover::sessions_told", told),
        trial("handover::sessions_restarting", restarting),
        trial("handover::sessions_daemon_sigkill", daemon_sigkill),
        trial("handover::sessions_floods", floods),
    ]
}

/// Two servers of the session's own, `a` and `b`, and a shared one, `c`.
fn three(stage: &Stage, word: &str) -> Value {
    let server = |words: &[&str], share: bool| {
        let line = stage.checker(words);
        json!({"command": line[0], "args": line[1..], "share": share})
    };
    let (own, shared) = (server(&[word], false), server(&["shared"], true));
    json!({"a": own, "b": server(&[word, "b"], false), "c": shared})
}

/// How many descriptors a process has, but for the event log, which is opened with the first event and kept.
pub(crate) fn descriptors(process: Process) -> usize {
    let open = fs::read_dir(format!("/proc/{}/fd", process.pid)).into_iter().flatten().flatten();
    let leads_to = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    leads_to.filter(|file| !file.ends_with("events.jsonl")).count()
}

/// Same names, same processes, same connections; each lease ends what hangs on it, and nothing else.
fn sessions() {
    let mut stage = Stage::new();
    let daemon = stage.daemon();
    let nobody = Value::Null;
    let mut owner =
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a program");
    let mut probe = Wire::new(&stage);
    // There is a way to whoever stands for it, from here on.
    stage.replace();
    probe.ask("GET", "/v1/sessions", &nobody, 200);
    let before = descriptors(daemon);
    let mut wires: Vec<Wire> = (0..3).map(|_| Wire::new(&stage)).collect();
    let body = |word: &str| json!({"name": word, "servers": three(&stage, word)});
    let mut bodies = [body("by-line"), body("by-pid"), body("by-peer")];
    bodies[1]["owner_pid"] = json!(owner.id());
    let at: Vec<String> = wires
        .iter_mut()
        .zip(&bodies)
        .enumerate()
        .map(|(at, (wire, body))| wire.open(body, at == 0))
        .collect();
    let pids = |wires: &mut [Wire], nonce: u64| -> Vec<i64> {
        let each = wires.iter_mut().zip(&at);
        each.flat_map(|(wire, at)| ["a", "b", "c"].map(|name| wire.call(at, name, nonce, 0)))
            .collect()
    };
    let was = pids(&mut wires, 0);
    assert_eq!((was[2], was[5]), (was[5], was[8]), "one is shared");
    let listed = probe.ask("GET", "/v1/sessions", &nobody, 200);
    let seen = |stage: &Stage| {
        let of = |one: &Value| json!([one["session"], one["server"], one["share"]]);
        let mut seen: Vec<String> = stage.listed().iter().map(|one| of(one).to_string()).collect();
        seen.sort();
        seen
    };
    assert!(until(PATIENCE, || seen(&stage).len() == 7), "{:?}", seen(&stage));
    let books = seen(&stage);
    for nonce in 1..4 {
        stage.replace();
        assert_eq!(pids(&mut wires, nonce), was);
        assert_eq!(probe.ask("GET", "/v1/sessions", &nobody, 200), listed);
        assert_eq!(seen(&stage), books);
        for (wire, at) in wires.iter_mut().zip(&at) {
            let about = wire.about(at, "a");
            assert_eq!((&about["sins"], &about["greetings"]), (&json!([]), &json!(1)), "{about}");
        }
    }
    let count = |probe: &mut Wire| {
        let listed = probe.ask("GET", "/v1/sessions", &Value::Null, 200);
        listed["sessions"].as_array().map_or(0, Vec::len)
    };
    // By connection.
    drop(wires.remove(0));
    assert!(until(PATIENCE, || count(&mut probe) == 2), "it stays without its connection");
    // By process.
    owner.kill().expect("a process");
    assert!(until(PATIENCE, || count(&mut probe) == 1), "it stays without its owner");
    owner.wait().expect("a child");
    assert_eq!(wires[1].call(&at[2], "c", 9, 0), was[8], "the last one goes on");
    // By request, with a receipt.
    let closed = wires[1].ask("DELETE", &at[2], &nobody, 200);
    assert_eq!(closed["receipts"].as_array().map(Vec::len), Some(2), "{closed}");
    assert!(until(PATIENCE, || stage.servers().is_empty()), "a server stays");
    drop(wires);
    let more = || descriptors(daemon).saturating_sub(before);
    assert!(until(PATIENCE, || more() == 0), "{} descriptors more", more());
    drop(probe);
    stage.close();
}

/// A request that is only begun goes on afterwards.
fn half_a_request() {
    let mut stage = Stage::new();
    let mut wire = Wire::new(&stage);
    let at = wire.open(&json!({"servers": three(&stage, "half")}), true);
    let body = json!({"tool": "whoami", "arguments": {"who": at, "nonce": 5}});
    let text = request("POST", &format!("{at}/servers/a/call"), &body, "");
    // In the middle of the head, and nothing but a first byte.
    let mut late = Wire::new(&stage);
    late.raw(b"G");
    let silent = Wire::new(&stage);
    wire.raw(&text.as_bytes()[..30]);
    stage.replace();
    wire.raw(&text.as_bytes()[30..]);
    wire.called(&at, 5);
    late.raw(b"ET /v1/sessions HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(late.expect(200)["sessions"].as_array().map(Vec::len), Some(1));
    let mut silent = silent;
    assert_eq!(silent.ask("GET", &at, &Value::Null, 200)["state"], "open");
    stage.close();
}

/// Requests that were sent together are answered one after the other, each once.
fn pipelined() {
    let mut stage = Stage::new();
    let mut wire = Wire::new(&stage);
    let at = wire.open(&json!({"servers": three(&stage, "pipe")}), true);
    let asked = 40;
    for nonce in 0..asked {
        wire.send_call(&at, "a", nonce, 25);
    }
    stage.replace();
    for nonce in 0..asked {
        wire.called(&at, nonce);
    }
    // What was seen beside: the greeting, the list, and this question.
    assert_eq!(wire.about(&at, "a")["requests"], json!(asked + 3));
    stage.close();
}

/// A client that speaks MCP by its connection goes on, with what it has asked.
fn attached() {
    let mut stage = Stage::new();
    let mut wires: Vec<Wire> = (0..2).map(|_| Wire::new(&stage)).collect();
    let at = wires[0].open(&json!({"servers": three(&stage, "attached")}), true);
    let mut held = Wire::new(&stage);
    for (wire, name) in wires.iter_mut().zip(["a", "c"]) {
        let upgrade = "Connection: Upgrade\r\nUpgrade: mcp\r\n";
        wire.send("GET", &format!("{at}/servers/{name}/mcp"), &Value::Null, upgrade);
        assert_eq!(wire.head().expect("an answer").0, 101);
        say(
            wire,
            0,
            "initialize",
            &json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"}}),
        );
        assert!(hear(wire)["result"]["serverInfo"].is_object());
    }
    let call = |wire: &mut Wire, id: u64, late: u64| {
        let arguments = json!({"who": id, "nonce": id, "late": late});
        say(wire, id, "tools/call", &json!({"name": "whoami", "arguments": arguments}));
    };
    let pids: Vec<i64> = ["a", "c"].map(|name| held.call(&at, name, 0, 0)).into();
    for id in 1..5 {
        for wire in &mut wires {
            call(wire, id, 300);
            // Half a line is the beginning of the next.
            wire.raw(b"{\"jsonrpc\":\"2.0\",");
        }
        stage.replace();
        for (wire, pid) in wires.iter_mut().zip(&pids) {
            let heard = hear(wire);
            assert_eq!(heard["id"], json!(id), "{heard}");
            assert_eq!(heard["result"]["structuredContent"]["pid"], json!(pid), "{heard}");
            wire.raw(b"\"method\":\"notifications/nothing\"}\n");
        }
    }
    assert_eq!(held.about(&at, "a")["sins"], json!([]));
    // It is the lease as well.
    drop(wires.remove(0));
    assert!(until(PATIENCE, || stage.servers().is_empty()), "a server stays");
    assert_eq!(wires[0].line().expect("the end"), "", "who is attached to it sees that");
    stage.close();
}

fn say(wire: &mut Wire, id: u64, method: &str, params: &Value) {
    let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    wire.raw(format!("{line}\n").as_bytes());
}

fn hear(wire: &mut Wire) -> Value {
    serde_json::from_str(&wire.line().expect("a line")).expect("JSON")
}

/// Who listens to what happens hears it afterwards too, each of it once.
fn told() {
    let mut stage = Stage::new();
    let mut events = Wire::new(&stage);
    let kept = events.open(&json!({"servers": {}}), true);
    events.send("GET", "/v1/events", &Value::Null, "");
    assert_eq!(events.head().expect("an answer").0, 200);
    let mut wire = Wire::new(&stage);
    for _ in 0..3 {
        let at = wire.open(&json!({"servers": three(&stage, "told")}), false);
        stage.replace();
        wire.ask("DELETE", &at, &Value::Null, 200);
        let id = at.rsplit('/').next().expect("a name");
        let mut heard: Vec<String> = Vec::new();
        while heard.last().is_none_or(|last| last != "closed") {
            let length = events.line().unwrap_or_else(|e| panic!("{e}: {heard:?}"));
            let length = usize::from_str_radix(&length, 16).expect("a length");
            let line = events.line().expect("an event");
            assert_eq!(line.len() + 1, length, "{line}");
            let event: Value = serde_json::from_str(&line).expect("JSON");
            assert_eq!(event["session"], json!(id), "{event}");
            heard.push(event["event"].as_str().expect("a word").into());
            assert_eq!(events.line().expect("its end"), "");
        }
        let times = |word: &str| heard.iter().filter(|event| **event == *word).count();
        assert_eq!((times("opened"), times("ready"), times("ended")), (1, 3, 2), "{heard:?}");
    }
    assert_eq!(wire.ask("GET", &kept, &Value::Null, 200)["state"], "open");
    drop(events);
    let is_gone = || {
        let listed = Wire::new(&stage).ask("GET", "/v1/sessions", &Value::Null, 200);
        listed["sessions"] == json!([])
    };
    assert!(until(PATIENCE, is_gone), "it was its lease");
    stage.close();
}

/// A server that has left is started again by the next one, or stays what it is.
fn restarting() {
    let mut stage = Stage::new();
    let mut wire = Wire::new(&stage);
    let mut body = json!({"servers": three(&stage, "restarting")});
    body["servers"]["b"]["restart"] = json!("never");
    let at = wire.open(&body, true);
    let was = wire.call(&at, "a", 0, 0);
    for name in ["a", "b"] {
        let path = format!("{at}/servers/{name}/call");
        wire.ask("POST", &path, &json!({"tool": "leave", "arguments": {"code": 3}}), 502);
    }
    let state = |wire: &mut Wire, name: &str| {
        wire.ask("GET", &at, &Value::Null, 200)["servers"][name].clone()
    };
    assert!(until(PATIENCE, || state(&mut wire, "b")["state"] == "failed"));
    let failed = state(&mut wire, "b");
    stage.replace();
    assert_eq!(state(&mut wire, "b"), failed);
    assert!(until(PATIENCE, || state(&mut wire, "a")["state"] == "ready"), "it stays away");
    assert_ne!(wire.call(&at, "a", 1, 0), was);
    stage.replace();
    let change = wire.ask("POST", &format!("{at}/refresh"), &body, 200);
    assert_eq!(change["servers"]["b"]["state"], "ready", "{change}");
    stage.close();
}

/// SIGKILL of what the daemon has become: everybody is gone.
fn daemon_sigkill() {
    let mut stage = Stage::new();
    let daemon = stage.daemon();
    let mut wire = Wire::new(&stage);
    wire.open(&json!({"servers": three(&stage, "killed")}), false);
    assert_eq!(stage.servers().len(), 3);
    stage.replace();
    signal(daemon, Signal::KILL);
    assert_eq!(wire.line().unwrap_or_default(), "");
    stage.assert_gone();
}

/// Everybody calls as fast as it goes, opens and closes, and is answered once, however often the daemon
/// changes.
fn floods() {
    let mut stage = Stage::new();
    let changes = if is_full() { 40 } else { 20 };
    let over = AtomicBool::new(false);
    let body = json!({"servers": three(&stage, "flood")});
    let wires: Vec<Wire> = (0..6).map(|_| Wire::new(&stage)).collect();
    thread::scope(|scope| {
        let (over, body) = (&over, &body);
        let callers: Vec<_> = wires
            .into_iter()
            .enumerate()
            .map(|(at, mut wire)| {
                scope.spawn(move || {
                    let session = wire.open(body, true);
                    let pids = ["a", "b", "c"].map(|name| wire.call(&session, name, 0, 0));
                    let mut nonce = 0;
                    while !over.load(Ordering::Relaxed) {
                        nonce += 1;
                        for (name, pid) in ["a", "b", "c"].iter().zip(pids) {
                            let late = if nonce % 7 == at as u64 { 20 } else { 0 };
                            assert_eq!(wire.call(&session, name, nonce, late), pid);
                        }
                    }
                    let about = wire.about(&session, "a");
                    assert_eq!(about["requests"], json!(nonce + 4), "{about}");
                    assert_eq!(about["sins"], json!([]), "{about}");
                    nonce * 3
                })
            })
            .collect();
        let mut fickle = Wire::new(&stage);
        let opener = scope.spawn(move || {
            let mut sessions = 0;
            while !over.load(Ordering::Relaxed) {
                let session = fickle.open(body, false);
                fickle.ask("DELETE", &session, &Value::Null, 200);
                sessions += 1;
            }
            sessions
        });
        let began = std::time::Instant::now();
        for _ in 0..changes {
            stage.replace();
        }
        let each = began.elapsed() / changes;
        over.store(true, Ordering::Relaxed);
        let calls: u64 = callers.into_iter().map(|one| one.join().expect("all of it")).sum();
        let sessions = opener.join().expect("all of them");
        println!("{calls} calls, {sessions} sessions, {changes} changes, each {each:?}");
    });
    stage.close();
}
