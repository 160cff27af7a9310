//! Bad input: a clear answer, and everything as it was.

use crate::finish::finish;
use crate::http::Wire;
use crate::kit::{Daemon, lariat};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;
use serde_json::json;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use trials::until;

/// Nobody's uid.
const NOBODY: u32 = 65_534;

#[test]
fn what_is_no_json_is_400_and_what_is_wrong_is_422() {
    let daemon = Daemon::new();
    let mut wire = daemon.wire();
    let mut refused = |status, body: &str| wire.ask("POST", "/v1/sessions", body).problem(status);
    refused(400, "");
    refused(400, "{");
    refused(400, r#"{"servers":{}} and more"#);
    assert!(refused(422, "[]").contains("no JSON object"));
    assert!(refused(422, "{}").contains("servers"));
    assert!(refused(422, r#"{"servers":{},"sevrers":{}}"#).contains("`sevrers`"));
    assert!(refused(422, r#"{"servers":{"a":{"comand":"x"}}}"#).contains("`comand`"));
    assert!(refused(422, r#"{"servers":{"a":{}}}"#).contains("servers.a"));
    assert!(refused(422, r#"{"servers":{},"owner_pid":-5}"#).contains("owner_pid"));
    let nobody = json!({ "servers": {}, "owner_pid": i32::MAX }).to_string();
    assert!(refused(422, &nobody).contains("no process 2147483647"));
    let long = "x".repeat(1 << 20);
    let named = json!({ "name": long, "servers": {} }).to_string();
    assert!(refused(422, &named).contains("is not a name"));
    let server = json!({ "servers": { long.as_str(): { "command": "x" } } }).to_string();
    assert!(refused(422, &server).contains("is not a name"));
    let field = format!(r#"{{"{long}":1}}"#);
    refused(422, &field);
    assert_eq!(daemon.sessions(), 0);
}

#[test]
fn a_body_that_is_too_large_is_413() {
    let daemon = Daemon::new();
    let mut wire = daemon.wire();
    let large = format!(r#"{{"name":"{}","servers":{{}}}}"#, "x".repeat(5 << 20));
    assert!(wire.ask("POST", "/v1/sessions", &large).problem(413).contains("4 MiB"));
    // The connection is as good as before.
    wire.ask("GET", "/v1/sessions", "").expect(200);
}

#[test]
fn a_lease_that_nobody_knows_is_422() {
    let daemon = Daemon::new();
    let body = daemon.one("polite");
    let asked = daemon.wire().ask_with("POST", "/v1/sessions", &body, "Lariat-Lease: ever\r\n");
    assert!(asked.problem(422).contains("Lariat-Lease: connection"));
    assert_eq!((daemon.sessions(), daemon.alive()), (0, 0));
}

#[test]
fn what_is_not_there_is_404_and_another_method_405() {
    let daemon = Daemon::new();
    let mut wire = daemon.wire();
    for path in ["/", "/v1", "/v2/sessions", "/v1/sessions/x/y", "/v1/sessions/", "/%00"] {
        wire.ask("GET", path, "").problem(404);
    }
    let long = "x".repeat(20_000);
    for (method, path) in [
        ("GET", "/v1/sessions/nope".to_owned()),
        ("DELETE", "/v1/sessions/nope".to_owned()),
        ("POST", "/v1/sessions/nope/refresh".to_owned()),
        ("POST", "/v1/sessions/nope/servers/a/call".to_owned()),
        ("GET", "/v1/sessions/nope/servers/a/mcp".to_owned()),
        ("GET", format!("/v1/sessions/{long}")),
    ] {
        let detail = wire.ask(method, &path, "{}").problem(404);
        assert!(detail.contains("GET /v1/sessions lists"), "{detail}");
    }
    let asked = wire.ask("PUT", "/v1/sessions", "");
    asked.problem(405);
    assert_eq!(asked.headers["allow"], "POST, GET");
    wire.ask("OPTIONS", "/v1/snapshot", "").problem(405);
}

#[test]
fn what_is_no_http_ends_the_connection_and_nothing_else() {
    let daemon = Daemon::new();
    for bytes in [&b"hello\r\n\r\n"[..], b"\x16\x03\x01\x02\x00", b"GET / HTTP/9\r\n\r\n"] {
        let mut wire = daemon.wire();
        wire.raw(bytes).unwrap();
        // Perhaps it says 400 first; what matters is that it ends.
        let said = wire.rest();
        assert!(said.is_ok(), "{bytes:?}: {said:?}");
    }
    let mut wire = daemon.wire();
    let head = format!("GET /v1/sessions HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    // It may close before it has read all of this.
    let _closed = wire.raw(head.as_bytes());
    assert_eq!(daemon.sessions(), 0);
}

#[test]
fn each_limit_is_429_and_named() {
    let daemon = Daemon::with(&[
        "--max-sessions",
        "2",
        "--max-servers",
        "3",
        "--max-servers-per-session",
        "2",
    ]);
    let mut wire = daemon.wire();
    let servers = |names: &[&str]| {
        let servers = names.iter().map(|name| ((*name).to_owned(), daemon.server("polite")));
        json!({ "servers": servers.collect::<serde_json::Map<_, _>>() }).to_string()
    };
    let detail = wire.ask("POST", "/v1/sessions", &servers(&["a", "b", "c"])).problem(429);
    assert!(detail.contains("--max-servers-per-session"), "{detail}");
    let first = wire.ask("POST", "/v1/sessions", &servers(&["a", "b"])).expect(201);
    let detail = wire.ask("POST", "/v1/sessions", &servers(&["a", "b"])).problem(429);
    assert!(detail.contains("--max-servers."), "{detail}");
    let second = wire.ask("POST", "/v1/sessions", &servers(&["a"])).expect(201);
    let detail = wire.ask("POST", "/v1/sessions", &servers(&[])).problem(429);
    assert!(detail.contains("--max-sessions"), "{detail}");
    let refresh = format!("/v1/sessions/{}/refresh", second["id"].as_str().unwrap());
    let detail = wire.ask("POST", &refresh, &servers(&["a", "b"])).problem(429);
    assert!(detail.contains("--max-servers."), "{detail}");
    wire.ask("POST", &refresh, &servers(&["b"])).expect(200);
    // Who makes room finds room.
    wire.ask("DELETE", &format!("/v1/sessions/{}", first["id"].as_str().unwrap()), "").expect(200);
    wire.ask("POST", &refresh, &servers(&["a", "b"])).expect(200);
    assert_eq!(daemon.sessions(), 1);
}

#[test]
fn as_many_processes_as_there_may_be_is_429() {
    let daemon = Daemon::with(&["--max-processes", "1"]);
    let mut wire = daemon.wire();
    wire.ask("POST", "/v1/sessions", &daemon.one("polite")).expect(201);
    let detail = wire.ask("POST", "/v1/sessions", &daemon.one("polite")).problem(429);
    assert!(detail.contains("--max-processes"), "{detail}");
    let daemon = Daemon::with(&["--max-processes-per-session", "1"]);
    let mut wire = daemon.wire();
    let body = daemon.one("polite");
    let session = wire.ask("POST", "/v1/sessions", &body).expect(201);
    let refresh = format!("/v1/sessions/{}/refresh", session["id"].as_str().unwrap());
    let detail = wire.ask("POST", &refresh, &body).problem(429);
    assert!(detail.contains("--max-processes-per-session"), "{detail}");
}

#[test]
fn another_user_is_refused_by_both_ends() {
    if !geteuid().is_root() {
        // Nobody else to be.
        return;
    }
    let daemon = Daemon::new();
    fs::set_permissions(daemon.place.path(""), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(daemon.socket(), Permissions::from_mode(0o666)).unwrap();
    let socket = daemon.socket();
    // The kernel notes who connects, and a thread can be somebody else than its process.
    let stranger = std::thread::spawn(move || {
        let nobody = Uid::from_raw(NOBODY);
        set_thread_res_uid(nobody, nobody, nobody).unwrap();
        UnixStream::connect(socket).unwrap()
    });
    let mut wire = Wire::over(stranger.join().unwrap());
    let body = daemon.one("polite");
    assert!(wire.ask("POST", "/v1/sessions", &body).problem(403).contains("65534"));
    assert!(wire.answer().is_err(), "the connection is closed");
    assert_eq!((daemon.sessions(), daemon.alive()), (0, 0));
    // And a daemon of somebody else's is told nothing.
    fs::set_permissions(daemon.place.path(""), Permissions::from_mode(0o777)).unwrap();
    let path = daemon.place.path("foreign");
    let bound = path.clone();
    let stranger = std::thread::spawn(move || {
        let nobody = Uid::from_raw(NOBODY);
        set_thread_res_uid(nobody, nobody, nobody).unwrap();
        UnixListener::bind(bound).unwrap()
    });
    let listener = stranger.join().unwrap();
    let mut list = Command::new(lariat());
    let output = finish(list.args(["session", "list", "--socket"]).arg(&path));
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("name your own with --socket PATH"), "{said}");
    let (mut heard, mut bytes) = (listener.accept().unwrap().0, Vec::new());
    heard.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"", "something was said to a stranger");
}

#[test]
fn too_many_connections_are_503_and_end() {
    let daemon = Daemon::new();
    let mut wires: Vec<Wire> = Vec::new();
    for _ in 0..1024 {
        let mut wire = daemon.wire();
        wire.send("GET", "/v1/openapi.json", "", "");
        wires.push(wire);
    }
    for wire in &mut wires {
        wire.answer().unwrap();
    }
    daemon.wire().ask("GET", "/v1/sessions", "").problem(503);
    wires.truncate(1000);
    let served = || {
        let mut wire = daemon.wire();
        wire.send("GET", "/v1/sessions", "", "");
        wire.answer().is_ok_and(|answer| answer.status == 200)
    };
    assert!(until(crate::place::PATIENCE, served));
}

#[test]
fn odd_requests_change_nothing() {
    // What was sent is whatever chance made of it; what is checked is that the daemon lives on.
    let daemon = Daemon::new();
    let mut number = 0x2545_f491_u64;
    let mut next = |below: usize| {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        (number >> 11) as usize % below
    };
    let body = daemon.one("polite");
    let length = body.len();
    let good = format!("POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
    for _ in 0..300 {
        let mut bytes = good.clone().into_bytes();
        // The body is cut short, so that nothing is ever started.
        bytes.extend(&body.as_bytes()[..length / 2]);
        for _ in 0..=next(4) {
            let at = next(bytes.len());
            bytes[at] = next(256) as u8;
        }
        let mut stream = UnixStream::connect(daemon.socket()).unwrap();
        let _closed = stream.write_all(&bytes);
    }
    assert!(until(crate::place::PATIENCE, || daemon.sessions() == 0));
    daemon.assert_gone();
}
