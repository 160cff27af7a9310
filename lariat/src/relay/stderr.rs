//! The server's stderr, always drained: to its log, and to the host as fast as the host reads.
//!
//! Some hosts never read a server's stderr; a server that writes to it then hangs for ever. Here a
//! host that reads gets every byte, at its own pace. One that takes nothing for a moment while a
//! backlog waits has stalled: from then on what comes is dropped for it, counted, and only in the
//! log, and the server never waits.

use super::outlet::Outlet;
use crate::journal::Journal;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How much waits for a host that does not read.
const BACKLOG: usize = 256 << 10;

/// How much is remembered for an owner who asks what the server last said.
const LAST_WORDS: usize = 2048;

/// A host that takes nothing for this long has stalled.
const STALL: Duration = Duration::from_millis(250);

/// The drain of one server's stderr.
#[derive(Debug)]
pub(crate) struct Drain {
    source: Option<OwnedFd>,
    host: Option<Outlet>,
    log: Option<Journal>,
    /// The end of what passed, if somebody may ask for it.
    remembered: Option<Vec<u8>>,
    backlog: Vec<u8>,
    dropped: u64,
    /// When the host last took something, or had nothing to take.
    moved: Instant,
    stalled: bool,
}

impl Drain {
    /// `source` is non-blocking. Without a host stream or a log the bytes are still taken.
    pub(crate) fn new(source: OwnedFd, host: Option<Outlet>, log: Option<Journal>) -> Drain {
        Drain {
            source: Some(source),
            host,
            log,
            remembered: None,
            backlog: Vec::new(),
            dropped: 0,
            moved: Instant::now(),
            stalled: false,
        }
    }

    /// The same, with a memory for last words.
    pub(crate) fn remembering(self) -> Drain {
        Drain { remembered: Some(Vec::new()), ..self }
    }

    /// The last that the server said, if that was remembered.
    pub(crate) fn last_words(&self) -> String {
        String::from_utf8_lossy(self.remembered.as_deref().unwrap_or_default()).trim().into()
    }

    /// The reading end, for whoever drains after us.
    pub(crate) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.source.as_ref().map(AsFd::as_fd)
    }

    /// Bytes from the server, unless a host that reads has to catch up first.
    pub(crate) fn interest(&self) -> Option<PollFd<'_>> {
        self.source.as_ref().filter(|_| !self.is_full()).map(|s| PollFd::new(s, PollFlags::IN))
    }

    fn is_full(&self) -> bool {
        self.backlog.len() >= BACKLOG && !self.stalled
    }

    /// When a host that has to catch up counts as stalled.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.is_full().then_some(self.moved + STALL)
    }

    /// Stops waiting for a host that takes nothing.
    pub(crate) fn notice_stall(&mut self) {
        self.stalled |= self.is_full() && self.moved.elapsed() >= STALL;
    }

    /// Room at the host, while something waits for it.
    pub(crate) fn host_interest(&self) -> Option<PollFd<'_>> {
        let waiting = !self.backlog.is_empty();
        self.host.as_ref().filter(|_| waiting).map(|h| PollFd::new(h, PollFlags::OUT))
    }

    /// Takes what is there; true if there may be more.
    pub(crate) fn take(&mut self) -> bool {
        let mut buffer = [0u8; 16 << 10];
        // Bounded, so that a flood cannot keep the caller from its other work.
        for _ in 0..16 {
            let Some(source) = self.source.as_ref().filter(|_| !self.is_full()) else {
                return false;
            };
            match rustix::io::read(source, &mut buffer) {
                Ok(0) => self.source = None,
                Ok(n) => self.pass(&buffer[..n]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Err(_) => self.source = None,
            }
        }
        true
    }

    /// Says something of our own, where the server's words go.
    pub(crate) fn remark(&mut self, words: &str) {
        self.pass(words.as_bytes());
    }

    /// Takes everything that is there, for the last time: at most what a pipe holds.
    pub(crate) fn take_all(&mut self) {
        let mut buffer = [0u8; 16 << 10];
        while let Some(source) = &self.source {
            match rustix::io::read(source, &mut buffer) {
                Ok(0) => self.source = None,
                Ok(n) => self.pass(&buffer[..n]),
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn pass(&mut self, bytes: &[u8]) {
        if let Some(remembered) = &mut self.remembered {
            remembered.extend_from_slice(bytes);
            let extra = remembered.len().saturating_sub(LAST_WORDS);
            remembered.drain(..extra);
        }
        if let Some(log) = &mut self.log
            && log.append(bytes).is_err()
        {
            // A full disk is no reason to stop draining.
            self.log = None;
        }
        if self.host.is_none() {
            return;
        }
        if self.backlog.is_empty() {
            self.moved = Instant::now();
        }
        if self.stalled {
            self.dropped += bytes.len() as u64;
        } else {
            self.backlog.extend_from_slice(bytes);
        }
        self.flush();
    }

    /// Gives the host what it will take.
    pub(crate) fn flush(&mut self) {
        while let (Some(host), false) = (&self.host, self.backlog.is_empty()) {
            match host.write(&self.backlog) {
                Ok(n) => {
                    self.backlog.drain(..n);
                    (self.moved, self.stalled) = (Instant::now(), false);
                }
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.host = None;
                    self.backlog = Vec::new();
                    return;
                }
            }
            if self.backlog.is_empty() && self.dropped > 0 {
                let note = format!(
                    "\nlariat: {} bytes of stderr were dropped because the host did not read; \
                     they are in the server's log\n",
                    std::mem::take(&mut self.dropped)
                );
                self.backlog.extend_from_slice(note.as_bytes());
            }
        }
        if self.backlog.is_empty() && self.backlog.capacity() > 4096 {
            self.backlog = Vec::new();
        }
    }
}
