//! What is left of a wrapper that was ended, and of its guardian, which holds the page's lock as well and
//! has ended the tree if it could. Whoever is left is known by the mark, or is the server itself.

use super::{Books, Page, member};
use crate::receipt::Receipt;
use contain::{Backend, Mark, Report};
use std::io;
use std::time::Duration;

/// How long one sweep looks for the processes of one crashed session.
const LOOK: Duration = Duration::from_secs(1);

impl Books {
    /// Finishes what wrappers and guardians left that were ended: the receipts of their sessions, which
    /// are in the event log as well.
    pub fn sweep(&self) -> io::Result<Vec<Receipt>> {
        self.sweep_by(end)
    }
}

fn end(page: &Page) -> Report {
    match page.mark.and_then(Mark::from_number) {
        Some(mark) => contain::sweep(mark, page.leader.map(member), LOOK),
        None => Report::nothing(Backend::Session),
    }
}
