//! A host's stdin and stdout, read and written by the daemon without waiting and without changing
//! anything that the host or its other children share.
//!
//! A pipe or terminal is opened anew through `/proc`, which gives a description of our own; a socket
//! has a flag for each call; a file does not wait, and is read on a thread where it may. All but files
//! are tokio's pipes to wait for: those are the descriptors that it takes as they are.

use crate::bytes::Bytes;
use crate::mcp::Frames;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::task::JoinHandle;

/// What is read at once, at most: as much as a pipe holds.
const PIECE: usize = 64 << 10;

thread_local! {
    /// Where everything is read to before it is known whose buffer has to grow. A session that says
    /// nothing has none.
    static SPACE: RefCell<Box<[u8]>> = RefCell::new(vec![0; PIECE].into());
}

/// How a stream has to be treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// A pipe, opened anew.
    Pipe,
    /// Opened anew as well. It is asked until it has nothing: a terminal gives a line at a time, however
    /// much is there, and a pipe with a name can have lost its last writer before it was opened, which
    /// is then never told.
    Other,
    /// A socket, which does not wait if told so.
    Socket,
    /// A file, or something else that is always ready.
    File,
}

/// A descriptor that can be waited for, and what it is.
fn prepare(stream: OwnedFd, access: OFlags) -> io::Result<(OwnedFd, Kind)> {
    let kind = match FileType::from_raw_mode(rustix::fs::fstat(&stream)?.st_mode) {
        FileType::Socket => return Ok((stream, Kind::Socket)),
        FileType::RegularFile | FileType::BlockDevice => return Ok((stream, Kind::File)),
        kind => kind,
    };
    let path = format!("/proc/self/fd/{}", stream.as_raw_fd());
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let own = rustix::fs::open(&path, flags, Mode::empty())?;
    let nameless = || {
        let target = rustix::fs::readlink(&path, Vec::new());
        target.is_ok_and(|target| target.as_bytes().starts_with(b"pipe:"))
    };
    let kind = if kind == FileType::Fifo && nameless() { Kind::Pipe } else { Kind::Other };
    Ok((own, kind))
}

/// True if nobody can wait for it, and so nobody has to: `/dev/null` is one.
fn is_always_ready(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::PERM.raw_os_error())
}

/// What a host says.
#[derive(Debug)]
pub(super) enum Inlet {
    Stream {
        stream: Receiver,
        kind: Kind,
        /// Asked once before it is waited for.
        asked: bool,
    },
    File(Reading),
}

/// A file that is read on a thread.
#[derive(Debug)]
pub(super) struct Reading {
    file: Arc<File>,
    task: Option<JoinHandle<io::Result<Vec<u8>>>>,
    /// What was read and not taken yet.
    read: Option<Vec<u8>>,
}

impl Reading {
    fn new(file: OwnedFd) -> Reading {
        Reading { file: Arc::new(file.into()), task: None, read: None }
    }

    /// Waits for what is being read. Nothing is lost if this is dropped before it is done.
    async fn settle(&mut self) -> io::Result<()> {
        if let Some(task) = &mut self.task {
            let read = task.await;
            self.task = None;
            self.read = Some(read.map_err(io::Error::other)??);
        }
        Ok(())
    }

    async fn next(&mut self, frames: &mut Frames) -> io::Result<bool> {
        if self.read.is_none() && self.task.is_none() {
            let file = self.file.clone();
            self.task = Some(tokio::task::spawn_blocking(move || {
                let mut space = vec![0; PIECE];
                let count = (&*file).read(&mut space)?;
                space.truncate(count);
                Ok(space)
            }));
        }
        self.settle().await?;
        let bytes = self.read.take().unwrap_or_default();
        frames.feed(&bytes).map_err(|_| ErrorKind::FileTooLarge)?;
        Ok(!bytes.is_empty())
    }
}

impl Inlet {
    /// Prepares a host's stream for reading.
    pub(super) fn new(stream: OwnedFd) -> io::Result<Inlet> {
        let (stream, kind) = prepare(stream, OFlags::RDONLY)?;
        if kind == Kind::File {
            return Ok(Inlet::File(Reading::new(stream)));
        }
        let again = stream.try_clone()?;
        match Receiver::from_owned_fd_unchecked(stream) {
            Ok(stream) => Ok(Inlet::Stream { stream, kind, asked: false }),
            Err(e) if is_always_ready(&e) => Ok(Inlet::File(Reading::new(again))),
            Err(e) => Err(e),
        }
    }

    /// Takes in what the host has said, once it has said something. False at the end.
    pub(super) async fn read(&mut self, frames: &mut Frames) -> io::Result<bool> {
        let (stream, kind, asked) = match self {
            Inlet::Stream { stream, kind, asked } => (&*stream, *kind, asked),
            Inlet::File(reading) => return reading.next(frames).await,
        };
        // What was there before it could be waited for is not always told, and of some never.
        let asks = !std::mem::replace(asked, true) || kind == Kind::Other;
        if asks && let Ok(count) = take(stream, kind, frames) {
            return Ok(count > 0);
        }
        loop {
            stream.readable().await?;
            let mut taken = None;
            let tried = stream.try_io(|| {
                let count = take(stream, kind, frames)?;
                taken = Some(count);
                // A short piece was all there was, and whatever comes after it is news; said like
                // this, it is waited for without asking once more.
                let drained = (1..PIECE).contains(&count) && kind != Kind::Other;
                if drained { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match (taken, tried) {
                (Some(count), _) => return Ok(count > 0),
                (None, Err(e)) if is_later(&e) => {}
                (None, Err(e)) => return Err(e),
                (None, Ok(())) => {}
            }
        }
    }
}

/// A stream, for the next program that this process becomes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Carried {
    number: RawFd,
    kind: Kind,
    /// What was read of a file and not taken yet.
    read: Option<Bytes>,
}

impl Inlet {
    /// Waits for what is being read. Nothing is lost if this is dropped before it is done.
    pub(super) async fn settle(&mut self) {
        if let Inlet::File(reading) = self {
            // What cannot be read has ended, and that is found again.
            let _unreadable = reading.settle().await;
        }
    }

    /// For the next program. `None` while it is being read.
    pub(super) fn carry(&self, keep: &mut Vec<RawFd>) -> Option<Carried> {
        let (number, kind, read) = match self {
            Inlet::Stream { stream, kind, .. } => (stream.as_raw_fd(), *kind, None),
            Inlet::File(Reading { task: Some(_), .. }) => return None,
            Inlet::File(reading) => {
                let read = reading.read.clone().map(Bytes);
                (reading.file.as_raw_fd(), Kind::File, read)
            }
        };
        keep.push(number);
        Some(Carried { number, kind, read })
    }

    pub(super) fn carried(from: Carried) -> io::Result<Inlet> {
        let stream = contain::inherited(from.number).ok_or(ErrorKind::NotFound)?;
        Ok(match from.kind {
            Kind::File => {
                let read = from.read.map(|bytes| bytes.0);
                Inlet::File(Reading { read, ..Reading::new(stream) })
            }
            kind => {
                let stream = Receiver::from_owned_fd_unchecked(stream)?;
                Inlet::Stream { stream, kind, asked: false }
            }
        })
    }

    /// Returns when nobody will write to it any more, whatever of it has not been read.
    pub(super) async fn hung_up(&self) {
        if let Inlet::Stream { stream, .. } = self
            && wait_for_hang_up(stream).await.is_ok()
        {
            return;
        }
        // A file has an end, and that is read.
        std::future::pending().await
    }
}

async fn wait_for_hang_up(stream: &Receiver) -> io::Result<()> {
    // The stream itself is ready for as long as there is something to read. A second descriptor has
    // a readiness of its own, which can be forgotten without reading.
    let again = Receiver::from_owned_fd_unchecked(stream.as_fd().try_clone_to_owned()?)?;
    while !again.ready(Interest::READABLE).await?.is_read_closed() {
        let _forgotten = again.try_io(|| Err::<(), _>(ErrorKind::WouldBlock.into()));
    }
    Ok(())
}

/// Reads what is there.
fn take(stream: impl AsFd, kind: Kind, frames: &mut Frames) -> io::Result<usize> {
    SPACE.with_borrow_mut(|space| {
        let count = match kind {
            Kind::Socket => rustix::net::recv(stream, &mut **space, RecvFlags::DONTWAIT)?.1,
            _ => rustix::io::read(stream, &mut **space)?,
        };
        frames.feed(&space[..count]).map_err(|_| ErrorKind::FileTooLarge)?;
        Ok(count)
    })
}

/// What a host hears.
#[derive(Debug)]
pub(super) enum Outlet {
    Stream { stream: Sender, kind: Kind },
    File(File),
}

impl Outlet {
    /// Prepares a host's stream for writing.
    pub(super) fn new(stream: OwnedFd) -> io::Result<Outlet> {
        let (stream, kind) = prepare(stream, OFlags::WRONLY)?;
        if kind == Kind::File {
            return Ok(Outlet::File(stream.into()));
        }
        let again = stream.try_clone()?;
        match Sender::from_owned_fd_unchecked(stream) {
            Ok(stream) => Ok(Outlet::Stream { stream, kind }),
            Err(e) if is_always_ready(&e) => Ok(Outlet::File(again.into())),
            Err(e) => Err(e),
        }
    }

    /// For the next program.
    pub(super) fn carry(&self, keep: &mut Vec<RawFd>) -> Carried {
        let (number, kind) = match self {
            Outlet::Stream { stream, kind } => (stream.as_raw_fd(), *kind),
            Outlet::File(file) => (file.as_raw_fd(), Kind::File),
        };
        keep.push(number);
        Carried { number, kind, read: None }
    }

    pub(super) fn carried(from: Carried) -> io::Result<Outlet> {
        let stream = contain::inherited(from.number).ok_or(ErrorKind::NotFound)?;
        Ok(match from.kind {
            Kind::File => Outlet::File(stream.into()),
            kind => Outlet::Stream { stream: Sender::from_owned_fd_unchecked(stream)?, kind },
        })
    }

    /// Writes all of it beyond what is written, as soon as the host takes it. If this is dropped before
    /// it is done, it can be called again.
    pub(super) async fn write(&self, bytes: &[u8], written: &mut usize) -> io::Result<()> {
        let (stream, kind) = match self {
            Outlet::Stream { stream, kind } => (stream, *kind),
            Outlet::File(file) => {
                (&*file).write_all(&bytes[*written..])?;
                *written = bytes.len();
                return Ok(());
            }
        };
        while *written < bytes.len() {
            let rest = &bytes[*written..];
            stream.writable().await?;
            let count = stream.try_io(|| {
                Ok(match kind {
                    Kind::Socket => {
                        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                        rustix::net::send(stream, rest, flags)?
                    }
                    _ => rustix::io::write(stream, rest)?,
                })
            });
            match count {
                Ok(count) => *written += count,
                Err(e) if is_later(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Returns when nobody will read it any more, where that can be seen without writing.
    pub(super) async fn refused(&self) {
        if let Outlet::Stream { stream, .. } = self
            && stream.ready(Interest::ERROR).await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
