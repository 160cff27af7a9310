//! Real clients and real servers. MCP Inspector and the Python SDK speak to two reference servers,
//! started as their documentation says (`npx`, `uvx`): once bare, once through `lariat run`, once
//! through `lariat run --relay`.
//!
//! Two facts are checked. The conversation is the same, byte for byte, in both directions and on
//! both sides of Lariat. And when the client is killed, at any moment, nothing of it is left.
//!
//! The packages are installed by `./test` into the directory that `LARIAT_CLIENTS` names. Without
//! it every test here is skipped, and the reason is printed. This file looks at `/proc` with its
//! own eyes: it shares no code with what it judges.
#![expect(clippy::print_stderr, reason = "a test runner says what it skips")]

#[path = "clients/record.rs"]
mod record;
#[path = "clients/witness.rs"]
mod witness;

use std::error::Error;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

use record::{read, same, tee};
use witness::{gone, holders, pause, sweep, token, until};

const LARIAT: &str = env!("CARGO_BIN_EXE_lariat");
const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/drive.py");

/// Both waits of the ladder, and one second.
const PROMISE: Duration = Duration::from_secs(2 + 2 + 1);
/// How long a client may take to say all it has to say and leave.
const PATIENCE: Duration = Duration::from_secs(40);
/// Kills per client and server, and where their moments come from.
const KILLS: u64 = 20;
const SEED: u64 = 18_881;
/// The moments lie between the start of the client and this.
const LATEST: Duration = Duration::from_millis(2500);

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
    Relay,
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
    /// The server as its documentation starts it.
    fn server(&self) -> Vec<String> {
        let uv = self.home.join("uv").display().to_string();
        let words: &[&str] = match self.server {
            Server::Everything => {
                &["npx", "--offline", "-y", "@modelcontextprotocol/server-everything"]
            }
            Server::Time => &["uvx", "--offline", "--cache-dir", &uv, "mcp-server-time"],
        };
        words.iter().map(ToString::to_string).collect()
    }

    /// The server's command with Lariat in front, if asked, and a recorder on each side.
    fn recorded(&self, way: Way, room: &Path) -> io::Result<Vec<String>> {
        let me = std::env::current_exe()?.display().to_string();
        let tee = |record: &Path| [me.clone(), "__tee".into(), record.display().to_string()];
        let mut words = tee(&room.join("outer")).to_vec();
        if way != Way::Bare {
            words.extend(wrapper(way, room));
            words.extend(tee(&room.join("inner")));
        }
        words.extend(self.server());
        Ok(words)
    }

    /// A client that has not started yet, in a group of its own.
    fn client(&self, mode: Mode<'_>, token: &str, server: &[String]) -> io::Result<Command> {
        let (node, py) = (self.home.join("node"), self.home.join("py/bin"));
        let bin = node.join("node_modules/.bin");
        let mut command = match self.client {
            Host::Inspector => {
                let mut command = Command::new(bin.join("mcp-inspector"));
                command.args(["--cli", "-e", &format!("LARIAT_TEST_TOKEN={token}")]);
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
        command.stdin(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Ok(command)
    }

    /// Lets the client say everything it has to say.
    fn conversation(&self, way: Way) -> Result<Heard, Box<dyn Error>> {
        let questions = match self.client {
            Host::Inspector => self.server.questions(),
            Host::Python => vec![vec![]],
        };
        let mut heard = Heard { answers: vec![], sent: vec![], received: vec![] };
        for question in &questions {
            let token = token();
            let room = Room::new(&token)?;
            let (outer, inner) = (room.0.join("outer"), room.0.join("inner"));
            let server = self.recorded(way, &room.0)?;
            let mut client = self.client(Mode::Ask(question), &token, &server)?;
            let child = client.stdout(File::create(room.0.join("answers"))?).spawn()?;
            let ended = until(PATIENCE, child, |child| child.try_wait().map(|s| s.is_some()))?;
            let left = if way == Way::Bare { vec![] } else { gone(&token, PROMISE) };
            sweep(&token);
            if !ended {
                return Err(format!("{way:?} {question:?}: the client did not leave").into());
            }
            if !left.is_empty() {
                return Err(format!("{way:?} {question:?}: left after the end: {left:#?}").into());
            }
            let (sent, received) = (read(&outer, "in")?, read(&outer, "out")?);
            if way != Way::Bare {
                same(&format!("{way:?}: to the server"), &sent, &read(&inner, "in")?)?;
                same(&format!("{way:?}: from the server"), &received, &read(&inner, "out")?)?;
            }
            heard.answers.extend(fs::read(room.0.join("answers"))?);
            heard.sent.extend(sent);
            heard.received.extend(received);
        }
        Ok(heard)
    }

    /// A host cannot tell a wrapped server from a bare one.
    fn same_bytes(&self) -> Result<(), Box<dyn Error>> {
        let bare = self.conversation(Way::Bare)?;
        if bare.answers.len() < 100 || bare.sent.len() < 100 || bare.received.len() < 100 {
            return Err(format!("bare: hardly anything was said: {bare:?}").into());
        }
        for way in [Way::Direct, Way::Relay] {
            let wrapped = self.conversation(way)?;
            same(&format!("{way:?}: the client's questions"), &bare.sent, &wrapped.sent)?;
            same(&format!("{way:?}: the server's answers"), &bare.received, &wrapped.received)?;
            same(&format!("{way:?}: what the client printed"), &bare.answers, &wrapped.answers)?;
        }
        Ok(())
    }

    /// A client killed at any moment leaves nothing.
    fn client_sigkill(&self) -> Result<(), Box<dyn Error>> {
        let mut dice = Dice(SEED ^ (self.client as u64) << 8 ^ self.server as u64);
        let mut most = 0;
        for kill in 0..KILLS {
            let way = if kill % 2 == 0 { Way::Direct } else { Way::Relay };
            let (token, moment) = (token(), LATEST.mul_f64(dice.roll()));
            let room = Room::new(&token)?;
            let mut server = wrapper(way, &room.0);
            server.extend(self.server());
            let mut client = self.client(Mode::Hold, &token, &server)?;
            let mut child = client.stdout(Stdio::null()).spawn()?;
            pause(moment);
            let early = child.try_wait()?;
            most = most.max(holders(&token).len());
            child.kill()?;
            child.wait()?;
            let left = gone(&token, PROMISE);
            sweep(&token);
            if let Some(status) = early {
                return Err(format!("kill {kill}: the client left by itself: {status}").into());
            }
            if !left.is_empty() {
                let when = format!("kill {kill}, {way:?}, {moment:?} after the start");
                return Err(format!("{when}: left {PROMISE:?} later: {left:#?}").into());
            }
        }
        // Client, wrapper, guardian, launcher, server: or this test watched nothing at all.
        if most < 5 {
            return Err(format!("never saw more than {most} processes of one run").into());
        }
        Ok(())
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
        Way::Relay => &[LARIAT, "run", "--relay", "--state-dir", &state, "--"],
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
