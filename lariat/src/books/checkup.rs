//! Looking at every page: who holds it, and whether it can be read.

use super::health::{Health, Left, files, name};
use super::{Books, Page, Place, paper};
use crate::receipt::Receipt;
use rustix::fs::{FlockOperation, flock};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

impl Books {
    /// Looks.
    pub fn health(&self) -> Health {
        let mut health = Health::of_files(self);
        let Ok(here) = Place::here() else { return health };
        for path in files(&self.sessions()) {
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => health.page(&path, &here),
                Some("receipt") => health.left(&path),
                _ => {}
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
            Ok(page)
                if !(page.place.shares_pids(here)
                    || is_free && page.place.is_finished_from(here)) =>
            {
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
