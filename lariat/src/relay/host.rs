//! The process that started us: who it is, and whether it is still there.

use contain::Member;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long it takes a process from closing its pipes to being dead.
const MOMENT: Duration = Duration::from_millis(10);

/// The host, from the moment we first looked.
#[derive(Debug)]
pub(crate) struct Host {
    parent: Option<Pid>,
    member: Option<Member>,
    pidfd: Option<OwnedFd>,
}

impl Host {
    /// Our parent now.
    pub(crate) fn find() -> Host {
        let parent = getppid();
        let pidfd = parent.and_then(|p| pidfd_open(p, PidfdFlags::empty()).ok());
        let member = parent.and_then(|p| Member::of(p.as_raw_pid()));
        // If it died in between, the descriptor may be somebody else's: our parent has changed.
        let pidfd = pidfd.filter(|_| getppid() == parent);
        Host { parent, member, pidfd }
    }

    pub(crate) fn member(&self) -> Option<Member> {
        self.member
    }

    /// Readable once the host has died; `None` where the kernel gives no such descriptor.
    pub(crate) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// True if it has died, or does so now: its pipes are closed a moment before.
    pub(crate) fn dies_now(&self) -> bool {
        if let Some(pidfd) = self.pidfd() {
            let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
            contain::wait(&mut fds, Some(Instant::now() + MOMENT));
            return !fds[0].revents().is_empty();
        }
        self.has_died()
    }

    /// True once our parent is another one.
    pub(crate) fn has_died(&self) -> bool {
        getppid() != self.parent
    }
}
