//! `lariat probe`: start a server, ask what it offers, end it, and show what that took.

use crate::docker::door::Door;
use crate::mcp::{self, Client, Offer, Wire};
use crate::receipt::{Reason, Receipt};
use crate::start::{self, Around, Failure, Ground, Plan, Running};
use contain::signal::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use contain::{Ask, Command, Event, Hold, Report, Signals, process};
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How much of a failing server's stderr is kept for the person who asks.
const LAST_WORDS: usize = 4096;

/// What was found.
#[derive(Debug)]
pub struct Found {
    /// What the server offers, or why it could not be asked.
    pub offer: Result<Offer, mcp::Error>,
    /// From the start to the end of the handshake.
    pub startup: Duration,
    /// The most processes seen at once.
    pub processes_peak: usize,
    /// The most resident memory seen at once.
    pub rss_peak: u64,
    /// The names of the processes when there were most of them, with their parents.
    pub tree: Vec<Process>,
    /// The end of what it wrote to stderr.
    pub stderr: String,
    /// How it ended.
    pub receipt: Receipt,
}

/// One process of the tree at its largest.
#[derive(Debug, Clone)]
pub struct Process {
    /// Its pid.
    pub pid: i32,
    /// Its parent.
    pub parent: i32,
    /// The kernel's short name for it.
    pub name: String,
    /// Resident memory.
    pub rss: u64,
}

/// Probes a server, bounded by `timeout`. Nothing of it is left when this returns.
pub fn probe(
    program: OsString,
    args: Vec<OsString>,
    plan: Plan,
    timeout: Duration,
) -> Result<Found, Failure> {
    let signals = Signals::block(&[SIGTERM, SIGINT, SIGHUP, SIGCHLD]).map_err(Failure::Streams)?;
    let ground = Ground::prepare(plan)?;
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|e| Failure::Streams(e.into()));
    let (server_stdin, input) = pipe()?;
    let (output, server_stdout) = pipe()?;
    let (stderr, server_stderr) = pipe()?;
    for fd in [&input, &output, &stderr] {
        let nonblocking = rustix::fs::fcntl_getfl(fd)
            .and_then(|flags| rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK));
        nonblocking.map_err(|e| Failure::Streams(e.into()))?;
    }
    let command = Command {
        program,
        args,
        env: Vec::new(),
        stdin: server_stdin,
        stdout: server_stdout,
        stderr: server_stderr,
    };
    let around = Around {
        signals: &signals,
        host: None,
        host_gone: None,
        stderr: Some(stderr.as_fd()),
        owner: None,
    };
    let begun = Instant::now();
    let Running { mut hold, entry, mut door } = ground.start(command, &around)?;
    let (mut ended, mut interrupted) = (None, None);
    while interrupted.is_none() && begun.elapsed() < timeout {
        match hold.event() {
            Some(Event::Started) => {
                start::began(&entry, &hold);
                break;
            }
            Some(Event::Failed(error)) => return Err(start::give_up(&entry, error)),
            Some(Event::Ended(report)) => {
                ended = Some(report);
                break;
            }
            Some(Event::Exited(_) | Event::GuardianDied) => {}
            None => hold.wait(&signals, None, Some(begun + timeout)),
        }
        interrupted = signals.next().filter(|s| *s != SIGCHLD);
    }
    let mut sight = Sight { stderr: Some(&stderr), words: Vec::new(), tree: Vec::new(), rss: 0 };
    let (offer, startup) = {
        let mut glance = || {
            sight.look(&hold);
            attend(&mut door, &mut hold);
            interrupted = interrupted.or_else(|| signals.next().filter(|s| *s != SIGCHLD));
            interrupted.is_none()
        };
        let mut client = Client::new(Wire::new(&input, &output), begun + timeout, &mut glance);
        let greeted = client.greet();
        let startup = begun.elapsed();
        let offer = greeted.and_then(|mut offer| client.list(&mut offer).map(|()| offer));
        (offer, startup)
    };
    sight.look(&hold);
    drop(input);
    let report = match ended {
        Some(report) => report,
        None => end(hold, &mut door, &signals, &mut sight, interrupted.is_some()),
    };
    if let Some(door) = door {
        door.close();
    }
    let reason = match interrupted {
        Some(signal) => Reason::Signal(signal),
        None => Reason::Closed,
    };
    let receipt = entry.settle(&reason, report).receipt;
    Ok(Found {
        offer,
        startup,
        processes_peak: sight.tree.len(),
        rss_peak: sight.rss,
        tree: sight.tree,
        stderr: String::from_utf8_lossy(&sight.words).into_owned(),
        receipt,
    })
}

/// Ends the tree by the ladder and waits for the report.
fn end(
    mut hold: Hold,
    door: &mut Option<Door>,
    signals: &Signals,
    sight: &mut Sight<'_>,
    at_once: bool,
) -> Report {
    hold.ask(if at_once { Ask::Kill } else { Ask::Closed });
    loop {
        match hold.event() {
            Some(Event::Ended(report)) => {
                hold.done();
                sight.hear();
                return report;
            }
            Some(Event::GuardianDied) => door.iter_mut().for_each(Door::dismiss),
            _ => attend(door, &mut hold),
        }
        sight.hear();
        if signals.next().is_some_and(|s| s != SIGCHLD) {
            hold.ask(Ask::Kill);
        }
        hold.wait(signals, sight.stderr.map(AsFd::as_fd), None);
    }
}

/// Answers whoever asks for Docker.
fn attend(door: &mut Option<Door>, hold: &mut Hold) {
    let Some(door) = door else { return };
    door.notice();
    if door.somebody_knocks() {
        door.answer(hold);
    }
}

/// What was seen of the tree while it lived.
struct Sight<'a> {
    /// Until its last writer has gone.
    stderr: Option<&'a OwnedFd>,
    words: Vec<u8>,
    tree: Vec<Process>,
    rss: u64,
}

impl Sight<'_> {
    fn look(&mut self, hold: &Hold) {
        self.hear();
        let process = |pid: i32| {
            Some(Process {
                pid,
                parent: process::stat(pid)?.ppid,
                name: process::name(pid),
                rss: process::resident(pid)?,
            })
        };
        let now: Vec<Process> = hold.members().into_iter().filter_map(|m| process(m.pid)).collect();
        self.rss = self.rss.max(now.iter().map(|p| p.rss).sum());
        if now.len() >= self.tree.len() {
            self.tree = now;
        }
    }

    /// Keeps the server's stderr flowing, and its last words.
    fn hear(&mut self) {
        let mut buffer = [0u8; 4096];
        while let Some(stderr) = self.stderr {
            match rustix::io::read(stderr, &mut buffer) {
                Ok(0) => self.stderr = None,
                Ok(n) => {
                    self.words.extend_from_slice(&buffer[..n]);
                    let extra = self.words.len().saturating_sub(LAST_WORDS);
                    self.words.drain(..extra);
                }
                Err(_) => return,
            }
        }
    }
}
