//! How the books are: what is in them that should not be, and how much room they take. Looking
//! changes nothing.

use super::{Books, Page, Place, paper};
use crate::id::{ServerName, SessionId};
use crate::journal::predecessor;
use crate::receipt::{Receipt, Survivor};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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

impl Books {
    /// Looks.
    pub fn health(&self) -> Health {
        let mut health = Health::default();
        let here = Place::here();
        for path in files(&self.sessions()) {
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => health.page(&path, &here),
                Some("receipt") => health.left(&path),
                _ => {}
            }
        }
        for path in files(&self.logs()) {
            health.logs += 1;
            health.logs_bytes += size(&path);
        }
        let events = self.events();
        health.events_bytes = size(&events) + size(&predecessor(&events));
        for path in [self.sessions(), self.logs(), events] {
            let mode = fs::metadata(&path).map_or(0, |meta| meta.mode());
            if mode & 0o077 != 0 {
                health.open_to_others.push(name(&path));
            }
        }
        health
    }
}

impl Health {
    fn page(&mut self, path: &Path, here: &Place) {
        let Ok(file) = paper::open(path, false) else {
            return self.unreadable.push(name(path));
        };
        // Shared, and for a moment only: whoever wants to finish a crash tries again.
        let is_free = flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
        if file.metadata().is_ok_and(|meta| meta.nlink() == 0) {
            return;
        }
        let text = paper::read(path).unwrap_or_default();
        match serde_json::from_slice::<Page>(&text) {
            Err(_) => self.unreadable.push(name(path)),
            // One from before a reboot is ours to finish.
            Ok(page) if page.place != *here && !(is_free && page.place.is_finished_from(here)) => {
                self.elsewhere += 1;
            }
            // What is left of it is told by its receipt.
            Ok(_) if is_free && path.with_extension("receipt").exists() => {}
            Ok(page) if is_free => self.unfinished.push(page.session),
            Ok(_) => self.living += 1,
        }
    }

    fn left(&mut self, path: &Path) {
        let text = paper::read(path).unwrap_or_default();
        if let Ok(Receipt { session, server, survivors, .. }) = serde_json::from_slice(&text) {
            self.survivors.push(Left { session, server, survivors });
        }
    }
}

fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
