//! The daemon on its pipe: sessions that come and go with their owners, and nothing else.

use crate::manager::{self, named, server, there, token, trials};
use crate::table::{PATIENCE, Place, lariat, own, started};
use lariat::contain::{self, Choice, Ladder, Spec, Stream, Tree};
use lariat::daemon::api::{Call, Open, Problem};
use lariat::daemon::client::{Client, Error};
use lariat::spec::{Restart, ServerSpec, Servers, Share};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::windows::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::windows::named_pipe::{ClientOptions, NamedPipeClient};
use tokio::runtime::Runtime;
use trials::until;

/// A console without a window.
const CREATE_NO_WINDOW: u32 = 0x0800_0000;

/// What the system says while no end of a pipe is free.
const PIPE_BUSY: i32 = 231;

/// A server, two shells and a leaf.
const CHAIN: usize = 4;

pub(crate) fn tests() -> Vec<Trial> {
    trials([
        ("daemon::24-sessions", sessions),
        ("daemon::many-clients-at-once", many),
        ("daemon::a-connection-that-ends-ends-its-sessions", by_connection),
        ("daemon::an-owner-that-is-killed-ends-its-sessions", by_owner),
        ("daemon::a-killed-daemon-leaves-nobody", killed),
        ("daemon::a-second-one-is-refused", second),
        ("daemon::what-is-wrong-is-refused", refused),
        ("daemon::mcp-is-spoken-by-the-pipe", attached),
        ("daemon::sessions-share-one-process", shared),
        ("daemon::is-started-on-demand", on_demand),
        ("daemon::in-a-job-that-keeps-it-says-so", in_a_job),
    ])
}

/// Where the daemon's clients live, all of them and to the end: a pipe is closed by its runtime, and only when
/// what was to be read of it has been called off. One that ends first leaves it open, and its daemon waiting.
static CLIENTS: LazyLock<Runtime> = LazyLock::new(manager::runtime);

pub(crate) fn runtime() -> &'static Runtime {
    &CLIENTS
}

/// A daemon in the foreground, and somebody beside it who looks alike and is none of its business.
pub(crate) struct Daemon {
    pub(crate) place: Place,
    pipe: String,
    child: Child,
    bystander: Child,
}

impl Daemon {
    pub(crate) fn start(more: &[&str]) -> Daemon {
        Daemon::at(Place::new(), more)
    }

    /// With its state in this place.
    pub(crate) fn at(place: Place, more: &[&str]) -> Daemon {
        let bystander = deaf();
        let (child, pipe) = listen(&place.0, more);
        Daemon { place, pipe, child, bystander }
    }

    pub(crate) async fn client(&self) -> Client {
        client(&self.pipe).await.expect("it is our own")
    }

    fn check(&mut self) {
        let bystander = self.bystander.try_wait().expect("ours to ask");
        assert_eq!(bystander.and_then(|status| status.code()), None, "the bystander lives");
    }

    /// Waits until it has left because nobody wants anything of it.
    pub(crate) fn leaves(mut self) {
        self.check();
        assert!(until(PATIENCE, || self.child.try_wait().is_ok_and(|status| status.is_some())));
        assert_eq!(self.child.wait().expect("it has left").code(), Some(0));
        assert_eq!(self.place.pages(), 0, "everything is accounted for");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for child in [&mut self.child, &mut self.bystander] {
            // It may have left by itself.
            let _gone = child.kill();
            let _gone = child.wait();
        }
    }
}

/// Somebody who does nothing until killed.
fn deaf() -> Child {
    let mut command = Command::new(own());
    command.arg("__deaf").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    started(&mut command)
}

fn listen(place: &Path, more: &[&str]) -> (Child, String) {
    let mut command = Command::new(lariat());
    command.args(["daemon", "--grace", "150ms", "--term-grace", "150ms", "--state-dir"]).arg(place);
    command.args(more).creation_flags(CREATE_NO_WINDOW);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = started(&mut command);
    let mut line = String::new();
    let out = child.stdout.take().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("it can be read");
    let pipe = line.trim_end().strip_prefix("listening on ").expect("it says where");
    (child, pipe.to_owned())
}

async fn connect(pipe: &str) -> io::Result<NamedPipeClient> {
    loop {
        match ClientOptions::new().open(pipe) {
            Err(error) if error.raw_os_error() == Some(PIPE_BUSY) => {
                tokio::task::yield_now().await;
            }
            opened => return opened,
        }
    }
}

async fn client(pipe: &str) -> Result<Client, Error> {
    Client::over(connect(pipe).await.map_err(Error::Broken)?).await
}

fn open(token: &str) -> Open {
    Open { servers: named([("one", server("cmd-chain", token))]), ..Open::default() }
}

fn gone(token: &str) -> bool {
    until(PATIENCE, || there(token) == 0)
}

fn problem<T>(answer: Result<T, Error>) -> Problem {
    match answer {
        Err(Error::Refused(problem)) => *problem,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was not refused"),
    }
}

/// As in github/copilot-sdk #1132. Never is there more than one session's processes.
fn sessions() {
    let (daemon, token) = (Daemon::start(&["--idle", "4s"]), token("daemon-sessions"));
    runtime().block_on(async {
        let mut client = daemon.client().await;
        for number in 0..24 {
            let session = client.open(&open(&token), false).await.expect("it opens");
            assert_eq!(session.servers["one"].state, "ready", "{session:?}");
            assert!(until(PATIENCE, || there(&token) >= CHAIN), "session {number} is complete");
            assert_eq!(there(&token), CHAIN, "in session {number}");
            let closed = client.close(&session.id).await.expect("it closes");
            assert!(closed.survivors.is_empty() && closed.receipts.len() == 1, "{closed:?}");
            assert_eq!(there(&token), 0, "after session {number}");
        }
        assert!(client.list().await.expect("a list").sessions.is_empty());
    });
    daemon.leaves();
}

/// More come at once than there are ends of the pipe waiting.
fn many() {
    let daemon = Daemon::start(&["--idle", "4s"]);
    runtime().block_on(async {
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let pipe = daemon.pipe.clone();
            all.spawn(async move { client(&pipe).await.expect("a client").list().await });
        }
        while let Some(listed) = all.join_next().await {
            assert!(listed.expect("no panic").expect("a list").sessions.is_empty());
        }
    });
    daemon.leaves();
}

fn by_connection() {
    let (mut daemon, token) = (Daemon::start(&["--idle", "4s"]), token("daemon-connection"));
    runtime().block_on(async {
        let mut watching = daemon.client().await;
        let mut client = daemon.client().await;
        let session = client.open(&open(&token), true).await.expect("it opens");
        let owner = &session.owner;
        assert_eq!(owner.pid.cast_unsigned(), std::process::id(), "the other end is seen");
        assert!(until(PATIENCE, || there(&token) == CHAIN));
        drop(client);
        while watching.look(&session.id).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    assert!(gone(&token));
    daemon.check();
    daemon.leaves();
}

fn by_owner() {
    let (daemon, token) = (Daemon::start(&["--idle", "4s"]), token("daemon-owner"));
    let mut owner = deaf();
    runtime().block_on(async {
        let mut client = daemon.client().await;
        let owned = Open { owner_pid: Some(owner.id().cast_signed()), ..open(&token) };
        let session = client.open(&owned, false).await.expect("it opens");
        assert_eq!(session.owner.pid.cast_unsigned(), owner.id());
        assert!(until(PATIENCE, || there(&token) == CHAIN));
        owner.kill().expect("ours to kill");
        owner.wait().expect("it ends");
        while client.look(&session.id).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert_eq!(there(&token), 0, "what is not listed any more is gone");
        let nobody = problem(client.open(&owned, false).await);
        assert_eq!(nobody.status, 422);
        assert!(nobody.detail.contains("There is no process"), "{}", nobody.detail);
    });
    daemon.leaves();
}

fn killed() {
    let (mut daemon, token) = (Daemon::start(&[]), token("daemon-killed"));
    runtime().block_on(async {
        let mut client = daemon.client().await;
        for lease in [true, false] {
            client.open(&open(&token), lease).await.expect("it opens");
        }
        assert!(until(PATIENCE, || there(&token) == 2 * CHAIN));
        let living = ps(&daemon.place.0);
        assert_eq!(living.matches("cmd-chain").count(), 0, "no arguments are shown");
        assert_eq!(living.lines().count(), 3, "a head and two sessions: {living}");
        daemon.child.kill().expect("ours to kill");
        daemon.child.wait().expect("it ends");
        assert!(gone(&token), "the kernel ends them");
        let broken = client.list().await;
        assert!(matches!(broken, Err(Error::Broken(_))), "{broken:?}");
        let nobody = connect(&daemon.pipe).await.expect_err("nobody listens");
        assert_eq!(nobody.kind(), io::ErrorKind::NotFound, "{nobody}");
    });
    daemon.check();
    assert!(daemon.place.pages() >= 2, "nobody was there to strike the pages");
    assert_eq!(ps(&daemon.place.0), "no sessions\n");
    assert_eq!(daemon.place.pages(), 0, "the next command has");
    let events = fs::read_to_string(daemon.place.0.join("events.jsonl")).expect("events");
    assert_eq!(events.matches("wrapper-died").count(), 2, "{events}");
    // And the next daemon has the name.
    let (child, pipe) = listen(&daemon.place.0, &["--idle", "100ms"]);
    assert_eq!(pipe, daemon.pipe);
    daemon.child = child;
    daemon.leaves();
}

fn ps(place: &Path) -> String {
    let output = Command::new(lariat()).args(["ps", "--state-dir"]).arg(place).output();
    String::from_utf8(output.expect("it runs").stdout).expect("text")
}

fn second() {
    let daemon = Daemon::start(&["--idle", "4s"]);
    let mut command = Command::new(lariat());
    let output = command.args(["daemon", "--state-dir"]).arg(&daemon.place.0).output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&format!("another daemon listens on {}", daemon.pipe)), "{said}");
    runtime().block_on(async {
        daemon.client().await.list().await.expect("the first one is as it was");
    });
    daemon.leaves();
}

fn refused() {
    let daemon = Daemon::start(&["--idle", "4s", "--max-servers-per-session", "1"]);
    let two = || ServerSpec::new("no-such-program");
    runtime().block_on(async {
        let mut client = daemon.client().await;
        let unknown = problem(client.close("nobody").await);
        assert!(unknown.status == 404 && unknown.kind.ends_with(":no-session"), "{unknown:?}");
        let many = Open { servers: named([("a", two()), ("b", two())]), ..Open::default() };
        let many = problem(client.open(&many, true).await);
        assert!(
            many.status == 429 && many.detail.contains("--max-servers-per-session"),
            "{many:?}"
        );
        for (head, body, status) in [
            ("POST /v1/sessions", "{\"servers\": {}, \"owner\": 1}", "422"),
            ("POST /v1/sessions", "no JSON", "400"),
            ("POST /v1/sessions", "{}", "422"),
            ("POST /v1/snapshot", "", "405"),
            ("GET /v2", "", "404"),
        ] {
            let answer = raw(&daemon.pipe, head, body).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head} {body}: {answer}");
            assert!(answer.contains("application/problem+json"), "{answer}");
        }
        let failed = Open { servers: named([("a", two())]), ..Open::default() };
        let failed = client.open(&failed, true).await.expect("the session is there");
        let why = failed.servers["a"].error.as_deref().unwrap_or_default();
        assert!(why.contains("was not found"), "{why}");
    });
    daemon.leaves();
}

/// Asks in words of our own.
async fn raw(pipe: &str, head: &str, body: &str) -> String {
    let mut stream = connect(pipe).await.expect("a daemon");
    let length = body.len();
    let text = format!(
        "{head} HTTP/1.1\r\nhost: lariat\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).await.expect("it listens");
    let mut answer = Vec::new();
    // A pipe that was closed at the other end is an end, too.
    let _closed = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).expect("text")
}

fn serves(share: Share) -> Servers {
    let mut spec = ServerSpec::new(own().to_string_lossy()).args(["__serve"]);
    spec.restart = Restart::Never;
    spec.share = share;
    named([("one", spec)])
}

fn attached() {
    let daemon = Daemon::start(&["--idle", "4s"]);
    runtime().block_on(async {
        let mut client = daemon.client().await;
        let open = Open { servers: serves(Share::default()), ..Open::default() };
        let session = client.open(&open, true).await.expect("it opens");
        let call = Call { tool: "hammer".into(), arguments: json!({"a": 1}).as_object().cloned() };
        let answer = client.call(&session.id, "one", &call).await.expect("an answer");
        let answer: Value = serde_json::from_str(answer.get()).expect("JSON");
        assert_eq!(
            (&answer["said"], &answer["pid"]),
            (&json!({"a": 1}), &json!(session.servers["one"].pid))
        );
        let attached = daemon.client().await.attach(&session.id, "one").await.expect("it attaches");
        assert!(attached.heard.is_empty());
        let (reader, mut writer) = tokio::io::split(attached.stream);
        let mut lines = tokio::io::BufReader::new(reader).lines();
        for id in 1..=100 {
            // No longer: Wine loses a thread that writes much at once while the machine is busy.
            let much = "x".repeat(id * 150);
            let ask = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
                "params": {"name": "nail", "arguments": much}});
            writer.write_all(format!("{ask}\n").as_bytes()).await.expect("it listens");
            let line = lines.next_line().await.expect("it speaks").expect("a line");
            let answer: Value = serde_json::from_str(&line).expect("JSON");
            assert!(answer["id"] == json!(id) && answer["result"]["said"] == json!(much), "{id}");
        }
        drop((lines, writer));
        let snapshot = client.snapshot().await.expect("a picture");
        let servers = &snapshot.sessions[0].servers;
        assert!(!servers[0].processes.is_empty(), "{servers:?}");
    });
    daemon.leaves();
}

fn shared() {
    let daemon = Daemon::start(&["--idle", "4s"]);
    runtime().block_on(async {
        let mut clients = Vec::new();
        let mut pids = Vec::new();
        for _ in 0..3 {
            let mut client = daemon.client().await;
            let open = Open { servers: serves(Share::Strict), ..Open::default() };
            let session = client.open(&open, true).await.expect("it opens");
            let call = Call { tool: "nail".into(), arguments: None };
            let answer = client.call(&session.id, "one", &call).await.expect("an answer");
            pids.push(serde_json::from_str::<Value>(answer.get()).expect("JSON")["pid"].clone());
            clients.push(client);
        }
        pids.dedup();
        assert_eq!(pids.len(), 1, "one process for all");
    });
    daemon.leaves();
}

/// `lariat session` with these words.
fn session(place: &Path, words: &[OsString]) -> Vec<OsString> {
    let (verb, rest) = words.split_first().expect("a verb");
    let mut line: Vec<OsString> = vec!["session".into(), verb.clone(), "--state-dir".into()];
    line.push(place.into());
    line.extend_from_slice(rest);
    line
}

fn opening(place: &Path) -> Vec<OsString> {
    let owner = std::process::id().to_string();
    let words = ["open", "--owner-pid", &owner, "--server", "one", "--"].map(OsString::from);
    let server = [own().into_os_string(), "__serve".into()];
    session(place, &[&words[..], &server[..]].concat())
}

fn told(line: &[OsString]) -> Output {
    let mut command = Command::new(lariat());
    command.args(line).creation_flags(CREATE_NO_WINDOW).stdin(Stdio::null());
    command.output().expect("it runs")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Two daemons that are started at once are one; and it ends nobody else's when it is killed.
fn on_demand() {
    let (place, mut bystander) = (Place::new(), deaf());
    let opened = [opening(&place.0), opening(&place.0)]
        .map(|line| std::thread::spawn(move || text(&told(&line))))
        .map(|opening| opening.join().expect("it opens"));
    let listed = text(&told(&session(&place.0, &["list".into()])));
    assert!(opened.iter().all(|id| listed.contains(id.as_str())), "{opened:?} {listed}");
    let call = ["call", &opened[0], "one", "nail", "{\"b\": 2}"].map(OsString::from);
    let answer: Value =
        serde_json::from_str(&text(&told(&session(&place.0, &call)))).expect("JSON");
    assert_eq!(answer["said"], json!({"b": 2}));
    let closed = text(&told(&session(&place.0, &["close".into(), opened[0].clone().into()])));
    assert!(closed.contains("nothing is left"), "{closed}");
    let ps =
        text(&told(&["ps".into(), "--json".into(), "--state-dir".into(), place.0.clone().into()]));
    let ps: Vec<Value> = ps.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(ps.len(), 1, "the other one: {ps:?}");
    let daemon = ps[0]["wrapper"]["pid"].to_string();
    let ended = Command::new("taskkill").args(["/f", "/pid", &daemon]).output().expect("it runs");
    assert!(ended.status.success(), "{ended:?}");
    let leader = ps[0]["leader"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    let leader = leader.and_then(contain::Member::of);
    assert!(until(PATIENCE, || leader.is_none_or(|leader| !leader.is_alive())));
    assert!(bystander.try_wait().expect("ours to ask").is_none(), "the bystander lives");
    bystander.kill().expect("ours to kill");
    bystander.wait().expect("it ends");
}

/// A host's job that nobody leaves: the daemon is in it as well, which is said, and ends with it.
fn in_a_job() {
    let place = Place::new();
    let pipe = text(&told(&[
        "daemon".into(),
        "--print-socket".into(),
        "--state-dir".into(),
        place.0.clone().into(),
    ]));
    let [(mut out, says), (mut err, complains)] = [(); 2].map(|()| io::pipe().expect("a pipe"));
    let spec = Spec {
        program: lariat().into_os_string(),
        args: opening(&place.0),
        env: None,
        cwd: None,
        stdin: Stream::null(),
        stdout: Stream::from(says),
        stderr: Stream::from(complains),
        backend: Choice::Auto,
        ladder: Ladder::default(),
    };
    let tree = Tree::spawn(spec).expect("it starts");
    let (mut said, mut complained) = (String::new(), String::new());
    // Both end although the daemon lives on: it has inherited neither.
    out.read_to_string(&mut said).expect("it can be read");
    err.read_to_string(&mut complained).expect("it can be read");
    assert!(complained.contains("in a job that this command is in"), "{complained}");
    let listed = text(&told(&session(&place.0, &["list".into()])));
    assert!(listed.contains(said.trim_end()), "{said} {listed}");
    drop(tree);
    let nobody =
        || ClientOptions::new().open(&pipe).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
    let _inside = runtime().enter();
    assert!(until(PATIENCE, nobody), "the daemon has ended with the job");
    assert_eq!(ps(&place.0), "no sessions\n");
    assert_eq!(place.pages(), 0);
}
