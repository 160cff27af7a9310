//! The packet socket between owner, holder and guardian.

use crate::sys::wait::wait;
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

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is on its way.
    Yes,
    /// The other side is gone, which is also noticed when reading.
    Gone,
    /// The kernel would not take it.
    No,
}

/// How long a kernel that is short of memory is given to find some.
const SHORTAGE: Duration = Duration::from_secs(1);

/// Sends one packet.
pub(crate) fn say(fd: impl AsFd, text: &str) -> Sent {
    let bytes = &text.as_bytes()[..text.len().min(LONGEST)];
    let deadline = Instant::now() + SHORTAGE;
    loop {
        match send(&fd, bytes, SendFlags::NOSIGNAL) {
            Ok(_) => return Sent::Yes,
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Sent::Gone,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) if Instant::now() < deadline => {
                a_moment();
            }
            Err(_) => return Sent::No,
        }
    }
}

/// Takes one packet.
pub(crate) fn hear(fd: impl AsFd) -> Received {
    let mut buffer = [0u8; LONGEST];
    let (mut deadline, mut reset) = (None, false);
    loop {
        return match recv(&fd, &mut buffer, RecvFlags::empty()) {
            Ok((0, _)) => Received::Gone,
            Ok((n, _)) => Received::Packet(String::from_utf8_lossy(&buffer[..n]).into_owned()),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Received::Nothing,
            // It left without having heard all that we said. What it said itself is still there.
            Err(Errno::CONNRESET) if !std::mem::replace(&mut reset, true) => continue,
            // The packet is still there; but who can never hear again must act as if alone.
            Err(Errno::NOBUFS | Errno::NOMEM) => {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + SHORTAGE);
                if Instant::now() < deadline {
                    a_moment();
                    continue;
                }
                Received::Gone
            }
            Err(_) => Received::Gone,
        };
    }
}

fn a_moment() {
    wait(&mut [], Some(Instant::now() + Duration::from_millis(2)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_heard_from_who_did_not_listen() {
        let (ours, theirs) = pair().expect("a pair");
        assert_eq!(say(&ours, "closed"), Sent::Yes);
        assert_eq!(say(&theirs, "not-executed 2"), Sent::Yes);
        drop(theirs);
        assert!(matches!(hear(&ours), Received::Packet(text) if text == "not-executed 2"));
        assert!(matches!(hear(&ours), Received::Gone));
    }
}
