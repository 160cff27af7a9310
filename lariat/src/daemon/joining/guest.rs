//! The wrapper's side: it knocks, lets go of the host's streams, and waits.
//!
//! It has no runtime and no threads, and nothing wakes it but the end: a signal, the host's death, or
//! the daemon's last word.

use super::wire::{Brief, KNOCK, TAKEN, Word};
use crate::daemon::words::Words;
use crate::relay;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a daemon may take to say whether it will.
const ANSWER: Duration = Duration::from_secs(10);

/// How long a daemon may take after a goodbye to end a server that only this host used: as long as its
/// ladder, or some more.
const GOODBYE: Duration = Duration::from_secs(6);

/// What a wrapper ends with if Lariat itself failed.
const FAILED: u8 = 125;

/// A wrapper whose host's streams the daemon has. Dropped, it has left.
#[derive(Debug)]
pub struct Guest {
    words: Words,
}

/// Why the daemon does not have the streams. They are as they were.
#[derive(Debug)]
pub enum Declined {
    /// It says why.
    Refused(String),
    /// It is another user's.
    Stranger(u32),
    /// It went away, as one does that nobody has used for long.
    Gone(io::Error),
    /// It does not answer, or something else than an answer.
    Broken(io::Error),
}

impl fmt::Display for Declined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Declined::Refused(why) => f.write_str(why),
            Declined::Stranger(uid) => write!(f, "the daemon there is that of another user, {uid}"),
            Declined::Gone(error) | Declined::Broken(error) => {
                write!(f, "the daemon does not answer: {error}")
            }
        }
    }
}

/// How it ended.
#[derive(Debug)]
pub struct Parted {
    /// What to end with.
    pub code: u8,
    /// A sentence for the host's log, if it was not the host's wish.
    pub why: Option<String>,
}

impl Guest {
    /// Gives the daemon this process's stdin and stdout, if it takes them. From then on this process has
    /// neither. To be called while it has one thread.
    pub fn knock(line: UnixStream, brief: &Brief) -> Result<Guest, Declined> {
        let broken = |error: rustix::io::Errno| Declined::Broken(error.into());
        let lost = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => Declined::Gone(error),
            _ => Declined::Broken(error),
        };
        let peer = rustix::net::sockopt::socket_peercred(&line).map_err(broken)?;
        if peer.uid != rustix::process::geteuid() {
            return Err(Declined::Stranger(peer.uid.as_raw()));
        }
        let mut words = Words::new(line);
        let (stdin, stdout) = (io::stdin(), io::stdout());
        words.ask(KNOCK, brief, &[stdin.as_fd(), stdout.as_fd()]).map_err(lost)?;
        match words.first(ANSWER).map_err(lost)? {
            Word::Welcome => {}
            Word::Refused { why } => return Err(Declined::Refused(why)),
            Word::Left { .. } => {
                return Err(Declined::Broken(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        // Before the daemon may read: whoever ends now, the host's pipes are nobody else's.
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let nothing = rustix::fs::open("/dev/null", flags, Mode::empty()).map_err(broken)?;
        rustix::stdio::dup2_stdin(&nothing).map_err(broken)?;
        rustix::stdio::dup2_stdout(&nothing).map_err(broken)?;
        // If it is gone by now, the wait says so.
        let _gone = words.say(TAKEN);
        Ok(Guest { words })
    }

    /// Waits until it is over.
    pub fn stay(mut self) -> Parted {
        let host = relay::Host::find();
        // Without them a signal ends this process as it would any other, which closes the line.
        let signals = relay::block_signals().ok();
        contain::give_back_code();
        let mut stopped: Option<(u8, Instant)> = None;
        loop {
            let mut fds = vec![self.words.interest()];
            fds.extend(signals.as_ref().map(|signals| PollFd::new(signals, PollFlags::IN)));
            let pidfd = host.pidfd().filter(|_| stopped.is_none());
            fds.extend(pidfd.map(|pidfd| PollFd::from_borrowed_fd(pidfd, PollFlags::IN)));
            contain::wait(&mut fds, self.words.deadline().or(stopped.map(|(_, until)| until)));
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            match self.words.next(ready[0]) {
                Ok(Some(Word::Left { code, why })) => {
                    // Whoever stopped it knows why.
                    let stopped = stopped.map(|(code, _)| Parted { code, why: None });
                    return stopped.unwrap_or(Parted { code, why });
                }
                Ok(Some(Word::Welcome | Word::Refused { .. }) | None) => {}
                Err(_) => {
                    let why = "the daemon has gone, and the server with it";
                    let gone = Parted { code: FAILED, why: Some(why.into()) };
                    return stopped.map_or(gone, |(code, _)| Parted { code, why: None });
                }
            }
            let stop = signals.as_ref().and_then(relay::stop_signal).map(|signal| 128 + signal);
            // Its end of the pipes may be somebody else's as well.
            let died = (pidfd.is_some() && ready.last() == Some(&true)).then_some(0);
            match (stop.or(died), stopped) {
                // Whoever says it twice means it.
                (Some(code), Some(_)) => return Parted { code, why: None },
                (Some(code), None) => {
                    // It fails only if the daemon has gone, which is seen next.
                    let _gone = self.words.fall_silent();
                    stopped = Some((code, Instant::now() + GOODBYE));
                }
                (None, Some((code, until))) if Instant::now() >= until => {
                    return Parted { code, why: None };
                }
                (None, _) => {}
            }
        }
    }
}
