//! The stage of one trial: a directory of its own, a daemon in it, wrappers that find that daemon, and
//! eyes that see in `/proc` what is left of it all.

use crate::checker::FLAG;
use crate::client::Client;
use libtest_mimic::{Failed, Trial};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use trials::{Process, until};

pub(crate) const LARIAT: &str = env!("CARGO_BIN_EXE_lariat");

/// For what has nothing to do with a promise.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Both rungs of the ladder.
const RUNG: &str = "300ms";

/// The variable whose value everything of one stage inherits.
const WORD: &str = "LARIAT_POOL_TOKEN";

/// Whether everything is to be tried, and not as much as fits a person's patience.
#[expect(clippy::disallowed_methods, reason = "a runner of tests is told so by its caller")]
pub(crate) fn is_full() -> bool {
    std::env::var_os("LARIAT_TRIALS").is_some_and(|much| much == "full")
}

/// Where real servers are.
#[expect(clippy::disallowed_methods, reason = "how ./test tells where the packages are")]
pub(crate) fn packages() -> Option<PathBuf> {
    std::env::var_os("LARIAT_CLIENTS").map(PathBuf::from)
}

/// One trial by name. What it says of its failure is above.
pub(crate) fn trial(
    name: impl Into<String>,
    test: impl FnOnce() + Send + std::panic::UnwindSafe + 'static,
) -> Trial {
    Trial::test(name, move || std::panic::catch_unwind(test).map_err(|_| Failed::from("see above")))
}

/// A directory, a word that nobody else has, and a daemon.
pub(crate) struct Stage {
    pub(crate) dir: PathBuf,
    token: String,
    daemon: Option<Child>,
    /// Daemons that were replaced.
    before: Vec<Child>,
    /// Where it is by HTTP.
    page: Option<SocketAddr>,
    /// What every daemon here is told.
    options: Vec<String>,
}

impl Stage {
    /// With a daemon in the foreground.
    pub(crate) fn new() -> Stage {
        let mut stage = Stage::without_daemon();
        stage.start_daemon(&[]);
        stage
    }

    /// Without one: whoever needs it starts it.
    pub(crate) fn without_daemon() -> Stage {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let token = format!("lariat-pool-{}-{number}x", std::process::id());
        let dir = std::env::temp_dir().join(&token);
        fs::create_dir(&dir).expect("a directory");
        let dir = dir.canonicalize().expect("it is there");
        Stage { dir, token, daemon: None, before: Vec::new(), page: None, options: Vec::new() }
    }

    /// With one that offers these servers by HTTP.
    pub(crate) fn offering(servers: &[(&str, bool)]) -> Stage {
        let mut stage = Stage::without_daemon();
        let table = |(name, share): &(&str, bool)| {
            let line = stage.checker(&[name]);
            let (command, args) = (json!(line[0]), json!(line[1..]));
            format!("[servers.{name}]\ncommand = {command}\nargs = {args}\nshare = {share}\n")
        };
        let config: String = servers.iter().map(table).collect();
        let file = stage.path("lariat.toml");
        fs::write(&file, config).expect("a file");
        let file = file.display().to_string();
        stage.options = ["--http", "127.0.0.1:0", "--config", &file].map(String::from).into();
        stage.start_daemon(&[]);
        stage
    }

    /// The next daemon is told nothing of that.
    pub(crate) fn forget_options(&mut self) {
        self.options.clear();
    }

    /// Where the daemon is by HTTP.
    pub(crate) fn page(&self) -> SocketAddr {
        self.page.expect("a page")
    }

    pub(crate) fn start_daemon(&mut self, options: &[&str]) {
        let mut command = self.lariat("daemon");
        command.args(["--grace", RUNG, "--term-grace", RUNG, "--containers", "leave"]);
        command.args(&self.options).args(options);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut line = || lines.next().expect("a line").expect("text");
        let first = line();
        assert!(first.starts_with("listening on "), "{first}");
        self.daemon = Some(child);
        if self.options.iter().any(|word| word == "--http") {
            let page = line();
            let page = page.strip_prefix("page at http://").expect("where the page is");
            self.page = page.trim_end_matches('/').parse().ok();
        }
    }

    /// Has the daemon become the next one. Whoever was started for that stands for it from here on.
    pub(crate) fn replace(&mut self) {
        self.start_next();
        let listener = UnixStream::connect(self.path("state/daemon.sock")).expect("a daemon");
        let listener = socket_peercred(&listener).expect("its credentials").pid;
        let first = self.before.first().map(|child| child.id() as i32);
        assert_eq!(Some(listener.as_raw_pid()), first, "it was not handed over");
    }

    /// Has another daemon replace the one there is, in whatever way.
    pub(crate) fn start_next(&mut self) {
        self.before.extend(self.daemon.take());
        self.start_daemon(&["--replace"]);
    }

    /// A daemon that is not to replace the one there is. Gives what it has said.
    pub(crate) fn refused(&self, options: &[&str]) -> String {
        let said = || fs::read_to_string(self.path("stderr")).unwrap_or_default();
        let before = said().len();
        let mut command = self.lariat("daemon");
        command.arg("--replace").args(&self.options).args(options).stdin(Stdio::null());
        let status = command.stdout(Stdio::null()).status().expect("it");
        assert_eq!(status.code(), Some(1), "{}", said());
        said().split_off(before)
    }

    /// What is in the event log.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("state/events.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// The daemon that this trial started.
    pub(crate) fn daemon(&self) -> Process {
        let child = self.daemon.as_ref().expect("a daemon");
        Process::now(child.id() as i32).expect("one that was not waited for")
    }

    /// Ends the daemon and waits for it.
    pub(crate) fn end_daemon(&mut self, with: Signal) {
        let Some(mut child) = self.daemon.take() else { return };
        if let Some(process) = Process::now(child.id() as i32) {
            signal(process, with);
        }
        let ended = until(PATIENCE, || child.try_wait().is_ok_and(|ended| ended.is_some()));
        if !ended {
            child.kill().ok();
            child.wait().ok();
        }
        assert!(ended || std::thread::panicking(), "the daemon does not end");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// `lariat VERB` with its state in here.
    pub(crate) fn lariat(&self, verb: &str) -> Command {
        let mut command = self.mark(Command::new(LARIAT));
        command.arg(verb).arg("--state-dir").arg(self.path("state"));
        command
    }

    /// Everything that comes of this command can be found again.
    pub(crate) fn mark(&self, mut command: Command) -> Command {
        let log = File::options().append(true).create(true).open(self.path("stderr"));
        command.current_dir(&self.dir).env(WORD, &self.token).env("HOME", &self.dir);
        command.stderr(log.expect("a file"));
        command
    }

    /// A wrapper that shares a server.
    pub(crate) fn sharing(&self, options: &[&str], server: &[String]) -> Command {
        let mut command = self.lariat("run");
        command.arg("--share").args(options).arg("--").args(server);
        command
    }

    /// The checker; more words make it another server.
    pub(crate) fn checker(&self, words: &[&str]) -> Vec<String> {
        let me = std::env::current_exe().expect("ourselves").display().to_string();
        let own = [me, FLAG.to_owned(), self.token.clone()];
        own.into_iter().chain(words.iter().map(ToString::to_string)).collect()
    }

    /// A client that shares the checker, and has greeted it.
    #[track_caller]
    pub(crate) fn join(&self) -> Client {
        let mut client = self.meet(&[]);
        client.greet();
        client
    }

    /// A client that shares the checker of these words, and has said nothing yet.
    pub(crate) fn meet(&self, words: &[&str]) -> Client {
        Client::start(self.sharing(&["--name", "checker"], &self.checker(words)))
    }

    /// The servers of this stage that live: what was started from here and is not Lariat's.
    pub(crate) fn servers(&self) -> Vec<Process> {
        let is_server = |process: &Process| {
            let line = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0).skip(1);
            !is_lariat(*process) && words.next() == Some(FLAG.as_bytes())
        };
        self.crowd().into_iter().filter(is_server).collect()
    }

    /// Everybody of this stage who lives.
    pub(crate) fn crowd(&self) -> Vec<Process> {
        carriers(&self.token)
    }

    /// The daemon, however it was started.
    pub(crate) fn any_daemon(&self) -> Option<Process> {
        let is_daemon = |process: &Process| {
            let line = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
            is_lariat(*process) && line.split(|byte| *byte == 0).nth(1) == Some(b"daemon")
        };
        self.crowd().into_iter().find(is_daemon)
    }

    /// What `ps --json` says of the servers here.
    #[track_caller]
    pub(crate) fn listed(&self) -> Vec<Value> {
        let output = self.lariat("ps").arg("--json").output().expect("a program");
        let text = String::from_utf8_lossy(&output.stdout);
        let listed: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        listed.as_array().expect("a list").clone()
    }

    /// What `ps` says of how each server is shared, in one line each.
    #[track_caller]
    pub(crate) fn verdicts(&self) -> Vec<String> {
        let shares = self.listed().into_iter().map(|one| one["share"].clone());
        let mut verdicts: Vec<String> = shares.map(|share| verdict(&share)).collect();
        verdicts.sort();
        verdicts
    }

    /// Ends the daemon; then nobody is left, and nothing is open in the books.
    #[track_caller]
    pub(crate) fn close(mut self) {
        self.end_daemon(Signal::TERM);
        self.assert_gone();
        let pages = || fs::read_dir(self.path("state/sessions")).into_iter().flatten().count();
        assert!(until(PATIENCE, || pages() == 0), "{} pages are open", pages());
    }

    /// Everybody has left; twice, as nobody is seen for an instant in exec.
    #[track_caller]
    pub(crate) fn assert_gone(&self) {
        let gone = until(PATIENCE, || (0..2).all(|_| self.crowd().is_empty()));
        let left: Vec<String> = self.crowd().into_iter().map(describe).collect();
        assert!(gone, "left: {left:#?}");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.end_daemon(Signal::KILL);
        let quiet = until(PATIENCE, || {
            let left = self.crowd();
            left.iter().for_each(|process| signal(*process, Signal::KILL));
            left.is_empty()
        });
        if !quiet {
            let left: Vec<String> = self.crowd().into_iter().map(describe).collect();
            eprintln!("cannot end {left:#?}");
        }
        for child in &mut self.before {
            // They have ended by now; this is what removes the last of them.
            child.wait().ok();
        }
        if std::thread::panicking() {
            for name in ["stderr", "state/events.jsonl"] {
                let text = fs::read(self.path(name)).unwrap_or_default();
                let end = &text[text.len().saturating_sub(3000)..];
                eprintln!("--- {name}\n{}", String::from_utf8_lossy(end));
            }
        }
        until(PATIENCE, || fs::remove_dir_all(&self.dir).is_ok() || !self.dir.exists());
    }
}

/// How a server is shared, as `ps` shows it.
fn verdict(share: &Value) -> String {
    let word = share["verdict"].as_str().unwrap_or("none");
    match share["why"].as_str() {
        Some(why) => format!("{word}: {why}"),
        None => word.to_owned(),
    }
}

/// Every living process with this word in its environment or its arguments.
fn carriers(word: &str) -> Vec<Process> {
    let holds = |bytes: Vec<u8>| bytes.windows(word.len()).any(|part| part == word.as_bytes());
    let carries = |pid: &i32| {
        let file = |name: &str| fs::read(format!("/proc/{pid}/{name}"));
        ["environ", "cmdline"].iter().any(|name| file(name).is_ok_and(holds))
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let me = std::process::id() as i32;
    let others = pids.filter(|pid| *pid != me).filter(carries);
    others.filter_map(Process::now).filter(|process| process.is_alive()).collect()
}

fn is_lariat(process: Process) -> bool {
    let program = fs::read_link(format!("/proc/{}/exe", process.pid));
    program.is_ok_and(|program| program == Path::new(LARIAT))
}

/// Pid and command line, for people.
pub(crate) fn describe(process: Process) -> String {
    let line = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    format!("{} {}", process.pid, line.chars().take(160).collect::<String>())
}

/// Sends a signal to this very process, or to nobody. One that is gone already is no error.
pub(crate) fn signal(process: Process, signal: Signal) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    if let Ok(held) = pidfd_open(pid, PidfdFlags::empty())
        // Held first, compared afterwards: the descriptor cannot mean a later process then.
        && Process::now(process.pid) == Some(process)
    {
        pidfd_send_signal(&held, signal).ok();
    }
}

/// Memory of a process in kB: its own, its share of everything.
pub(crate) fn memory(process: Process) -> (u64, u64) {
    let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid));
    let text = text.unwrap_or_default();
    let sum = |names: &[&str]| -> u64 {
        let lines = text.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
        lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
    };
    (sum(&["Private_Clean:", "Private_Dirty:"]), sum(&["Pss:"]))
}
