//! Lines from a descriptor, with a time limit: how runner, host and owner talk.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// What came of waiting for a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Text(String),
    End,
    Late,
}

/// Reads lines from a descriptor without ever waiting longer than told.
#[derive(Debug)]
pub(crate) struct Lines<F> {
    from: F,
    pending: Vec<u8>,
}

impl<F: AsFd> Lines<F> {
    pub(crate) fn new(from: F) -> Self {
        Self { from, pending: Vec::new() }
    }

    /// The next line without its newline; what was read before the end counts as a line.
    pub(crate) fn next(&mut self, patience: Duration) -> Line {
        let end = Instant::now() + patience;
        loop {
            if let Some(at) = self.pending.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=at).collect();
                return Line::Text(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            match self.fill(end.saturating_duration_since(Instant::now())) {
                Filled::More => {}
                Filled::End if self.pending.is_empty() => return Line::End,
                Filled::End => self.pending.push(b'\n'),
                Filled::Late => return Line::Late,
            }
        }
    }

    fn fill(&mut self, patience: Duration) -> Filled {
        let fd = self.from.as_fd().as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let ms = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: `poll` is one valid pollfd for the whole call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, ms) };
        if ready == 0 {
            return Filled::Late;
        }
        let mut chunk = [0_u8; 4096];
        // SAFETY: the buffer is writable for its whole length, which is the length given.
        let got = unsafe { libc::read(fd, chunk.as_mut_ptr().cast(), chunk.len()) };
        match usize::try_from(got) {
            Ok(0) => Filled::End,
            Ok(got) => {
                self.pending.extend_from_slice(&chunk[..got]);
                Filled::More
            }
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {
                Filled::More
            }
            Err(_) => Filled::End,
        }
    }
}

enum Filled {
    More,
    End,
    Late,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_come_whole_and_a_silent_writer_is_late() {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        let mut lines = Lines::new(reader);
        writer.write_all(b"one\ntw").expect("written");
        assert_eq!(lines.next(Duration::from_secs(1)), Line::Text("one".into()));
        assert_eq!(lines.next(Duration::ZERO), Line::Late);
        writer.write_all(b"o").expect("written");
        drop(writer);
        assert_eq!(lines.next(Duration::from_secs(1)), Line::Text("two".into()));
        assert_eq!(lines.next(Duration::from_secs(1)), Line::End);
    }
}
