//! The mark: an inherited number by which a tree is known after holder and guardian both died.
//!
//! A session's processes carry a random number as their soft limit on uninterrupted real-time CPU
//! time (`RLIMIT_RTTIME`, in microseconds; ours are above 70,000 years, so it limits nothing). The
//! kernel copies it on every fork and keeps it over every exec; clearing the environment, closing
//! descriptors, leaving session, group or namespace and being non-dumpable all leave it in place,
//! and anybody may read it in `/proc/PID/limits`. Unlike a variable it does not show in the
//! environment of the server. It is the third net, for the sweep of a crashed session; while holder
//! or guardian lives, parentage and cgroup decide.

use super::{cgroup, descent, procfs};
use crate::member::Member;
use crate::report::{Report, Survivor};
use crate::sys::Backend;
use rustix::process::Signal;
use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Every mark has this bit, and none of the bits above it.
const FLOOR: u64 = 1 << 61;

/// A tree's inherited number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark(u64);

impl Mark {
    /// A new one that nobody carries.
    pub fn random() -> std::io::Result<Mark> {
        let mut bytes = [0u8; 8];
        let mut filled = 0;
        while filled < bytes.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
        }
        Ok(Mark(u64::from_ne_bytes(bytes) & (FLOOR - 1) | FLOOR))
    }

    /// The number, as the books keep it.
    pub fn number(self) -> u64 {
        self.0
    }

    /// A mark from the books; `None` if the number cannot be one.
    pub fn from_number(number: u64) -> Option<Mark> {
        (number & !(FLOOR - 1) == FLOOR).then_some(Mark(number))
    }

    /// Marks the calling process and whatever it will start.
    ///
    /// Does nothing where a real-time limit is already in force: a program that set one needs it.
    pub(crate) fn wear(self) {
        let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `now` is valid for writes of its type. (rustix would panic on a refusal.)
        if unsafe { libc::getrlimit(libc::RLIMIT_RTTIME, &mut now) } != 0 {
            return;
        }
        let unset = now.rlim_cur == libc::RLIM_INFINITY;
        if (unset || Mark::from_number(now.rlim_cur).is_some()) && self.0 <= now.rlim_max {
            now.rlim_cur = self.0;
            // Without it the tree is still held; only the sweep after a double kill is weaker.
            // SAFETY: `now` is a valid limit: soft not above hard.
            unsafe { libc::setrlimit(libc::RLIMIT_RTTIME, &now) };
        }
    }

    /// True if this process carries the mark.
    pub(crate) fn is_on(self, pid: i32) -> bool {
        procfs::realtime_limit(pid) == Some(self.0)
    }
}

/// Ends what a crashed session left: its cgroup leaf, whoever carries its mark, and whoever
/// descends from those. No grace: the owner is long dead. Bounded by `within`.
pub fn sweep(mark: Mark, leaf: Option<&Path>, within: Duration) -> Report {
    let leaf = leaf.and_then(|path| cgroup::Leaf::existing(path, mark));
    let backend = if leaf.is_some() { Backend::Cgroup } else { Backend::Descent };
    let begun = Instant::now();
    let mut hunt = Hunt { mark, strangers: HashSet::new(), seen: HashSet::new() };
    let mut clean_looks = 0;
    let mut last_sight = None;
    let mut last_new = begun;
    // As long as new ones turn up there is something to do; those that do not die are survivors.
    while last_new.elapsed() < within && begun.elapsed() < 5 * within {
        let known = hunt.seen.len();
        let mut found = hunt.look() + hunt.chase();
        if let Some(leaf) = &leaf {
            for member in leaf.members() {
                found += hunt.end(member);
            }
            // Members were listed and killed one by one as well.
            let _gone = leaf.kill();
        }
        if hunt.seen.len() > known {
            last_new = Instant::now();
        }
        if found > 0 {
            (clean_looks, last_sight) = (0, Some(Instant::now()));
            continue;
        }
        // A process that hops from pid to pid slips through one look, not through many.
        clean_looks += 1;
        let quiet = last_sight.is_none_or(|t: Instant| t.elapsed() > QUIET);
        if clean_looks >= CLEAN_LOOKS && quiet && leaf.as_ref().is_none_or(|l| !l.populated()) {
            break;
        }
    }
    let seen = hunt.seen;
    let mut survivors: Vec<Survivor> =
        seen.iter().filter(|m| m.is_alive()).map(|m| Survivor::unkilled(*m)).collect();
    let alive = survivors.len();
    let breach = leaf.as_ref().and_then(cgroup::Leaf::breach);
    if let Some(leaf) = leaf
        && let Err(e) = leaf.remove()
        && survivors.is_empty()
    {
        survivors.push(if leaf.populated() { Survivor::unseen() } else { Survivor::leaf(e) });
    }
    Report {
        exit: None,
        backend,
        seen: seen.len() as u32,
        left: 0,
        asked: 0,
        killed: (seen.len() - alive) as u32,
        survivors,
        breach,
        took: begun.elapsed(),
    }
}

/// Looks that must find nobody before nobody is there.
const CLEAN_LOOKS: u32 = 5;

/// Time without a sighting before nobody is there.
const QUIET: Duration = Duration::from_millis(15);

/// Quick passes per full one, and how many pids each looks at.
const CHASES: u32 = 20;
const NEWEST: i32 = 24;

/// A search for bearers of a mark among all processes.
struct Hunt {
    mark: Mark,
    /// Pids that were looked at and are not ours. A sweep is too short for a number to come round.
    strangers: HashSet<i32>,
    seen: HashSet<Member>,
}

impl Hunt {
    /// One pass over all processes. Acts on sight, because a list would be stale before its end.
    /// Returns how many were found.
    fn look(&mut self) -> usize {
        let mut pids = procfs::pids();
        pids.retain(|pid| !self.strangers.contains(pid));
        pids.into_iter().rev().map(|pid| self.meet(pid)).sum()
    }

    /// Several quick passes over the newest pids: whoever hops is among them.
    fn chase(&mut self) -> usize {
        let mut found = 0;
        for _ in 0..CHASES {
            let newest = procfs::newest_pid().unwrap_or(0);
            for pid in (newest - NEWEST..=newest).rev().filter(|pid| *pid > 1) {
                if !self.strangers.contains(&pid) {
                    found += self.meet(pid);
                }
            }
        }
        found
    }

    /// Looks at one process; ends it if it carries the mark.
    fn meet(&mut self, pid: i32) -> usize {
        let Some(number) = rustix::process::Pid::from_raw(pid) else {
            return 0;
        };
        // First the descriptor, then the look: if the process is replaced in between, the
        // descriptor still means the one before, which is then gone.
        let fd = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty());
        if matches!(fd, Err(rustix::io::Errno::SRCH)) {
            return 0;
        }
        if !self.mark.is_on(pid) {
            if procfs::stat(pid).is_some() {
                self.strangers.insert(pid);
            }
            return 0;
        }
        if let Ok(fd) = &fd {
            let _gone = rustix::process::pidfd_send_signal(fd, Signal::STOP);
        }
        match procfs::stat(pid).filter(procfs::Stat::is_alive) {
            Some(stat) => self.end(Member { pid, start: stat.start }),
            None => 0,
        }
    }

    /// Stops a member, so that it starts nobody else, then kills it and all below it.
    fn end(&mut self, member: Member) -> usize {
        if member.pid == rustix::process::getpid().as_raw_pid() {
            return 0;
        }
        // A process that cannot be signalled is named as a survivor in the end.
        let _refused = member.signal(Signal::STOP);
        let mut all = descent::below(member.pid, &[]);
        all.push(member);
        for member in &all {
            let _refused = member.signal(Signal::KILL);
        }
        self.seen.extend(&all);
        // Those that are merely dying were found before.
        all.iter().filter(|m| m.is_alive()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_survives_the_books_and_nothing_else_passes_for_one() {
        let mark = Mark::random().unwrap();
        assert_eq!(Mark::from_number(mark.number()), Some(mark));
        for number in [0, 200_000, u64::MAX, FLOOR - 1, FLOOR << 1, FLOOR | 1 << 63] {
            assert_eq!(Mark::from_number(number), None, "{number}");
        }
    }

    #[test]
    fn nobody_carries_a_fresh_mark() {
        let report = sweep(Mark::random().unwrap(), None, Duration::from_secs(5));
        assert_eq!((report.seen, report.survivors.len()), (0, 0));
    }
}
