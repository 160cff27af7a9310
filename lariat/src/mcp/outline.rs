//! What a line says at its outermost, found while its bytes pass: for lines too long to be kept.
//!
//! A screenshot or a file can be a line of many megabytes. Its `id` may come last, so the whole of it
//! is walked, and nothing but the few members that say whose it is is remembered.

/// A longer id or method is not one that we could do anything with.
const LONGEST: usize = 1 << 10;

/// The outermost members of a line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    /// As it is written, with its quotes.
    pub(crate) id: Option<String>,
    pub(crate) method: Option<String>,
    /// Whether it has a `result` or an `error`.
    pub(crate) is_answer: bool,
    /// Something in it cannot be told: it is a batch, or a member occurs twice.
    pub(crate) is_odd: bool,
}

/// Walks a line.
#[derive(Debug, Default)]
pub(crate) struct Walker {
    found: Outline,
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// The next string at the outermost level is a key.
    at_key: bool,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Walker {
    /// Walks on. The bytes hold no newline.
    pub(crate) fn walk(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            if self.in_string {
                self.string(byte);
                if self.in_string && !self.escaped {
                    // Most of a long line is one long string.
                    let run = plain_run(rest);
                    self.keep(&rest[..run]);
                    rest = &rest[run..];
                }
                continue;
            }
            match byte {
                b'"' => {
                    self.in_string = true;
                    self.keep(b"\"");
                }
                b'{' | b'[' => {
                    self.found.is_odd |= self.depth == 0 && byte == b'[';
                    self.depth += 1;
                    self.at_key = self.depth == 1;
                }
                b'}' | b']' => {
                    if self.depth == 1 {
                        self.member();
                    }
                    self.depth = self.depth.saturating_sub(1);
                }
                b':' if self.depth == 1 => self.at_key = false,
                b',' if self.depth == 1 => self.member(),
                byte if byte.is_ascii_whitespace() => {}
                byte => self.keep(&[byte]),
            }
        }
    }

    /// The line is over.
    pub(crate) fn end(self) -> Outline {
        let broken = self.depth != 0 || self.in_string;
        Outline { is_odd: self.found.is_odd || broken, ..self.found }
    }

    fn string(&mut self, byte: u8) {
        self.keep(&[byte]);
        if self.escaped {
            self.escaped = false;
        } else if byte == b'\\' {
            self.escaped = true;
        } else if byte == b'"' {
            self.in_string = false;
        }
    }

    /// Remembers what belongs to an outermost key or value, as far as it may matter.
    fn keep(&mut self, bytes: &[u8]) {
        if self.depth == 1 {
            let kept = if self.at_key { &mut self.key } else { &mut self.value };
            let room = (LONGEST + 1).saturating_sub(kept.len());
            kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    /// A member of the outermost object is complete.
    fn member(&mut self) {
        let value = String::from_utf8(std::mem::take(&mut self.value)).ok();
        let value = value.filter(|value| value.len() <= LONGEST && !value.is_empty());
        let found = &mut self.found;
        match self.key.as_slice() {
            br#""id""# => {
                found.is_odd |= found.id.is_some() || value.is_none();
                found.id = value;
            }
            br#""method""# => {
                found.is_odd |= found.method.is_some();
                found.method = value.and_then(|value| serde_json::from_str(&value).ok());
                found.is_odd |= found.method.is_none();
            }
            br#""result""# | br#""error""# => found.is_answer = true,
            // A key that is written with escapes may be any of these.
            key => found.is_odd |= key.contains(&b'\\'),
        }
        self.key.clear();
        self.at_key = true;
    }
}

/// How many bytes go on within a string. In pieces without a way out first, which the compiler makes
/// many comparisons at once of.
fn plain_run(bytes: &[u8]) -> usize {
    let special = |b: &u8| (*b == b'"') | (*b == b'\\');
    let none = |piece: &[u8; 64]| !piece.iter().fold(false, |found, b| found | special(b));
    let mut run = 0;
    while bytes[run..].first_chunk().is_some_and(none) {
        run += 64;
    }
    run + bytes[run..].iter().take_while(|b| !special(b)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(line: &str, size: usize) -> Outline {
        let mut walker = Walker::default();
        for piece in line.as_bytes().chunks(size) {
            walker.walk(piece);
        }
        walker.end()
    }

    #[test]
    fn whose_a_line_is_can_be_seen_however_it_comes() {
        let long = "x\\\"}{".repeat(100);
        for (line, id, method, is_answer) in [
            (
                format!(r#"{{"result":{{"id":9,"t":"{long}"}},"jsonrpc":"2.0","id":7}}"#),
                "7",
                None,
                true,
            ),
            (format!(r#" {{ "id" : "a\"b" , "error" : ["{long}"] }} "#), r#""a\"b""#, None, true),
            (
                format!(
                    r#"{{"method":"tools\/call","params":{{"method":"no","x":"{long}"}},"id":-1.5e3}}"#
                ),
                "-1.5e3",
                Some("tools/call"),
                false,
            ),
        ] {
            for size in [1, 2, 7, line.len()] {
                let seen = outline(&line, size);
                assert_eq!(seen.id.as_deref(), Some(id), "{line} in pieces of {size}");
                assert_eq!(seen.method.as_deref(), method);
                assert_eq!((seen.is_answer, seen.is_odd), (is_answer, false));
            }
        }
    }

    #[test]
    fn what_cannot_be_told_is_said_to_be_odd() {
        let endless = format!(r#"{{"id":"{}"}}"#, "x".repeat(LONGEST));
        for line in [
            r#"[{"id":1}]"#,
            r#"{"id":1,"id":2}"#,
            r#"{"i\u0064":1}"#,
            r#"{"id":1"#,
            r#"{"id":"1"#,
            r#"{"method":1}"#,
            &endless,
        ] {
            assert!(outline(line, 3).is_odd, "{line}");
        }
        assert!(!outline(r#"{"method":"a"}"#, 3).is_odd);
    }
}
