//! Newline-delimited frames, cut from bytes as they arrive.

/// A longer line is not a message we asked for.
const LONGEST: usize = 64 << 20;

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
        self.buffer.drain(..self.given);
        self.searched -= self.given;
        self.given = 0;
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() > LONGEST { Err(TooLong) } else { Ok(()) }
    }

    /// The next whole line, without its end.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        let at = self.buffer[self.searched..].iter().position(|b| *b == b'\n');
        let Some(at) = at.map(|at| at + self.searched) else {
            self.searched = self.buffer.len();
            return None;
        };
        let mut line = self.buffer[self.given..at].to_vec();
        (self.given, self.searched) = (at + 1, at + 1);
        line.pop_if(|b| *b == b'\r');
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(&frames.buffer[frames.given..], b"three");
        }
    }
}
