//! One server and its host, for as long as the host wants it.
//!
//! Four modes with one loop. *Direct*: the server inherits the host's streams themselves and no byte
//! passes through here; the loop only watches for hang-up. *Relayed*: bytes are copied as they come,
//! unchanged. *Watched*: the same, and each line is looked at, so that the server can be ended while
//! nobody needs it and started again when somebody does. *Held*: the host embeds the library, has its
//! own ends of the streams, and says on a socket what it wants. Either way stderr is drained, signals
//! are passed on, and the loop ends when the tree has.
//!
//! Nothing that must happen depends on this process living: the guardian ends the tree if it dies.

mod bounds;
mod cache;
mod cause;
mod duct;
mod ends;
mod evidence;
mod hibernation;
mod host;
mod outlet;
mod policy;
mod pump;
mod refusal;
mod stderr;
mod watch;
mod watched;
mod wrapper;

pub use cache::Key;
pub use policy::{Idle, Policy};

use crate::id::ServerName;
use crate::journal::{Journal, make_private_dir};
use crate::receipt::Receipt;
use crate::snapshot::State;
use crate::start::wire::{Control, Given, Word};
use crate::start::{Around, Failure, Ground, Owner, Plan, Running};
use contain::signal::{
    SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGPWR, SIGQUIT, SIGTERM, SIGURG, SIGUSR1,
    SIGUSR2, SIGVTALRM, SIGWINCH, SIGXCPU, SIGXFSZ,
};
use contain::{Command, Exit, Member, Signals};
use ends::{Ends, Streams, set_nonblocking};
pub(crate) use host::Host;
use outlet::Outlet;
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use stderr::Drain;
use watched::Served;
use wrapper::Wrapper;

/// A server's log is rotated at this size.
const LOG_LIMIT: u64 = 1 << 20;

/// Signals that mean stop.
const STOP: &[i32] = &[SIGTERM, SIGINT, SIGHUP, SIGQUIT];

/// Signals that a server may have a use for; they end nothing here.
const PASSED_ON: &[i32] =
    &[SIGUSR1, SIGUSR2, SIGWINCH, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR, SIGURG, SIGXCPU];

/// What to run and how.
#[derive(Debug)]
pub struct Run {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// How it is held.
    pub plan: Plan,
    /// How its streams reach the host.
    pub mode: Mode,
    /// Where its stderr log goes; `None` for the state directory.
    pub log_dir: Option<PathBuf>,
}

/// How a server's streams reach the host.
#[derive(Debug, Clone, Copy)]
pub enum Mode {
    /// They are the host's own.
    Direct,
    /// Bytes are copied.
    Relayed,
    /// Bytes are copied and looked at.
    Watched(Policy),
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

/// A server of a host that embeds the library.
#[derive(Debug)]
pub(crate) struct Held {
    /// The program.
    pub(crate) program: OsString,
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
    /// How it is held.
    pub(crate) plan: Plan,
    /// The server's own ends, and where its owner shows what passes through the others.
    pub(crate) given: Given,
    /// The host, by pid and start time.
    pub(crate) owner: Option<(i32, u64)>,
}

/// Runs a server until its session ends. Returns when its tree has.
pub fn run(run: Run) -> Result<Outcome, Failure> {
    let signals = block_signals()?;
    contain::close_leaked();
    let host = Host::find();
    let server = run.plan.server.clone();
    let starter = host.member().map(|host| (host, run.program.as_os_str(), &run.args[..]));
    let prepared = Ground::prepare_for(starter, run.plan);
    if let Err(Failure::Storm(storm)) = &prepared {
        refusal::refuse(&format!("{storm}; {}", storm.advice()));
    }
    let (ground, generation) = prepared?;
    if let Mode::Watched(policy) = run.mode {
        let log_dir = run.log_dir.unwrap_or_else(|| ground.books.logs());
        let (program, args) = (run.program, run.args);
        let served = Served { program, args, log_dir, host: &host, signals: &signals };
        return served.serve(ground, generation, policy);
    }
    let log = open_log(&run.log_dir.unwrap_or_else(|| ground.books.logs()), &server)?;
    let streams =
        Streams::open(matches!(run.mode, Mode::Relayed)).map_err(|e| Failure::Streams(e.into()))?;
    let drain = Drain::new(streams.stderr, Outlet::new(io::stderr().as_fd()).ok(), Some(log));
    let command = Command {
        program: run.program,
        args: run.args,
        env: Vec::new(),
        stdin: streams.server_stdin,
        stdout: streams.server_stdout,
        stderr: streams.server_stderr,
    };
    let around = Around {
        signals: &signals,
        host: host.member(),
        host_gone: host.pidfd(),
        stderr: drain.source(),
        owner: None,
    };
    let running = ground.start(command, &around)?;
    let (entry, ends) = (running.entry, streams.ends);
    let wrapper =
        Wrapper::new(running.hold, running.door, &signals, drain, ends, &entry, Some(&host));
    wrapper.serve().and_then(only_life)
}

/// What has no other life cannot only rest.
fn only_life(outcome: Option<Outcome>) -> Result<Outcome, Failure> {
    outcome.ok_or_else(|| Failure::Streams(io::ErrorKind::UnexpectedEof.into()))
}

/// Holds a server until its owner wants no more. Says on the way what happens.
pub(crate) fn hold(held: Held, control: &mut Control) -> Result<Outcome, Failure> {
    let signals = block_signals()?;
    let streams_error = |e: rustix::io::Errno| Failure::Streams(e.into());
    let owner = held.owner.map(|(pid, start)| Member { pid, start });
    let server = held.plan.server.clone();
    let ground = Ground::prepare(held.plan)?;
    let log = open_log(&ground.books.logs(), &server)?;
    let (stderr, server_stderr) = pipe_with(PipeFlags::CLOEXEC).map_err(streams_error)?;
    set_nonblocking(&stderr).map_err(streams_error)?;
    let drain = Drain::new(stderr, None, Some(log)).remembering();
    let command = Command {
        program: held.program,
        args: held.args,
        env: Vec::new(),
        stdin: held.given.stdin,
        stdout: held.given.stdout,
        stderr: server_stderr,
    };
    let around = Around {
        signals: &signals,
        host: owner,
        // Readable when the owner wants an end or has gone, and we may be stopped.
        host_gone: Some(control.line()),
        stderr: drain.source(),
        owner: Some(control),
    };
    let Running { hold, entry, door } = ground.start(command, &around)?;
    control.say(&Word::Noted(entry.page().session.clone()));
    if let Some(pulse) = held.given.pulse {
        entry.show_pulse_of(pulse);
        // By the pulse others see that nobody has spoken with it yet.
        watched::tell(&entry, State::Ready, None, &[]);
    }
    let ends = Ends::Held(control);
    Wrapper::new(hold, door, &signals, drain, ends, &entry, None).serve().and_then(only_life)
}

/// The next signal that means stop, if one has come.
pub(crate) fn stop_signal(signals: &Signals) -> Option<u8> {
    let stop = std::iter::from_fn(|| signals.next()).find(|signal| STOP.contains(signal));
    stop.and_then(|signal| u8::try_from(signal).ok())
}

/// First of all: a signal that comes from here on is handled, not fatal.
pub(crate) fn block_signals() -> Result<Signals, Failure> {
    let mut all = [STOP, PASSED_ON].concat();
    // A file too large is an error of ours to handle, not one to die of.
    all.extend([SIGCHLD, SIGXFSZ]);
    Signals::block(&all).map_err(Failure::Streams)
}

fn open_log(dir: &Path, server: &ServerName) -> Result<Journal, Failure> {
    make_private_dir(dir)
        .and_then(|()| Journal::open(&dir.join(format!("{server}.log")), LOG_LIMIT))
        .map_err(|e| Failure::Log(dir.into(), e))
}
