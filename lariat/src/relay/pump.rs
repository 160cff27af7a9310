//! One direction of a conversation: bytes as they come, never held whole, never changed.

use super::outlet::Sink;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// As much as a pipe holds: one read takes what one write gave.
const BUFFER: usize = 64 << 10;

/// What a pump has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// It goes on.
    Open,
    /// The source has ended; what is buffered still has to go out.
    Draining,
    /// The source has ended and everything has gone out.
    Closed,
    /// There is nobody left to take it.
    Refused,
}

/// A source, a sink and at most one buffer of bytes between them.
#[derive(Debug)]
pub(crate) struct Pump {
    source: Option<OwnedFd>,
    sink: Option<Sink>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    refused: bool,
}

impl Pump {
    pub(crate) fn new(source: OwnedFd, sink: Sink) -> Pump {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Pump { source: Some(source), sink: Some(sink), buffer, start: 0, end: 0, refused: false }
    }

    pub(crate) fn flow(&self) -> Flow {
        match (&self.source, &self.sink) {
            (_, None) if self.refused => Flow::Refused,
            (_, None) => Flow::Closed,
            (None, Some(_)) => Flow::Draining,
            (Some(_), Some(_)) => Flow::Open,
        }
    }

    /// True while bytes wait for room.
    pub(crate) fn is_pending(&self) -> bool {
        self.start < self.end
    }

    /// What to wait for: room if there are bytes, bytes if there is room. While bytes are waiting
    /// the source is not read: the pressure goes back to whoever writes too fast.
    pub(crate) fn interest(&self) -> Option<PollFd<'_>> {
        let sink = self.sink.as_ref()?;
        if self.is_pending() {
            return Some(sink.room());
        }
        self.source.as_ref().map(|source| PollFd::new(source, PollFlags::IN))
    }

    /// The sink, to be watched for hang-up while nothing is written to it.
    pub(crate) fn sink_watch(&self) -> Option<PollFd<'_>> {
        self.sink.as_ref().filter(|_| !self.is_pending())?.hang_up()
    }

    /// Moves what can be moved without waiting. Called when the interest is ready.
    pub(crate) fn turn(&mut self) {
        if self.start == self.end {
            self.fill();
        }
        self.empty();
    }

    /// Reads and writes until the source has nothing now or has ended. For the last words.
    pub(crate) fn exhaust(&mut self) {
        loop {
            let before = (self.start, self.end, self.flow());
            self.turn();
            if self.is_pending() || (self.start, self.end, self.flow()) == before {
                return;
            }
        }
    }

    /// Nobody takes it any more: let the source see that its reader is gone.
    pub(crate) fn refuse(&mut self) {
        (self.source, self.sink) = (None, None);
        (self.start, self.refused) = (self.end, true);
    }

    /// Takes no more from the source. What is buffered still goes out.
    pub(crate) fn stop(&mut self) {
        self.source = None;
        self.empty();
    }

    fn fill(&mut self) {
        let Some(source) = &self.source else {
            return;
        };
        match rustix::io::read(source, &mut self.buffer[..]) {
            Ok(0) => self.source = None,
            Ok(n) => (self.start, self.end) = (0, n),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.source = None,
        }
    }

    fn empty(&mut self) {
        if self.start < self.end {
            let bytes = &self.buffer[self.start..self.end];
            match self.sink.as_ref().map_or(Ok(bytes.len()), |sink| sink.write(bytes)) {
                Ok(n) => self.start += n,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => self.refuse(),
            }
        }
        if self.source.is_none() && self.start == self.end {
            self.sink = None;
        }
    }
}
