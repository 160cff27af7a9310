//! Words out of a stream of bytes, for systems whose local sockets keep no packets apart: a word
//! is a line.

/// A line longer than this is not ours.
const LONGEST: usize = 512;

/// What has arrived and is not yet a whole line.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    /// Takes in what has arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The next whole line, without its end.
    pub(crate) fn next(&mut self) -> Option<String> {
        let end = self.pending.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.pending.drain(..=end).take(end).collect();
        Some(String::from_utf8_lossy(&line).into_owned())
    }
}

/// A word as the other side will split it off: one line, and not too long.
pub(crate) fn line(word: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = word.bytes().filter(|byte| *byte != b'\n').take(LONGEST).collect();
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_stream_however_it_is_cut() {
        let sent = [line("kill"), line("signal 15"), line("two\nlines"), line("")].concat();
        for cut in 1..=sent.len() {
            let mut lines = Lines::default();
            let mut heard = Vec::new();
            for part in sent.chunks(cut) {
                lines.push(part);
                heard.extend(std::iter::from_fn(|| lines.next()));
            }
            assert_eq!(heard, ["kill", "signal 15", "twolines", ""], "cut at {cut}");
        }
    }

    #[test]
    fn half_a_word_is_none() {
        let mut lines = Lines::default();
        lines.push(b"kil");
        assert_eq!(lines.next(), None);
        lines.push(b"l\nx");
        assert_eq!((lines.next(), lines.next()), (Some("kill".into()), None));
        assert_eq!(line(&"x".repeat(9_000)).len(), LONGEST + 1);
    }
}
