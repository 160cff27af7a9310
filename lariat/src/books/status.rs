//! What a living session says of itself, in a file beside its page.
//!
//! The page is written once and says where to look if everything else is lost. This file changes
//! with the session and is for those who look on: lost or unwritten, nothing depends on it.

use super::Entry;
use crate::snapshot::Status;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    /// When this life of the server began: whoever finishes a crashed session writes its receipt.
    began_ms: u64,
    #[serde(flatten)]
    status: Status,
}

/// Where the session with this page says how it is.
fn beside(page: &Path) -> PathBuf {
    page.with_extension("state")
}

fn read(page: &Path) -> Option<Told> {
    serde_json::from_slice(&fs::read(beside(page)).ok()?).ok()
}

/// What the session with this page has said last.
pub(super) fn of(page: &Path) -> Option<Status> {
    Some(read(page)?.status)
}

impl Entry {
    /// Says how the session is. A full disk must not keep it from being so.
    pub fn tell(&self, status: &Status) {
        let began_ms = self.began_ms.load(Ordering::Relaxed);
        let told = Told { began_ms, status: status.clone() };
        // Whoever reads it sees all of it or the one before.
        let draft = self.path.with_extension("state.new");
        let written = serde_json::to_vec(&told)
            .map_err(io::Error::from)
            .and_then(|text| fs::write(&draft, text))
            .and_then(|()| fs::rename(&draft, beside(&self.path)));
        if written.is_err() {
            let _absent = fs::remove_file(&draft);
        }
        if self.is_struck() {
            // Somebody else has accounted for it meanwhile.
            self.hush();
        }
    }

    /// Says nothing any more.
    pub(super) fn hush(&self) {
        let _never_told = fs::remove_file(beside(&self.path));
    }

    /// Takes over a session whose processes have died: its next receipt begins where theirs would.
    pub(super) fn resume(&self) {
        if let Some(told) = read(&self.path) {
            self.began_ms.store(told.began_ms, Ordering::Relaxed);
        }
    }
}
