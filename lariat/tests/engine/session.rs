//! A session: a server under `lariat run`, or bare, with us as its host; and who belongs to it, as
//! `/proc` shows.

use crate::PATIENCE;
use crate::engine::Engine;
use crate::machine::{at_times, on_path};
use crate::place::Place;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::Timespec;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use trials::{Process, until};

/// What the proxy's process is called.
const PROXY: &str = "lariat-docker";
/// Every process of a session inherits this.
const TOKEN: &str = "LARIAT_CONTAINERS_TRIAL";

/// A word that no other trial has.
pub(crate) fn token() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let me = Process::now(std::process::id() as i32).unwrap();
    // Of one length: no word begins another.
    format!("t{:08}x{:08}x{number:04}", me.start % 100_000_000, me.pid)
}

/// One server and the streams that we as its host have.
pub(crate) struct Session {
    pub(crate) token: String,
    place: Place,
    child: Child,
    stdout: BufReader<ChildStdout>,
}

/// How a server is started.
pub(crate) struct Start<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) token: String,
    /// Options of `lariat run`; none for a bare server.
    pub(crate) options: Option<Vec<String>>,
    /// Whether a shell stands between us and what we start, to be killed as the host.
    pub(crate) hosted: bool,
    /// What it finds in place of `/run`, where engines have their sockets.
    pub(crate) run: Option<PathBuf>,
    pub(crate) env: Vec<(String, Option<String>)>,
}

impl<'a> Start<'a> {
    pub(crate) fn lariat(engine: &'a Engine) -> Start<'a> {
        Start { options: Some(vec![]), ..Start::bare(engine) }
    }

    pub(crate) fn bare(engine: &'a Engine) -> Start<'a> {
        Start { engine, token: token(), options: None, hosted: false, run: None, env: vec![] }
    }

    pub(crate) fn options(mut self, options: &[&str]) -> Start<'a> {
        let own = self.options.as_mut().expect("only Lariat has options");
        own.extend(options.iter().map(ToString::to_string));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: Option<&str>) -> Start<'a> {
        self.env.push((name.into(), value.map(Into::into)));
        self
    }

    /// The command line, complete but not started.
    fn command(&self, place: &Place, server: &[String]) -> Command {
        let mut command = match &self.options {
            None => {
                let mut command = Command::new(&server[0]);
                command.args(&server[1..]).current_dir(place.path(""));
                command
            }
            Some(options) => {
                let mut command = place.lariat("run");
                command.args(["--receipt", "receipt.json"]).args(options).arg("--").args(server);
                command
            }
        };
        if self.hosted {
            // The pipe's other end is ours and stays open when the host dies.
            let mut host = Command::new("sh");
            host.args(["-c", "exec 3<&0; \"$@\" <&3 3<&- & wait", "sh"]);
            host.arg(command.get_program()).args(command.get_args());
            host.current_dir(place.path(""));
            command = host;
        }
        if let Some(dir) = &self.run {
            let mut apart = Command::new(&on_path("unshare")[0]);
            let script = "\"$0\" --bind \"$1\" /run && shift && exec \"$@\"";
            apart.args(["--mount", "sh", "-c", script]).arg(&on_path("mount")[0]).arg(dir);
            apart.arg(command.get_program()).args(command.get_args());
            apart.current_dir(place.path(""));
            command = apart;
        }
        command.env(TOKEN, &self.token);
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        self.engine.client(&command)
    }

    /// Starts the server.
    pub(crate) fn server(&self, server: &[String]) -> Session {
        let place = Place::new();
        let mut command = self.command(&place, server);
        let errors = fs::File::create(place.path("stderr")).unwrap();
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = child.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Session { token: self.token.clone(), place, child, stdout }
    }

    /// Starts a shell script as the server. `$T` in it is the token.
    pub(crate) fn script(&self, script: &str) -> Session {
        self.server(&["sh".into(), "-c".into(), script.replace("$T", &self.token)])
    }
}

impl Session {
    pub(crate) fn say(&mut self, line: &str) {
        // A server that has left is seen when it is listened to.
        let _broken = writeln!(self.child.stdin.as_mut().unwrap(), "{line}");
    }

    /// The next line, empty at the end.
    #[track_caller]
    pub(crate) fn hear(&mut self) -> String {
        if self.stdout.buffer().is_empty() {
            let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            let mut fds = [PollFd::new(self.stdout.get_ref(), PollFlags::IN)];
            let said = poll(&mut fds, Some(&patience));
            assert_eq!(said, Ok(1), "nothing was said; on stderr: {}", self.stderr());
        }
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits for a word on a line of its own.
    #[track_caller]
    pub(crate) fn expect(&mut self, word: &str) {
        let heard = self.hear();
        assert_eq!(heard, word, "on stderr: {}", self.stderr());
    }

    pub(crate) fn hang_up(&mut self) {
        self.child.stdin = None;
    }

    /// What we started: the wrapper, its host, or the bare server.
    pub(crate) fn first(&self) -> Process {
        Process::now(self.child.id() as i32).expect("not waited for yet")
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// The exit code of what we started; it must end.
    #[track_caller]
    pub(crate) fn code(&mut self) -> Option<i32> {
        assert!(until(PATIENCE, || self.has_ended()), "no end; on stderr: {}", self.stderr());
        self.child.wait().unwrap().code()
    }

    /// What it wrote to stderr.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.place.path("stderr")).unwrap_or_default()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path(name)
    }

    /// The receipt, when it is there.
    pub(crate) fn receipt(&self) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.place.path("receipt.json")).ok()?).ok()
    }

    /// The receipt, which must come.
    #[track_caller]
    pub(crate) fn await_receipt(&self) -> Value {
        let come = until(PATIENCE, || self.receipt().is_some());
        assert!(come, "no receipt; on stderr: {}", self.stderr());
        self.receipt().unwrap()
    }

    /// The lines of the event log.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.place.path("state/events.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Another command of Lariat's with the same books.
    pub(crate) fn another(&self, engine: &Engine) -> Command {
        let mut command = self.place.lariat("run");
        command.args(["--", "true"]);
        engine.client(&command)
    }

    /// Everybody who carries the token, with whether it is Lariat's own.
    fn members(&self) -> Vec<Member> {
        let word = format!("{TOKEN}={}", self.token);
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let member = |pid: i32| {
            let process = Process::now(pid)?;
            let env = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let carries = env.split(|byte| *byte == 0).any(|entry| entry == word.as_bytes());
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned();
            let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let ours = program == std::path::Path::new(env!("CARGO_BIN_EXE_lariat"));
            (carries && process.is_alive()).then_some(Member { process, name, ours })
        };
        pids.filter_map(member).collect()
    }

    /// The server's own processes: all but Lariat's.
    pub(crate) fn tree(&self) -> Vec<Member> {
        self.members().into_iter().filter(|member| !member.ours).collect()
    }

    /// The wrapper: the eldest of Lariat's processes.
    pub(crate) fn wrapper(&self) -> Process {
        let ours = self.members().into_iter().filter(|member| member.ours);
        let ours = ours.filter(|member| member.name != PROXY);
        ours.map(|member| member.process).min_by_key(|p| (p.start, p.pid)).expect("a wrapper")
    }

    /// The guardian: Lariat's too, and neither the wrapper nor the proxy.
    pub(crate) fn guardian(&self) -> Process {
        let wrapper = self.wrapper();
        let parent = format!("PPid:\t{}", wrapper.pid);
        let is_child = |process: Process| {
            let status = fs::read_to_string(format!("/proc/{}/status", process.pid));
            status.is_ok_and(|status| status.lines().any(|line| line == parent))
        };
        let ours = self.members().into_iter().filter(|member| member.ours && member.name != PROXY);
        let mut ours = ours.map(|member| member.process).filter(|process| *process != wrapper);
        ours.find(|process| is_child(*process)).expect("a guardian")
    }

    /// The proxy, if there is one.
    pub(crate) fn proxy(&self) -> Option<Process> {
        let mut members = self.members().into_iter();
        members.find(|member| member.name == PROXY).map(|member| member.process)
    }

    /// Waits until the server's processes are gone, then until Lariat's are; the first must be
    /// within the given time.
    #[track_caller]
    pub(crate) fn assert_tree_gone(&self, within: Duration) {
        let gone = until_none(within, || self.tree());
        assert!(gone, "processes are left: {:?}", self.tree());
    }

    /// Nobody is left, Lariat's own neither.
    #[track_caller]
    pub(crate) fn assert_nobody(&self) {
        let gone = until_none(PATIENCE, || self.members());
        assert!(gone, "processes are left: {:?}", self.members());
    }
}

/// Waits until nobody is found. It looks for newcomers when those found before are gone.
fn until_none(within: Duration, mut look: impl FnMut() -> Vec<Member>) -> bool {
    let mut known = Vec::new();
    until(within, || {
        if known.iter().any(|member: &Member| member.process.is_alive()) {
            return false;
        }
        known = look();
        known.is_empty()
    })
}

impl Drop for Session {
    fn drop(&mut self) {
        // After a failed check, and after a bare one: whatever is left of it must not stay.
        at_times(Duration::from_millis(20), PATIENCE, || {
            let left = self.members();
            for member in &left {
                strike(member.process, Signal::KILL);
            }
            left.is_empty()
        });
        let _ended = self.child.wait();
        // Nobody of Lariat's is left to do this either.
        for page in fs::read_dir(self.place.path("state/sessions")).into_iter().flatten().flatten()
        {
            let text = fs::read_to_string(page.path()).unwrap_or_default();
            let page: Value = serde_json::from_str(&text).unwrap_or_default();
            if let Some(leaf) = page["leaf"].as_str() {
                let _gone = fs::remove_dir(leaf);
            }
        }
    }
}

/// A process of a session.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) process: Process,
    pub(crate) name: String,
    ours: bool,
}

/// Signals this very process, if it is still there.
pub(crate) fn strike(process: Process, signal: Signal) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    // Held first and compared afterwards: what is held cannot be a successor then.
    if let Ok(held) = pidfd_open(pid, PidfdFlags::empty())
        && Process::now(process.pid) == Some(process)
    {
        // One that has left meanwhile is what we want.
        let _gone = pidfd_send_signal(&held, signal);
    }
}
