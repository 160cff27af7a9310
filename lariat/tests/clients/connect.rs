//! Clients of a server that belongs to a session: unchanged SDKs with `lariat connect` as their
//! server's command. They hear what they would hear from the server itself, one after the other and
//! at the same time; the server goes on when they leave, and ends with its session.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use libtest_mimic::Trial;

use super::record::same;
use super::witness::{gone, holders, sweep, token, wait_until};
use super::{LARIAT, PATIENCE, PROMISE, Room, Server, fact, search_path};

const PYTHON: &str = super::DRIVER;
const NODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/drive.mjs");
const MODERN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/modern.py");

/// What a server is called in its session.
const NAME: &str = "it";

#[derive(Clone, Copy, Debug)]
enum Sdk {
    Python,
    /// The first generation of the TypeScript SDK.
    Typescript1,
    /// The second one, which looks for the modern era first.
    Typescript2,
}

#[derive(Clone, Copy, Debug)]
enum Which {
    Package(Server),
    /// One that speaks the modern era alone.
    Modern,
}

/// Which era a client of both is to choose: a session's servers are spoken with in the legacy one if
/// they know it, and whoever connects to them is too.
#[derive(Clone, Copy, Debug)]
enum Era {
    Auto,
    Legacy,
}

pub(crate) fn trials(home: &Result<PathBuf, String>) -> Vec<Trial> {
    use Which::{Modern, Package};
    let both = [Package(Server::Everything), Package(Server::Time)];
    let pairs =
        [Sdk::Python, Sdk::Typescript1, Sdk::Typescript2].map(|sdk| both.map(|which| (sdk, which)));
    let pairs = pairs.into_iter().flatten();
    let modern = [(Sdk::Python, Modern), (Sdk::Typescript2, Modern)];
    let trial = |(sdk, which): (Sdk, Which)| {
        let server = match which {
            Package(server) => format!("{server:?}"),
            Modern => "Modern".into(),
        };
        let name = format!("connect::{sdk:?}::{server}").to_lowercase();
        let missing = home.as_ref().err().cloned().or_else(|| sdk.missing(home.as_ref().ok()?));
        if let Some(reason) = &missing {
            #[expect(clippy::print_stderr, reason = "a test runner says what it skips")]
            {
                eprintln!("skipped clients {name}: {reason}");
            }
        }
        let stage = Stage { home: home.clone().unwrap_or_default(), sdk, which };
        Trial::test(name, move || fact(stage.same_answers())).with_ignored_flag(missing.is_some())
    };
    pairs.chain(modern).map(trial).collect()
}

impl Sdk {
    fn missing(self, home: &Path) -> Option<String> {
        let needed = match self {
            Sdk::Python => "py/bin/python",
            Sdk::Typescript1 => "node/node_modules/@modelcontextprotocol/sdk/package.json",
            Sdk::Typescript2 => "node/node_modules/@modelcontextprotocol/client/package.json",
        };
        (!home.join(needed).exists()).then(|| format!("no {needed}"))
    }
}

/// One SDK, one server, and where their packages are.
#[derive(Clone, Debug)]
struct Stage {
    home: PathBuf,
    sdk: Sdk,
    which: Which,
}

impl Stage {
    fn server(&self) -> Vec<String> {
        match self.which {
            Which::Package(server) => server.command(&self.home),
            Which::Modern => ["python", MODERN].map(str::to_owned).to_vec(),
        }
    }

    /// A program that finds the packages, and whose processes have the word.
    fn program(&self, program: impl AsRef<std::ffi::OsStr>, token: &str) -> io::Result<Command> {
        let node = self.home.join("node");
        let mut path = vec![node.join("node_modules/.bin"), self.home.join("py/bin")];
        path.extend(std::env::split_paths(&search_path()));
        let mut command = Command::new(program);
        command.env("PATH", std::env::join_paths(path).map_err(io::Error::other)?);
        command.env("LARIAT_TEST_TOKEN", token).current_dir(node).stdin(Stdio::null());
        Ok(command)
    }

    /// Starts a client that asks everything and writes the answers down.
    fn client(
        &self,
        room: &Path,
        token: &str,
        era: Era,
        server: &[String],
        answers: &Path,
    ) -> io::Result<Child> {
        let mut command = match self.sdk {
            Sdk::Python => {
                let mut command = self.program("python", token)?;
                command.args([PYTHON, if matches!(era, Era::Legacy) { "legacy" } else { "talk" }]);
                command
            }
            Sdk::Typescript1 | Sdk::Typescript2 => {
                // Modules are looked for beside the script.
                let script = room.join("drive.mjs");
                if !script.exists() {
                    std::os::unix::fs::symlink(
                        self.home.join("node/node_modules"),
                        room.join("node_modules"),
                    )?;
                    fs::copy(NODE, &script)?;
                }
                let mut command = self.program("node", token)?;
                let generation =
                    if matches!(self.sdk, Sdk::Typescript1) { "sdk" } else { "client" };
                let era = if matches!(era, Era::Legacy) { "legacy" } else { "auto" };
                command.arg(script).args([generation, era]);
                command
            }
        };
        command.args([token, "--"]).args(server).stderr(Stdio::null());
        command.stdout(File::create(answers)?).spawn()
    }

    /// What a client hears from a server that is started like this; nothing if it fails.
    fn heard(
        &self,
        room: &Path,
        token: &str,
        era: Era,
        server: &[String],
    ) -> Result<Vec<u8>, Box<dyn Error>> {
        let answers = room.join("answers");
        let mut child = self.client(room, token, era, server, &answers)?;
        finish(&mut child)?;
        Ok(fs::read(answers)?)
    }

    fn same_answers(&self) -> Result<(), Box<dyn Error>> {
        let token = token();
        let room = Room::new(&token)?;
        let outcome = self.play(&room.0, &token);
        sweep(&token);
        outcome
    }

    fn play(&self, room: &Path, token: &str) -> Result<(), Box<dyn Error>> {
        let eras: &[Era] = match self.which {
            Which::Package(_) => &[Era::Auto, Era::Legacy],
            Which::Modern => &[Era::Auto],
        };
        let mut bare = Vec::new();
        for era in eras {
            bare.push(self.heard(room, token, *era, &self.server())?);
        }
        if bare.iter().any(|answers| answers.len() < 100) {
            return Err(format!("hardly anything was said: {bare:?}").into());
        }
        let mut daemon = self.daemon(room, token)?;
        let done = self.connected(room, token, &bare, daemon.id());
        daemon.kill()?;
        daemon.wait()?;
        done?;
        match gone(token, PROMISE) {
            left if left.is_empty() => Ok(()),
            left => Err(format!("left after the daemon: {left:#?}").into()),
        }
    }

    fn connected(
        &self,
        room: &Path,
        token: &str,
        bare: &[Vec<u8>],
        daemon: u32,
    ) -> Result<(), Box<dyn Error>> {
        let id = self.open(room, token)?;
        let socket = room.join("s").display().to_string();
        let command = [LARIAT, "connect", "--socket", &socket, "--session", &id, NAME];
        let command = command.map(str::to_owned);
        let check = |what: &str, heard: &[u8]| match bare.iter().any(|bare| bare == heard) {
            true => Ok(()),
            false => same(what, bare.last().map_or(&[], |bare| bare), heard),
        };
        for what in ["the first one's answers", "the second one's answers"] {
            check(what, &self.heard(room, token, Era::Auto, &command)?)?;
        }
        let files = ["one", "other"].map(|name| room.join(name));
        let mut two = Vec::new();
        for file in &files {
            two.push(self.client(room, token, Era::Auto, &command, file)?);
        }
        for (child, file) in two.iter_mut().zip(&files) {
            finish(child)?;
            check("answers to two at once", &fs::read(file)?)?;
        }
        let closed = self.lariat(room, token, &["session", "close", "--json", &id])?;
        if !closed.contains(r#""survivors":[]}"#) {
            return Err(format!("closed with {closed}").into());
        }
        let alone = || holders(token).iter().all(|(pid, _)| *pid == daemon);
        if !wait_until(PROMISE, || Ok(alone()))? {
            return Err(format!("left after the session: {:#?}", holders(token)).into());
        }
        Ok(())
    }

    fn daemon(&self, room: &Path, token: &str) -> Result<Child, Box<dyn Error>> {
        let mut command = self.program(LARIAT, token)?;
        // Nobody's books but its own are looked at.
        command.env("HOME", room).args(["daemon", "--socket"]).arg(room.join("s"));
        command.arg("--state-dir").arg(room.join("state"));
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
        if line.is_empty() { Err("no daemon".into()) } else { Ok(child) }
    }

    /// Opens a session of ours with the server.
    fn open(&self, room: &Path, token: &str) -> Result<String, Box<dyn Error>> {
        let owner = std::process::id().to_string();
        let mut words = vec!["session", "open", "--owner-pid", &owner, "--server", NAME, "--"];
        let server = self.server();
        words.extend(server.iter().map(String::as_str));
        Ok(self.lariat(room, token, &words)?.trim().to_owned())
    }

    fn lariat(&self, room: &Path, token: &str, words: &[&str]) -> Result<String, Box<dyn Error>> {
        let mut command = self.program(LARIAT, token)?;
        command.env("HOME", room).args(&words[..2]);
        command.arg("--socket").arg(room.join("s")).args(&words[2..]);
        let output = command.output()?;
        if output.status.success() {
            return Ok(String::from_utf8(output.stdout)?);
        }
        Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
    }
}

/// Waits for a client to say all it has to say.
fn finish(child: &mut Child) -> Result<(), Box<dyn Error>> {
    if !wait_until(PATIENCE, || Ok(child.try_wait()?.is_some()))? {
        child.kill()?;
        child.wait()?;
        return Err("the client did not leave".into());
    }
    let status = child.wait()?;
    if status.success() { Ok(()) } else { Err(format!("the client failed: {status}").into()) }
}
