//! Requests that chance has changed, through a real connection: each is answered by HTTP or the
//! connection ends, and nothing panics.

use super::{Caller, Gateway, Target};
use crate::daemon::config::Config;
use crate::daemon::http;
use crate::daemon::web::{Activity, Busy};
use crate::dice::{self, Dice};
use crate::pool::{self, Pool};
use contain::{Choice, Ladder};
use hyper::Request;
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a request that chance has cut short may keep its connection.
const PATIENCE: Duration = Duration::from_millis(50);

const HELLO: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#;
const CALL: &str = r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"x","arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"progressToken":1}}}"#;
const BATCH: &str = r#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"x"}]"#;

fn requests() -> Vec<Vec<u8>> {
    let post = |path: &str, headers: &str, body: &str| {
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json, text/event-stream\r\n\
             Content-Type: application/json\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        )
    };
    let modern = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: x\r\n";
    let session = "Mcp-Session-Id: 0123\r\nMCP-Protocol-Version: 2025-03-26\r\n";
    [
        post("/servers/a/mcp", "", HELLO),
        post("/mcp?tools=a__*", "", HELLO),
        post("/servers/a/mcp", modern, CALL),
        post("/mcp", "Mcp-Name: =?base64?eA==?=\r\n", CALL),
        post("/servers/a/mcp", session, BATCH),
        "GET /servers/a/mcp HTTP/1.1\r\nHost: x\r\nLast-Event-ID: 1-2\r\nMcp-Session-Id: 1\r\n\r\n"
            .into(),
        "DELETE /mcp HTTP/1.1\r\nHost: x\r\nMcp-Session-Id: 1\r\n\r\n".into(),
        "POST /mcp HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"id\"\r\n0\r\n\r\n".into(),
    ]
    .map(String::into_bytes)
    .into()
}

#[tokio::test]
async fn requests_that_make_no_sense_are_answered_or_the_connection_ends() {
    let config =
        Config::parse("[servers.a]\ncommand = \"x\"\n[servers.b]\ncommand = \"y\"").unwrap();
    let pool = Pool::new(pool::Config {
        state_dir: std::env::temp_dir(),
        // Nothing is ever started: what can be heard is a refusal.
        holder: Some("/nonexistent".into()),
        ladder: Ladder::default(),
        backend: Choice::Auto,
        docker: None,
        max_containers: 0,
    });
    let (stop, stopped) = watch::channel(false);
    let gateway =
        Gateway::new(&config, pool.unwrap(), Arc::default(), [0; 3].map(|_| stopped.clone()));
    let gateway = Arc::new(gateway);
    let requests = requests();
    let words: [&[u8]; 10] = [
        b"\r\n",
        b"{",
        b"]",
        b"null",
        b"\"id\":",
        b"Content-Length: 3\r\n",
        b"=?base64?",
        b"%2e%2e/",
        b"2026-07-28",
        b"Mcp-Method: ",
    ];
    let mut dice = Dice(0x5eed_cafe);
    let (end, mut rounds, mut answered) = (dice::enough(0), 0, 0);
    while rounds < 300 || Instant::now() < end {
        rounds += 1;
        let original = &requests[dice.next(requests.len())];
        let request = match dice.next(8) {
            0 => original.clone(),
            _ => dice.mutate(original, &words),
        };
        let (mut near, far) = duplex(1 << 16);
        let (gateway, stopped) = (gateway.clone(), stopped.clone());
        let serving = tokio::spawn(async move {
            let answer = |request: Request<Incoming>| {
                let gateway = gateway.clone();
                async move {
                    let principal = Arc::from("somebody");
                    let path = request.uri().path().to_owned();
                    let target = Target::of(&path, request.uri().query());
                    let target = target.unwrap_or(Target::One(path));
                    let caller = Caller { principal: &principal, target: &target };
                    gateway.answer(caller, Busy::new(&Arc::new(Activity::new())), request).await
                }
            };
            http::converse(far, answer, std::future::pending(), stopped).await;
        });
        near.write_all(&request).await.unwrap_or_default();
        let mut heard = vec![0; 1 << 16];
        let heard = match timeout(PATIENCE, near.read(&mut heard)).await {
            Ok(Ok(count)) => &heard[..count],
            Ok(Err(_)) | Err(_) => b"",
        };
        let is_http = heard.is_empty() || heard.starts_with(b"HTTP/1.");
        assert!(is_http, "{}: {}", request.escape_ascii(), heard.escape_ascii());
        answered += usize::from(!heard.is_empty());
        drop(near);
        serving.await.expect("no panic");
    }
    assert!(answered > rounds / 2, "{answered} of {rounds}");
    assert!(gateway.is_empty(), "a session without a server");
    drop(stop);
}
