//! Starting a server from a host with threads: a holder is executed that does it.
//!
//! The host's memory is not copied by a fork, and its signals, children and subreaper flag stay as
//! they are. The host keeps one end of a socket and the server's stdin and stdout, and nothing else.

use super::environment::Environment;
use super::wire::{self, Brief, Order, STREAMS, Word};
use crate::books::Pulse;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, sendmsg};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
pub(crate) use tokio::net::unix::pipe::{Receiver, Sender};

/// The hidden verb by which a program becomes a holder.
pub(crate) const VERB: &str = "__hold-server";

/// True if the `main` of this program begins so that it can become a holder.
static ALLOWED: AtomicBool = AtomicBool::new(false);

/// This program can become a holder.
pub(crate) fn allow_this_program() {
    ALLOWED.store(true, Ordering::Relaxed);
}

/// This program, if it can become a holder. Executed under this name it is the one that runs now,
/// also if another was installed over it.
pub(crate) fn this_program() -> Option<PathBuf> {
    ALLOWED.load(Ordering::Relaxed).then(|| "/proc/self/exe".into())
}

/// What keeps a server alive. Letting go of it ends the server; that is one system call, which needs
/// no runtime and cannot block or fail.
#[derive(Debug, Clone)]
pub(crate) struct Leash(Arc<UnixStream>);

impl Leash {
    /// Ends the server. Whoever listens still hears how it ended.
    pub(crate) fn let_go(&self) {
        // It fails only if the holder is gone already.
        let _gone = rustix::net::shutdown(&*self.0, Shutdown::Write);
    }
}

/// The owner's end of the socket. Dropped, it ends the server.
#[derive(Debug)]
pub(crate) struct Line {
    stream: Arc<UnixStream>,
    buffer: Vec<u8>,
}

impl Drop for Line {
    fn drop(&mut self) {
        // Somebody may still hold the leash.
        self.leash().let_go();
    }
}

/// What becomes the holder's.
#[derive(Debug)]
pub(crate) struct Theirs(OwnedFd);

/// The server's stdin and stdout, from our side.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) stdin: Sender,
    pub(crate) stdout: Receiver,
    /// What those who look on see of the conversation, once it is said.
    pub(crate) pulse: Option<Pulse>,
}

impl Line {
    /// A socket whose other end carries the server's streams. Nothing is started yet, so that the
    /// leash is known to whoever may want to let go of it before there is a process.
    pub(crate) fn new() -> io::Result<(Line, Theirs, Streams)> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        let (server_stdin, stdin) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stdout, server_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let pulse = Pulse::new();
        let mut fds = vec![server_stdin.as_fd(), server_stdout.as_fd()];
        fds.extend(pulse.as_ref().map(AsFd::as_fd));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(&ours, &[IoSlice::new(&[STREAMS])], &mut ancillary, SendFlags::NOSIGNAL)?;
        ours.set_nonblocking(true)?;
        let stream = Arc::new(UnixStream::from_std(ours)?);
        let streams = Streams {
            stdin: Sender::from_owned_fd(stdin)?,
            stdout: Receiver::from_owned_fd(stdout)?,
            pulse,
        };
        Ok((Line { stream, buffer: Vec::new() }, Theirs(theirs.into()), streams))
    }

    /// Its descriptor, and what was heard and not understood yet, for the program that this process
    /// becomes.
    pub(super) fn carry(&self) -> (RawFd, &[u8]) {
        (self.stream.as_raw_fd(), &self.buffer)
    }

    /// The one that the program before had.
    pub(super) fn carried(stream: OwnedFd, buffer: Vec<u8>) -> io::Result<Line> {
        let stream = std::os::unix::net::UnixStream::from(stream);
        stream.set_nonblocking(true)?;
        Ok(Line { stream: Arc::new(UnixStream::from_std(stream)?), buffer })
    }

    /// What ends the server, for whoever must be able to.
    pub(crate) fn leash(&self) -> Leash {
        Leash(self.stream.clone())
    }

    /// Tells the holder what to run.
    pub(crate) async fn brief(&self, brief: &Brief) -> io::Result<()> {
        self.send(serde_json::to_vec(brief)?).await
    }

    /// Tells the holder what to do. If nobody is there to hear it, nothing is left to do.
    pub(crate) async fn order(&self, order: Order) {
        if let Ok(line) = serde_json::to_vec(&order) {
            let _gone = self.send(line).await;
        }
    }

    async fn send(&self, mut line: Vec<u8>) -> io::Result<()> {
        line.push(b'\n');
        let mut rest = &line[..];
        while !rest.is_empty() {
            self.stream.writable().await?;
            match self.stream.try_write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// What the holder says next; `None` when neither it nor the guardian is there any more. Nothing
    /// is lost if this is dropped before it is done.
    pub(crate) async fn word(&mut self) -> Option<Word> {
        loop {
            while let Some(line) = wire::next_line(&mut self.buffer) {
                if let Ok(word) = serde_json::from_slice(&line) {
                    return Some(word);
                }
            }
            self.stream.readable().await.ok()?;
            let mut bytes = [0u8; 4096];
            match self.stream.try_read(&mut bytes) {
                Ok(n) if n > 0 && self.buffer.len() < wire::LONGEST => {
                    self.buffer.extend_from_slice(&bytes[..n]);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Ok(_) | Err(_) => return None,
            }
        }
    }
}

/// A holder that was executed. It is our child, and we are to reap it.
#[derive(Debug)]
pub(crate) struct Holder(Option<Offspring>);

/// A child of this process.
#[derive(Debug)]
enum Offspring {
    Started(Child),
    /// Of the program that this process was before.
    Inherited(Pid),
}

impl Offspring {
    fn pid(&self) -> i32 {
        match self {
            Offspring::Started(child) => Pid::from_child(child).as_raw_pid(),
            Offspring::Inherited(pid) => pid.as_raw_pid(),
        }
    }

    fn kill(&mut self) {
        // Not reaped yet, so the number is its own.
        let _gone = match self {
            Offspring::Started(child) => child.kill(),
            Offspring::Inherited(pid) => kill_process(*pid, Signal::KILL).map_err(io::Error::from),
        };
    }

    fn has_left(&mut self) -> bool {
        // An error says that it is no child of ours any more: somebody else has reaped it.
        match self {
            Offspring::Started(child) => !matches!(child.try_wait(), Ok(None)),
            Offspring::Inherited(pid) => {
                !matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(None))
            }
        }
    }
}

/// How long it may take from closing its socket to being gone.
const LEAVES: Duration = Duration::from_millis(100);

/// Holders that nobody waits for any more and that have not left yet.
static LEAVING: Mutex<Vec<Offspring>> = Mutex::new(Vec::new());

impl Holder {
    /// Ends it at once: it has nothing more to do, or does not do it.
    pub(crate) fn kill(&mut self) {
        if let Some(child) = &mut self.0 {
            child.kill();
        }
    }

    /// Its pid, for the program that this process becomes.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.0.as_ref().map(Offspring::pid)
    }

    /// The one that the program before had under this pid.
    pub(crate) fn inherited(pid: Option<i32>) -> Holder {
        Holder(pid.and_then(Pid::from_raw).map(Offspring::Inherited))
    }

    /// Waits until it has left, which it is about to.
    pub(crate) async fn reaped(&mut self) {
        let until = Instant::now() + LEAVES;
        while !self.is_reaped() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// True if it has left.
    fn is_reaped(&mut self) -> bool {
        let left = self.0.as_mut().is_none_or(Offspring::has_left);
        if left {
            self.0 = None;
        }
        left
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut leaving = LEAVING.lock().unwrap_or_else(PoisonError::into_inner);
        leaving.retain_mut(|child| !child.has_left());
        if !self.is_reaped() {
            leaving.extend(self.0.take());
        }
    }
}

/// The pids of those that nobody waits for any more.
pub(crate) fn leaving() -> Vec<i32> {
    let leaving = LEAVING.lock().unwrap_or_else(PoisonError::into_inner);
    leaving.iter().map(Offspring::pid).collect()
}

/// Executes a holder. Its server gets these variables beside all of ours, or beside those that are
/// around it.
pub(crate) async fn execute(
    holder: &Path,
    theirs: Theirs,
    own: impl Iterator<Item = (&String, &String)>,
    around: Option<&Environment>,
) -> io::Result<Holder> {
    let mut command = Command::new(holder);
    if let Some(around) = around {
        command.env_clear().envs(around.variables.iter().map(|(name, value)| (name, value)));
    }
    command.arg(VERB).envs(own).process_group(0);
    command.stdin(Stdio::from(theirs.0)).stdout(Stdio::null()).stderr(Stdio::null());
    // Executing takes a millisecond, in which others have better things to do than to wait.
    let executed =
        tokio::task::spawn_blocking(move || Ok(Holder(Some(Offspring::Started(command.spawn()?)))));
    executed.await.unwrap_or_else(|e| Err(io::Error::other(e)))
}
