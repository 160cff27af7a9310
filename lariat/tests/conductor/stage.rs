//! A daemon, a conductor and an eye on both.

use crate::kit::{PATIENCE, Place, RUNG};
use crate::witness::holders;
use lariat::daemon::client::Client;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use trials::{Process, until};

pub(crate) const LARIAT: &str = env!("CARGO_BIN_EXE_lariat");
pub(crate) const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/conductor.py");

/// A daemon in the foreground. Dropped, it is killed; what it held ends with it.
pub(crate) struct Daemon {
    child: Child,
}

impl Daemon {
    /// Starts one that listens in the place. All that it starts has the place's word.
    pub(crate) fn start(place: &Place) -> Daemon {
        let rung = format!("{}ms", RUNG.as_millis());
        let mut command = Command::new(LARIAT);
        command.args(["daemon", "--grace", &rung, "--term-grace", &rung]);
        // Beside it, so that its arguments have no word in them: who has is a server.
        command.args(["--socket", "s", "--state-dir", "state"]).current_dir(&place.dir);
        command.env("HOME", &place.dir).env("LARIAT_TEST_TOKEN", &place.token);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a daemon");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert!(line.starts_with("listening on "), "{line:?}");
        Daemon { child }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, and nobody is asked.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it can be waited for");
    }

    /// SIGTERM. Returns how it ended, if it did in time.
    pub(crate) fn terminate(&mut self, patience: Duration) -> Option<ExitStatus> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("a signal");
        wait(&mut self.child, patience)
    }

    /// Descriptors, threads and resident memory in KiB.
    pub(crate) fn footprint(&self) -> [usize; 3] {
        let pid = self.pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).expect("a field");
            line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").count();
        [descriptors, field("Threads:"), field("VmRSS:")]
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

pub(crate) fn socket(place: &Place) -> PathBuf {
    place.dir.join("s")
}

/// A connection to the place's daemon.
pub(crate) async fn connect(place: &Place) -> Client {
    let stream = tokio::net::UnixStream::connect(socket(place)).await.expect("a daemon");
    Client::over(stream).await.expect("our own daemon")
}

/// Waits for a child. Nothing if it did not end in time; then it is killed.
pub(crate) fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let mut ended = None;
    until(patience, || {
        ended = child.try_wait().expect("it can be waited for");
        ended.is_some()
    });
    if ended.is_none() {
        child.kill().expect("it can be killed");
        child.wait().expect("it can be waited for");
    }
    ended
}

/// The interpreter itself. What is called `python3` may be a script that looks for it, whose forks have
/// the conductor's words in their command line and would be counted as servers.
fn python() -> PathBuf {
    let which = "import sys; sys.stdout.write(sys.executable)";
    let told = Command::new("python3").args(["-c", which]).output().expect("python3");
    PathBuf::from(String::from_utf8(told.stdout).expect("a path"))
}

/// The script, with its output in pipes.
pub(crate) struct Conductor {
    pub(crate) child: Child,
}

/// How a conductor ended and what it said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: Option<ExitStatus>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Conductor {
    /// Starts it from a copy that is named by the word, so that the servers it carries have it too.
    pub(crate) fn start(place: &Place, words: &[&str]) -> Conductor {
        let script = place.dir.join(format!("{}.py", place.token));
        fs::copy(SCRIPT, &script).expect("a copy");
        let mut command = Command::new(python());
        command.arg(script).args(words).env("HOME", &place.dir);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Conductor { child: command.spawn().expect("an interpreter") }
    }

    /// Starts it with the place's daemon and three servers that misbehave in this way. The roll is
    /// where they say what they hear.
    pub(crate) fn with(place: &Place, verb: &str, words: &[&str]) -> Conductor {
        let roll = roll(place);
        fs::write(&roll, "").expect("a roll");
        let command = format!("{LARIAT} __misbehave {verb} {} {}", place.token, roll.display());
        let servers = ["a", "b", "c"].map(|name| format!("{name}={command}"));
        let socket = socket(place).display().to_string();
        let mut all = vec!["--socket", &socket];
        for server in &servers {
            all.extend(["--server", server]);
        }
        all.extend(words);
        Conductor::start(place, &all)
    }

    /// Itself, which has the word by right.
    pub(crate) fn process(&self) -> Process {
        Process::now(self.child.id() as i32).expect("a process")
    }

    /// What it says until its end, for which it has so long.
    pub(crate) fn said(mut self, patience: Duration) -> Said {
        // It says less than a pipe holds.
        let status = wait(&mut self.child, patience);
        let (mut out, mut err) = (String::new(), String::new());
        self.child.stdout.take().expect("piped").read_to_string(&mut out).expect("text");
        self.child.stderr.take().expect("piped").read_to_string(&mut err).expect("text");
        Said { status, out, err }
    }
}

impl Drop for Conductor {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn roll(place: &Place) -> PathBuf {
    place.dir.join("roll")
}

/// Waits until a server has been called and does not answer.
pub(crate) fn until_called(place: &Place) {
    let called =
        || fs::read_to_string(roll(place)).is_ok_and(|roll| roll.lines().any(|l| l == "call"));
    assert!(until(PATIENCE, called), "nobody was called");
}

/// Everything that has the place's word, but for these: servers, holders, guardians, daemons.
pub(crate) fn others(place: &Place, but: &[u32]) -> Vec<(u32, String)> {
    holders(&place.token).into_iter().filter(|(pid, _)| !but.contains(pid)).collect()
}

/// Counts in a thread of its own how many processes of servers live at once.
pub(crate) struct Watcher {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

#[derive(Debug)]
pub(crate) struct Seen {
    /// At one moment.
    pub(crate) most: usize,
    /// At all.
    pub(crate) distinct: usize,
    pub(crate) looks: usize,
}

impl Watcher {
    pub(crate) fn start(place: &Place, conductor: &Conductor) -> Watcher {
        let mut witness = place.witness();
        witness.spare(conductor.process());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut seen = Seen { most: 0, distinct: 0, looks: 0 };
            while !stopped.load(Ordering::Relaxed) {
                // A look takes a while, in which some leave and others come. Who was there in it and
                // still is was there with the others at one moment.
                let there = witness.look();
                let at_once = there.iter().filter(|process| process.is_alive()).count();
                seen.most = seen.most.max(at_once);
                seen.looks += 1;
            }
            Seen { distinct: witness.seen(), ..seen }
        });
        Watcher { stop, thread }
    }

    pub(crate) fn stop(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}
