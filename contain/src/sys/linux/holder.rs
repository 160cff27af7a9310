//! The holder as a process of its own, for owners that embed the library.
//!
//! A host with threads and a large heap should not be forked, nor have its SIGCHLD and subreaper
//! flags changed. It executes a holder instead: its own binary through [`main_if_asked`], or an
//! installed one. The holder inherits the command's streams, environment and directory as its own
//! and gets its orders through one socket.

use super::hold::{Command, Hold, Options};
use super::launch::{self, Side};
use super::mark::Mark;
use super::probe::probe;
use super::signals::Signals;
use super::socket::{Received, hear, say};
use crate::choice::Choice;
use crate::event::Event;
use crate::ladder::{Ask, Ladder};
use crate::limits::Limits;
use crate::report::Report;
use crate::sys::Backend;
use crate::sys::wait::wait;
use crate::wire::{Order, Word};
use crate::{Error, SpawnStage};
use rustix::event::{PollFd, PollFlags};
use std::ffi::OsString;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// The hidden verb.
pub(crate) const VERB: &str = "__hold";

/// The descriptor on which a holder finds its socket.
pub(crate) const SOCKET: RawFd = 3;

/// What a holder is told on its command line, before `--` and the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Brief {
    pub(crate) choice: Choice,
    pub(crate) mark: Mark,
    pub(crate) ladder: Ladder,
}

impl Brief {
    pub(crate) fn encode(&self) -> String {
        let backend = match self.choice {
            Choice::Auto => "auto",
            Choice::Named(backend) => backend.name(),
        };
        let Ladder { grace, term_grace, linger, look } = self.ladder;
        let times = [grace, term_grace, linger, look].map(|d| d.as_millis().to_string()).join(",");
        format!("{backend}:{}:{times}", self.mark.number())
    }

    fn decode(text: &str) -> Option<Brief> {
        let mut parts = text.split(':');
        let choice = match parts.next()? {
            "auto" => Choice::Auto,
            name => Choice::Named(Backend::named(name)?),
        };
        let mark = Mark::from_number(parts.next()?.parse().ok()?)?;
        let mut times = parts.next()?.split(',').map(|t| t.parse().ok().map(Duration::from_millis));
        let mut time = || times.next().flatten();
        let ladder = Ladder { grace: time()?, term_grace: time()?, linger: time()?, look: time()? };
        Some(Brief { choice, mark, ladder })
    }
}

/// Becomes a holder if the command line says so, and then never returns. Call it first thing in
/// `main` of a program that starts trees from its own executable.
pub fn main_if_asked() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|verb| verb != VERB) {
        return;
    }
    let brief = args.next().and_then(|text| Brief::decode(text.to_str()?));
    let command: Vec<OsString> = args.skip(1).collect();
    let (Some(brief), false) = (brief, command.is_empty()) else { launch::leave(125) };
    // The owner waits for this process only; the holder itself must not become a zombie that the
    // owner has to remember.
    match launch::fork(0, None) {
        Ok(Side::Child) => {}
        Ok(Side::Parent(_)) => launch::leave(0),
        Err(_) => launch::leave(125),
    }
    // SAFETY: the owner placed its socket on this number before exec, and nothing else in this
    // process knows it. Were it not open, every use would fail with EBADF.
    let owner = unsafe { OwnedFd::from_raw_fd(SOCKET) };
    let _hidden = rustix::io::fcntl_setfd(&owner, rustix::io::FdFlags::CLOEXEC);
    if let Err(error) = serve(&owner, &brief, command) {
        say(&owner, &error_word(&error).encode());
        launch::leave(125)
    }
    launch::leave(0)
}

fn error_word(error: &Error) -> Word {
    let errno = |e: &std::io::Error| e.raw_os_error().unwrap_or(0);
    match error {
        Error::Exec(e) => Word::NotExecuted(errno(e)),
        Error::Spawn(stage, e) => Word::Failed(*stage, errno(e)),
        Error::Backend(..) => Word::Failed(SpawnStage::Namespace, libc::ENOTSUP),
        Error::Threads(_) => Word::Failed(SpawnStage::Guardian, libc::EAGAIN),
    }
}

/// Holds one tree for the owner at the other end of the socket.
fn serve(owner: &OwnedFd, brief: &Brief, mut words: Vec<OsString>) -> Result<(), Error> {
    let signals_error = |e| Error::Spawn(SpawnStage::Signals, e);
    let stdio_error = |e: rustix::io::Errno| Error::Spawn(SpawnStage::Stdio, e.into());
    // A terminal's signals are meant for the owner, which tells us by closing the socket.
    let signals = Signals::block(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP])
        .map_err(signals_error)?;
    let machine = probe(brief.choice, brief.mark)?;
    let copy = |fd: &dyn AsFd| rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), 3).map_err(stdio_error);
    let program = words.remove(0);
    let command = Command {
        program,
        args: words,
        env: Vec::new(),
        stdin: copy(&std::io::stdin())?,
        stdout: copy(&std::io::stdout())?,
        stderr: copy(&std::io::stderr())?,
    };
    let options = Options {
        ladder: brief.ladder,
        backend: machine.backend,
        strict: brief.choice != Choice::Auto,
        mark: brief.mark,
        leaf: machine.leaf.as_deref(),
        keep: &[owner.as_fd()],
        drain: None,
        host: None,
        signals: &signals,
        limits: Limits::default(),
    };
    let mut hold = Hold::spawn(command, &options, |report| tell(owner, report))?;
    launch::let_go_of_stdio();
    let mut owner_lives = true;
    loop {
        while let Some(event) = hold.event() {
            match event {
                Event::Started => {
                    if let Some(leader) = hold.leader() {
                        say(owner, &Word::Started(leader, hold.backend()).encode());
                    }
                }
                Event::Failed(error) => return Err(error),
                Event::Exited(exit) => {
                    say(owner, &Word::Exited(exit).encode());
                }
                Event::GuardianDied => {}
                Event::Ended(report) => {
                    tell(owner, &report);
                    hold.done();
                    return Ok(());
                }
            }
        }
        let deadline = hold.deadline();
        let mut fds = vec![PollFd::new(&signals, PollFlags::IN)];
        if let Some(fd) = hold.event_fd() {
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        if owner_lives {
            fds.push(PollFd::new(owner, PollFlags::IN));
        }
        wait(&mut fds, deadline);
        while signals.next().is_some() {}
        while owner_lives {
            match hear(owner) {
                Received::Packet(text) => match Order::decode(&text) {
                    Some(Order::Ask(ask)) => hold.ask(ask),
                    Some(Order::Forward(signal)) => hold.forward(signal),
                    Some(Order::Done) | None => {}
                },
                Received::Nothing => break,
                Received::Gone => {
                    owner_lives = false;
                    hold.ask(Ask::OwnerDied);
                }
            }
        }
    }
}

/// Reports to the owner; from the holder, or from the guardian if the holder is dead.
fn tell(owner: &OwnedFd, report: &Report) {
    for survivor in &report.survivors {
        say(owner, &Word::Survivor(survivor.clone()).encode());
    }
    say(owner, &Word::Ended(report.clone()).encode());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brief_survives_the_command_line() {
        for choice in [Choice::Auto, Choice::Named(Backend::Descent)] {
            let brief = Brief { choice, mark: Mark::random().unwrap(), ladder: Ladder::default() };
            assert_eq!(Brief::decode(&brief.encode()), Some(brief));
        }
        for text in ["", "auto", "auto:1:2", "what:2305843009213693953:1,2,3,4"] {
            assert_eq!(Brief::decode(text), None);
        }
    }
}
