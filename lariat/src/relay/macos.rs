//! One server and its host, on macOS, for as long as the host wants it.
//!
//! Two modes with one loop, and no thread. *Direct*: the server inherits the host's streams themselves
//! and no byte passes through here; the loop only watches for hang-up. *Relayed*: bytes are copied as
//! they come, unchanged. Either way stderr is drained, signals are passed on, and the loop ends when the
//! tree has.
//!
//! Nothing that must happen depends on this process living: the guardian ends the tree if it dies.

mod cause;
mod lean;
mod outlet;
#[expect(dead_code, reason = "the host's hang-up is heard in another way here")]
mod pump;
#[path = "macos/serve.rs"]
mod serve;
#[expect(dead_code, reason = "part of it is for hosts that embed the library")]
mod stderr;

pub use crate::start::Failure;
pub use lean::{Outcome, Run};

use contain::signal::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGURG, SIGUSR1, SIGUSR2, SIGVTALRM,
    SIGWINCH, SIGXCPU, SIGXFSZ,
};
use contain::{Choice, Spec, Vigil};
use outlet::{Outlet, Sink};
use pump::Pump;
use serve::{Pumps, Wrapper};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use stderr::Drain;

/// Signals that mean stop.
const STOP: &[i32] = &[SIGTERM, SIGINT, SIGHUP, SIGQUIT];

/// Signals that a server may have a use for; they end nothing here.
const PASSED_ON: &[i32] =
    &[SIGUSR1, SIGUSR2, SIGWINCH, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGURG, SIGXCPU];

/// How a server's streams reach the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They are the host's own.
    Direct,
    /// Bytes are copied.
    Relayed,
}

/// How a server is held.
#[derive(Debug)]
pub struct Holding {
    /// The program that becomes the guardian: one whose `main` begins with
    /// [`main_if_asked`](crate::main_if_asked).
    pub guardian: PathBuf,
    /// What holds it.
    pub backend: Choice,
    /// How its streams reach the host.
    pub mode: Mode,
}

/// The server's streams and ours.
struct Streams {
    stdin: Stdio,
    stdout: Stdio,
    stderr: Stdio,
    pumps: Option<Pumps>,
    drained: OwnedFd,
}

impl Streams {
    fn open(mode: Mode) -> io::Result<Streams> {
        let (drained, stderr) = io::pipe()?;
        let drained = unblocked(drained.into())?;
        let (stdin, stdout, pumps) = match mode {
            Mode::Direct => (Stdio::inherit(), Stdio::inherit(), None),
            Mode::Relayed => {
                let (stdin, to_server) = io::pipe()?;
                let (from_server, stdout) = io::pipe()?;
                let host = Outlet::new(io::stdout().as_fd())?;
                let up =
                    Pump::new(own(io::stdin().as_fd())?, Sink::Own(unblocked(to_server.into())?));
                let down = Pump::new(unblocked(from_server.into())?, Sink::Host(host));
                (stdin.into(), stdout.into(), Some(Pumps { up, down }))
            }
        };
        Ok(Streams { stdin, stdout, stderr: stderr.into(), pumps, drained })
    }
}

/// A copy of one of our own streams, which no program that we execute gets.
fn own(stream: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(stream, 3)?)
}

/// Only for pipes of ours: the flag belongs to the description, which nobody else shares.
fn unblocked(pipe: OwnedFd) -> io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&pipe, true)?;
    Ok(pipe)
}

/// Runs a server until its session ends. Returns when its tree has.
pub fn run(run: Run, holding: Holding) -> Result<Outcome, Failure> {
    // A file too large is an error of ours to handle, not one to die of.
    let mut vigil =
        Vigil::new(&[STOP, PASSED_ON, &[SIGXFSZ]].concat()).map_err(Failure::Streams)?;
    contain::close_leaked();
    // Before the books: what cannot be had then leaves no page behind.
    let Streams { stdin, stdout, stderr, pumps, drained } =
        Streams::open(holding.mode).map_err(Failure::Streams)?;
    let input = pumps.is_none().then(|| own(io::stdin().as_fd())).transpose();
    let output = own(io::stdout().as_fd()).map_err(Failure::Streams)?;
    vigil.watch(input.map_err(Failure::Streams)?, output);
    let (opened, log) = run.plan(vigil.host()).open()?;
    let spec = Spec {
        holder: holding.guardian,
        program: run.program,
        args: run.args,
        env: None,
        cwd: None,
        stdin,
        stdout,
        stderr,
        backend: holding.backend,
        ladder: run.ladder,
    };
    let (tree, entry) = opened.launch(spec)?;
    let drain = Drain::new(drained, Outlet::new(io::stderr().as_fd()).ok(), Some(log));
    let (reason, report) = Wrapper::new(tree, vigil, drain, pumps).serve();
    Ok(Outcome::settled(entry, &reason, &report))
}
