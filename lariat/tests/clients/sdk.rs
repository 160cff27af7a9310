//! Hosts made of SDKs: the Python one and both generations of the TypeScript one, the servers that
//! they speak to, and what they hear. What lies between the two is for others to say.

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use libtest_mimic::Trial;

use super::witness::wait_until;
use super::{PATIENCE, Server, fact, search_path};

const PYTHON: &str = super::DRIVER;
const NODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/drive.mjs");
const MODERN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/modern.py");

#[derive(Clone, Copy, Debug)]
pub(crate) enum Sdk {
    Python,
    /// The first generation of the TypeScript SDK.
    Typescript1,
    /// The second one, which looks for the modern era first.
    Typescript2,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Which {
    Package(Server),
    /// One that speaks the modern era alone.
    Modern,
}

/// Which era a client of both is to choose: a session's servers are spoken with in the legacy one if
/// they know it, and whoever connects to them is too.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Era {
    Auto,
    Legacy,
}

/// How a client is to speak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) era: Era,
    /// Whether it waits before each call until its server is asleep.
    pub(crate) naps: bool,
}

impl From<Era> for Manner {
    fn from(era: Era) -> Manner {
        Manner { era, naps: false }
    }
}

/// Every SDK with every server that is a package.
pub(crate) fn packages() -> impl Iterator<Item = (Sdk, Which)> {
    let sdks = [Sdk::Python, Sdk::Typescript1, Sdk::Typescript2];
    let both = [Server::Everything, Server::Time].map(Which::Package);
    sdks.into_iter().flat_map(move |sdk| both.map(|which| (sdk, which)))
}

/// A pair's name in the list of tests.
pub(crate) fn called(sdk: Sdk, which: Which) -> String {
    let server = match which {
        Which::Package(server) => format!("{server:?}"),
        Which::Modern => "Modern".into(),
    };
    format!("{sdk:?}::{server}").to_lowercase()
}

/// A test of a pair. It is skipped by name where the packages are missing.
pub(crate) fn trial(
    name: String,
    home: &Result<PathBuf, String>,
    sdk: Sdk,
    which: Which,
    test: impl FnOnce(&Stage) -> Result<(), Box<dyn Error>> + Send + 'static,
) -> Trial {
    let missing = home.as_ref().err().cloned().or_else(|| sdk.missing(home.as_ref().ok()?));
    if let Some(reason) = &missing {
        #[expect(clippy::print_stderr, reason = "a test runner says what it skips")]
        {
            eprintln!("skipped clients {name}: {reason}");
        }
    }
    let stage = Stage { home: home.clone().unwrap_or_default(), sdk, which };
    Trial::test(name, move || fact(test(&stage))).with_ignored_flag(missing.is_some())
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
pub(crate) struct Stage {
    pub(crate) home: PathBuf,
    pub(crate) sdk: Sdk,
    pub(crate) which: Which,
}

impl Stage {
    pub(crate) fn server(&self) -> Vec<String> {
        match self.which {
            Which::Package(server) => server.command(&self.home),
            Which::Modern => ["python", MODERN].map(str::to_owned).to_vec(),
        }
    }

    /// A program that finds the packages, and whose processes have the word.
    pub(crate) fn program(
        &self,
        program: impl AsRef<std::ffi::OsStr>,
        token: &str,
    ) -> io::Result<Command> {
        let node = self.home.join("node");
        let mut path = vec![node.join("node_modules/.bin"), self.home.join("py/bin")];
        path.extend(std::env::split_paths(&search_path()));
        let mut command = Command::new(program);
        command.env("PATH", std::env::join_paths(path).map_err(io::Error::other)?);
        command.env("LARIAT_TEST_TOKEN", token).current_dir(node).stdin(Stdio::null());
        Ok(command)
    }

    /// Starts a client that asks everything and writes the answers down.
    pub(crate) fn client(
        &self,
        room: &Path,
        token: &str,
        manner: impl Into<Manner>,
        server: &[String],
        answers: &Path,
    ) -> io::Result<Child> {
        let Manner { era, naps } = manner.into();
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
        command.arg(token).args(naps.then_some("naps")).arg("--").args(server);
        command.stderr(File::create(answers.with_extension("stderr"))?);
        command.stdout(File::create(answers)?).spawn()
    }

    /// What a client hears from a server that is started like this.
    pub(crate) fn heard(
        &self,
        room: &Path,
        token: &str,
        manner: impl Into<Manner>,
        server: &[String],
    ) -> Result<Vec<u8>, Box<dyn Error>> {
        let answers = room.join("answers");
        let mut child = self.client(room, token, manner, server, &answers)?;
        finish(&mut child).map_err(|error| {
            // A person wants to know why, and a client says it last.
            let said = fs::read(answers.with_extension("stderr")).unwrap_or_default();
            let last = &said[said.len().saturating_sub(2000)..];
            format!("{error}\n{}", String::from_utf8_lossy(last))
        })?;
        Ok(fs::read(answers)?)
    }
}

/// Waits for a client to say all it has to say.
pub(crate) fn finish(child: &mut Child) -> Result<(), Box<dyn Error>> {
    if !wait_until(PATIENCE, || Ok(child.try_wait()?.is_some()))? {
        child.kill()?;
        child.wait()?;
        return Err("the client did not leave".into());
    }
    let status = child.wait()?;
    if status.success() { Ok(()) } else { Err(format!("the client failed: {status}").into()) }
}
