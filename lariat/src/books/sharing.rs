//! What a pool says of a server that it holds, in a file beside the server's page.
//!
//! Who holds a server's processes knows nothing of who speaks with it. Like a session's own words, this
//! is for those who look on: nothing depends on it.

use super::{Books, paper, replace};
use crate::id::SessionId;
use crate::snapshot::Sharing;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where it says so of the server with this page.
pub(super) fn beside(page: &Path) -> PathBuf {
    page.with_extension("share")
}

/// What is said of the server with this page.
pub(super) fn of(page: &Path) -> Option<Sharing> {
    serde_json::from_slice(&paper::read(&beside(page)).ok()?).ok()
}

impl Books {
    /// Says who uses a server. A full disk must not keep them from it.
    pub fn tell_sharing(&self, session: &SessionId, sharing: &Sharing) {
        let page = self.sessions().join(format!("{session}.json"));
        let draft = page.with_extension("share.new");
        let _untold = serde_json::to_vec(sharing)
            .map_err(io::Error::from)
            .and_then(|text| replace(&beside(&page), &draft, &text));
        if !page.exists() {
            // It has ended meanwhile.
            let _hushed = fs::remove_file(beside(&page));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Desk;
    use super::*;
    use crate::receipt::Reason;
    use crate::snapshot::Verdict;
    use contain::{Backend, Report};

    #[test]
    fn what_is_said_of_a_server_goes_with_it() {
        let desk = Desk::new();
        let entry = desk.note();
        let session = entry.page().session.clone();
        let shared = Sharing { verdict: Verdict::Shared, why: None, sessions: 3 };
        let told = |desk: &Desk| desk.books.living().into_iter().find_map(|one| one.share);
        assert_eq!(told(&desk), None);
        desk.books.tell_sharing(&session, &shared);
        assert_eq!(told(&desk), Some(shared.clone()));
        entry.settle(&Reason::Closed, Report::nothing(Backend::Descent));
        // Too late: nobody would ever take it away.
        desk.books.tell_sharing(&session, &shared);
        assert_eq!(fs::read_dir(desk.books.sessions()).unwrap().count(), 0);
    }
}
