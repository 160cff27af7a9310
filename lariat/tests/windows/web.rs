//! By TCP on this machine: the page, the metrics, and MCP.

use crate::daemon::{Daemon, runtime};
use crate::manager::trials;
use crate::table::{PATIENCE, Place, own};
use lariat::daemon::api::Link;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

pub(crate) fn tests() -> Vec<Trial> {
    trials([("web::page-and-metrics", page), ("web::mcp-by-http", mcp)])
}

/// Where a daemon is by TCP, and with which token.
struct Site {
    address: String,
    path: String,
    token: String,
}

impl Site {
    fn of(link: &Link) -> Site {
        let place = link.url.strip_prefix("http://").expect("a link");
        let (address, path) = place.split_once('/').expect("a path");
        let token = link.token_file.as_ref().expect("a token");
        let token = fs::read_to_string(token).expect("it is there").trim().to_owned();
        Site { address: address.into(), path: format!("/{path}"), token }
    }

    /// Asks once. Gives the head and the body.
    fn ask(&self, line: &str, more: &str, body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).expect("somebody listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let (address, length) = (&self.address, body.len());
        write!(
            stream,
            "{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n{more}\r\n{body}"
        )
        .expect("it listens");
        let mut text = Vec::new();
        // A connection that is reset after the answer is an end, too.
        let _closed = stream.read_to_end(&mut text);
        let text = String::from_utf8(text).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
        (head.to_lowercase(), body.to_owned())
    }

    /// The same with the token, as MCP wants it.
    fn say(&self, verb: &str, session: &str, body: &Value) -> (String, String) {
        let more = format!(
            "Authorization: Bearer {}\r\nContent-Type: application/json\r\nAccept: application/json\r\n{session}",
            self.token
        );
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.ask(&format!("{verb} /servers/one/mcp"), &more, &body)
    }
}

fn has_status(head: &str, status: u16) -> bool {
    head.starts_with(&format!("http/1.1 {status} "))
}

fn page() {
    let daemon = Daemon::start(&["--idle", "4s"]);
    let link = runtime().block_on(async { daemon.client().await.link().await }).expect("a page");
    let site = Site::of(&link);
    let (head, _) = site.ask("GET /metrics", "", "");
    assert!(has_status(&head, 401), "{head}");
    let bearer = format!("Authorization: Bearer {}\r\n", site.token);
    let (head, body) = site.ask("GET /metrics", &bearer, "");
    assert!(has_status(&head, 200) && body.contains("lariat_"), "{head}\n{body}");
    let (head, _) = site.ask(&format!("GET {}", site.path), "", "");
    let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ").map(str::to_owned));
    let cookie = cookie.unwrap_or_else(|| panic!("no way in: {head}"));
    let cookie = cookie.split(';').next().expect("a cookie");
    let (head, body) = site.ask("GET /", &format!("Cookie: {cookie}\r\n"), "");
    assert!(has_status(&head, 200) && body.contains("<html"), "{head}");
    let (head, _) = site.ask(&format!("GET {}", site.path), "", "");
    assert!(!has_status(&head, 200) || !head.contains("set-cookie"), "a link works once: {head}");
    daemon.leaves();
}

fn mcp() {
    let place = Place::new();
    let file = place.0.join("lariat.toml");
    let command = json!(own().to_string_lossy());
    let table = format!("[servers.one]\ncommand = {command}\nargs = [\"__serve\"]\n");
    fs::write(&file, table).expect("a file");
    let file = file.to_string_lossy().into_owned();
    let options = ["--idle", "4s", "--http", "127.0.0.1:0", "--config", &file];
    let daemon = Daemon::at(place, &options);
    let link = runtime().block_on(async { daemon.client().await.link().await }).expect("a page");
    let site = Site::of(&link);
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}});
    let (head, body) = site.say("POST", "", &hello);
    assert!(has_status(&head, 200) && body.contains("a server"), "{head}\n{body}");
    let session =
        head.lines().find(|line| line.starts_with("mcp-session-id: ")).expect("a session");
    let session = format!("{session}\r\n");
    for id in 2..20 {
        let said = json!({"number": id});
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": "nail", "arguments": said}});
        let (head, body) = site.say("POST", &session, &call);
        assert!(has_status(&head, 200), "{head}\n{body}");
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        assert!(answer["id"] == json!(id) && answer["result"]["said"] == said, "{answer}");
    }
    let (head, _) = site.say("DELETE", &session, &Value::Null);
    assert!(has_status(&head, 204), "{head}");
    daemon.leaves();
}
