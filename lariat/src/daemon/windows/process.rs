//! The end of a process, which the system tells.

use contain::{Member, Vigil};
use std::time::Duration;
use tokio::sync::watch;

/// How often to look at a process of which the system would not tell.
const LOOK: Duration = Duration::from_millis(250);

/// A process whose end can be waited for.
#[derive(Debug)]
pub(super) struct Watched {
    member: Member,
    ended: watch::Receiver<bool>,
    /// Absent where there is none to be had; then the process is looked at now and then.
    vigil: Option<Vigil>,
}

impl Watched {
    /// This very process, if it lives.
    pub(super) fn of(member: Member) -> Option<Watched> {
        let handle = member.open().filter(contain::process::Handle::is_alive)?;
        let (tell, ended) = watch::channel(false);
        let vigil = Vigil::keep(handle, move || {
            tell.send_replace(true);
        });
        Some(Watched { member, ended, vigil: vigil.ok() })
    }

    /// Returns when it has ended.
    pub(super) async fn ended(&self) {
        let mut ended = self.ended.clone();
        if self.vigil.is_some() && ended.wait_for(|ended| *ended).await.is_ok() {
            return;
        }
        while self.member.is_alive() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// What it is called.
pub(super) fn name(member: Option<Member>) -> String {
    member.and_then(contain::process::name).unwrap_or_default()
}
