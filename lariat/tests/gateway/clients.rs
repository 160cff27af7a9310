//! Clients that people use: they list, call, hear progress, cancel and leave, and say what they heard.
//! By HTTP, from a process of their own and from a shared one; by the unix socket; and by stdio with
//! `lariat run --share` in front. It is what they hear from the server itself.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use libtest_mimic::Trial;

use super::house::{House, LARIAT, NAME, Room};
use super::{Outcome, PATIENCE, rust_sdk, trial};
use crate::witness::wait_until;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gateway");

#[derive(Clone, Copy, Debug)]
pub(crate) enum Client {
    Inspector,
    /// The generations of the SDKs.
    Python1,
    Python2,
    Typescript1,
    Typescript2,
    Rmcp,
}

/// How a server is reached.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    Command(Vec<String>),
    Url(String),
}

/// What the Inspector is asked, one process each.
const QUESTIONS: &[&[&str]] = &[
    &["--method", "tools/list"],
    &["--method", "tools/call", "--tool-name", "test_multiple_content_types"],
];

pub(crate) fn trials(home: &Result<PathBuf, String>) -> Vec<Trial> {
    use Client::{Inspector, Python1, Python2, Rmcp, Typescript1, Typescript2};
    let all = [Inspector, Python1, Python2, Typescript1, Typescript2, Rmcp];
    let alone = all.map(|client| {
        let name = format!("clients::{client:?}").to_lowercase();
        trial(name, home, client.needs(), move |home| client.hears_the_same(home))
    });
    let handed = [Python1, Python2, Typescript1, Typescript2].map(|client| {
        let name = format!("clients::{client:?}_handed_over").to_lowercase();
        trial(name, home, client.needs(), move |home| client.is_handed_over(home))
    });
    alone.into_iter().chain(handed).collect()
}

impl Client {
    fn needs(self) -> &'static [&'static str] {
        match self {
            Client::Inspector => &[SERVER, "node/node_modules/.bin/mcp-inspector"],
            Client::Python1 => &[SERVER, "earlier/bin/python"],
            Client::Python2 => &[SERVER, "py/bin/python"],
            Client::Typescript1 => &[SERVER, "node/node_modules/@modelcontextprotocol/sdk"],
            Client::Typescript2 => &[SERVER, "node/node_modules/@modelcontextprotocol/client"],
            Client::Rmcp => &[SERVER],
        }
    }

    /// What it can be told about eras. The first one is what it does untold.
    fn eras(self) -> &'static [&'static str] {
        match self {
            Client::Python2 | Client::Typescript2 => &["auto", "legacy"],
            Client::Rmcp => &["legacy", "modern"],
            Client::Inspector | Client::Python1 | Client::Typescript1 => &["legacy"],
        }
    }

    fn hears_the_same(self, home: PathBuf) -> Outcome {
        let room = Room::new(home)?;
        let bare = self.bare(&room)?;
        let tables =
            [(NAME, "false"), (SHARED, "true")].map(|(name, share)| room.table(name, share));
        let house = House::new(&room, &tables.concat())?;
        let [state, socket] = ["state", "s"].map(|name| room.path(name).display().to_string());
        let run = [LARIAT, "run", "--share", "--state-dir", &state, "--socket", &socket];
        let run = [&run[..], &["--idle", "1s", "--"]].concat().into_iter().map(str::to_owned);
        let ways = [
            ("HTTP", Way::Url(house.url(NAME))),
            ("HTTP, shared", Way::Url(house.url(SHARED))),
            ("stdio, shared", Way::Command(run.chain(room.fixture()).collect())),
        ];
        for (what, way) in &ways {
            for (era, bare) in self.eras().iter().zip(&bare) {
                let heard = self.hears(&room, era, way).map_err(|why| format!("{what}: {why}"))?;
                same(&format!("{what}, {era}"), bare, &heard)?;
            }
        }
        house.assert_all_its()?;

        // A server that belongs to a session. It is spoken with in the legacy era if it knows it,
        // whichever its clients would like.
        let id = house.open(&room.fixture())?;
        let connect = [LARIAT, "connect", "--socket", &socket, "--session", &id, NAME];
        let way = Way::Command(connect.map(str::to_owned).to_vec());
        let heard = self.hears(&room, self.eras()[0], &way)?;
        if !bare.contains(&heard) {
            same("unix socket", bare.last().map_or(&[], |bare| bare), &heard)?;
        }
        house.close(&id)?;

        house.assert_as_before()?;
        house.end()
    }

    /// The same by HTTP, while the daemon becomes the next one again and again.
    fn is_handed_over(self, home: PathBuf) -> Outcome {
        let room = Room::new(home)?;
        let bare = self.bare(&room)?;
        let tables =
            [(NAME, "false"), (SHARED, "true")].map(|(name, share)| room.table(name, share));
        let house = House::new(&room, &tables.concat())?;
        for (era, bare) in self.eras().iter().zip(&bare) {
            for name in [NAME, SHARED] {
                let way = Way::Url(house.url(name));
                let heard = house.handed_over(|| self.hears(&room, era, &way))?;
                same(&format!("{name}, {era}, handed over"), bare, &heard)?;
            }
        }
        house.assert_all_its()?;
        house.end()
    }

    /// What it hears from the server itself, in each era.
    fn bare(self, room: &Room) -> Outcome<Vec<Vec<u8>>> {
        let way = Way::Command(room.fixture());
        let bare = self.eras().iter().map(|era| self.hears(room, era, &way));
        let bare = bare.collect::<Outcome<Vec<_>>>()?;
        if bare.iter().any(|heard| heard.len() < 1000) {
            return Err(format!("hardly anything was said: {bare:?}").into());
        }
        Ok(bare)
    }

    fn hears(self, room: &Room, era: &str, way: &Way) -> Outcome<Vec<u8>> {
        match self {
            Client::Rmcp => rust_sdk::hears(room, era, way),
            Client::Inspector => {
                let answers =
                    QUESTIONS.iter().map(|question| run(room, inspector(room, question, way)?));
                Ok(answers.collect::<Outcome<Vec<_>>>()?.concat())
            }
            _ => run(room, self.script(room, era, way)?),
        }
    }

    fn script(self, room: &Room, era: &str, way: &Way) -> Outcome<Command> {
        let python = |python: &str, script: &str| {
            let mut command = room.program(room.home().join(python))?;
            command.arg(format!("{SCRIPTS}/{script}"));
            Outcome::Ok(command)
        };
        let node = |generation: &str| {
            // Modules are looked for beside the script.
            let place = room.path("talk");
            if !place.exists() {
                fs::create_dir(&place)?;
                let modules = room.home().join("node/node_modules");
                std::os::unix::fs::symlink(modules, place.join("node_modules"))?;
                fs::copy(format!("{SCRIPTS}/talk.mjs"), place.join("talk.mjs"))?;
            }
            let mut command = room.program("node")?;
            command.arg(place.join("talk.mjs")).args([generation, era]);
            Outcome::Ok(command)
        };
        let mut command = match self {
            Client::Python1 => python("earlier/bin/python", "talk_earlier.py")?,
            Client::Typescript1 => node("sdk")?,
            Client::Typescript2 => node("client")?,
            Client::Python2 | Client::Inspector | Client::Rmcp => {
                let mut command = python("py/bin/python", "talk.py")?;
                command.arg(era);
                command
            }
        };
        match way {
            Way::Command(words) => command.arg("--").args(words),
            Way::Url(url) => command.args(["http", url]),
        };
        Ok(command)
    }
}

/// What the fixture is called where others may have it too.
const SHARED: &str = "shared";

const SERVER: &str = "gateway/node_modules/@modelcontextprotocol/server";

pub(crate) fn inspector(room: &Room, question: &[&str], way: &Way) -> Outcome<Command> {
    let mut command = room.program(room.home().join("node/node_modules/.bin/mcp-inspector"))?;
    command.args(["--cli", "--connect-timeout", "60000"]);
    match way {
        Way::Url(url) => command.args(["--transport", "http", "--server-url", url]).args(question),
        // Its own options end at the first "--"; what follows is the server's, untouched.
        Way::Command(words) => {
            command.args(["-e", &format!("LARIAT_TEST_TOKEN={}", room.token)]);
            command.args(question).arg("--").args(words)
        }
    };
    Ok(command)
}

/// What a client printed when it had said all it has to say.
pub(crate) fn run(room: &Room, mut command: Command) -> Outcome<Vec<u8>> {
    let [answers, errors] = ["answers", "errors"].map(|name| room.path(name));
    command.stdin(Stdio::null()).stdout(File::create(&answers)?).stderr(File::create(&errors)?);
    let mut child = command.spawn()?;
    let ended = finish(&mut child).map_err(|error| {
        // A person wants to know why, and a client says it last.
        let said = fs::read(&errors).unwrap_or_default();
        let last = &said[said.len().saturating_sub(3000)..];
        format!("{command:?}: {error}\n{}", String::from_utf8_lossy(last))
    });
    ended?;
    Ok(fs::read(answers)?)
}

fn finish(child: &mut Child) -> Outcome {
    if !wait_until(PATIENCE, || Ok(child.try_wait()?.is_some()))? {
        child.kill()?;
        child.wait()?;
        return Err("the client did not leave".into());
    }
    let status = child.wait()?;
    if status.success() { Ok(()) } else { Err(format!("the client failed: {status}").into()) }
}

/// Says where two transcripts differ.
pub(crate) fn same(what: &str, bare: &[u8], heard: &[u8]) -> Outcome {
    if bare == heard {
        return Ok(());
    }
    let [bare, heard] = [bare, heard].map(String::from_utf8_lossy);
    let (mut bare, mut heard) = (bare.lines(), heard.lines());
    loop {
        let pair = (bare.next(), heard.next());
        if pair.0 != pair.1 || pair.0.is_none() {
            let [bare, heard] = [pair.0, pair.1].map(|line| line.map(excerpt));
            return Err(format!("{what}: directly {bare:?}, through Lariat {heard:?}").into());
        }
    }
}

fn excerpt(line: &str) -> String {
    line.chars().take(1000).collect()
}
