//! Just enough HTTP to ask a daemon by its socket, by hand.

use crate::stage::{PATIENCE, Stage};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

/// One connection. It closes when this is dropped.
pub(crate) struct Wire(BufReader<UnixStream>);

impl Wire {
    pub(crate) fn new(stage: &Stage) -> Wire {
        let stream = UnixStream::connect(stage.path("state/daemon.sock")).expect("a daemon");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Wire(BufReader::new(stream))
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("somebody who listens");
    }

    /// Asks, with these headers beside, and does not wait.
    pub(crate) fn send(&mut self, verb: &str, path: &str, body: &Value, more: &str) {
        self.raw(request(verb, path, body, more).as_bytes());
    }

    /// Asks, and expects this status.
    #[track_caller]
    pub(crate) fn ask(&mut self, verb: &str, path: &str, body: &Value, status: u16) -> Value {
        self.send(verb, path, body, "");
        self.expect(status)
    }

    /// What was asked is answered with this status.
    #[track_caller]
    pub(crate) fn expect(&mut self, status: u16) -> Value {
        let (got, text) = self.answer().expect("an answer");
        let text = String::from_utf8(text).expect("text");
        assert_eq!(got, status, "{text}");
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    fn answer(&mut self) -> io::Result<(u16, Vec<u8>)> {
        let (status, length) = self.head()?;
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok((status, body))
    }

    /// The status of the next answer, and how long its body is.
    pub(crate) fn head(&mut self) -> io::Result<(u16, usize)> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut length = 0;
        loop {
            let line = self.line()?.to_lowercase();
            if line.is_empty() {
                return Ok((status, length));
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
    }

    /// The next line without its end; empty at the end of everything.
    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Opens a session; with the connection as its lease if that is wished. Gives its path.
    #[track_caller]
    pub(crate) fn open(&mut self, body: &Value, by_connection: bool) -> String {
        let lease = if by_connection { "Lariat-Lease: connection\r\n" } else { "" };
        self.send("POST", "/v1/sessions", body, lease);
        let opened = self.expect(201);
        format!("/v1/sessions/{}", opened["id"].as_str().expect("an id"))
    }

    /// Asks a checker who one is.
    pub(crate) fn send_call(&mut self, session: &str, server: &str, nonce: u64, late: u64) {
        let arguments = json!({"who": session, "nonce": nonce, "late": late});
        let body = json!({"tool": "whoami", "arguments": arguments});
        self.send("POST", &format!("{session}/servers/{server}/call"), &body, "");
    }

    /// The same, and what it says: which pid it has.
    #[track_caller]
    pub(crate) fn call(&mut self, session: &str, server: &str, nonce: u64, late: u64) -> i64 {
        self.send_call(session, server, nonce, late);
        self.called(session, nonce)
    }

    /// The answer to that.
    #[track_caller]
    pub(crate) fn called(&mut self, session: &str, nonce: u64) -> i64 {
        let told = self.expect(200)["structuredContent"].clone();
        assert_eq!((&told["who"], &told["nonce"]), (&json!(session), &json!(nonce)), "{told}");
        told["pid"].as_i64().expect("a pid")
    }

    /// What a checker has seen.
    #[track_caller]
    pub(crate) fn about(&mut self, session: &str, server: &str) -> Value {
        let path = format!("{session}/servers/{server}/call");
        self.ask("POST", &path, &json!({"tool": "about"}), 200)["structuredContent"].clone()
    }
}

/// A request as it is sent.
pub(crate) fn request(verb: &str, path: &str, body: &Value, more: &str) -> String {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    format!("{verb} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{more}\r\n{body}")
}
