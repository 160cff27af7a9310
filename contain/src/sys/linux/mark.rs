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
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
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
        let now = getrlimit(Resource::Rttime);
        let ours_or_none = now.current.is_none_or(|n| Mark::from_number(n).is_some());
        if ours_or_none && now.maximum.is_none_or(|max| self.0 <= max) {
            let limit = Rlimit {
                current: Some(self.0),
                maximum: now.maximum,
            };
            // Without it the tree is still held; only the sweep after a double kill is weaker.
            let _unmarked = setrlimit(Resource::Rttime, limit);
        }
    }

    /// True if this process carries the mark.
    pub(crate) fn is_on(self, pid: i32) -> bool {
        procfs::realtime_limit(pid) == Some(self.0)
    }

    /// Every living process that carries the mark.
    pub fn bearers(self) -> Vec<Member> {
        let bearer = |pid: i32| {
            let stat = procfs::stat(pid)?;
            (stat.is_alive() && self.is_on(pid)).then_some(Member {
                pid,
                start: stat.start,
            })
        };
        procfs::pids().into_iter().filter_map(bearer).collect()
    }
}

/// Ends what a crashed session left: its cgroup leaf, whoever carries its mark, and whoever
/// descends from those. No grace: the owner is long dead. Bounded by `within`.
pub fn sweep(mark: Mark, leaf: Option<&Path>, within: Duration) -> Report {
    let leaf = leaf.and_then(|path| cgroup::Leaf::existing(path, mark));
    let backend = if leaf.is_some() {
        Backend::Cgroup
    } else {
        Backend::Descent
    };
    let deadline = Instant::now() + within;
    let mut seen: HashSet<Member> = HashSet::new();
    let mut clean_looks = 0;
    let me = rustix::process::getpid().as_raw_pid();
    loop {
        let found = descent::freeze(|| {
            let mut all = mark.bearers();
            all.extend(leaf.iter().flat_map(cgroup::Leaf::members));
            for root in all.clone() {
                all.extend(descent::below(root.pid, &[]));
            }
            all.retain(|m| m.pid != me);
            all
        });
        if let Some(leaf) = &leaf {
            // Members are listed and killed one by one below as well.
            let _gone = leaf.kill();
        }
        seen.extend(&found);
        for member in &found {
            let _refused = member.signal(Signal::KILL);
        }
        // A process that hops from pid to pid can slip through one look, hardly through three.
        clean_looks = if found.is_empty() { clean_looks + 1 } else { 0 };
        if clean_looks >= 3 && leaf.as_ref().is_none_or(|l| !l.populated()) {
            break;
        }
        if Instant::now() >= deadline {
            break;
        }
        if !found.is_empty() {
            pause(Duration::from_millis(2));
        }
    }
    if let Some(leaf) = leaf {
        leaf.remove();
    }
    let survivors: Vec<Survivor> = seen
        .iter()
        .filter(|m| m.is_alive())
        .map(|m| Survivor::unkilled(*m))
        .collect();
    Report {
        exit: None,
        backend,
        seen: seen.len() as u32,
        left: 0,
        asked: 0,
        killed: (seen.len() - survivors.len()) as u32,
        survivors,
    }
}

/// Gives the kernel a moment to finish what it is doing.
fn pause(time: Duration) {
    let timeout = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: time.as_nanos() as i64,
    };
    // An interruption only shortens the pause; the caller looks again either way.
    let _interrupted = rustix::event::poll(&mut [], Some(&timeout));
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
        assert!(Mark::random().unwrap().bearers().is_empty());
    }
}
