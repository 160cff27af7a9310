//! How much the server is to say about itself. Pure.
//!
//! It has one level for everybody, so it gets that of the client that wants most, and what is too
//! much for another is kept from it.

use super::Port;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A log level, the most verbose first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Level(u8);

const WORDS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

impl Level {
    pub(super) fn of(word: &str) -> Option<Level> {
        let at = WORDS.iter().position(|known| *known == word)?;
        u8::try_from(at).ok().map(Level)
    }

    pub(super) fn word(self) -> &'static str {
        WORDS[usize::from(self.0)]
    }
}

/// A client's wish that the server has been told of and has not answered.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Change {
    wanted: Level,
    before: Option<Level>,
    /// What the server was told on its behalf.
    pub(super) told: Level,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Levels {
    of: BTreeMap<Port, Level>,
    /// What the server has agreed to last, and in answer to which request.
    agreed: Option<(u64, Level)>,
    asking: usize,
}

impl Levels {
    /// A client wants this level. `None` if the server knows already; else what to tell it.
    pub(super) fn want(&mut self, port: Port, wanted: Level, ask: bool) -> Option<Change> {
        let before = self.of.insert(port, wanted);
        let told = self.most()?;
        if !ask && self.asking == 0 && self.agreed.is_some_and(|(_, agreed)| agreed == told) {
            return None;
        }
        self.asking += 1;
        Some(Change { wanted, before, told })
    }

    /// The server has answered.
    pub(super) fn answered(&mut self, port: Port, own: u64, change: Change, agreed: bool) {
        self.asking -= 1;
        if agreed {
            // Answers may overtake each other, and the last request is what holds.
            if self.agreed.is_none_or(|(before, _)| before < own) {
                self.agreed = Some((own, change.told));
            }
        } else if self.of.get(&port) == Some(&change.wanted) {
            self.set(port, change.before);
        }
    }

    /// The server's answer will not be known, so nobody knows what it does.
    pub(super) fn abandoned(&mut self) {
        self.asking -= 1;
        self.agreed = None;
    }

    /// The server is another now, and was told nothing.
    pub(super) fn forget(&mut self) {
        self.agreed = None;
    }

    /// It was told what is in force, if anything, by this request of ours.
    pub(super) fn told(&mut self, own: u64) {
        self.agreed = self.most().map(|level| (own, level));
    }

    pub(super) fn depart(&mut self, port: Port) {
        self.of.remove(&port);
    }

    /// The level in force, if anybody wants one.
    pub(super) fn most(&self) -> Option<Level> {
        self.of.values().min().copied()
    }

    /// True if this client wants to hear what the server says at this level.
    pub(super) fn admits(&self, port: Port, level: Option<Level>) -> bool {
        let wanted = self.of.get(&port);
        wanted.zip(level).is_none_or(|(wanted, level)| level >= *wanted)
    }

    fn set(&mut self, port: Port, level: Option<Level>) {
        match level {
            Some(level) => drop(self.of.insert(port, level)),
            None => drop(self.of.remove(&port)),
        }
    }
}
