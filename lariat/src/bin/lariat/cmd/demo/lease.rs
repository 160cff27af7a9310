//! How long an actor may stay: until the demo process is gone, and no longer than two minutes.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::identity::Identity;
use super::poll_for;

/// No actor lives longer.
pub(super) const LIFETIME: Duration = Duration::from_secs(120);

/// An actor's right to be there: the demo lives, and its own time is not over.
pub(super) struct Lease {
    demo: OwnedFd,
    until: Instant,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woke {
    /// The demo or the actor's time is over.
    Over,
    /// The other descriptor has something, or hung up.
    Other,
    /// The time asked for has passed.
    Late,
}

impl Lease {
    /// Takes it, or gives `None` if the demo is gone already.
    pub(super) fn take(demo: Identity) -> Option<Self> {
        demo.open().map(|demo| Self { demo, until: Instant::now() + LIFETIME })
    }

    /// Waits until it is over, the other descriptor has something, or the time has passed.
    pub(super) fn wait(&self, other: Option<BorrowedFd<'_>>, at_most: Duration) -> Woke {
        let mut fds = vec![PollFd::new(&self.demo, PollFlags::IN)];
        fds.extend(other.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let left = self.until.saturating_duration_since(Instant::now());
        poll_for(&mut fds, at_most.min(left));
        if !fds[0].revents().is_empty() || Instant::now() >= self.until {
            Woke::Over
        } else if fds.get(1).is_some_and(|fd| !fd.revents().is_empty()) {
            Woke::Other
        } else {
            Woke::Late
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_with_its_time() {
        let demo = Identity::mine().expect("this process is in /proc");
        let mut lease = Lease::take(demo).expect("this process lives");
        assert_eq!(lease.wait(None, Duration::ZERO), Woke::Late);
        lease.until = Instant::now();
        assert_eq!(lease.wait(None, LIFETIME), Woke::Over);
    }
}
