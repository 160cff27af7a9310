//! Looking at a stream of lines while its bytes pass by.
//!
//! One per direction. A line that comes in one piece is looked at where it lies; one that comes in
//! several is collected, and one that grows too long is only walked through.

use super::outline::{Outline, Walker};
use std::io::BufRead;

/// A longer line is looked at in passing, unless it has to be kept.
pub(crate) const LONG: usize = 256 << 10;

/// A buffer that has grown beyond this is given back.
const KEPT: usize = 4 << 10;

/// A line, as far as it was seen.
#[derive(Debug)]
pub(crate) enum Sight<'a> {
    /// All of it, with its end.
    Line(&'a [u8]),
    /// One too long to be kept.
    Long(Outline),
}

/// What of a line has been seen so far.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    partial: Vec<u8>,
    walker: Option<Walker>,
}

impl Lookout {
    /// Looks at what was read, and gives the lines that end in it. With `whole`, nothing is too long.
    pub(crate) fn look(&mut self, mut bytes: &[u8], whole: bool, mut see: impl FnMut(Sight<'_>)) {
        while let Some(at) = end_of_line(bytes) {
            let (line, rest) = bytes.split_at(at + 1);
            bytes = rest;
            if let Some(mut walker) = self.walker.take() {
                walker.walk(&line[..at]);
                see(Sight::Long(walker.end()));
            } else if self.partial.is_empty() {
                see(Sight::Line(line));
            } else {
                self.partial.extend_from_slice(line);
                see(Sight::Line(&self.partial));
                self.partial.clear();
                self.partial.shrink_to(KEPT);
            }
        }
        if bytes.is_empty() {
            return;
        }
        if let Some(walker) = &mut self.walker {
            walker.walk(bytes);
        } else if whole || self.partial.len() + bytes.len() <= LONG {
            self.partial.extend_from_slice(bytes);
        } else {
            let mut walker = Walker::default();
            walker.walk(&std::mem::take(&mut self.partial));
            walker.walk(bytes);
            self.walker = Some(walker);
        }
    }

    /// True if no line is half seen.
    pub(crate) fn is_between_lines(&self) -> bool {
        self.partial.is_empty() && self.walker.is_none()
    }

    /// What has come of a line that is kept whole.
    pub(crate) fn partial(&self) -> &[u8] {
        &self.partial
    }
}

/// Where the first line ends. Every byte that passes is looked at here: as the C library does it.
fn end_of_line(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    let last = rest.skip_until(b'\n').ok()?.checked_sub(1)?;
    (bytes[last] == b'\n').then_some(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_seen_however_they_come() {
        let long = format!(r#"{{"x":"{}","id":4}}"#, "y".repeat(2 * LONG));
        let text = format!("one\r\n\n{{\"id\":3}}\n{long}\nlast\nrest");
        for size in [1, 5, 4096, text.len()] {
            let (mut lookout, mut seen) = (Lookout::default(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                lookout.look(piece, false, |sight| {
                    seen.push(match sight {
                        Sight::Line(line) if line.len() > LONG => format!("all {}", line.len()),
                        Sight::Line(line) => String::from_utf8(line.to_vec()).unwrap(),
                        Sight::Long(outline) => format!("long {:?}", outline.id),
                    });
                });
            }
            let in_one = size == text.len();
            let all = format!("all {}", long.len() + 1);
            let fourth = if in_one { all } else { r#"long Some("4")"#.into() };
            assert_eq!(seen, ["one\r\n", "\n", "{\"id\":3}\n", &fourth, "last\n"]);
            assert_eq!(lookout.partial(), b"rest");
            assert!(!lookout.is_between_lines());
        }
    }

    #[test]
    fn what_is_kept_is_kept_whole_and_given_back() {
        let mut lookout = Lookout::default();
        lookout.look(&vec![b'x'; LONG], true, |_| panic!("not yet"));
        lookout.look(&vec![b'x'; LONG], true, |_| panic!("not yet"));
        let mut seen = 0;
        lookout.look(b"\n", true, |sight| match sight {
            Sight::Line(line) => seen = line.len(),
            Sight::Long(_) => panic!("it was to be kept"),
        });
        assert_eq!(seen, 2 * LONG + 1);
        assert!(lookout.is_between_lines() && lookout.partial.capacity() <= KEPT);
    }
}
