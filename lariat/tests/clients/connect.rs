//! Clients of a server that belongs to a session: unchanged SDKs with `lariat connect` as their
//! server's command. They hear what they would hear from the server itself, one after the other and
//! at the same time; the server goes on when they leave, and ends with its session.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use libtest_mimic::Trial;

use super::record::same;
use super::sdk::{self, Era, Sdk, Stage, Which, called, finish, packages};
use super::witness::{gone, holders, sweep, token, wait_until};
use super::{LARIAT, PROMISE, Room};

/// What a server is called in its session.
const NAME: &str = "it";

pub(crate) fn trials(home: &Result<PathBuf, String>) -> Vec<Trial> {
    let modern = [Sdk::Python, Sdk::Typescript2].map(|sdk| (sdk, Which::Modern));
    let trial = |(sdk, which)| {
        let name = format!("connect::{}", called(sdk, which));
        sdk::trial(name, home, sdk, which, |stage| stage.same_answers())
    };
    packages().chain(modern).map(trial).collect()
}

impl Stage {
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
