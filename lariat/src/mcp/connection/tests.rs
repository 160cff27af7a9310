use super::*;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, DuplexStream, duplex, split};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

/// The far side of a connection.
struct Server {
    stdin: BufReader<DuplexStream>,
    stdout: DuplexStream,
}

impl Server {
    async fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.stdin.read_line(&mut line).await.unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"))
    }

    async fn say(&mut self, message: Value) {
        self.stdout.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    /// Hears a request with this method and answers it.
    async fn answer(&mut self, method: &str, result: Value) -> Value {
        let heard = self.hear().await;
        assert_eq!(heard["method"], method);
        self.say(json!({ "jsonrpc": "2.0", "id": heard["id"], "result": result })).await;
        heard
    }

    async fn refuse(&mut self, method: &str, code: i64) -> Value {
        let heard = self.hear().await;
        assert_eq!(heard["method"], method);
        let error = json!({ "code": code, "message": method, "data": [1] });
        self.say(json!({ "jsonrpc": "2.0", "id": heard["id"], "error": error })).await;
        heard
    }
}

fn rules(tools: &str) -> Rules {
    let Value::Object(capabilities) = json!({ "roots": {} }) else { unreachable!() };
    Rules { tools: vec![tools.into()], capabilities }
}

fn open(tools: &str) -> (Connection, Server, JoinHandle<Ended>) {
    let ((input, stdin), (stdout, output)) = (duplex(1 << 16), duplex(1 << 16));
    let (connection, driver) = Connection::open(input, output, rules(tools));
    (connection, Server { stdin: BufReader::new(stdin), stdout }, tokio::spawn(driver))
}

/// An attached client: its side of the stream, and the attachment.
fn attach(connection: &Connection) -> (BufReader<DuplexStream>, JoinHandle<Result<(), Error>>) {
    let (near, far) = duplex(1 << 16);
    let connection = connection.clone();
    let attached = tokio::spawn(async move {
        let (reader, writer) = split(far);
        connection.attach_for(Duration::from_millis(300), reader, writer).await
    });
    (BufReader::new(near), attached)
}

async fn line(from: &mut BufReader<DuplexStream>) -> String {
    let mut line = String::new();
    from.read_line(&mut line).await.unwrap();
    line
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_legacy_server_is_greeted() {
    let (connection, mut server, _driver) = open("*");
    let result = json!({
        "protocolVersion": "2025-06-18", "serverInfo": { "name": "s", "version": "1" },
    });
    let (hello, heard) =
        tokio::join!(connection.greet(), server.answer("initialize", result.clone()));
    assert_eq!(heard["params"]["protocolVersion"], LEGACY);
    assert_eq!(heard["params"]["capabilities"], json!({ "roots": {} }));
    assert_eq!(server.hear().await["method"], "notifications/initialized");
    let hello = hello.unwrap();
    assert_eq!((hello.name.as_deref(), hello.version.as_deref()), (Some("s"), Some("1")));
    assert_eq!((hello.protocol.as_str(), hello.era), ("2025-06-18", "legacy"));
    // Who attaches is told the same.
    let (mut client, _attached) = attach(&connection);
    client.write_all(b"{\"id\":\"i\",\"method\":\"initialize\"}\n").await.unwrap();
    let welcome: Value = serde_json::from_str(&line(&mut client).await).unwrap();
    assert_eq!(welcome, json!({ "jsonrpc": "2.0", "id": "i", "result": result }));
}

#[tokio::test]
async fn a_modern_server_is_told_everything_each_time() {
    let (connection, mut server, _driver) = open("*");
    let meta = |key: &str| format!("io.modelcontextprotocol/{key}");
    let play = async {
        server.refuse("initialize", -32022).await;
        let info = json!({ "_meta": { meta("serverInfo"): { "name": "m" } } });
        server.answer("server/discover", info).await
    };
    let (hello, heard) = tokio::join!(connection.greet(), play);
    assert_eq!(heard["params"]["_meta"][meta("protocolVersion")], MODERN);
    assert_eq!(heard["params"]["_meta"][meta("clientCapabilities")], json!({ "roots": {} }));
    let hello = hello.unwrap();
    assert_eq!((hello.name.as_deref(), hello.era), (Some("m"), "modern"));
    let params = raw(&json!({ "a": 1, "_meta": { "b": 2, meta("clientInfo"): "me" } })).unwrap();
    let request = connection.request("x", Some(params));
    let (result, heard) = tokio::join!(request, server.answer("x", json!(null)));
    assert_eq!(result.unwrap().get(), "null");
    let said = &heard["params"]["_meta"];
    assert_eq!((&heard["params"]["a"], &said["b"]), (&json!(1), &json!(2)));
    assert_eq!(
        (&said[meta("clientInfo")], &said[meta("protocolVersion")]),
        (&json!("me"), &json!(MODERN))
    );
    assert!(connection.request("x", Some(raw(&[1]).unwrap())).await.is_err(), "no object");
    assert_eq!(connection.in_flight(), 0);
}

#[tokio::test]
async fn the_first_refusal_says_why() {
    let (connection, mut server, _driver) = open("*");
    let play = async {
        server.refuse("initialize", -32000).await;
        server.refuse("server/discover", -32601).await;
    };
    let (hello, ()) = tokio::join!(connection.greet(), play);
    let Err(Error::Refused { code: -32000, message, data: Some(data) }) = hello else {
        panic!("{hello:?}")
    };
    assert_eq!((message.as_str(), data.get()), ("initialize", "[1]"));
}

#[tokio::test]
async fn tools_come_in_pages_and_only_those_that_may_be_seen() {
    let (connection, mut server, _driver) = open("read*");
    let play = async {
        let tools = json!([{ "name": "read" }, { "name": "write" }]);
        server.answer("tools/list", json!({ "tools": tools, "nextCursor": "c" })).await;
        server.answer("tools/list", json!({ "tools": [{ "name": "read_all" }] })).await
    };
    let (tools, heard) = tokio::join!(connection.tools(), play);
    let tools = tools.unwrap();
    let tools: Vec<_> = tools.iter().map(|tool| tool.get()).collect();
    assert_eq!(tools, [r#"{"name":"read"}"#, r#"{"name":"read_all"}"#]);
    assert_eq!(heard["params"]["cursor"], "c");

    let (tools, _) = tokio::join!(connection.tools(), server.refuse("tools/list", -32601));
    assert_eq!(tools.unwrap().len(), 0, "a server without tools");
    let (tools, _) = tokio::join!(connection.tools(), server.refuse("tools/list", -32603));
    assert!(matches!(tools, Err(Error::Refused { code: -32603, .. })));
    let call = raw(&json!({ "name": "write" })).unwrap();
    let error = connection.request("tools/call", Some(call)).await.unwrap_err();
    assert!(matches!(&error, Error::NotAllowed(tool) if tool == "write"), "{error}");
}

#[tokio::test]
async fn a_request_that_is_dropped_is_cancelled() {
    let (connection, mut server, _driver) = open("*");
    let id = {
        let mut request = pin!(connection.request("slow", None));
        tokio::select! {
            _ = &mut request => panic!("nobody answered"),
            heard = server.hear() => heard["id"].clone(),
        }
    };
    assert_eq!(connection.in_flight(), 0);
    let heard = server.hear().await;
    assert_eq!(
        (&heard["method"], &heard["params"]["requestId"]),
        (&json!("notifications/cancelled"), &id)
    );
    // The late answer harms nobody, and what comes next is answered as ever.
    server.say(json!({ "id": id, "result": "late" })).await;
    let (result, _) = tokio::join!(connection.request("x", None), server.answer("x", json!(5)));
    assert_eq!((result.unwrap().get(), connection.dropped()), ("5", 0));
}

#[tokio::test]
async fn dropping_the_driver_fails_whoever_waits() {
    let (connection, mut server, driver) = open("*");
    let request = |_| {
        let connection = connection.clone();
        tokio::spawn(async move { connection.request("never", None).await })
    };
    let requests: Vec<_> = (0..100).map(request).collect();
    let (mut client, attached) = attach(&connection);
    until(|| connection.in_flight() == 100).await;
    assert_eq!(connection.idle(), Duration::ZERO);
    driver.abort();
    for request in requests {
        assert!(matches!(request.await.unwrap(), Err(Error::Closed)));
    }
    assert!(matches!(attached.await.unwrap(), Err(Error::Closed)));
    assert_eq!(line(&mut client).await, "");
    assert_eq!(connection.in_flight(), 0);
    assert!(matches!(connection.request("x", None).await, Err(Error::Closed)));
    assert!(matches!(attach(&connection).1.await.unwrap(), Err(Error::Closed)));
    let mut heard = Vec::new();
    server.stdin.read_to_end(&mut heard).await.unwrap();
    assert_eq!(server.stdout.write(b"x").await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn a_driver_that_never_ran_closes_too() {
    let (connection, driver) = Connection::open(duplex(1).0, duplex(1).0, rules("*"));
    let mut request = pin!(connection.request("x", None));
    tokio::select! {
        biased;
        _ = &mut request => panic!("nobody answered"),
        () = tokio::task::yield_now() => drop(driver),
    }
    assert!(matches!(request.await, Err(Error::Closed)));
}

#[tokio::test]
async fn a_server_that_does_not_read_is_still_heard() {
    let ((input, _stdin), (mut stdout, output)) = (duplex(16), duplex(1 << 12));
    let (connection, driver) = Connection::open(input, output, rules("*"));
    let driver = tokio::spawn(driver);
    let mut changed = connection.tools_changed();
    let (mut client, attached) = attach(&connection);
    let big = raw(&"x".repeat(300 << 10)).unwrap();
    let requests: Vec<_> = (0..3)
        .map(|_| (connection.clone(), big.clone()))
        .map(|(connection, big)| {
            tokio::spawn(async move { connection.request("x", Some(big)).await })
        })
        .collect();
    client.write_all(b"{\"id\":1,\"method\":\"x\"}\n").await.unwrap();
    until(|| connection.in_flight() > 0).await;
    let spam = tokio::spawn(async move {
        let ping = format!("{{\"id\":\"{}\",\"method\":\"ping\"}}\n", "p".repeat(1000));
        let list = "{\"method\":\"notifications/tools/list_changed\"}\n";
        for _ in 0..3000 {
            stdout.write_all(ping.as_bytes()).await.unwrap();
            stdout.write_all(list.as_bytes()).await.unwrap();
        }
        stdout
    });
    let read = tokio::spawn(async move { while !line(&mut client).await.is_empty() {} });
    changed.wait_for(|count| *count == 3000).await.unwrap();
    let _stdout = spam.await.unwrap();
    // Three thousand answers would be three megabytes; what did not fit is lost and counted.
    assert!(connection.dropped() > 1000, "{}", connection.dropped());
    assert_eq!(connection.in_flight(), 1, "the others wait for room");
    driver.abort();
    for request in requests {
        assert!(matches!(request.await.unwrap(), Err(Error::Closed)));
    }
    assert!(matches!(attached.await.unwrap(), Err(Error::Closed)));
    read.await.unwrap();
}

#[tokio::test]
async fn clients_share_a_server() {
    let (connection, mut server, driver) = open("*");
    let (mut a, attached_a) = attach(&connection);
    let (mut b, attached_b) = attach(&connection);
    // Without the end of its line, which comes with the end of what it says.
    a.write_all(b"{\"id\":1,\"method\":\"a\"}\r\n\n").await.unwrap();
    assert_eq!(server.hear().await["id"], 1);
    b.write_all(b"{\"id\":1,\"method\":\"b\"}\n{\"id\":\"p\",\"method\":\"ping\"}").await.unwrap();
    assert_eq!(server.hear().await["id"], 2);
    server.say(json!({ "id": 2, "result": "b" })).await;
    server.say(json!({ "id": 1, "result": "a" })).await;
    assert_eq!(line(&mut a).await, "{\"id\":1,\"result\":\"a\"}\n");
    assert_eq!(line(&mut b).await, "{\"id\":1,\"result\":\"b\"}\n");
    b.shutdown().await.unwrap();
    assert_eq!(line(&mut b).await, "{\"jsonrpc\":\"2.0\",\"id\":\"p\",\"result\":{}}\n");
    assert_eq!(line(&mut b).await, "");
    attached_b.await.unwrap().unwrap();
    // One that leaves while it waits.
    a.write_all(b"{\"id\":2,\"method\":\"slow\"}\n").await.unwrap();
    assert_eq!(server.hear().await["id"], 3);
    drop(a);
    attached_a.await.unwrap().unwrap();
    assert_eq!(server.hear().await["params"]["requestId"], 3);
    assert_eq!(connection.in_flight(), 0);
    drop(server);
    assert_eq!(driver.await.unwrap(), Ended::Output);
}

#[tokio::test]
async fn last_words_arrive() {
    let (connection, mut server, driver) = open("*");
    let (mut client, attached) = attach(&connection);
    client.write_all(b"{\"id\":1,\"method\":\"a\"}\n").await.unwrap();
    let request = tokio::spawn({
        let connection = connection.clone();
        async move { connection.request("b", None).await }
    });
    let heard = [server.hear().await, server.hear().await];
    // The last line of all has no end.
    let answer = |heard: &Value| json!({ "id": heard["id"], "result": heard["method"] });
    let answers = heard.each_ref().map(|heard| answer(heard).to_string()).join("\n");
    server.stdout.write_all(answers.as_bytes()).await.unwrap();
    drop(server);
    assert_eq!(driver.await.unwrap(), Ended::Output);
    assert_eq!(request.await.unwrap().unwrap().get(), "\"b\"");
    assert_eq!(line(&mut client).await, "{\"id\":1,\"result\":\"a\"}\n");
    assert_eq!(line(&mut client).await, "");
    assert!(matches!(attached.await.unwrap(), Err(Error::Closed)));
}

#[tokio::test]
async fn a_server_that_stops_reading_for_good_ends_it() {
    let (connection, mut server, driver) = open("*");
    server.say(json!({ "method": "notifications/tools/list_changed" })).await;
    let (stdin, _stdout) = (server.stdin, server.stdout);
    drop(stdin);
    assert!(matches!(connection.request("x", None).await, Err(Error::Closed)));
    assert_eq!(driver.await.unwrap(), Ended::Input);
    assert_eq!(*connection.tools_changed().borrow(), 1, "what it said before was heard");
}

/// Says the same until nothing moves any more: the client's stream, its queue and the server's own
/// stream are full. Leaves a line unfinished.
async fn fill(server: &mut Server) {
    let spam = json!({ "method": "x", "params": "x".repeat(10_000) }).to_string() + "\n";
    for said in 0.. {
        let say = server.stdout.write_all(spam.as_bytes());
        if tokio::time::timeout(Duration::from_millis(200), say).await.is_err() {
            break;
        }
        assert!(said < 100, "somebody keeps all of it");
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_slows_down_and_no_more() {
    let (connection, mut server, driver) = open("*");
    for leaves in [true, false] {
        let (mut client, attached) = attach(&connection);
        until(|| connection.0.lock().ports.len() == 1).await;
        fill(&mut server).await;
        // If it goes, or says that it will say no more, everything goes on.
        if leaves {
            drop(client);
            attached.await.unwrap().unwrap();
        } else {
            client.shutdown().await.unwrap();
        }
        server.stdout.write_all(b"\n").await.unwrap();
        let (result, _) = tokio::join!(connection.request("x", None), server.answer("x", json!(1)));
        assert_eq!(result.unwrap().get(), "1");
    }
    // And it cannot hold up the end.
    let (_client, attached) = attach(&connection);
    until(|| connection.0.lock().ports.len() == 1).await;
    fill(&mut server).await;
    driver.abort();
    assert!(matches!(attached.await.unwrap(), Err(Error::Closed)));
}

#[tokio::test]
async fn a_long_line_passes_and_a_longer_one_ends_it() {
    let (connection, mut server, driver) = open("*");
    let long = raw(&"x".repeat((64 << 20) - 100)).unwrap();
    let length = long.get().len();
    let play = async {
        let mut line = Vec::new();
        server.stdin.read_until(b'\n', &mut line).await.unwrap();
        let envelope = String::from_utf8(line).unwrap();
        let answer = envelope.replace("\"method\":\"x\",\"params\"", "\"result\"");
        server.stdout.write_all(answer.as_bytes()).await.unwrap();
    };
    let (result, ()) = tokio::join!(connection.request("x", Some(long)), play);
    assert_eq!(result.unwrap().get().len(), length);
    let endless = vec![b'x'; 1 << 20];
    while server.stdout.write_all(&endless).await.is_ok() {}
    assert_eq!(driver.await.unwrap(), Ended::TooLong);
}

#[tokio::test]
async fn an_answer_that_is_no_text_is_an_answer() {
    let (connection, mut server, _driver) = open("*");
    let asking = tokio::spawn(async move { connection.request("x/y", None).await });
    let heard = server.hear().await;
    let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":\"", heard["id"]);
    server.stdout.write_all(&[line.as_bytes(), b"\xff\"}\n"].concat()).await.unwrap();
    assert_eq!(asking.await.unwrap().unwrap().get(), "\"\u{fffd}\"");
}

#[tokio::test]
async fn a_client_that_has_said_all_still_hears_the_answer() {
    let (connection, mut server, _driver) = open("*");
    let (near, far) = duplex(1 << 16);
    let attached = tokio::spawn(async move {
        // All that it ever says, and its end.
        let said = &b"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"x/y\"}\n"[..];
        connection.attach(said, far).await
    });
    let heard = server.hear().await;
    server.say(json!({ "jsonrpc": "2.0", "id": heard["id"], "result": "late" })).await;
    let mut lines = BufReader::new(near).lines();
    let answer: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
    assert_eq!((&answer["id"], &answer["result"]), (&json!(5), &json!("late")));
    assert_eq!(lines.next_line().await.unwrap(), None);
    attached.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_is_told_that_its_line_is_too_long() {
    let (connection, _server, _driver) = open("*");
    let (mut client, attached) = attach(&connection);
    let endless = vec![b'x'; 1 << 20];
    while client.write_all(&endless).await.is_ok() {}
    assert!(line(&mut client).await.contains("too long"));
    assert!(matches!(attached.await.unwrap(), Err(Error::Refused { .. })));
}

#[test]
fn answers_are_read_leniently() {
    let read = |line: &str| result(line.as_bytes());
    let ok = read(r#"{"id":1,"error":null,"result":{ "a":1e400}}"#).unwrap().unwrap();
    assert_eq!(ok.get(), r#"{ "a":1e400}"#);
    for error in ["1", r#""no""#, "{}", r#"{"code":1.5,"message":[]}"#] {
        let refused = read(&format!(r#"{{"id":1,"error":{error}}}"#)).unwrap().unwrap_err();
        assert!(matches!(refused, Error::Refused { code: 0, .. }), "{error}");
    }
    assert!(read(r#"{"id":1,"error":null}"#).is_none());
}
