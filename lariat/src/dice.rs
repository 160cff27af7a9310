//! Chance for tests that must be repeatable: mutations of real texts.

use std::time::{Duration, Instant};

/// When chance has had its way: after so many seconds, or as many as `LARIAT_FUZZ` says.
pub(crate) fn enough(seconds: u64) -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a test is told how long to run")]
    let told = std::env::var("LARIAT_FUZZ").ok().and_then(|seconds| seconds.parse().ok());
    Instant::now() + Duration::from_secs(told.unwrap_or(seconds))
}

/// Small, fast and the same every time.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// A number below `below`.
    pub(crate) fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below.max(1)
    }

    /// One to three changes to a text.
    pub(crate) fn mutate(&mut self, text: &[u8], words: &[&[u8]]) -> Vec<u8> {
        let mut text = text.to_vec();
        for _ in 0..=self.next(3) {
            let at = self.next(text.len() + 1);
            let to = (at + self.next(6)).min(text.len());
            match self.next(5) {
                0 => drop(text.drain(at..to)),
                1 => drop(text.splice(at..to, words[self.next(words.len())].iter().copied())),
                2 => text.insert(at, self.next(256) as u8),
                3 => drop(text.splice(at..at, text[at..to].to_vec())),
                _ => drop(text.get_mut(at).map(|byte| *byte ^= 1 << self.next(8))),
            }
        }
        text
    }
}
