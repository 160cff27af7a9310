//! The host's streams on macOS: what `/dev/fd` opens shares its flags with the host, so nothing can be
//! opened anew.

use super::write_if_ready;
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A pipe that is ready takes at least this much, and so does a socket.
pub(super) const PIPE_BUF: usize = 512;

/// Writes to a socket. No flag keeps `send` from waiting here, so it is done as with a pipe; where the kernel has no
/// memory for it just now, that comes back.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    write_if_ready(socket, bytes).map_err(|errno| match errno {
        Errno::NOBUFS => Errno::AGAIN,
        errno => errno,
    })
}

/// There is no way.
pub(super) fn reopen(_stream: BorrowedFd<'_>) -> Option<OwnedFd> {
    None
}
