//! What is left of a wrapper that was ended. The kernel has ended its tree by then, so all there is to do
//! is to look.

use super::{Books, Page, member};
use crate::receipt::Receipt;
use contain::{Backend, Member, Report};
use std::io;
use std::time::Duration;

impl Books {
    /// Finishes what wrappers left that were ended: the receipts of their sessions, which are in the
    /// event log as well.
    pub fn sweep(&self) -> io::Result<Vec<Receipt>> {
        self.sweep_by(look)
    }
}

/// The lock of a wrapper that was ended can be free a little before the kernel has closed its job and
/// everybody in it has gone.
const GOING: Duration = Duration::from_secs(2);

fn look(page: &Page) -> Report {
    let stays = |member: &Member| member.open().is_some_and(|there| !there.ends_within(GOING));
    let alive = page.leader.map(member).filter(stays);
    let mut report = Report::nothing(Backend::Job);
    report.survivors.extend(alive.map(|member| contain::Survivor {
        kind: contain::Kind::Process,
        name: contain::process::name(member).unwrap_or_default(),
        member,
        why: "its job was closed but it is still there".into(),
    }));
    report
}
