//! Real clients and real servers. MCP Inspector and the Python SDK speak to two reference servers,
//! started as their documentation says (`npx`, `uvx`): once bare, once through `lariat run`, once
//! through `lariat run --idle 1h`, where every message is looked at and no server falls asleep.
//!
//! Two facts are checked. The conversation is the same, byte for byte, in both directions and on
//! both sides of Lariat. And when the client is killed, at any moment, nothing of it is left.
//! Two more, with the TypeScript SDKs too: the answers are the same if the server belongs to a
//! session of the daemon's (`connect.rs`), and if it sleeps between any two calls (`nap.rs`).
//! And hosts that people use connect to what `lariat install` made of their configs (`hosts.rs`).
//!
//! The packages are installed by `./test` into the directory that `LARIAT_CLIENTS` names. Without
//! it every test here is skipped, and the reason is printed. This file looks at `/proc` with its
//! own eyes: it shares no code with what it judges.
#![expect(clippy::print_stderr, reason = "a test runner says what it skips")]

#[path = "clients/connect.rs"]
mod connect;
#[path = "clients/hosts.rs"]
mod hosts;
#[path = "clients/nap.rs"]
mod nap;
#[path = "clients/record.rs"]
mod record;
#[path = "clients/sdk.rs"]
mod sdk;
#[path = "clients/witness.rs"]
mod witness;

use std::error::Error;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};

use record::{read, same, tee};
use witness::{gone, holders, pause, sweep, token, wait_until};

const LARIAT: &str = env!("CARGO_BIN_EXE_lariat");
const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/drive.py");

/// Both waits of the ladder, and one second.
const PROMISE: Duration = Duration::from_secs(2 + 2 + 1);
/// How long a client may take to say all it has to say and leave.
const PATIENCE: Duration = Duration::from_secs(60);
/// Kills per client and server, and where their moments come from.
const KILLS: u64 = 20;
const SEED: u64 = 18_881;
/// How often a conversation may be had again to find the same one twice.
const VARIANTS: usize = 4;
/// Client, wrapper, guardian, launcher, server: a complete run has at least these.
const CROWD: usize = 5;
/// On a machine so busy that completion takes longer, the moments lie before it.
const LONGEST: Duration = Duration::from_secs(4);

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if args.next().as_deref() == Some(OsStr::new("__tee")) {
        let record = args.next().map(PathBuf::from).expect("__tee RECORD command args…");
        return match tee(&record, args.collect()) {
            Ok(code) => ExitCode::from(code),
            Err(error) => {
                eprintln!("tee {}: {error}", record.display());
                ExitCode::FAILURE
            }
        };
    }
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    let home = installed();
    let mut trials = Vec::new();
    for client in [Host::Inspector, Host::Python] {
        for server in [Server::Everything, Server::Time] {
            let (name, home) = (format!("{client:?}::{server:?}").to_lowercase(), home.clone());
            let missing =
                home.as_ref().err().cloned().or_else(|| client.missing(home.as_ref().ok()));
            if let Some(reason) = &missing {
                eprintln!("skipped clients::{name}: {reason}");
            }
            let skip = missing.is_some();
            let stage = Stage { home: home.unwrap_or_default(), client, server };
            let same = stage.clone();
            trials.extend([
                Trial::test(format!("same_bytes::{name}"), move || fact(same.same_bytes()))
                    .with_ignored_flag(skip),
                Trial::test(format!("client_sigkill::{name}"), move || {
                    fact(stage.client_sigkill())
                })
                .with_ignored_flag(skip),
            ]);
        }
    }
    trials.extend(connect::trials(&home));
    trials.extend(nap::trials(&home));
    trials.extend(hosts::trials(&home));
    trials
}

fn fact(outcome: Result<(), Box<dyn Error>>) -> Result<(), Failed> {
    outcome.map_err(|error| Failed::from(error.to_string()))
}

/// The directory with the packages, or why there is none.
#[expect(clippy::disallowed_methods, reason = "how ./test tells where the packages are")]
fn installed() -> Result<PathBuf, String> {
    let named =
        std::env::var_os("LARIAT_CLIENTS").ok_or("LARIAT_CLIENTS is not set (see ./test)")?;
    let home = PathBuf::from(named);
    if home.is_dir() { Ok(home) } else { Err(format!("{} is not a directory", home.display())) }
}

#[derive(Clone, Copy, Debug)]
enum Host {
    Inspector,
    Python,
}

#[derive(Clone, Copy, Debug)]
enum Server {
    Everything,
    Time,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Bare,
    Direct,
    /// Messages are looked at, and the server is left awake.
    Watched,
    /// The server is put to sleep as soon as nobody speaks.
    Napping,
}

impl Host {
    fn missing(self, home: Option<&PathBuf>) -> Option<String> {
        let needed: &[&str] = match self {
            Host::Inspector => &["node/node_modules/.bin/mcp-inspector", "py/bin/uvx"],
            Host::Python => &["node/node_modules/.bin/mcp-server-everything", "py/bin/python"],
        };
        let home = home?;
        needed.iter().find(|file| !home.join(file).exists()).map(|file| format!("no {file}"))
    }
}

impl Server {
    /// The server as its documentation starts it.
    fn command(self, home: &Path) -> Vec<String> {
        let uv = home.join("uv").display().to_string();
        let words: &[&str] = match self {
            Server::Everything => {
                &["npx", "--offline", "-y", "@modelcontextprotocol/server-everything"]
            }
            Server::Time => &["uvx", "--offline", "--cache-dir", &uv, "mcp-server-time"],
        };
        words.iter().map(ToString::to_string).collect()
    }

    /// A tool that answers at once and always the same, and its arguments.
    fn tool(self) -> [&'static str; 2] {
        match self {
            Server::Everything => ["echo", r#"{"message":"grüße, 世界 🐂"}"#],
            Server::Time => [
                "convert_time",
                r#"{"source_timezone":"Nowhere/At_All","time":"12:00","target_timezone":"UTC"}"#,
            ],
        }
    }

    /// What the Inspector asks, one process per question.
    fn questions(self) -> Vec<Vec<&'static str>> {
        let list = |what| vec!["--method", what];
        let call = |[name, args]: [&'static str; 2]| {
            let method = ["--method", "tools/call", "--tool-name"];
            [&method[..], &[name, "--tool-args-json", args]].concat()
        };
        let mut all = vec![list("tools/list"), call(self.tool())];
        if matches!(self, Server::Everything) {
            all.push(list("resources/list"));
            all.push(list("prompts/list"));
            all.push(call(["get-sum", r#"{"a":2,"b":3}"#]));
        }
        all
    }
}

/// One client and one server, and where their packages are.
#[derive(Clone, Debug)]
struct Stage {
    home: PathBuf,
    client: Host,
    server: Server,
}

/// What one conversation left behind.
#[derive(Debug, PartialEq)]
struct Heard {
    answers: Vec<u8>,
    sent: Vec<u8>,
    received: Vec<u8>,
}

impl Stage {
    /// The server's command with Lariat in front, if asked, and a recorder on each side.
    fn recorded(&self, way: Way, room: &Path) -> io::Result<Vec<String>> {
        let me = std::env::current_exe()?.display().to_string();
        let tee = |record: &Path| [me.clone(), "__tee".into(), record.display().to_string()];
        let mut words = tee(&room.join("outer")).to_vec();
        if way != Way::Bare {
            words.extend(wrapper(way, room));
            words.extend(tee(&room.join("inner")));
        }
        words.extend(self.server.command(&self.home));
        Ok(words)
    }

    /// A client that has not started yet.
    fn client(&self, mode: Mode<'_>, token: &str, server: &[String]) -> io::Result<Command> {
        let (node, py) = (self.home.join("node"), self.home.join("py/bin"));
        let bin = node.join("node_modules/.bin");
        let mut command = match self.client {
            Host::Inspector => {
                let mut command = Command::new(bin.join("mcp-inspector"));
                command.args(["--cli", "-e", &format!("LARIAT_TEST_TOKEN={token}")]);
                command.args(["--connect-timeout", "60000"]);
                match mode {
                    Mode::Ask(question) => command.args(question),
                    Mode::Hold => {
                        let [name, args] = self.server.tool();
                        command.args(["--method", "tools/call", "--tool-name", name]);
                        command.args(["--tool-args-json", args, "--load", "--load-duration", "60"])
                    }
                };
                // Its own options end at the first "--"; what follows is the server's, untouched.
                command.arg("--").args(server);
                command
            }
            Host::Python => {
                let mut command = Command::new(py.join("python"));
                let verb = if matches!(mode, Mode::Hold) { "hold" } else { "talk" };
                command.args([DRIVER, verb, token, "--"]).args(server);
                command
            }
        };
        let mut path = vec![bin, py];
        path.extend(std::env::split_paths(&search_path()));
        // npx looks for the package in the project it stands in.
        command
            .current_dir(node)
            .env("PATH", std::env::join_paths(path).map_err(io::Error::other)?);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }

    /// Lets the client say all of it, and looks after it has left.
    fn conversation(&self, way: Way, question: &[&'static str]) -> Result<Heard, Box<dyn Error>> {
        let token = token();
        let room = Room::new(&token)?;
        let server = self.recorded(way, &room.0)?;
        let mut client = self.client(Mode::Ask(question), &token, &server)?;
        let mut child = client.stdout(File::create(room.0.join("answers"))?).spawn()?;
        let ended = wait_until(PATIENCE, || Ok(child.try_wait()?.is_some()))?;
        if !ended {
            child.kill()?;
            child.wait()?;
        }
        let left = if way == Way::Bare { vec![] } else { gone(&token, PROMISE) };
        sweep(&token);
        if !ended {
            return Err(format!("{way:?} {question:?}: the client did not leave").into());
        }
        if !left.is_empty() {
            return Err(format!("{way:?} {question:?}: left after the end: {left:#?}").into());
        }
        let (outer, inner) = (room.0.join("outer"), room.0.join("inner"));
        let (sent, received) = (read(&outer, "in")?, read(&outer, "out")?);
        if way != Way::Bare {
            same(&format!("{way:?}: to the server"), &sent, &read(&inner, "in")?)?;
            same(&format!("{way:?}: from the server"), &received, &read(&inner, "out")?)?;
        }
        Ok(Heard { answers: fs::read(room.0.join("answers"))?, sent, received })
    }

    /// A host cannot tell a wrapped server from a bare one.
    fn same_bytes(&self) -> Result<(), Box<dyn Error>> {
        let questions = match self.client {
            Host::Inspector => self.server.questions(),
            // The driver knows them itself.
            Host::Python => vec![vec![]],
        };
        for question in &questions {
            let mut bare = vec![self.conversation(Way::Bare, question)?];
            if bare[0].answers.len() < 20 || bare[0].sent.len() < 100 {
                return Err(format!("{question:?}: hardly anything was said: {bare:?}").into());
            }
            for way in [Way::Direct, Way::Watched] {
                self.same_as_bare(way, question, &mut bare)?;
            }
        }
        Ok(())
    }

    /// Compares a wrapped conversation with bare ones. One server asks for the client's roots a
    /// third of a second after the handshake, and a quick client has left by then: bare
    /// conversations differ among themselves. A wrapped one has to be equal to one of them.
    fn same_as_bare(
        &self,
        way: Way,
        question: &[&'static str],
        bare: &mut Vec<Heard>,
    ) -> Result<(), Box<dyn Error>> {
        for _ in 0..VARIANTS {
            let wrapped = self.conversation(way, question)?;
            if bare.contains(&wrapped) {
                return Ok(());
            }
            bare.push(self.conversation(Way::Bare, question)?);
            if bare.contains(&wrapped) {
                return Ok(());
            }
        }
        let wrapped = self.conversation(way, question)?;
        same(&format!("{way:?}: the client's questions"), &bare[0].sent, &wrapped.sent)?;
        same(&format!("{way:?}: the server's answers"), &bare[0].received, &wrapped.received)?;
        same(&format!("{way:?}: what the client printed"), &bare[0].answers, &wrapped.answers)?;
        Ok(())
    }

    /// A client killed at any moment leaves nothing.
    fn client_sigkill(&self) -> Result<(), Box<dyn Error>> {
        // The first is killed when all are there. That shows that the witness sees them, and how
        // long it takes here and now; the other moments lie around that.
        let complete = self.killed(Way::Direct, |token, child| {
            let (mut most, mut left) = (0, None);
            wait_until(PATIENCE, || {
                most = most.max(holders(token).len());
                left = child.try_wait()?;
                Ok(most >= CROWD || left.is_some())
            })?;
            let why = || format!("{most} at most, and the client ended with {left:?}");
            if most >= CROWD { Ok(()) } else { Err(io::Error::other(why())) }
        })?;
        let mut dice = Dice(SEED ^ (self.client as u64) << 8 ^ self.server as u64);
        for kill in 1..KILLS {
            let way = if kill % 2 == 0 { Way::Direct } else { Way::Watched };
            let moment = complete.min(LONGEST).mul_f64(1.5 * dice.roll());
            self.killed(way, |_, _| {
                pause(moment);
                Ok(())
            })
            .map_err(|error| format!("kill {kill}, {way:?}, after {moment:?}: {error}"))?;
        }
        Ok(())
    }

    /// Starts a client that stays, kills it when `wait` returns, and looks. Gives its age.
    fn killed(
        &self,
        way: Way,
        wait: impl FnOnce(&str, &mut Child) -> io::Result<()>,
    ) -> Result<Duration, Box<dyn Error>> {
        let token = token();
        let room = Room::new(&token)?;
        let server = [wrapper(way, &room.0), self.server.command(&self.home)].concat();
        let began = Instant::now();
        let mut child = self.client(Mode::Hold, &token, &server)?.stdout(Stdio::null()).spawn()?;
        let waited = wait(&token, &mut child);
        let (early, age) = (child.try_wait()?, began.elapsed());
        child.kill()?;
        child.wait()?;
        let left = gone(&token, PROMISE);
        sweep(&token);
        waited?;
        if let Some(status) = early {
            return Err(format!("the client left by itself: {status}").into());
        }
        if !left.is_empty() {
            return Err(format!("left {PROMISE:?} later: {left:#?}").into());
        }
        Ok(age)
    }
}

#[derive(Clone, Copy)]
enum Mode<'a> {
    Ask(&'a [&'static str]),
    Hold,
}

/// Lariat as a host's configuration has it, but for its state: that stays in the room.
fn wrapper(way: Way, room: &Path) -> Vec<String> {
    let state = room.join("state").display().to_string();
    let words: &[&str] = match way {
        Way::Bare => &[],
        Way::Direct => &[LARIAT, "run", "--state-dir", &state, "--"],
        Way::Watched => &[LARIAT, "run", "--idle", "1h", "--state-dir", &state, "--"],
        Way::Napping => &[LARIAT, "run", "--idle", "300ms", "--state-dir", &state, "--"],
    };
    words.iter().map(ToString::to_string).collect()
}

#[expect(clippy::disallowed_methods, reason = "the client must find node, npx and uvx")]
fn search_path() -> std::ffi::OsString {
    std::env::var_os("PATH").unwrap_or_default()
}

/// A directory for the records, removed with its value.
struct Room(PathBuf);

impl Room {
    fn new(token: &str) -> io::Result<Room> {
        let path = std::env::temp_dir().join(token);
        fs::create_dir(&path).map(|()| Room(path))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // Nothing to do about a directory that cannot be removed; ./test looks for it.
        fs::remove_dir_all(&self.0).ok();
    }
}

/// splitmix64: the same moments every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}
