//! One direction of a conversation that is looked at: bytes go on as they come, or stop here as
//! lines when somebody has to decide about each.
//!
//! What is said in between (to the host in the server's place, or the other way round) goes where a
//! line ends, never into one.

use super::outlet::Sink;
use crate::mcp::lookout::{Lookout, Sight};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// As much as a pipe holds: one read takes what one write gave.
const BUFFER: usize = 64 << 10;

/// A source, a sink, and what is on its way between them.
#[derive(Debug)]
pub(super) struct Duct {
    source: Option<OwnedFd>,
    sink: Option<Sink>,
    out: Vec<u8>,
    /// Bytes of `out` that have gone.
    gone: usize,
    lookout: Lookout,
    /// True while bytes go on as they come.
    through: bool,
    /// The same from the next line on.
    wanted: bool,
    /// What is to be said when the line that is passing has ended.
    later: Vec<u8>,
    refused: bool,
}

impl Duct {
    pub(super) fn new(source: Option<OwnedFd>, sink: Option<Sink>, through: bool) -> Duct {
        Duct {
            source,
            sink,
            out: Vec::new(),
            gone: 0,
            lookout: Lookout::default(),
            through,
            wanted: through,
            later: Vec::new(),
            refused: false,
        }
    }

    /// Another server is at this end.
    pub(super) fn set_source(&mut self, source: OwnedFd) {
        (self.source, self.lookout) = (Some(source), Lookout::default());
    }

    /// Another server is at this end. What the last one did not take is not for this one.
    pub(super) fn set_sink(&mut self, sink: Sink) {
        self.drop_sink();
        (self.sink, self.refused) = (Some(sink), false);
    }

    /// Closes the end to which bytes go.
    pub(super) fn drop_sink(&mut self) {
        self.sink = None;
        self.forget_gone();
    }

    /// Takes no more.
    pub(super) fn drop_source(&mut self) {
        self.source = None;
    }

    /// True once the source has nothing more to say, ever.
    pub(super) fn has_ended(&self) -> bool {
        self.source.is_none()
    }

    /// True if there is nobody left to take what comes.
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// True while bytes wait for room.
    pub(super) fn is_pending(&self) -> bool {
        self.gone < self.out.len()
    }

    /// True if neither a line is half seen nor anything on its way.
    pub(super) fn is_at_rest(&self) -> bool {
        self.lookout.is_between_lines() && !self.is_pending() && self.later.is_empty()
    }

    /// What to wait for: room if there are bytes, bytes if there is room.
    pub(super) fn interest(&self) -> Option<PollFd<'_>> {
        match &self.sink {
            Some(sink) if self.is_pending() => Some(sink.room()),
            _ => self.source.as_ref().map(|source| PollFd::new(source, PollFlags::IN)),
        }
    }

    /// The sink, to be watched for hang-up while nothing is written to it.
    pub(super) fn sink_watch(&self) -> Option<PollFd<'_>> {
        self.sink.as_ref().filter(|_| !self.is_pending())?.hang_up()
    }

    /// Moves what can be moved without waiting. Each line is shown; where lines stop, one goes on
    /// only if `see` says so. True if the source had something to say.
    pub(super) fn turn(&mut self, see: &mut dyn FnMut(&Sight<'_>) -> bool) -> bool {
        if self.is_pending() {
            self.flush();
            return false;
        }
        self.forget_gone();
        self.out.shrink_to(BUFFER);
        let Some(source) = &self.source else { return false };
        self.out.reserve(BUFFER);
        let read = rustix::io::read(source, spare_capacity(&mut self.out));
        match read {
            Ok(0) => self.end(see),
            Ok(_) if self.through && self.wanted && self.later.is_empty() => {
                // On its way first, looked at afterwards.
                self.flush();
                self.lookout.look(&self.out, false, |sight| _ = see(&sight));
            }
            Ok(_) => {
                self.sort(see);
                self.flush();
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.end(see),
        }
        read.is_ok_and(|count| count > 0)
    }

    /// Takes what is there until there is no more, or no room. For the last words.
    pub(super) fn exhaust(&mut self, see: &mut dyn FnMut(&Sight<'_>) -> bool) {
        self.flush();
        // What is not passed on was said all the same: more may follow it.
        while !self.is_pending() && self.turn(see) {}
    }

    /// Nobody takes it any more: let the source see that its reader is gone.
    pub(super) fn refuse(&mut self) {
        (self.source, self.refused) = (None, true);
        self.drop_sink();
    }

    /// Says something of our own, when no line is passing.
    pub(super) fn say(&mut self, line: &[u8]) {
        if self.through && !self.lookout.is_between_lines() {
            self.later.extend_from_slice(line);
        } else {
            if !self.is_pending() {
                self.forget_gone();
            }
            self.out.extend_from_slice(line);
            self.flush();
        }
    }

    fn forget_gone(&mut self) {
        self.out.clear();
        self.gone = 0;
    }

    /// From now on bytes go on as they come, or stop here. A line that is passing passes.
    pub(super) fn set_through(&mut self, through: bool) {
        self.wanted = through;
        if through && !self.through {
            let partial = self.lookout.partial().to_vec();
            self.through = true;
            if !partial.is_empty() {
                if !self.is_pending() {
                    self.forget_gone();
                }
                self.out.extend_from_slice(&partial);
                self.flush();
            }
        } else if !through && self.lookout.is_between_lines() {
            self.through = false;
        }
    }

    /// Bytes have come while something is to be said, or while lines stop here.
    fn sort(&mut self, see: &mut dyn FnMut(&Sight<'_>) -> bool) {
        let come = std::mem::take(&mut self.out);
        let mut rest = come.as_slice();
        if self.through {
            // The line that was passing when there was something to say, and no more.
            let end = come.iter().position(|b| *b == b'\n').map_or(come.len(), |at| at + 1);
            let (line, after) = rest.split_at(end);
            self.out.extend_from_slice(line);
            self.lookout.look(line, false, |sight| _ = see(&sight));
            if !self.lookout.is_between_lines() {
                return;
            }
            self.out.append(&mut self.later);
            self.through = self.wanted;
            rest = after;
        }
        if self.through {
            self.out.extend_from_slice(rest);
            self.lookout.look(rest, false, |sight| _ = see(&sight));
        } else {
            let out = &mut self.out;
            self.lookout.look(rest, true, |sight| {
                if let (true, Sight::Line(line)) = (see(&sight), &sight) {
                    out.extend_from_slice(line);
                }
            });
        }
    }

    /// The source is closed. A last line without an end is a line.
    fn end(&mut self, see: &mut dyn FnMut(&Sight<'_>) -> bool) {
        self.source = None;
        if !self.through && !self.lookout.partial().is_empty() {
            let last = self.lookout.partial().to_vec();
            self.lookout = Lookout::default();
            if see(&Sight::Line(&last)) {
                self.out.extend_from_slice(&last);
            }
        }
        self.out.append(&mut self.later);
        self.flush();
    }

    /// Gives what is taken.
    pub(super) fn flush(&mut self) {
        while self.is_pending() {
            let bytes = &self.out[self.gone..];
            match self.sink.as_ref().map_or(Ok(bytes.len()), |sink| sink.write(bytes)) {
                Ok(n) => self.gone += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    (self.sink, self.refused) = (None, true);
                    self.gone = self.out.len();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

    /// A duct between two pipes, and their other ends.
    fn duct(through: bool) -> (OwnedFd, Duct, OwnedFd) {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let ((source, to), (from, sink)) = (pipe_with(flags).unwrap(), pipe_with(flags).unwrap());
        // A server may ask for a larger pipe than one read takes.
        fcntl_setpipe_size(&to, 4 * BUFFER).unwrap();
        (to, Duct::new(Some(source), Some(Sink::Own(sink)), through), from)
    }

    fn take(from: &OwnedFd) -> Vec<u8> {
        let mut taken = Vec::with_capacity(4 * BUFFER);
        rustix::io::read(from, spare_capacity(&mut taken)).unwrap();
        taken
    }

    #[test]
    fn last_words_arrive_though_others_before_them_do_not() {
        let (to, mut duct, from) = duct(false);
        let lines = ["x".repeat(2 * BUFFER), "\nlast\n".into()].concat();
        assert_eq!(rustix::io::write(&to, lines.as_bytes()), Ok(lines.len()));
        duct.exhaust(&mut |sight| matches!(sight, Sight::Line(b"last\n")));
        assert_eq!(take(&from), b"last\n");
    }

    #[test]
    fn last_words_arrive_when_there_is_room_again() {
        let (to, mut duct, from) = duct(true);
        let words = vec![b'x'; 3 * BUFFER];
        assert_eq!(rustix::io::write(&to, &words), Ok(words.len()));
        let mut taken = Vec::new();
        while taken.len() < words.len() {
            duct.exhaust(&mut |_| true);
            let more = take(&from);
            assert!(!more.is_empty());
            taken.extend(more);
        }
        assert_eq!(taken, words);
    }

    #[test]
    fn whoever_speaks_to_nobody_can_see_it() {
        let (to, mut duct, from) = duct(true);
        drop(from);
        assert_eq!(rustix::io::write(&to, b"words\n"), Ok(6));
        duct.turn(&mut |_| true);
        assert!(duct.is_refused());
        duct.refuse();
        assert_eq!(rustix::io::write(&to, b"words\n"), Err(Errno::PIPE));
    }
}
