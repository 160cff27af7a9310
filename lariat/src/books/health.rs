//! How the books are: what is in them that should not be, and how much room they take. Looking
//! changes nothing. What a page says of its session is another matter on each platform.

use super::Books;
use crate::id::{ServerName, SessionId};
use crate::journal::predecessor;
use crate::receipt::Survivor;
use serde::Serialize;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The state of the state directory.
#[derive(Debug, Default, Serialize)]
pub struct Health {
    /// Sessions that somebody holds.
    pub living: usize,
    /// Sessions that crashed here and are not finished yet.
    pub unfinished: Vec<SessionId>,
    /// Sessions that have ended, and what is left of them.
    pub survivors: Vec<Left>,
    /// Pages that cannot be read or that another version wrote, by file name.
    pub unreadable: Vec<String>,
    /// Sessions of another machine or container that shares the directory.
    pub elsewhere: usize,
    /// Servers' logs, with their predecessors.
    pub logs: usize,
    /// What they take.
    pub logs_bytes: u64,
    /// What the event log takes, with its predecessor.
    pub events_bytes: u64,
    /// Files and directories that others may read or write, by name.
    pub open_to_others: Vec<String>,
}

/// What is left of an ended session.
#[derive(Debug, Serialize)]
pub struct Left {
    /// Which session.
    pub session: SessionId,
    /// Which server.
    pub server: ServerName,
    /// Who is still there.
    pub survivors: Vec<Survivor>,
}

impl Health {
    /// What the logs take, and what others may see.
    pub(super) fn of_files(books: &Books) -> Health {
        let mut health = Health::default();
        for path in files(&books.logs()) {
            health.logs += 1;
            health.logs_bytes += size(&path);
        }
        let events = books.events();
        health.events_bytes = size(&events) + size(&predecessor(&events));
        for path in [books.sessions(), books.logs(), events] {
            let mode = fs::metadata(&path).map_or(0, |meta| meta.mode());
            if mode & 0o077 != 0 {
                health.open_to_others.push(name(&path));
            }
        }
        health
    }

    /// True if there is nothing to do.
    pub fn is_well(&self) -> bool {
        self.unfinished.is_empty()
            && self.survivors.is_empty()
            && self.unreadable.is_empty()
            && self.open_to_others.is_empty()
    }
}

pub(super) fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
}

pub(super) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
