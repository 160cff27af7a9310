//! The socket between owner and guardian: a stream of lines, because local sockets keep no packets
//! apart here.

use crate::lines::{Lines, line};
use crate::sys::wait::wait;
use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long the other side may be too busy to hear.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a read of the socket gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// One word.
    Word(String),
    /// Nothing now.
    Nothing,
    /// The other side is gone, and with it every copy of its end.
    Gone,
}

/// One end.
#[derive(Debug)]
pub(crate) struct Line {
    fd: OwnedFd,
    heard: Lines,
    gone: bool,
}

/// Two connected ends, both close-on-exec. They are not born so: another thread that starts a
/// process at this very moment can hand it a copy. The standard library has the same gap here.
pub(crate) fn pair() -> io::Result<(Line, OwnedFd)> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None)?;
    rustix::io::fcntl_setfd(&ours, FdFlags::CLOEXEC)?;
    rustix::io::fcntl_setfd(&theirs, FdFlags::CLOEXEC)?;
    Ok((Line::new(ours)?, theirs))
}

impl Line {
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Line> {
        rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        // An owner need not ignore SIGPIPE.
        rustix::net::sockopt::set_socket_nosigpipe(&fd, true)?;
        Ok(Line { fd, heard: Lines::default(), gone: false })
    }

    /// Sends one word. What cannot be sent is noticed when reading.
    pub(crate) fn say(&self, word: &str) {
        let bytes = line(word);
        let mut rest = bytes.as_slice();
        let deadline = Instant::now() + PATIENCE;
        while !rest.is_empty() {
            match rustix::io::write(&self.fd, rest) {
                Ok(n) => rest = &rest[n..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) if Instant::now() < deadline => {
                    let soon = Instant::now() + Duration::from_millis(2);
                    wait(&mut [PollFd::new(&self.fd, PollFlags::OUT)], Some(soon));
                }
                Err(_) => return,
            }
        }
    }

    /// Takes one word.
    pub(crate) fn hear(&mut self) -> Received {
        let mut buffer = [0u8; 1024];
        loop {
            if let Some(word) = self.heard.next() {
                return Received::Word(word);
            }
            if self.gone {
                return Received::Gone;
            }
            match rustix::io::read(&self.fd, &mut buffer) {
                Ok(0) => self.gone = true,
                Ok(n) => self.heard.push(&buffer[..n]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Received::Nothing,
                Err(_) => self.gone = true,
            }
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
