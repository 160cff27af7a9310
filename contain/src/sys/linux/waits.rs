//! How long each thread of a tree has waited for a CPU. Where many want one, who always runs when it may
//! uses little time all the same, and only this tells it from one with little to do.

use super::procfs;
use crate::member::Member;
use std::time::Duration;

/// What the threads of a tree have waited for a CPU since each of them began.
#[derive(Debug)]
pub struct Waits(Vec<(i32, Duration)>);

impl Waits {
    /// Reads it; nobody has waited where the kernel does not count.
    pub(crate) fn of(members: &[Member]) -> Waits {
        let threads = members.iter().flat_map(|member| {
            procfs::tasks(member.pid).into_iter().map(|thread| (member.pid, thread))
        });
        let waited = threads
            .filter_map(|(pid, thread)| procfs::waited(pid, thread).map(|waited| (thread, waited)));
        Waits(waited.collect())
    }

    /// The longest that one of them has waited since the earlier look.
    pub fn longest_since(&self, earlier: &Waits) -> Duration {
        let before = |thread: i32| {
            earlier.0.iter().find(|(it, _)| *it == thread).map_or(Duration::ZERO, |(_, w)| *w)
        };
        let since = self.0.iter().map(|(thread, waited)| waited.saturating_sub(before(*thread)));
        since.max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_waited_longest_counts_and_only_since_then() {
        let waits = |of: &[(i32, u64)]| {
            Waits(of.iter().map(|(thread, ms)| (*thread, Duration::from_millis(*ms))).collect())
        };
        let (earlier, later) = (waits(&[(1, 500), (2, 10)]), waits(&[(1, 510), (2, 40), (3, 20)]));
        assert_eq!(later.longest_since(&earlier), Duration::from_millis(30));
        assert_eq!(waits(&[]).longest_since(&earlier), Duration::ZERO);
        assert_eq!(earlier.longest_since(&later), Duration::ZERO, "a number that came round");
    }

    #[test]
    fn this_process_has_threads() {
        let me = Member::current().unwrap();
        assert!(!Waits::of(&[me]).0.is_empty());
    }
}
