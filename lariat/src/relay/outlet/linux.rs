//! The host's streams on Linux: what `/proc` opens anew is ours alone.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// A pipe that is ready takes at least this much.
pub(super) const PIPE_BUF: usize = 4096;

/// Writes to a socket, without waiting by a flag.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// A description of our own, which does not block.
pub(super) fn reopen(stream: BorrowedFd<'_>) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", stream.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::open(path, flags, Mode::empty()).ok()
}
