//! Who opens and closes sessions of one server: the daemon, nobody at all, and others.

use crate::Room;
use lariat::daemon::api::Open;
use lariat::daemon::client::Client;
use lariat::spec::{Restart, ServerSpec, Servers};
use rmcp::ServiceExt;
use rmcp::transport::TokioChildProcess;
use serde::Deserialize;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinSet;

const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/sessions/sdk.py");
const NODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/sessions/sdk.mjs");

const HELLO: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;
const THANKS: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const TOOLS: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;

/// One of those that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Daemon,
    /// Two pipes and nothing else: what the server itself takes.
    Bare,
    /// The same through `lariat run`: with a guardian, without a daemon.
    Run,
    Rmcp,
    Python,
    Typescript,
}

/// What came of one round.
#[derive(Deserialize)]
pub(crate) struct Round {
    pub(crate) seconds: f64,
    /// Milliseconds from nothing to the list of tools.
    pub(crate) opens: Vec<f64>,
    /// Milliseconds from there to the server's end.
    pub(crate) ends: Vec<f64>,
}

impl Round {
    pub(crate) fn rate(&self) -> f64 {
        self.opens.len() as f64 / self.seconds
    }
}

impl Contender {
    pub(crate) const ALL: [Contender; 6] = [
        Contender::Daemon,
        Contender::Bare,
        Contender::Run,
        Contender::Rmcp,
        Contender::Python,
        Contender::Typescript,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Contender::Daemon => "lariat daemon",
            Contender::Bare => "bare pipes",
            Contender::Run => "lariat run",
            Contender::Rmcp => "bare rmcp",
            Contender::Python => "Python SDK",
            Contender::Typescript => "TypeScript SDK",
        }
    }

    /// Why it is not here.
    pub(crate) fn missing(self, room: &Room) -> Option<String> {
        let needed = match self {
            Contender::Daemon | Contender::Bare | Contender::Run | Contender::Rmcp => return None,
            Contender::Python => "py/bin/python",
            Contender::Typescript => "node/node_modules/@modelcontextprotocol/sdk/package.json",
        };
        match &room.clients {
            None => Some("LARIAT_CLIENTS is not set (see ./test)".into()),
            Some(home) if home.join(needed).exists() => None,
            Some(_) => Some(format!("no {needed}")),
        }
    }

    /// The milliseconds that the ends of so many sessions take which are all there and end at once.
    /// Nothing for those who cannot be told when.
    pub(crate) async fn ends(self, room: &Room, sessions: usize) -> io::Result<Option<Vec<f64>>> {
        let mut ends = JoinSet::new();
        let words = match self {
            Contender::Daemon => {
                for (mut client, id) in many(room, sessions).await? {
                    ends.spawn(async move {
                        let began = Instant::now();
                        client.close(&id).await.map_err(io::Error::other)?;
                        Ok::<_, io::Error>(millis(began))
                    });
                }
                return ended(ends).await.map(Some);
            }
            Contender::Bare => room.server().map(str::to_owned).to_vec(),
            Contender::Run => run(room),
            Contender::Rmcp | Contender::Python | Contender::Typescript => return Ok(None),
        };
        let mut servers = Vec::new();
        for _ in 0..sessions {
            servers.push(greeted(&words, &room.token).await?);
        }
        for (mut child, to) in servers {
            ends.spawn(async move {
                let began = Instant::now();
                drop(to);
                child.wait().await?;
                Ok(millis(began))
            });
        }
        ended(ends).await.map(Some)
    }

    /// So many sessions, of which so many at once.
    pub(crate) async fn round(
        self,
        room: &Room,
        sessions: usize,
        at_once: usize,
    ) -> io::Result<Round> {
        let server = room.server().map(str::to_owned);
        match self {
            Contender::Daemon => {
                let (socket, token) = (socket(room), server);
                let one = move || daemon_session(socket.clone(), token.clone());
                crowd(sessions, at_once, one).await
            }
            Contender::Bare => {
                crowd(sessions, at_once, move || pipes(server.to_vec(), String::new())).await
            }
            Contender::Run => {
                let (words, token) = (run(room), room.token.clone());
                crowd(sessions, at_once, move || pipes(words.clone(), token.clone())).await
            }
            Contender::Rmcp => crowd(sessions, at_once, move || rmcp(server.to_vec())).await,
            Contender::Python => {
                let python = room.clients.as_ref().unwrap().join("py/bin/python");
                driver(room, &[python, PYTHON.into()], sessions, at_once).await
            }
            Contender::Typescript => {
                let modules = room.clients.as_ref().unwrap().join("node/node_modules");
                // Modules are looked for beside the script.
                let (script, beside) = (room.dir.join("sdk.mjs"), room.dir.join("node_modules"));
                if !script.exists() {
                    std::os::unix::fs::symlink(&modules, beside)?;
                    std::fs::copy(NODE, &script)?;
                }
                let newer = modules.join(".bin/node");
                let node = if newer.exists() { newer } else { "node".into() };
                driver(room, &[node, script], sessions, at_once).await
            }
        }
    }
}

async fn ended(mut ends: JoinSet<io::Result<f64>>) -> io::Result<Vec<f64>> {
    let mut all = Vec::new();
    while let Some(end) = ends.join_next().await {
        all.push(end.map_err(io::Error::other)??);
    }
    Ok(all)
}

/// The server behind `lariat run`.
fn run(room: &Room) -> Vec<String> {
    let state = room.dir.join("run").display().to_string();
    let words = [&room.lariat, "run", "--state-dir", &state, "--max-starts", "off", "--"];
    words.into_iter().chain(room.server()).map(str::to_owned).collect()
}

/// Has so many sessions, of which so many at once, each by a task that has one after the other.
async fn crowd<F, S>(sessions: usize, at_once: usize, one: F) -> io::Result<Round>
where
    F: Fn() -> S + Clone + Send + 'static,
    S: Future<Output = io::Result<[f64; 2]>> + Send,
{
    let began = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..at_once {
        let (next, one) = (next.clone(), one.clone());
        tasks.spawn(async move {
            let mut took = Vec::new();
            while next.fetch_add(1, Ordering::Relaxed) < sessions {
                took.push(one().await?);
            }
            Ok::<_, io::Error>(took)
        });
    }
    let mut took = Vec::new();
    while let Some(done) = tasks.join_next().await {
        took.extend(done.map_err(io::Error::other)??);
    }
    let seconds = began.elapsed().as_secs_f64();
    let [opens, ends] = [0, 1].map(|at| took.iter().map(|took| took[at]).collect());
    Ok(Round { seconds, opens, ends })
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn socket(room: &Room) -> PathBuf {
    room.dir.join("s")
}

/// The official SDK's client with its own child process, as it comes.
async fn rmcp(words: Vec<String>) -> io::Result<[f64; 2]> {
    let began = Instant::now();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let service = ().serve(TokioChildProcess::new(command)?).await.map_err(io::Error::other)?;
    service.list_all_tools().await.map_err(io::Error::other)?;
    let open = millis(began);
    let began = Instant::now();
    service.cancel().await.map_err(io::Error::other)?;
    Ok([open, millis(began)])
}

/// A connection to the daemon.
pub(crate) async fn connect(room: &Room) -> io::Result<Client> {
    let stream = UnixStream::connect(socket(room)).await?;
    Client::over(stream).await.map_err(io::Error::other)
}

/// A session that ends with its connection.
async fn open(room: &Room) -> io::Result<(Client, String)> {
    opened(socket(room), room.server().map(str::to_owned)).await
}

/// So many of them, one after the other.
pub(crate) async fn many(room: &Room, sessions: usize) -> io::Result<Vec<(Client, String)>> {
    let mut all = Vec::new();
    for _ in 0..sessions {
        all.push(open(room).await?);
    }
    Ok(all)
}

async fn opened(socket: PathBuf, server: [String; 4]) -> io::Result<(Client, String)> {
    let stream = UnixStream::connect(socket).await?;
    let mut client = Client::over(stream).await.map_err(io::Error::other)?;
    let [command, args @ ..] = server;
    let mut spec = ServerSpec::new(command).args(args);
    spec.restart = Restart::Never;
    let open = Open { servers: Servers::from([("it".into(), spec)]), ..Open::default() };
    let session = client.open(&open, true).await.map_err(io::Error::other)?;
    match session.servers["it"].state.as_str() {
        "ready" => Ok((client, session.id)),
        _ => Err(io::Error::other(format!("not ready: {session:?}"))),
    }
}

/// One session through the daemon, from the beginning to the end.
pub(crate) async fn session(room: &Room) -> io::Result<()> {
    daemon_session(socket(room), room.server().map(str::to_owned)).await.map(|_| ())
}

async fn daemon_session(socket: PathBuf, server: [String; 4]) -> io::Result<[f64; 2]> {
    let began = Instant::now();
    let (mut client, id) = opened(socket, server).await?;
    let open = millis(began);
    let began = Instant::now();
    let closed = client.close(&id).await.map_err(io::Error::other)?;
    if !closed.survivors.is_empty() {
        return Err(io::Error::other(format!("survivors: {closed:?}")));
    }
    Ok([open, millis(began)])
}

/// One server on two pipes, from its start to its end.
async fn pipes(words: Vec<String>, token: String) -> io::Result<[f64; 2]> {
    let began = Instant::now();
    let (mut child, to) = greeted(&words, &token).await?;
    let open = millis(began);
    let began = Instant::now();
    drop(to);
    child.wait().await?;
    Ok([open, millis(began)])
}

/// A server on two pipes that has listed its tools.
async fn greeted(words: &[String], token: &str) -> io::Result<(Child, ChildStdin)> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env("LARIAT_TEST_TOKEN", token).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let (mut to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut lines = BufReader::new(from).lines();
    for said in [format!("{HELLO}\n"), format!("{THANKS}\n{TOOLS}\n")] {
        to.write_all(said.as_bytes()).await?;
        lines.next_line().await?.ok_or_else(|| io::Error::other("the server left"))?;
    }
    Ok((child, to))
}

/// A program in another language that has the sessions and says what they took. Its standard input is
/// its leash.
async fn driver(
    room: &Room,
    program: &[PathBuf; 2],
    sessions: usize,
    at_once: usize,
) -> io::Result<Round> {
    let mut command = Command::new(&program[0]);
    command.arg(&program[1]).args([sessions.to_string(), at_once.to_string()]);
    command.args(room.server()).env("LARIAT_TEST_TOKEN", &room.token).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let _leash = child.stdin.take();
    let output = child.wait_with_output().await?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{}: {}", program[1].display(), output.status)));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
