//! Why a session ends: the first cause is the reason, unless a later one explains it.

use crate::receipt::Reason;
use std::time::{Duration, Instant};

/// If the host dies this soon after its end of the pipe closed, the one explains the other.
const SAME_MOMENT: Duration = Duration::from_millis(100);

/// What began the end, and when.
#[derive(Debug, Default)]
pub(super) struct Cause(Option<(Reason, Instant)>);

impl Cause {
    /// The first one is the reason; but sleep is no end of a session.
    pub(super) fn note(&mut self, reason: Reason) {
        if self.reason() == Some(&Reason::Idle) {
            self.0 = None;
        }
        self.0.get_or_insert((reason, Instant::now()));
    }

    /// The host is gone. A pipe that closed a moment before did so because of that.
    pub(super) fn host_died(&mut self) {
        let explained = self.0.as_ref().is_some_and(|(reason, since)| {
            let by_hang_up = matches!(reason, Reason::StdinClosed | Reason::Failed(_));
            by_hang_up && since.elapsed() < SAME_MOMENT
        });
        if explained {
            self.0 = None;
        }
        self.note(Reason::HostDied);
    }

    /// What it is so far.
    pub(super) fn reason(&self) -> Option<&Reason> {
        self.0.as_ref().map(|(reason, _)| reason)
    }

    /// What it was, and none from now on.
    pub(super) fn take(&mut self) -> Option<Reason> {
        self.0.take().map(|(reason, _)| reason)
    }

    /// What the receipt says of a tree that has ended. A host that was killed with the pipe still full
    /// may be seen only now, and a server may heed a hang-up before we are told of it.
    pub(super) fn verdict(
        &mut self,
        host_is_gone: bool,
        stdin_is_closed: impl FnOnce() -> bool,
    ) -> Reason {
        match self.take() {
            Some(Reason::StdinClosed) if host_is_gone => Reason::HostDied,
            Some(reason) => reason,
            None if stdin_is_closed() => Reason::StdinClosed,
            None => Reason::Exited,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(reasons: &[Reason]) -> Cause {
        let mut cause = Cause::default();
        reasons.iter().cloned().for_each(|reason| cause.note(reason));
        cause
    }

    #[test]
    fn the_first_is_the_reason_but_for_sleep() {
        let mut cause = after(&[Reason::Signal(15), Reason::StdinClosed]);
        assert_eq!(cause.take(), Some(Reason::Signal(15)));
        assert_eq!(cause.take(), None);
        assert_eq!(after(&[Reason::Idle, Reason::StdinClosed]).take(), Some(Reason::StdinClosed));
    }

    #[test]
    fn a_death_explains_the_hang_up_a_moment_before() {
        let mut cause = after(&[Reason::StdinClosed]);
        cause.host_died();
        assert_eq!(cause.reason(), Some(&Reason::HostDied));
        let mut earlier = after(&[Reason::StdinClosed]);
        earlier.0 = earlier.0.map(|(reason, since)| (reason, since - 2 * SAME_MOMENT));
        earlier.host_died();
        assert_eq!(earlier.reason(), Some(&Reason::StdinClosed));
        // Nobody is signalled by a host that dies.
        let mut signalled = after(&[Reason::Signal(15)]);
        signalled.host_died();
        assert_eq!(signalled.reason(), Some(&Reason::Signal(15)));
    }

    #[test]
    fn what_was_not_told_in_time_is_in_the_receipt_all_the_same() {
        let verdict = |reasons: &[Reason], gone, closed| after(reasons).verdict(gone, || closed);
        assert_eq!(verdict(&[], false, false), Reason::Exited);
        assert_eq!(verdict(&[], false, true), Reason::StdinClosed);
        assert_eq!(verdict(&[Reason::StdinClosed], true, true), Reason::HostDied);
        assert_eq!(verdict(&[Reason::Signal(2)], true, true), Reason::Signal(2));
    }
}
