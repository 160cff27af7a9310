//! The chunked coding, read without changing a byte of it.
//!
//! Only the strict form is known: lines end in CRLF, a size is hexadecimal digits and nothing else,
//! and what may come after it is bounded. Readers that forgive more than this disagree with each
//! other about where a body ends.

use super::Bad;

/// Digits of a size: as many as fit the engine's number.
const MOST_DIGITS: u8 = 16;

/// Extensions of one chunk, or all trailers, are no longer than this.
const LONGEST_LINES: usize = 4 << 10;

/// How far into a chunked body we are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chunks {
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Among the digits of a size.
    Size { value: u64, digits: u8 },
    /// After a size's semicolon: extensions, which mean nothing to us.
    Extension { size: u64, seen: usize },
    /// The size's line has had its carriage return.
    SizeEnd { size: u64 },
    /// Inside a chunk, so many bytes before its end.
    Data { left: u64 },
    /// After a chunk's last byte.
    DataEnd,
    /// After a chunk's carriage return.
    DataEnded,
    /// At the beginning of a trailer line.
    Line { seen: usize },
    /// Inside a trailer line.
    Trailer { seen: usize },
    /// A trailer line has had its carriage return.
    TrailerEnd { seen: usize },
    /// The empty last line has had its carriage return.
    LastEnd,
    /// The body is over.
    Done,
}

impl Default for State {
    fn default() -> State {
        State::Size { value: 0, digits: 0 }
    }
}

impl Chunks {
    /// How many of these bytes belong to the body; fewer than given means that it ended.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, Bad> {
        self.read(bytes, |_| ())
    }

    /// Whether the last byte of the body was taken.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes bytes, and shows the content among them.
    fn read(&mut self, bytes: &[u8], mut content: impl FnMut(&[u8])) -> Result<usize, Bad> {
        let mut taken = 0;
        while taken < bytes.len() && self.state != State::Done {
            if let State::Data { left } = &mut self.state {
                let rest = &bytes[taken..];
                let here = usize::try_from(*left).map_or(rest.len(), |n| n.min(rest.len()));
                content(&rest[..here]);
                taken += here;
                *left -= here as u64;
                if *left == 0 {
                    self.state = State::DataEnd;
                }
            } else {
                self.state = self.state.after(bytes[taken])?;
                taken += 1;
            }
        }
        Ok(taken)
    }
}

impl State {
    /// The state after one byte of framing.
    fn after(self, byte: u8) -> Result<State, Bad> {
        let malformed = Err(Bad::Malformed("a chunk is malformed"));
        Ok(match (self, byte) {
            (State::Size { digits: 1.., value }, b'\r') => State::SizeEnd { size: value },
            (State::Size { digits: 1.., value }, b';') => State::Extension { size: value, seen: 0 },
            (State::Size { value, digits }, _) => match char::from(byte).to_digit(16) {
                Some(digit) if digits < MOST_DIGITS && value <= (i64::MAX as u64) >> 4 => {
                    State::Size { value: value << 4 | u64::from(digit), digits: digits + 1 }
                }
                _ => return malformed,
            },
            (State::Extension { size, .. }, b'\r') => State::SizeEnd { size },
            (State::Extension { size, seen }, _) => {
                State::Extension { size, seen: one_more(seen, byte)? }
            }
            (State::SizeEnd { size: 0 }, b'\n') => State::Line { seen: 0 },
            (State::SizeEnd { size }, b'\n') => State::Data { left: size },
            (State::DataEnd, b'\r') => State::DataEnded,
            (State::DataEnded, b'\n') => State::default(),
            (State::Line { .. }, b'\r') => State::LastEnd,
            // A folded line, to some.
            (State::Line { .. }, b' ' | b'\t') => return malformed,
            (State::Trailer { seen }, b'\r') => State::TrailerEnd { seen },
            (State::Line { seen } | State::Trailer { seen }, _) => {
                State::Trailer { seen: one_more(seen, byte)? }
            }
            (State::TrailerEnd { seen }, b'\n') => State::Line { seen },
            (State::LastEnd, b'\n') => State::Done,
            _ => return malformed,
        })
    }
}

/// Counts a byte of text that we read over, unless it is none or one too many.
fn one_more(seen: usize, byte: u8) -> Result<usize, Bad> {
    if byte.is_ascii_control() && byte != b'\t' {
        return Err(Bad::Malformed("a control character is in a chunk's line"));
    }
    if seen < LONGEST_LINES { Ok(seen + 1) } else { Err(Bad::TooLarge) }
}

/// The content of a complete chunked body; extensions and trailers are left behind.
pub fn dechunk(raw: &[u8]) -> Result<Vec<u8>, Bad> {
    let mut chunks = Chunks::default();
    let mut content = Vec::with_capacity(raw.len());
    let taken = chunks.read(raw, |piece| content.extend_from_slice(piece))?;
    if !chunks.is_done() || taken < raw.len() {
        return Err(Bad::Malformed("a chunked body is incomplete or has more after its end"));
    }
    Ok(content)
}
