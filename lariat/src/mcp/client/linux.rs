//! A server's stdin and stdout as descriptors that do not block.

use super::{GLANCE, Moved};
use crate::mcp::frame::Frames;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::os::fd::OwnedFd;

/// The streams of a conversation.
#[derive(Debug)]
pub struct Wire<'a> {
    input: &'a OwnedFd,
    output: &'a OwnedFd,
    frames: Frames,
}

impl<'a> Wire<'a> {
    /// Both streams are non-blocking and ours.
    pub fn new(input: &'a OwnedFd, output: &'a OwnedFd) -> Wire<'a> {
        Wire { input, output, frames: Frames::default() }
    }

    /// Writes what it can, and waits a glance for room if that is nothing.
    pub(super) fn write(&mut self, rest: &mut &[u8]) -> Moved<()> {
        match rustix::io::write(self.input, rest) {
            Ok(n) => *rest = &rest[n..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(self.input, PollFlags::OUT),
            Err(_) => return Moved::Closed,
        }
        if rest.is_empty() { Moved::Done(()) } else { Moved::NotYet }
    }

    /// The next line, after a glance at most.
    pub(super) fn line(&mut self) -> Moved<Vec<u8>> {
        if let Some(line) = self.frames.next() {
            return Moved::Done(line);
        }
        let mut buffer = [0u8; 16 << 10];
        match rustix::io::read(self.output, &mut buffer) {
            Ok(0) => return Moved::Closed,
            Ok(n) if self.frames.feed(&buffer[..n]).is_err() => return Moved::TooLong,
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(self.output, PollFlags::IN),
            Err(_) => return Moved::Closed,
        }
        Moved::NotYet
    }
}

fn wait(fd: &OwnedFd, flags: PollFlags) {
    let glance = Timespec { tv_sec: 0, tv_nsec: GLANCE.as_nanos() as i64 };
    // An interruption is a reason to try again, which the callers do.
    let _interrupted = poll(&mut [PollFd::new(fd, flags)], Some(&glance));
}
