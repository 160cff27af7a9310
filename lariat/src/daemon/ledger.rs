//! What the event log says, added up: how often something happened, and the latest receipts.
//!
//! Every wrapper writes to the same log, with or without a daemon, so whoever reads it has counted
//! them all. It is read on from where one stopped, also across a rotation. What was there before is
//! remembered but not counted: whoever sees a counter begin takes all of it for news.

use crate::journal::Tail;
use crate::receipt::{Receipt, Survivor};
use contain::Member;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

/// How many receipts are kept.
const RECEIPTS: usize = 100;

/// Different reasons that are counted apart; the rest is counted together.
const REASONS: usize = 32;

/// Sessions whose survivors are remembered.
const HAUNTED: usize = 256;

/// A longer line is none of ours.
const LONGEST_LINE: usize = 1 << 20;

/// The upper bounds of the histogram of ends, in milliseconds.
pub(super) const BOUNDS: [u64; 12] =
    [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000];

/// How often things happened since the log was first read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) starts: u64,
    /// By reason.
    pub(super) ends: BTreeMap<String, u64>,
    pub(super) survivors: u64,
    pub(super) sweeps: u64,
    /// For each bound, how many ends took no longer than that.
    pub(super) within: [u64; BOUNDS.len()],
    pub(super) teardowns: u64,
    pub(super) teardown_ms: u64,
}

/// A receipt with its place in the order of all.
#[derive(Debug, Clone)]
pub(super) struct Filed {
    pub(super) number: u64,
    /// As JSON.
    pub(super) text: Arc<str>,
}

/// The log, and what was read of it.
#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
    /// Absent until it was read for the first time.
    tail: Option<Tail>,
    /// The beginning of a line whose end is not written yet.
    pending: Vec<u8>,
    /// That line is too long already: what comes up to its end belongs to it.
    skipping: bool,
    pub(super) counts: Counts,
    pub(super) receipts: VecDeque<Filed>,
    filed: u64,
    /// Those that were still there when it was last said, by session.
    haunted: HashMap<String, Haunted>,
}

#[derive(Debug)]
struct Haunted {
    /// Which life of the session.
    started: String,
    by: Vec<Survivor>,
}

#[derive(Deserialize)]
struct Line {
    event: String,
}

impl Ledger {
    /// Nothing is read yet.
    pub(super) fn new(path: PathBuf) -> Ledger {
        Ledger {
            path,
            tail: None,
            pending: Vec::new(),
            skipping: false,
            counts: Counts::default(),
            receipts: VecDeque::new(),
            filed: 0,
            haunted: HashMap::new(),
        }
    }

    /// Reads what was written since the last time. What cannot be read is not counted.
    pub(super) fn read_on(&mut self) {
        let Some(tail) = &mut self.tail else {
            if let Ok((tail, text)) = Tail::unwatched(&self.path) {
                self.tail = Some(tail);
                self.take(&text);
                self.counts.begin();
            }
            return;
        };
        let mut text = Vec::new();
        // What could be read is read once, and the next look goes on from there.
        let _next_time = tail.read_into(&mut text);
        self.take(&text);
    }

    fn take(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (part, ends) = part.strip_suffix(b"\n").map_or((part, false), |part| (part, true));
            self.skipping |= self.pending.len() + part.len() > LONGEST_LINE;
            if self.skipping {
                self.pending = Vec::new();
            } else {
                self.pending.extend_from_slice(part);
            }
            if ends {
                let line = std::mem::take(&mut self.pending);
                if !std::mem::take(&mut self.skipping) {
                    self.count(&line);
                }
            }
        }
    }

    /// Lines that say something else are somebody else's.
    fn count(&mut self, line: &[u8]) {
        match serde_json::from_slice::<Line>(line) {
            Ok(Line { event }) if event == "started" => self.counts.starts += 1,
            Ok(Line { event }) if event == "ended" => {
                if let Ok(receipt) = serde_json::from_slice::<Receipt>(line) {
                    self.end(receipt);
                }
            }
            Ok(_) | Err(_) => {}
        }
    }

    fn end(&mut self, receipt: Receipt) {
        let session = receipt.session.to_string();
        let before = self.haunted.remove(&session).filter(|was| was.started == receipt.started);
        let known = |one: &&Survivor| before.as_ref().is_some_and(|was| was.by.contains(one));
        let new = receipt.survivors.iter().filter(|one| !known(one)).count();
        self.counts.survivors += new as u64;
        // Another look at what an end has left is not another end.
        if before.is_none() {
            self.counts.end(&receipt);
        }
        // Text and numbers can always be written.
        let text = serde_json::to_string(&receipt).unwrap_or_default().into();
        self.filed += 1;
        self.receipts.push_back(Filed { number: self.filed, text });
        if self.receipts.len() > RECEIPTS {
            self.receipts.pop_front();
        }
        if !receipt.survivors.is_empty() && self.haunted.len() < HAUNTED {
            let Receipt { started, survivors: by, .. } = receipt;
            self.haunted.insert(session, Haunted { started, by });
        }
    }

    /// How many survivors are still there: processes that live, and what an engine kept when it was
    /// last asked.
    pub(super) fn survivors(&mut self) -> usize {
        for haunted in self.haunted.values_mut() {
            haunted
                .by
                .retain(|one| one.pid == 0 || Member { pid: one.pid, start: one.start }.is_alive());
        }
        self.haunted.retain(|_, haunted| !haunted.by.is_empty());
        self.haunted.values().map(|haunted| haunted.by.len()).sum()
    }
}

impl Counts {
    /// Nothing has happened yet. Reasons that there were have a zero to start from.
    fn begin(&mut self) {
        let ends = std::mem::take(&mut self.ends).into_keys().map(|reason| (reason, 0)).collect();
        *self = Counts { ends, ..Counts::default() };
    }

    fn end(&mut self, receipt: &Receipt) {
        let known = self.ends.contains_key(&receipt.reason) || self.ends.len() < REASONS;
        let reason = if known { receipt.reason.as_str() } else { "other" };
        *self.ends.entry(reason.into()).or_default() += 1;
        self.sweeps += u64::from(receipt.swept);
        self.teardowns += 1;
        self.teardown_ms += receipt.teardown_ms;
        for (count, bound) in self.within.iter_mut().zip(BOUNDS) {
            *count += u64::from(receipt.teardown_ms <= bound);
        }
    }
}

#[cfg(test)]
mod tests;
