//! The end of a process, which a descriptor becomes readable by.

use contain::Member;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// How often to look at a process for which there is no descriptor.
const LOOK: Duration = Duration::from_millis(250);

/// A process whose end can be waited for.
#[derive(Debug)]
pub(super) struct Watched {
    member: Member,
    /// Absent where the kernel has none to give; then the process is looked at now and then.
    pidfd: Option<AsyncFd<OwnedFd>>,
}

impl Watched {
    /// This very process, if it lives.
    pub(super) fn of(member: Member) -> Option<Watched> {
        let watched = Watched::maybe(member);
        member.is_alive().then_some(watched)
    }

    /// The same whether it lives or not.
    pub(super) fn maybe(member: Member) -> Watched {
        // The descriptor first: one that was opened for a dead process says so when it is waited for.
        #[expect(
            deprecated,
            reason = "its successor wants a promise that this crate forbids itself to give in writing: \
                      that the descriptor stays open. An OwnedFd keeps it by being one"
        )]
        let pidfd = member.pidfd().and_then(|fd| AsyncFd::new(fd).ok());
        Watched { member, pidfd }
    }

    /// Returns when it has ended.
    pub(super) async fn ended(&self) {
        if let Some(pidfd) = &self.pidfd
            && pidfd.readable().await.is_ok()
        {
            return;
        }
        while self.member.is_alive() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// What it is called.
pub(super) fn name(member: Option<Member>) -> String {
    contain::process::name(member.map_or(0, |member| member.pid))
}
