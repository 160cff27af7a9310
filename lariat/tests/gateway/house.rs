//! A room with everything that one test needs: the fixture, by itself or behind a daemon.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::{Outcome, PROMISE};
use crate::witness::{gone, holders, sweep, token, wait_until};

pub(crate) const LARIAT: &str = env!("CARGO_BIN_EXE_lariat");
const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gateway/fixture");

/// What the fixture is called in the daemon's config.
pub(crate) const NAME: &str = "fixture";

/// A directory of its own with the fixture in it, and a word for all of its processes. Whoever is left
/// when it goes is ended with it.
pub(crate) struct Room {
    home: PathBuf,
    dir: PathBuf,
    pub(crate) token: String,
}

impl Room {
    pub(crate) fn new(home: PathBuf) -> Outcome<Room> {
        let token = token();
        let dir = std::env::temp_dir().join(&token);
        fs::create_dir(&dir)?;
        let room = Room { home, dir, token };
        // Modules are looked for beside the script.
        for entry in fs::read_dir(FIXTURE)? {
            let entry = entry?;
            fs::copy(entry.path(), room.path(&entry.file_name().to_string_lossy()))?;
        }
        let modules = room.home.join("gateway/node_modules");
        std::os::unix::fs::symlink(modules, room.path("node_modules"))?;
        Ok(room)
    }

    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A program that finds the packages, and whose processes have the word.
    pub(crate) fn program(&self, program: impl AsRef<std::ffi::OsStr>) -> Outcome<Command> {
        let mut path = vec![self.home.join("node/node_modules/.bin"), self.home.join("py/bin")];
        path.extend(std::env::split_paths(&search_path()));
        let mut command = Command::new(program);
        command.env("PATH", std::env::join_paths(path)?).env("LARIAT_TEST_TOKEN", &self.token);
        // Node's compiled code goes with the room.
        command.env("NODE_COMPILE_CACHE", self.path("compiled"));
        command.env("HOME", &self.dir).current_dir(&self.dir);
        Ok(command)
    }

    /// The fixture's command, by stdio.
    pub(crate) fn fixture(&self) -> Vec<String> {
        let script = self.path("server.mjs").display().to_string();
        vec!["node".into(), script, "stdio".into(), self.token.clone()]
    }

    /// The same in a config, shared like this: `false`, `true`, `"reduced"`.
    pub(crate) fn table(&self, name: &str, share: &str) -> String {
        table(name, &self.fixture()) + &format!("share = {share}\n")
    }

    /// Everyone with the word is gone, soon enough.
    pub(crate) fn assert_empty(&self) -> Outcome {
        match gone(&self.token, PROMISE) {
            left if left.is_empty() => Ok(()),
            left => Err(format!("left at the end: {left:#?}").into()),
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        sweep(&self.token);
        // Nothing to do about a directory that cannot be removed; ./test looks for it.
        wait_until(PROMISE, || Ok(fs::remove_dir_all(&self.dir).is_ok())).ok();
    }
}

/// The fixture by itself, serving HTTP. It ends when its stdin is closed.
pub(crate) struct Direct {
    pub(crate) url: String,
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Direct {
    pub(crate) fn new(room: &Room, more: &[&str]) -> Outcome<Direct> {
        let mut command = room.program("node")?;
        command.arg(room.path("server.mjs")).arg("http").args(more);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let mut url = String::new();
        BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut url)?;
        Ok(Direct { url: url.trim_end().to_owned(), child, stdin })
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        drop(self.stdin.take());
        if !wait_until(PROMISE, || Ok(self.child.try_wait()?.is_some())).unwrap_or(false) {
            self.child.kill().ok();
        }
        self.child.wait().ok();
    }
}

/// A daemon with its gateway at any port.
pub(crate) struct House<'a> {
    room: &'a Room,
    pub(crate) address: String,
    child: Child,
    /// Those who stand for it. They leave with it.
    standing: Mutex<Vec<Child>>,
    descriptors: usize,
}

impl<'a> House<'a> {
    /// With these servers, as a config has them. Whoever leaves without a word is not waited for long.
    pub(crate) fn new(room: &'a Room, config: &str) -> Outcome<House<'a>> {
        fs::write(room.path("lariat.toml"), format!("session_ttl = \"5s\"\n{config}"))?;
        let mut child = daemon(room)?.spawn()?;
        let said = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let address = said
            .lines()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("http://")?.1.trim_end_matches('/').to_owned()));
        let (address_later, standing) = (String::new(), Mutex::default());
        let mut house = House { room, address: address_later, child, standing, descriptors: 0 };
        house.address = address.ok_or_else(|| house.said())?;
        house.descriptors = house.count()?;
        Ok(house)
    }

    /// Does this while the daemon becomes the next one again and again, and is the same process each time.
    pub(crate) fn handed_over<T>(&self, what: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let (is_over, times) = (AtomicBool::new(false), AtomicUsize::new(0));
        let done = thread::scope(|scope| {
            let replacing = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    self.replace().map_err(|error| error.to_string())?;
                    times.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<(), String>(())
            });
            let done = what();
            is_over.store(true, Ordering::Relaxed);
            replacing.join().map_err(|_| "a panic")??;
            done
        })?;
        if times.into_inner() < 3 || self.said().contains("not handed over") {
            return Err(format!("it was not handed over each time: {}", self.said()).into());
        }
        Ok(done)
    }

    /// Has the daemon become the next one.
    fn replace(&self) -> Outcome {
        let mut child = daemon(self.room)?.arg("--replace").spawn()?;
        let said = child.stdout.take().ok_or("no pipe")?;
        self.standing.lock().map_err(|_| "a panic")?.push(child);
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        if line.starts_with("listening on ") { Ok(()) } else { Err(self.said().into()) }
    }

    /// With the fixture alone.
    pub(crate) fn with_fixture(room: &'a Room, share: &str) -> Outcome<House<'a>> {
        House::new(room, &room.table(NAME, share))
    }

    pub(crate) fn url(&self, server: &str) -> String {
        format!("http://{}/servers/{server}/mcp", self.address)
    }

    /// Opens a session of ours with one server.
    pub(crate) fn open(&self, server: &[String]) -> Outcome<String> {
        let owner = std::process::id().to_string();
        let mut words = vec!["session", "open", "--owner-pid", &owner, "--server", NAME, "--"];
        words.extend(server.iter().map(String::as_str));
        Ok(self.lariat(&words)?.trim().to_owned())
    }

    /// Closes it: nobody survives that.
    pub(crate) fn close(&self, id: &str) -> Outcome {
        let closed = self.lariat(&["session", "close", "--json", id])?;
        match closed.contains(r#""survivors":[]}"#) {
            true => Ok(()),
            false => Err(format!("closed with {closed}").into()),
        }
    }

    fn lariat(&self, words: &[&str]) -> Outcome<String> {
        let mut command = self.room.program(LARIAT)?;
        command.args(&words[..2]).arg("--socket").arg(self.room.path("s")).args(&words[2..]);
        let output = command.output()?;
        if output.status.success() {
            return Ok(String::from_utf8(output.stdout)?);
        }
        Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
    }

    /// The daemon holds nobody and nothing that it did not hold at first. A session that was left open
    /// has no process once it is idle.
    pub(crate) fn assert_as_before(&self) -> Outcome {
        let daemon = self.child.id();
        let others = || holders(&self.room.token).into_iter().filter(|(pid, _)| *pid != daemon);
        let mut count = 0;
        let calm = wait_until(2 * PROMISE, || {
            count = self.count()?;
            Ok(others().next().is_none() && count <= self.descriptors)
        })?;
        if calm {
            return Ok(());
        }
        let left: Vec<_> = others().collect();
        let open = (count, self.descriptors);
        Err(format!("descriptors now and before: {open:?}; processes: {left:#?}").into())
    }

    /// Every server that there was, was the daemon's.
    pub(crate) fn assert_all_its(&self) -> Outcome {
        let events = fs::read_to_string(self.room.path("state/events.jsonl"))?;
        let started = events.lines().filter(|line| line.contains(r#""event":"started""#));
        let its = format!(r#""host":{},"#, self.child.id());
        let (its, others): (Vec<_>, Vec<_>) = started.partition(|line| line.contains(&its));
        match (&its[..], &others[..]) {
            ([_, ..], []) => Ok(()),
            _ => Err(format!("the daemon's: {its:?}, others': {others:?}").into()),
        }
    }

    /// The daemon's end is everyone's.
    pub(crate) fn end(mut self) -> Outcome {
        self.child.kill()?;
        self.leave();
        self.room.assert_empty()
    }

    fn leave(&mut self) {
        // It may have ended as the test wished.
        self.child.kill().ok();
        self.child.wait().ok();
        for child in self.standing.get_mut().into_iter().flatten() {
            child.wait().ok();
        }
    }

    /// Its descriptors, but for the event log, which is opened with the first event and kept.
    fn count(&self) -> std::io::Result<usize> {
        let open = fs::read_dir(format!("/proc/{}/fd", self.child.id()))?;
        let leads_to = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        Ok(leads_to.filter(|file| !file.ends_with("events.jsonl")).count())
    }

    /// What it said, for a person.
    pub(crate) fn said(&self) -> String {
        let log = fs::read_to_string(self.room.path("daemon.log")).unwrap_or_default();
        format!("the daemon said: {}", &log[log.len().saturating_sub(2000)..])
    }
}

impl Drop for House<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A daemon that is about to be started. What it says before it serves can be read.
fn daemon(room: &Room) -> Outcome<Command> {
    let mut command = room.program(LARIAT)?;
    command.args(["daemon", "--http", "127.0.0.1:0", "--no-token"]);
    command.arg("--config").arg(room.path("lariat.toml"));
    command.arg("--socket").arg(room.path("s")).arg("--state-dir").arg(room.path("state"));
    command.args(["--grace", "1s", "--term-grace", "1s", "--containers", "leave"]);
    let log = fs::File::options().create(true).append(true).open(room.path("daemon.log"))?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    Ok(command)
}

/// A server in a config. It does not stay awake for long.
pub(crate) fn table(name: &str, command: &[String]) -> String {
    let (program, args) = command.split_first().unzip();
    let (program, args) = (program.map_or("", |word| word), args.unwrap_or_default());
    format!("[servers.{name}]\ncommand = {program:?}\nargs = {args:?}\nidle = \"1s\"\n")
}

#[expect(clippy::disallowed_methods, reason = "the fixture must find node")]
fn search_path() -> std::ffi::OsString {
    std::env::var_os("PATH").unwrap_or_default()
}
