//! The side of whoever was started with `--replace`: it asks, and then stands for the daemon that the one
//! before has become, for as long as that lives.

use super::name_of;
use crate::bytes::Bytes;
use crate::daemon::words::Words;
use crate::relay;
use contain::Member;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The byte with which somebody asks, and which carries its executable, its directory and its streams.
pub(in crate::daemon) const ASK: u8 = b'>';

/// What one daemon writes down for the next. Another number, and it makes way in the older manner.
pub(super) const VERSION: u32 = 3;

/// A longer line is none of ours.
pub(super) const LONGEST: usize = 16 << 20;

/// How long a daemon may take to become the next one.
const BECOMES: Duration = Duration::from_secs(30);

/// How long one may take to be dead that was killed.
const DIES: Duration = Duration::from_millis(500);

/// What is to be executed, and how.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) version: u32,
    pub(super) state_dir: Bytes,
    pub(super) args: Vec<Bytes>,
    pub(super) env: Vec<Bytes>,
    /// Where it is to listen by TCP.
    #[serde(default)]
    pub(super) http: Option<SocketAddr>,
}

/// What the daemon has to say.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    /// It stays what it is.
    No {
        /// A sentence.
        why: String,
        /// It has clients whom it would lose if it made way, or nobody could take its place.
        #[serde(default)]
        stays: bool,
    },
    /// It is the next one now.
    Here,
    /// It has ended.
    Left {
        /// With this.
        code: u8,
    },
}

impl Word {
    pub(super) fn line(&self) -> Vec<u8> {
        // Text and numbers can always be written.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// Why a daemon has not become the next one. It is as it was, unless it is gone.
#[derive(Debug)]
pub enum Declined {
    /// It says why, and can make way.
    Refused(String),
    /// It says why, and would lose somebody by making way.
    Stays(String),
    /// It does not know how, or is not there any more.
    Unable(io::Error),
}

/// Stands for a daemon that another process has become.
#[derive(Debug)]
pub struct Successor {
    words: Words,
    daemon: Member,
}

/// Asks the daemon at the other end to become this program, with this command line and these variables, and to
/// listen there. To be called while this process has one thread.
pub fn succeed(
    line: UnixStream,
    daemon: Member,
    state_dir: &Path,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    http: Option<SocketAddr>,
) -> Result<Successor, Declined> {
    let bytes = |word: OsString| Bytes(word.into_vec());
    let variable = |(mut name, value): (OsString, OsString)| {
        name.push("=");
        name.push(value);
        bytes(name)
    };
    let request = Request {
        version: VERSION,
        state_dir: name_of(state_dir),
        args: args.into_iter().map(bytes).collect(),
        env: env.into_iter().map(variable).collect(),
        http,
    };
    let mut words = Words::new(line);
    ask(&mut words, &request).map_err(Declined::Unable)?;
    match words.first(BECOMES).map_err(Declined::Unable)? {
        Word::Here => Ok(Successor { words, daemon }),
        Word::No { why, stays: false } => Err(Declined::Refused(why)),
        Word::No { why, stays: true } => Err(Declined::Stays(why)),
        Word::Left { .. } => Err(Declined::Unable(io::ErrorKind::UnexpectedEof.into())),
    }
}

fn ask(words: &mut Words, request: &Request) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let program = rustix::fs::open("/proc/self/exe", flags, Mode::empty())?;
    let directory = rustix::fs::open(".", flags | OFlags::DIRECTORY, Mode::empty())?;
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let given = [program.as_fd(), directory.as_fd(), stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    words.ask(ASK, request, &given)
}

impl Successor {
    /// Stays until the daemon is gone, or is yet another's; what this process is told to do, the daemon is
    /// told. Gives what to end with; an error if nobody said that.
    pub fn stay(mut self) -> io::Result<u8> {
        // Without them a signal ends this process as it would any other, and the daemon with it.
        let signals = relay::block_signals().ok();
        contain::give_back_code();
        loop {
            let mut fds = vec![self.words.interest()];
            fds.extend(signals.as_ref().map(|signals| PollFd::new(signals, PollFlags::IN)));
            contain::wait(&mut fds, self.words.deadline());
            let speaks = !fds[0].revents().is_empty();
            if let Some(signal) = signals.as_ref().and_then(relay::stop_signal) {
                let signal = Signal::from_named_raw(signal.into()).unwrap_or(Signal::TERM);
                // It is gone, or it is that very process.
                let _gone = self.daemon.signal(signal);
            }
            match self.words.next(speaks) {
                Ok(Some(Word::Left { code })) => return Ok(code),
                Ok(_) => {}
                Err(e) => return if self.is_anothers() { Ok(0) } else { Err(e) },
            }
        }
    }

    /// True if somebody else stands for the daemon now. One that was killed closes its end just before it
    /// is dead.
    fn is_anothers(&self) -> bool {
        let deadline = Instant::now() + DIES;
        while self.daemon.is_alive() && Instant::now() < deadline {
            contain::wait(&mut [], Some(Instant::now() + Duration::from_millis(10)));
        }
        self.daemon.is_alive()
    }
}
