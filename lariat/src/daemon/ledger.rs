//! What the event log says, added up: how often something happened, and the latest receipts.
//!
//! Every wrapper writes to the same log, with or without a daemon, so whoever reads it has counted
//! them all. It is read on from where one stopped, also across a rotation.

use crate::receipt::{Receipt, Survivor};
use contain::Member;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
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

/// How often things happened, as far back as the log reaches.
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
    file: Option<File>,
    /// The beginning of a line whose end is not written yet.
    pending: Vec<u8>,
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
            file: None,
            pending: Vec::new(),
            counts: Counts::default(),
            receipts: VecDeque::new(),
            filed: 0,
            haunted: HashMap::new(),
        }
    }

    /// Reads what was written since the last time. What cannot be read is not counted.
    pub(super) fn read_on(&mut self) {
        if self.file.is_none() {
            // What the log was before it was rotated comes first.
            let mut before = self.path.clone().into_os_string();
            before.push(".1");
            if let Ok(mut file) = File::open(before) {
                let _what_there_is = self.read(&mut file);
            }
            self.pending.clear();
        }
        // One that was renamed is read to its end before its successor is begun.
        loop {
            let Some(mut file) = self.file.take().or_else(|| File::open(&self.path).ok()) else {
                return;
            };
            let read = self.read(&mut file);
            let is_current = is_same(&file, &self.path);
            if read.is_ok() && is_current {
                self.file = Some(file);
                return;
            }
            self.pending.clear();
            if read.is_err() || !self.path.exists() {
                return;
            }
        }
    }

    fn read(&mut self, file: &mut File) -> io::Result<()> {
        // Somebody has cut it: begin again.
        if file.stream_position()? > file.metadata()?.len() {
            file.seek(SeekFrom::Start(0))?;
            self.pending.clear();
        }
        let mut space = vec![0; 64 << 10];
        loop {
            let count = file.read(&mut space)?;
            if count == 0 {
                return Ok(());
            }
            self.take(&space[..count]);
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
            self.pending.extend_from_slice(&rest[..at]);
            rest = &rest[at + 1..];
            let line = std::mem::take(&mut self.pending);
            self.count(&line);
        }
        if self.pending.len() + rest.len() <= LONGEST_LINE {
            self.pending.extend_from_slice(rest);
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

fn is_same(file: &File, path: &Path) -> bool {
    let Ok(ours) = file.metadata() else { return false };
    std::fs::metadata(path)
        .is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
}

#[cfg(test)]
mod tests;
