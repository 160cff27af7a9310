//! The packet socket between owner, holder and guardian.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// A packet longer than this is not ours.
const LONGEST: usize = 512;

/// What a read of the socket gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// One packet.
    Packet(String),
    /// Nothing now.
    Nothing,
    /// The other side is gone, and with it every copy of its end.
    Gone,
}

/// Two connected ends, both close-on-exec and non-blocking.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// How long a packet may wait for the kernel to have room for it.
const ROOM: Duration = Duration::from_secs(1);

/// Sends one packet; false if it could not be sent. The other side being gone is noticed when
/// reading.
pub(crate) fn say(fd: impl AsFd, text: &str) -> bool {
    let bytes = &text.as_bytes()[..text.len().min(LONGEST)];
    let deadline = Instant::now() + ROOM;
    loop {
        match send(&fd, bytes, SendFlags::NOSIGNAL) {
            Ok(_) => return true,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) if Instant::now() < deadline => {
                crate::guardian::wait(&mut [], Some(Instant::now() + Duration::from_millis(2)));
            }
            Err(_) => return false,
        }
    }
}

/// Takes one packet.
pub(crate) fn hear(fd: impl AsFd) -> Received {
    let mut buffer = [0u8; LONGEST];
    loop {
        return match recv(&fd, &mut buffer, RecvFlags::empty()) {
            Ok((0, _)) => Received::Gone,
            Ok((n, _)) => Received::Packet(String::from_utf8_lossy(&buffer[..n]).into_owned()),
            Err(Errno::INTR) => continue,
            // A kernel short of memory has lost nothing: the packet is still there.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => Received::Nothing,
            Err(_) => Received::Gone,
        };
    }
}
