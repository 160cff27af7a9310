//! One server and its host, on Windows, for as long as the host wants it.
//!
//! Bytes are copied as they come, unchanged, by a thread for each stream. This thread waits for
//! whatever ends a session: the server's own end, the end of input, a host that is gone or reads
//! no more, an interruption. Nothing that must happen depends on this process living: with it goes
//! the handle of the job, and with that the server's whole tree.

#[path = "windows/backlog.rs"]
mod backlog;
#[path = "windows/pump.rs"]
mod pump;

use crate::books::{Books, Page};
use crate::id::{ServerName, SessionId};
use crate::journal::Journal;
use crate::moment;
use crate::receipt::{Reason, Receipt};
use contain::{
    Ask, Bell, Choice, Event, Exit, Interrupts, Ladder, Mark, Member, Report, Spec, Tree,
};
use pump::Pumps;
use std::ffi::OsString;
use std::io;
use std::os::windows::io::AsHandle;
use std::path::PathBuf;
use std::time::SystemTime;

/// A server's log is rotated at this size.
const LOG_LIMIT: u64 = 1 << 20;

/// What to run and how.
#[derive(Debug)]
pub struct Run {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its name in receipts and logs.
    pub server: ServerName,
    /// How it is asked to leave.
    pub ladder: Ladder,
    /// Where the receipt goes besides the event log.
    pub receipt: Option<PathBuf>,
    /// Where the books are.
    pub state_dir: PathBuf,
    /// Where its stderr log goes; `None` for the state directory.
    pub log_dir: Option<PathBuf>,
}

/// What a finished run leaves.
#[derive(Debug)]
pub struct Outcome {
    /// How the server ended, if that is known.
    pub exit: Option<Exit>,
    /// The receipt.
    pub receipt: Receipt,
    /// Why it could not be written where the user wants it.
    pub unwritten: Option<io::Error>,
}

/// Why a run did not begin.
#[derive(Debug)]
pub enum Failure {
    /// The state directory cannot be written.
    State(PathBuf, io::Error),
    /// The log cannot be written.
    Log(PathBuf, io::Error),
    /// The streams, or what wakes us, could not be made.
    Streams(io::Error),
    /// The server could not be started.
    Start(contain::Error),
}

/// Runs a server until its session ends. Returns when its tree has.
pub fn run(run: Run) -> Result<Outcome, Failure> {
    let bell = Bell::new().map_err(Failure::Streams)?;
    // Without a console nobody interrupts us.
    let mut interrupts = Interrupts::watch(&bell).ok();
    let host = contain::process::parent();
    let state = |e| Failure::State(run.state_dir.clone(), e);
    let books = Books::open(&run.state_dir).map_err(state)?;
    let _swept = books.sweep().map_err(state)?;
    let log_dir = run.log_dir.clone().unwrap_or_else(|| books.logs());
    let log = std::fs::create_dir_all(&log_dir)
        .and_then(|()| Journal::open(&log_dir.join(format!("{}.log", run.server)), LOG_LIMIT))
        .map_err(|e| Failure::Log(log_dir, e))?;
    let mark = Mark::random().map_err(Failure::Streams)?;
    let identity = |member: Member| (member.pid, member.start);
    let page = Page {
        session: SessionId::of(mark),
        server: run.server,
        began_ms: moment::millis(SystemTime::now()),
        wrapper: Member::current().map(identity),
        host: host.as_ref().map(|host| identity(host.member())),
        leader: None,
    };
    let mut entry = books.enter(page).map_err(state)?;
    let (pumps, streams) = Pumps::new(&bell).map_err(Failure::Streams)?;
    let spec = Spec {
        program: run.program,
        args: run.args,
        env: None,
        cwd: None,
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
        backend: Choice::Auto,
        ladder: run.ladder,
    };
    let mut tree = match Tree::spawn(spec) {
        Ok(tree) => tree,
        Err(e) => {
            entry.strike();
            return Err(Failure::Start(e));
        }
    };
    // A full disk is no reason to end a server that runs.
    let _full_disk = entry.started(tree.leader());
    let pumps = pumps.start(log);
    let (reason, report) = serve(&mut tree, &pumps, &bell, host, &mut interrupts);
    pumps.finish();
    let receipt = entry.settle(&reason, &report);
    let write = |path: PathBuf| {
        let text = serde_json::to_string_pretty(&receipt).map_err(io::Error::from);
        text.and_then(|text| std::fs::write(path, text + "\n")).err()
    };
    let unwritten = run.receipt.and_then(write);
    Ok(Outcome { exit: report.exit, receipt, unwritten })
}

/// Waits for the end, and says why it came.
fn serve(
    tree: &mut Tree,
    pumps: &pump::Running,
    bell: &Bell,
    mut host: Option<contain::process::Handle>,
    interrupts: &mut Option<Interrupts>,
) -> (Reason, Report) {
    let mut reason = None;
    let mut interrupted = false;
    loop {
        match tree.event() {
            Some(Event::Ended(report)) => return (reason.unwrap_or(Reason::Exited), report),
            Some(Event::Exited(_)) => {
                reason.get_or_insert(Reason::Exited);
                continue;
            }
            Some(_) => continue,
            None => {}
        }
        if host.as_ref().is_some_and(|host| !host.is_alive()) {
            // Forgotten, because what has happened once wakes whoever waits for it for ever.
            host = None;
            reason.get_or_insert(Reason::HostDied);
            tree.ask(Ask::OwnerDied);
        }
        if let Some(signal) = interrupts.as_mut().and_then(Interrupts::heard) {
            reason.get_or_insert(Reason::Signal(signal));
            // The second one skips the grace.
            tree.ask(if interrupted { Ask::Kill } else { Ask::Signal(signal) });
            interrupted = true;
        }
        if pumps.host_is_done() {
            reason.get_or_insert(Reason::StdinClosed);
            tree.ask(Ask::Closed);
        }
        let handles: Vec<_> =
            host.iter().map(AsHandle::as_handle).chain([bell.as_handle()]).collect();
        tree.wait(&handles, None);
    }
}
