//! Clients that misbehave at the session's own socket. They get the engine's own answer or a clear
//! refusal, nobody else waits for them, and the proxy stays as small as it was.

use crate::PATIENCE;
use crate::choices::{WAITS, deaf_box, socket_of};
use crate::ends::{Death, assert_ended};
use crate::engine::{Engine, Kind};
use crate::eyes::{Container, ask, split};
use crate::session::{Session, Start};
use serde_json::Value;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trials::until;

/// Memory that the proxy may have, whatever it is sent.
const MEMORY: u64 = 48 << 20;

/// A container in as few words as the engine takes.
const BOX: &str = r#"{"Image": "bb:latest", "Cmd": ["true"]}"#;

/// A session, its socket, and the engine behind it.
struct Stage {
    session: Session,
    socket: PathBuf,
    engine: Engine,
}

impl Stage {
    fn new() -> Stage {
        let engine = Engine::start(Kind::Docker);
        let mut session = Start::lariat(&engine).script(WAITS);
        let socket = socket_of(&mut session);
        let stage = Stage { session, socket, engine };
        stage.assert_serves();
        stage
    }

    /// An honest client is served.
    #[track_caller]
    fn assert_serves(&self) {
        let answer = ask(&self.socket, "GET", "/_ping", None);
        assert!(answer.as_ref().is_ok_and(|(code, _)| *code == 200), "{answer:?}");
    }

    /// Sends raw bytes and reads what comes until the other side ends or is silent for long.
    #[track_caller]
    fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        raw(&self.socket, bytes).unwrap_or_else(|error| panic!("no answer: {error}"))
    }

    /// How many descriptors the proxy has open.
    fn descriptors(&self) -> usize {
        let proxy = self.session.proxy().expect("a proxy");
        fs::read_dir(format!("/proc/{}/fd", proxy.pid)).unwrap().count()
    }

    /// The most memory that the proxy has had.
    fn memory(&self) -> u64 {
        let proxy = self.session.proxy().expect("a proxy");
        let status = fs::read_to_string(format!("/proc/{}/status", proxy.pid)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    }

    /// The end of it: an honest client first, then nothing is left.
    fn end(mut self) {
        self.assert_serves();
        assert!(self.memory() < MEMORY, "the proxy has taken {} bytes", self.memory());
        let id = self.session_id();
        Death::Eof.strike(&self.engine, &mut self.session);
        assert_ended(&self.engine, &self.session);
        let left = self.engine.marked("dev.lariat.session", Some(&id));
        assert!(left.is_empty(), "{left:?}");
        let strangers = self.engine.containers();
        assert!(strangers.is_empty(), "made without a label: {strangers:?}");
    }

    /// What a container of this session is labelled with.
    fn session_id(&self) -> String {
        let body = deaf_box(&self.session.token);
        let (code, said) = ask(&self.socket, "POST", "/containers/create", Some(&body)).unwrap();
        assert_eq!(code, 201, "{}", String::from_utf8_lossy(&said));
        let made = self.engine.containers_with("trial", Some(&self.session.token));
        made[0].labels["dev.lariat.session"].clone()
    }
}

fn raw(socket: &Path, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE / 3))?;
    stream.set_write_timeout(Some(PATIENCE / 3))?;
    // Refused in the middle of it: the answer is there nevertheless.
    let _refused = stream.write_all(bytes);
    let _refused = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !answer.is_empty() => {}
        other => drop(other?),
    }
    Ok(answer)
}

fn create(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Bodies that are no container: refused by the engine or by Lariat, never both silent.
pub(crate) fn bodies() {
    let stage = Stage::new();
    let nested = [b"[".repeat(20_000), b"]".repeat(20_000)].concat();
    let deep = [b"{\"a\":".repeat(5_000), b"1".to_vec(), b"}".repeat(5_000)].concat();
    let bodies: Vec<&[u8]> = vec![
        b"",
        b"null",
        b"[]",
        b"7",
        b"\"text\"",
        b"{",
        b"{}}",
        b"{\"Image\": \"bb:latest\", \"Cmd\": [\"true\"]} {\"Image\": \"other\"}",
        b"{\"Image\": \"bb:latest\", \"Cmd\": [\"true\"], \"Labels\": 5}",
        b"{\"Image\": \"bb:latest\", \"Cmd\": [\"true\"], \"Labels\": [\"a\"]}",
        b"{\"Image\": \"bb:latest\", \"Cmd\": [\"true\"], \"Labels\": {\"a\": 5}}",
        b"{\"Image\": \"bb:latest\", \"Labels\": {\"a\": \"b\"}, \"Labels\": 5}",
        b"{\"Image\": \"\xff\xfe\"}",
        b"\xef\xbb\xbf{\"Image\": \"bb:latest\"}",
        b"Image=bb:latest",
        &nested,
        &deep,
    ];
    for path in ["/containers/create", "/v1.41/networks/create", "/v1.41/volumes/create"] {
        for body in &bodies {
            let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
            let answer = stage.raw(&create(path, "", body));
            let (code, said) = split(&answer).unwrap_or_else(|| panic!("{path} {shown}: no HTTP"));
            let said = String::from_utf8_lossy(&said).into_owned();
            // An engine that takes one of them after all has made something with our label.
            assert!(code < 600 && code != 502, "{path} {shown}: {code} {said}");
            if code >= 400 {
                assert!(said.contains("message"), "{path} {shown}: {code} {said}");
            }
        }
    }
    stage.assert_serves();
    // Volumes and networks that came of it carry the label, and go.
    stage.end();
}

/// What is asked for is kept: fields nobody knows, labels of one's own; but not a forged owner.
pub(crate) fn labels() {
    let stage = Stage::new();
    let id = stage.session_id();
    let forged = r#"{"dev.lariat.session": "forged"}"#;
    let long_s = format!("\"Label\u{17f}\": {forged}");
    // Each another way to say which labels there are, some of them only to a lenient reader.
    let forms = [
        r#""Labels": null"#,
        r#""Labels": {}"#,
        r#""labels": {"own": "value"}"#,
        r#""Labels": {"own": "value"}, "Surprise": {"x": [1.5e300, null]}"#,
        r#""Labels": {"dev.lariat.session": "forged", "own": "value"}"#,
        r#""Labels": {"dev.lariat.session": "forged", "dev.lariat.session": "again"}"#,
        r#""Labels": {"dev\u002elariat.session": "forged"}"#,
        r#""Labels": {"a": "1"}, "Labels": {"dev.lariat.session": "forged"}"#,
        r#""Label\u0073": {"dev.lariat.session": "forged"}"#,
        r#""labels": {"dev.lariat.session": "forged"}"#,
        r#""LABELS": {"dev.lariat.session": "forged"}"#,
        r#""Labels": {"a": "1"}, "lABELS": {"dev.lariat.session": "forged"}"#,
        // What Go takes for an s.
        &long_s,
    ];
    let mut texts = vec![BOX.to_owned()];
    texts.extend(forms.map(|labels| BOX.replace('}', &format!(", {labels}}}"))));
    texts.extend(forms.map(|labels| BOX.replace('{', &format!("{{{labels}, "))));
    let mut made = 0;
    for text in &texts {
        let before = stage.engine.containers().len();
        let answer = stage.raw(&create("/v1.41/containers/create", "", text.as_bytes()));
        let (code, said) = split(&answer).expect("HTTP");
        let said = String::from_utf8_lossy(&said);
        let all = stage.engine.containers();
        assert!(code == 201 || (code == 400 && all.len() == before), "{text}: {code} {said}");
        // A session in a session says so, and belongs to both.
        let within = format!("dev.lariat.within.{id}");
        let is_ours = |one: &&Container| {
            let session = one.labels.get("dev.lariat.session");
            session == Some(&id) || one.labels.contains_key(&within)
        };
        let foreign: Vec<_> = all.iter().filter(|one| !is_ours(one)).collect();
        assert!(foreign.is_empty(), "{text}: {foreign:?}");
        made += usize::from(code == 201);
        if code == 201 && text.contains("\"value\"") {
            let (_, id) = said.split_once("\"Id\":\"").expect("an id");
            let own = stage.engine.label(&id[..64], "own");
            assert_eq!(own.as_deref(), Some("value"), "{text}");
        }
    }
    assert!(made >= texts.len() / 2, "only {made} of {} were taken", texts.len());
    stage.end();
}

/// Other ways to write the same request. Whatever the engine takes for a create has our label.
pub(crate) fn spellings() {
    let stage = Stage::new();
    let body = BOX;
    let paths = [
        "/containers/create",
        "/v1.24/containers/create",
        "/v1.41/containers/create?name=spelled",
        "/v1.41/containers/create?",
        "/v1.41/containers/create#part",
        "/v1.41//containers/create",
        "//v1.41/containers/create",
        "/v1.41/./containers/create",
        "/v1.41/x/../containers/create",
        "/v1.41/%63ontainers/create",
        "/v1.41/containers%2fcreate",
        "/v1.41/containers/create/",
        "/v1.41/containers/create;x=1",
        "/v1.41/containers/creat%65?name=escaped",
        "http://engine/v1.41/containers/create",
        "http://engine/containers/create",
        "/V1.41/containers/create",
        "/v1.41/Containers/Create",
        "/v1.999/containers/create",
    ];
    let mut requests: Vec<Vec<u8>> =
        paths.iter().map(|path| create(path, "", body.as_bytes())).collect();
    let chunked = |extra: &str, text: &str| {
        let head = format!(
            "POST /containers/create HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\
             Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n{extra}\r\n"
        );
        (head + text).into_bytes()
    };
    let length = body.len();
    let whole = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
    let (first, second) = body.split_at(5);
    let parts = format!("5\r\n{first}\r\n{:x};ext=1\r\n{second}\r\n0\r\n\r\n", second.len());
    requests.extend([
        chunked("", &whole),
        chunked("", &parts),
        chunked("", &format!("{length:x}\r\n{body}\r\n0\r\nTrailer: x\r\n\r\n")),
        // Two answers to how long it is.
        chunked("Content-Length: 3\r\n", &whole),
        chunked("Transfer-Encoding: identity\r\n", &whole),
        create("/containers/create", "Content-Length: 3\r\n", body.as_bytes()),
        create("/containers/create", "Expect: 100-continue\r\n", body.as_bytes()),
        create("/containers/create", "Upgrade: tcp\r\nConnection: Upgrade\r\n", body.as_bytes()),
        create("/containers/create", " folded: header\r\n", body.as_bytes()),
        create("/containers/create", "X : y\r\n", body.as_bytes()),
    ]);
    // Two requests in one write; and one behind an upgrade that is refused.
    let keep = |bytes: Vec<u8>| {
        String::from_utf8(bytes).unwrap().replace("Connection: close\r\n", "").into_bytes()
    };
    let one = create("/containers/create", "", body.as_bytes());
    let attach = b"POST /containers/none/attach?stream=1&stdin=1 HTTP/1.1\r\nHost: d\r\n\
        Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n";
    let get = b"GET /_ping HTTP/1.1\r\nHost: d\r\n\r\n";
    let bodied = b"GET /_ping HTTP/1.1\r\nHost: d\r\nContent-Length: 4\r\n\r\nPOST";
    requests.extend([
        [keep(one.clone()), one.clone()].concat(),
        [attach.to_vec(), one.clone()].concat(),
        [get.to_vec(), one.clone()].concat(),
        [bodied.to_vec(), one.clone()].concat(),
        [b"\r\n\r\n".to_vec(), one.clone()].concat(),
    ]);
    for request in &requests {
        let shown = String::from_utf8_lossy(&request[..request.len().min(400)]).into_owned();
        let answer = raw(&stage.socket, request);
        let all = stage.engine.containers();
        let bare: Vec<_> =
            all.iter().filter(|one| !one.labels.contains_key("dev.lariat.session")).collect();
        assert!(bare.is_empty(), "{shown}\nmade without a label: {bare:?}");
        let answer = answer.unwrap_or_else(|error| panic!("{shown}\nno answer: {error}"));
        assert!(split(&answer).is_some(), "{shown}\nno HTTP: {answer:?}");
    }
    let made = stage.engine.containers().len();
    assert!(made >= 8, "only {made} of the spellings made a container");
    stage.end();
}

/// A body of a hundred megabytes is refused before it is in memory.
pub(crate) fn large_body() {
    let stage = Stage::new();
    let filler = "x".repeat(100 << 20);
    let body = format!("{{\"Image\": \"bb:latest\", \"Labels\": {{\"a\": \"{filler}\"}}}}");
    let answer = stage.raw(&create("/v1.41/containers/create", "", body.as_bytes()));
    let (code, said) = split(&answer).expect("an answer");
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!((400..500).contains(&code) && said.contains("lariat:"), "{code} {said}");
    let pieces = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let head = "POST /containers/create HTTP/1.1\r\nHost: d\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = stage.raw((head.to_owned() + &pieces).as_bytes());
    let (code, _) = split(&answer).expect("an answer");
    assert!((400..500).contains(&code), "{code}");
    stage.end();
}

/// Heads that never seem to end, and some that are none.
pub(crate) fn heads() {
    let stage = Stage::new();
    let many = "X-Flood: 1\r\n".repeat(20_000);
    let long = format!("X-Long: {}\r\n", "y".repeat(8 << 20));
    let path = "/".repeat(1 << 20);
    let heads = [
        format!("GET /_ping HTTP/1.1\r\nHost: d\r\n{many}\r\n"),
        format!("GET /_ping HTTP/1.1\r\nHost: d\r\n{long}\r\n"),
        format!("GET {path} HTTP/1.1\r\nHost: d\r\n\r\n"),
        "GET /_ping HTTP/9.9\r\nHost: d\r\n\r\n".into(),
        "no request at all\r\n\r\n".into(),
        "GET /_ping\r\n\r\n".into(),
        "\0\0\0\0\0\0\0\0\r\n\r\n".into(),
        "GET /_ping HTTP/1.1\r\nHost: d\r\nContent-Length: -1\r\n\r\n".into(),
        "GET /_ping HTTP/1.1\r\nHost: d\r\nContent-Length: 99999999999999999999\r\n\r\n".into(),
        "POST /containers/create HTTP/1.1\r\nHost: d\r\nTransfer-Encoding: chunked\r\n\r\n\
         fffffffffffffffff\r\nx"
            .into(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(),
    ];
    for head in &heads {
        let shown = &head[..head.len().min(80)];
        let answer = raw(&stage.socket, head.as_bytes());
        let answer = answer.unwrap_or_else(|error| panic!("{shown}: no answer: {error}"));
        // Nothing at all is an answer too, if the connection ends; otherwise it is a refusal.
        if let Some((code, _)) = split(&answer) {
            let fine = shown.contains("_ping HTTP/1.1") && code == 200;
            assert!(fine || (400..600).contains(&code), "{shown}: {code}");
        }
    }
    stage.end();
}

/// Clients that say a part and no more: others are served, and what they hold is let go with them.
pub(crate) fn slow_clients() {
    const SLOW: usize = 200;
    let stage = Stage::new();
    let before = stage.descriptors();
    let parts: [&[u8]; 4] = [
        b"",
        b"GET /_ping HTT",
        b"POST /containers/create HTTP/1.1\r\nHost: d\r\nContent-Length: 500\r\n\r\n{",
        b"POST /images/load HTTP/1.1\r\nHost: d\r\nContent-Length: 500000\r\n\r\nabc",
    ];
    let mut clients = Vec::new();
    for part in parts.iter().cycle().take(SLOW) {
        let mut client = UnixStream::connect(&stage.socket).unwrap();
        client.write_all(part).unwrap();
        clients.push(client);
    }
    let mut dribble = UnixStream::connect(&stage.socket).unwrap();
    for byte in b"GET /_ping HTTP/1.0\r\nHost: d\r\n\r\n" {
        dribble.write_all(&[*byte]).unwrap();
        stage.assert_serves();
    }
    let mut said = Vec::new();
    dribble.read_to_end(&mut said).unwrap();
    assert_eq!(split(&said).map(|(code, _)| code), Some(200));
    drop(clients);
    let calm = until(PATIENCE, || stage.descriptors() <= before + 4);
    assert!(calm, "{} descriptors, {before} before", stage.descriptors());
    stage.end();
}

/// Clients that vanish in the middle of an upgrade, before and after the engine has agreed.
pub(crate) fn vanishing() {
    let stage = Stage::new();
    let body = deaf_box(&stage.session.token);
    let (code, made) = ask(&stage.socket, "POST", "/containers/create", Some(&body)).unwrap();
    assert_eq!(code, 201);
    let made: Value = serde_json::from_slice(&made).unwrap();
    let id = made["Id"].as_str().unwrap();
    assert_eq!(
        ask(&stage.socket, "POST", &format!("/containers/{id}/start"), None).unwrap().0,
        204
    );
    stage.assert_serves();
    let before = stage.descriptors();
    let head = format!(
        "POST /containers/{id}/attach?stream=1&stdin=1&stdout=1 HTTP/1.1\r\nHost: d\r\n\
         Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
    );
    for moment in ["in the request", "before the answer", "after the answer", "while speaking"] {
        for _ in 0..25 {
            let mut client = UnixStream::connect(&stage.socket).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            if moment == "in the request" {
                client.write_all(&head.as_bytes()[..head.len() / 2]).unwrap();
                continue;
            }
            client.write_all(head.as_bytes()).unwrap();
            if moment != "before the answer" {
                let mut answer = [0; 512];
                let got = client.read(&mut answer).unwrap();
                assert!(answer[..got].starts_with(b"HTTP/1.1 101"), "{:?}", &answer[..got]);
            }
            if moment == "while speaking" {
                client.write_all(b"some bytes").unwrap();
            }
        }
        let calm = until(PATIENCE / 6, || stage.descriptors() <= before + 4);
        let now = stage.descriptors();
        assert!(calm, "{now} descriptors after clients vanished {moment}, {before} before");
    }
    stage.end();
}

/// Ten thousand connections, one after the other and in crowds: as many descriptors as before.
pub(crate) fn connections() {
    const CROWD: usize = 100;
    let stage = Stage::new();
    let before = stage.descriptors();
    for round in 0..100 {
        let mut crowd: Vec<UnixStream> =
            (0..CROWD).map(|_| UnixStream::connect(&stage.socket).unwrap()).collect();
        for (number, client) in crowd.iter_mut().enumerate() {
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            // Half of them leave without a word, or without listening.
            if number % 2 == 0 {
                client.write_all(b"GET /_ping HTTP/1.1\r\nHost: d\r\n\r\n").unwrap();
            }
        }
        for (number, client) in crowd.iter_mut().enumerate() {
            if number % 4 == 0 {
                let mut answer = [0; 12];
                client.read_exact(&mut answer).unwrap();
                assert_eq!(&answer, b"HTTP/1.1 200", "round {round}, client {number}");
            }
        }
    }
    let calm = until(Duration::from_secs(10), || stage.descriptors() <= before + 4);
    assert!(calm, "{} descriptors, {before} before", stage.descriptors());
    stage.end();
}
