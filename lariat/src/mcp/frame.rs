//! Newline-delimited frames, cut from bytes as they arrive.

/// A longer line is not a message we asked for.
const LONGEST: usize = 64 << 20;

/// What is read at once, at least. An idle connection holds no more than this.
const PIECE: usize = 2 << 10;

/// What is read at once where there is much to read.
const MUCH: usize = 32 << 10;

/// A buffer that has grown beyond this is given back when it is empty.
const KEPT: usize = 16 << 10;

/// A line was longer than anything we would keep.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Collects bytes and gives back whole lines.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    buffer: Vec<u8>,
    /// Lines up to here were given out.
    given: usize,
    /// Bytes up to here were searched and hold no newline.
    searched: usize,
}

impl Frames {
    /// Takes in what was read.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        self.compact();
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() > LONGEST { Err(TooLong) } else { Ok(()) }
    }

    /// Where to read the next bytes to, behind what is there. It grows with the line.
    pub(crate) fn room(&mut self) -> Result<&mut Vec<u8>, TooLong> {
        // What was read last filled all there was to fill, so there is probably more.
        let much = self.given > 0 && self.buffer.len() == self.buffer.capacity();
        self.compact();
        if self.buffer.len() > LONGEST {
            return Err(TooLong);
        }
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT && !much {
            self.buffer = Vec::new();
        }
        self.buffer.reserve(if much { MUCH } else { PIECE });
        Ok(&mut self.buffer)
    }

    /// What came after the last newline, if anything: a peer that closed in the middle of a line,
    /// or that does not end its last one.
    pub(crate) fn rest(mut self) -> Option<Vec<u8>> {
        self.compact();
        (!self.buffer.is_empty()).then_some(self.buffer)
    }

    /// True if nothing is left in it that was not given out.
    pub(crate) fn is_empty(&self) -> bool {
        self.given == self.buffer.len()
    }

    /// What is in it and was not given out.
    pub(crate) fn waiting(&self) -> &[u8] {
        &self.buffer[self.given..]
    }

    /// One in which this is.
    pub(crate) fn of(bytes: Vec<u8>) -> Frames {
        Frames { buffer: bytes, given: 0, searched: 0 }
    }

    fn compact(&mut self) {
        self.buffer.drain(..self.given);
        self.searched -= self.given;
        self.given = 0;
    }

    /// The next whole line, without its end.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        let at = self.buffer[self.searched..].iter().position(|b| *b == b'\n');
        let Some(at) = at.map(|at| at + self.searched) else {
            self.searched = self.buffer.len();
            return None;
        };
        let whole = self.given == 0 && at + 1 == self.buffer.len();
        let mut line = if whole && at > KEPT {
            // A long line is handed over, not copied.
            let mut line = std::mem::take(&mut self.buffer);
            self.searched = 0;
            line.truncate(at);
            line
        } else {
            let line = self.buffer[self.given..at].to_vec();
            (self.given, self.searched) = (at + 1, at + 1);
            line
        };
        line.pop_if(|b| *b == b'\r');
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::{self, Dice};
    use std::time::Instant;

    #[test]
    fn lines_come_out_however_they_went_in() {
        let text = b"one\r\n\ntwo\nthree";
        for size in 1..text.len() {
            let mut frames = Frames::default();
            let mut lines = Vec::new();
            for piece in text.chunks(size) {
                frames.feed(piece).unwrap();
                lines.extend(std::iter::from_fn(|| frames.next()));
            }
            assert_eq!(lines, [&b"one"[..], b"", b"two"], "pieces of {size}");
            assert_eq!(frames.rest().as_deref(), Some(&b"three"[..]));
        }
    }

    #[test]
    fn a_long_line_leaves_no_big_buffer_behind() {
        let mut frames = Frames::default();
        for length in [1 << 20, 3, KEPT + 1, 0, 1 << 20] {
            for more in [&b"\n"[..], b"\nnext\n"] {
                frames.room().unwrap().extend(std::iter::repeat_n(b'x', length));
                assert_eq!(frames.next(), None);
                frames.room().unwrap().extend_from_slice(more);
                assert_eq!(frames.next().unwrap().len(), length);
                assert_eq!(frames.next().is_some(), more.len() > 1);
                assert_eq!(frames.next(), None);
                assert!(frames.room().unwrap().capacity() <= KEPT);
            }
        }
        assert_eq!(frames.rest(), None);
    }

    #[test]
    fn a_line_that_never_ends_is_too_long() {
        let mut frames = Frames::default();
        frames.room().unwrap().resize(LONGEST, b'x');
        assert_eq!(frames.next(), None);
        frames.room().unwrap().push(b'x');
        assert_eq!(frames.room(), Err(TooLong));
    }

    /// However the bytes arrive and whenever somebody looks, the lines are those that a splitter
    /// finds who has them all at once.
    #[test]
    fn lines_are_what_a_plain_splitter_finds() {
        let end = dice::enough(0);
        let mut dice = Dice(0x2545_f491_4f6c_dd1d);
        let mut round = 0;
        while round < 200 || Instant::now() < end {
            round += 1;
            let mut frames = Frames::default();
            let (mut all, mut lines) = (Vec::new(), Vec::new());
            for _ in 0..dice.next(30) {
                let longest = [4, 40, 2 * PIECE, 2 * KEPT][dice.next(4)];
                let most = [8, longest][dice.next(2)];
                let ends = 1 + dice.next(most);
                let byte = |dice: &mut Dice| match dice.next(ends) {
                    0 => b'\n',
                    1 => b'\r',
                    _ => b'a' + dice.next(26) as u8,
                };
                let piece: Vec<u8> = (0..dice.next(longest)).map(|_| byte(&mut dice)).collect();
                all.extend_from_slice(&piece);
                match dice.next(2) {
                    0 => frames.feed(&piece).unwrap(),
                    _ => frames.room().unwrap().extend_from_slice(&piece),
                }
                lines.extend(std::iter::from_fn(|| frames.next()).take(dice.next(20)));
            }
            lines.extend(std::iter::from_fn(|| frames.next()));
            let mut expected: Vec<&[u8]> = all.split(|byte| *byte == b'\n').collect();
            let rest = expected.pop().filter(|rest| !rest.is_empty());
            let ended = expected.iter().map(|line| line.strip_suffix(b"\r").unwrap_or(line));
            assert!(ended.eq(lines.iter().map(|line| &**line)), "round {round}");
            assert_eq!(frames.rest().as_deref(), rest, "round {round}");
        }
    }
}
