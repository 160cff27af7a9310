//! Looking at every page: who holds it, and whether it can be read.

use super::health::{Health, files, name};
use super::{Books, read};
use std::io;

impl Books {
    /// Looks.
    pub fn health(&self) -> io::Result<Health> {
        let mut health = Health::of_files(self);
        for (page, free) in self.pages()? {
            match free {
                // Locked for a moment only: whoever wants to finish it tries again.
                Some(_lock) => health.unfinished.push(page.session),
                None => health.living += 1,
            }
        }
        let is_page = |path: &&std::path::PathBuf| path.extension().is_some_and(|e| e == "json");
        let pages = files(&self.sessions());
        // One that is struck at this moment is none.
        let unread = pages.iter().filter(is_page).filter(|p| p.exists() && read(p).is_none());
        health.unreadable.extend(unread.map(|path| name(path)));
        Ok(health)
    }
}
