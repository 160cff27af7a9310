//! The host's streams on macOS: what `/dev/fd` opens shares its flags with the host, so nothing can be
//! opened anew.

use rustix::net::SendFlags;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A pipe that is ready takes at least this much.
pub(super) const PIPE_BUF: usize = 512;

/// How a socket is written. There is no flag against SIGPIPE, which is ignored from the start of a
/// Rust program.
pub(super) const SEND: SendFlags = SendFlags::DONTWAIT;

/// There is no way.
pub(super) fn reopen(_stream: BorrowedFd<'_>) -> Option<OwnedFd> {
    None
}
