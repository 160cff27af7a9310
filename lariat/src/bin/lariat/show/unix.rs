//! Words on stderr that nobody need read. It may be a host's pipe that is full, and a wrapper with something to say
//! about the end has to end all the same.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// As much as a pipe takes at once if it takes anything.
const PIECE: usize = 512;

/// How long somebody may take to read what is before this.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

pub(super) fn say(text: &str) {
    let stderr = rustix::stdio::stderr();
    let mut left = text.as_bytes();
    while !left.is_empty() {
        let mut fds = [PollFd::from_borrowed_fd(stderr, PollFlags::OUT)];
        let written = match poll(&mut fds, Some(&PATIENCE)) {
            Ok(0) => return,
            Ok(_) => rustix::io::write(stderr, &left[..left.len().min(PIECE)]),
            Err(e) => Err(e),
        };
        match written {
            Ok(n) => left = &left[n..],
            Err(Errno::INTR | Errno::AGAIN) => {}
            // If stderr is closed there is nobody to tell; the exit code still says it.
            Err(_) => return,
        }
    }
}
