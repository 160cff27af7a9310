//! Writing without ever waiting, to the server's pipe or to a stream that belongs to the host.
//!
//! The host's descriptors are shared with the host and perhaps with its other children, so their
//! flags are not ours to change. A pipe or terminal is opened anew where that gives a description of
//! our own; a socket has a per-call flag where the platform heeds it; a file never blocks.

#[cfg(target_os = "linux")]
#[path = "outlet/linux.rs"]
mod os;
#[cfg(target_os = "macos")]
#[path = "outlet/macos.rs"]
mod os;

use os::{PIPE_BUF, reopen, send};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Where the bytes of one direction go.
#[derive(Debug)]
pub(crate) enum Sink {
    /// A pipe of ours, non-blocking.
    Own(OwnedFd),
    /// The host's stream.
    Host(Outlet),
}

impl Sink {
    /// Writes what fits. `AGAIN` means nothing does.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        match self {
            Sink::Own(fd) => rustix::io::write(fd, bytes),
            Sink::Host(outlet) => outlet.write(bytes),
        }
    }

    /// To wait for room.
    pub(super) fn room(&self) -> PollFd<'_> {
        match self {
            Sink::Own(fd) => PollFd::new(fd, PollFlags::OUT),
            Sink::Host(outlet) => PollFd::new(outlet, PollFlags::OUT),
        }
    }

    /// To be told that the host has hung up, while nothing is written to it.
    pub(super) fn hang_up(&self) -> Option<PollFd<'_>> {
        match self {
            Sink::Own(_) => None,
            Sink::Host(outlet) => Some(PollFd::new(outlet, PollFlags::empty())),
        }
    }
}

/// How this stream is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Ours: non-blocking.
    Reopened,
    /// A socket: as the platform lets one be written without waiting.
    Socket,
    /// A file: does not block.
    File,
    /// Something else: written in small pieces, only when it says it is ready.
    Careful,
}

/// A stream of the host's, written without waiting.
#[derive(Debug)]
pub(crate) struct Outlet {
    fd: OwnedFd,
    kind: Kind,
}

impl Outlet {
    /// Prepares a stream. The original descriptor can be closed afterwards.
    pub(crate) fn new(stream: BorrowedFd<'_>) -> Result<Outlet, Errno> {
        let kind = match FileType::from_raw_mode(rustix::fs::fstat(stream)?.st_mode) {
            FileType::Socket => Kind::Socket,
            FileType::RegularFile | FileType::BlockDevice => Kind::File,
            _ => match reopen(stream) {
                Some(fd) => return Ok(Outlet { fd, kind: Kind::Reopened }),
                None => Kind::Careful,
            },
        };
        Ok(Outlet { fd: rustix::io::fcntl_dupfd_cloexec(stream, 3)?, kind })
    }

    /// Writes what fits. `AGAIN` means nothing does; poll for readiness and come back.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        loop {
            let written = match self.kind {
                Kind::Reopened | Kind::File => rustix::io::write(&self.fd, bytes),
                Kind::Socket => send(self.fd.as_fd(), bytes),
                Kind::Careful => write_if_ready(self.fd.as_fd(), bytes),
            };
            if written != Err(Errno::INTR) {
                return written;
            }
        }
    }
}

/// Writes as little as cannot wait, if it says that it is ready.
fn write_if_ready(stream: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    let mut fds = [PollFd::from_borrowed_fd(stream, PollFlags::OUT)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    if !rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0) {
        return Err(Errno::AGAIN);
    }
    rustix::io::write(stream, &bytes[..bytes.len().min(PIPE_BUF)])
}

impl AsFd for Outlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
