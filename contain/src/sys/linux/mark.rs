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
use crate::sys::wait::wait;
use rustix::io::Errno;
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
    /// Where a real-time limit is already in force, because a program that set one needs it, the limit on
    /// file locks has the mark, which the kernel stopped looking at in 2002.
    pub(crate) fn wear(self) {
        // Without it the tree is still held; only the sweep after a double kill is weaker.
        let _worn = self.put_into(libc::RLIMIT_RTTIME) || self.put_into(libc::RLIMIT_LOCKS);
    }

    fn put_into(self, carrier: libc::__rlimit_resource_t) -> bool {
        let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `now` is valid for writes of its type. (rustix would panic on a refusal.)
        if unsafe { libc::getrlimit(carrier, &mut now) } != 0 {
            return false;
        }
        let unset = now.rlim_cur == libc::RLIM_INFINITY;
        if !unset && Mark::from_number(now.rlim_cur).is_none() || self.0 > now.rlim_max {
            return false;
        }
        now.rlim_cur = self.0;
        // SAFETY: `now` is a valid limit: soft not above hard.
        unsafe { libc::setrlimit(carrier, &now) == 0 }
    }

    /// The mark that a process carries.
    pub(crate) fn of(pid: i32) -> Option<Mark> {
        procfs::carriers(pid).ok()?.into_iter().flatten().find_map(Mark::from_number)
    }

    /// Whether this process carries the mark, or why that cannot be read.
    pub(crate) fn read(self, pid: i32) -> Result<bool, Errno> {
        match procfs::carriers(pid) {
            Ok(limits) => Ok(limits.contains(&Some(self.0))),
            Err(e) if procfs::is_final(e) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// True if the calling process is of that tree itself: it carries the mark, or whoever started it does. The
    /// server of a session within the session carries that one's.
    pub fn is_own(self) -> bool {
        let me = rustix::process::getpid().as_raw_pid();
        lineage(me).any(|pid| self.read(pid).unwrap_or(true))
    }
}

/// A process and those above it, as far as they can be seen.
fn lineage(pid: i32) -> impl Iterator<Item = i32> {
    let parent = |pid: &i32| procfs::stat(*pid).map(|stat| stat.ppid).filter(|ppid| *ppid > 0);
    // Numbers may change hands meanwhile, and so lead round and round.
    std::iter::successors(Some(pid), parent).take(MOST_GENERATIONS)
}

/// More generations of processes than anybody has.
const MOST_GENERATIONS: usize = 1_000;

/// Ends what a crashed session left: its cgroup leaf, whoever carries its mark, whoever is `known` to have survived
/// an earlier end, and whoever descends from those. No grace: the owner is long dead. Who does not die `within` that
/// time is a survivor; somebody new is looked for up to a minute.
pub fn sweep(mark: Mark, leaf: Option<&Path>, known: &[Member], within: Duration) -> Report {
    let existing = leaf.map_or(Ok(None), |path| cgroup::Leaf::existing(path, mark));
    let (leaf, unopened) = existing.map_or_else(|e| (None, Some(e)), |leaf| (leaf, None));
    let backend = if leaf.is_some() { Backend::Cgroup } else { Backend::Descent };
    let begun = Instant::now();
    let mut hunt = Hunt::new(mark);
    let (mut clean_looks, mut is_empty) = (0, false);
    let mut last_sight = None;
    let mut last_new = begun;
    // As long as there is somebody new to kill there is something to do; those that do not die are survivors.
    while last_new.elapsed() < within && begun.elapsed() < LONGEST.max(within) {
        let struck = hunt.struck;
        let mut found = 0;
        if let Some(leaf) = &leaf {
            // Counted before it dies. Who is in there starts nobody any more then, and need not be chased.
            let members = leaf.members();
            let _gone = leaf.kill();
            for member in members {
                found += hunt.end(member);
            }
        }
        // They need not carry the mark.
        for member in known.iter().filter(|member| member.is_alive()) {
            found += hunt.end(*member);
        }
        let (met, complete) = hunt.look();
        found += met;
        if hunt.struck > struck {
            last_new = Instant::now();
        } else if found > 0 || !complete {
            // The dying need the time, and so does whatever keeps us from reading.
            wait(&mut [], Some(Instant::now() + PAUSE));
        }
        if found > 0 || !complete {
            clean_looks = 0;
            last_sight = if found > 0 { Some(Instant::now()) } else { last_sight };
            continue;
        }
        clean_looks += 1;
        let quiet = last_sight.is_none_or(|t: Instant| t.elapsed() > QUIET);
        if clean_looks >= CLEAN_LOOKS && quiet && leaf.as_ref().is_none_or(|l| !l.populated()) {
            is_empty = true;
            break;
        }
    }
    let seen = hunt.seen;
    let mut survivors: Vec<Survivor> =
        seen.iter().filter(|m| m.is_alive()).map(|m| Survivor::unkilled(*m)).collect();
    let alive = survivors.len();
    let breach = leaf.as_ref().and_then(cgroup::Leaf::breach);
    if let (Some(e), true) = (unopened, survivors.is_empty()) {
        survivors.push(Survivor::closed_leaf(e));
    }
    if survivors.is_empty() && !is_empty {
        survivors.push(Survivor::unseen());
    }
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
const CLEAN_LOOKS: u32 = 2;

/// Time without a sighting before nobody is there.
const QUIET: Duration = Duration::from_millis(15);

/// For how long somebody new is looked for.
const LONGEST: Duration = Duration::from_secs(60);

/// How often a look goes after those who were born meanwhile.
const CHASES: u32 = 1_000;

/// How long to wait before another look that would find the same.
const PAUSE: Duration = Duration::from_millis(2);

/// A search for bearers of a mark among all processes.
struct Hunt {
    mark: Mark,
    /// Pids that were looked at and are not ours, until the numbers come round.
    strangers: HashSet<i32>,
    /// The number that was given out last when the last look ended.
    met_up_to: i32,
    seen: HashSet<Member>,
    /// How many were killed who had not been seen before.
    struck: u64,
    /// This process and those above it, none of whom is of a tree that this process may end.
    lineage: Vec<i32>,
}

impl Hunt {
    fn new(mark: Mark) -> Hunt {
        let lineage = lineage(rustix::process::getpid().as_raw_pid()).collect();
        let (strangers, seen) = (HashSet::new(), HashSet::new());
        Hunt { mark, strangers, met_up_to: 0, seen, struck: 0, lineage }
    }

    /// One pass over all processes, and then over those who were born behind its back until nobody was. Acts on
    /// sight, because a list would be stale before its end. Returns how many were found, and whether everyone
    /// who lives was met: a process that hops from pid to pid is always among the newest.
    fn look(&mut self) -> (usize, bool) {
        let mut found = 0;
        let complete = self.look_around(&mut found).unwrap_or(false);
        (found, complete)
    }

    fn look_around(&mut self, found: &mut usize) -> Result<bool, Errno> {
        match procfs::newest_pid() {
            Ok(newest) if !self.meets_up_to(newest) => return Ok(false),
            Ok(_) => {}
            // A `/proc` that has processes alone (`subset=pid`) does not tell.
            Err(e) if procfs::is_final(e) => return self.look_twice(found),
            Err(e) => return Err(e),
        }
        self.meet_all(procfs::read_pids()?, found)?;
        for _ in 0..CHASES {
            let (from, to) = (self.met_up_to, procfs::newest_pid()?);
            if !self.meets_up_to(to) {
                return Ok(false);
            }
            if from == to {
                return Ok(true);
            }
            self.meet_all((from + 1..=to).collect(), found)?;
        }
        Ok(false)
    }

    /// The same where nobody tells which number was given out last: everyone was met if the list names nobody new
    /// when it is read again.
    fn look_twice(&mut self, found: &mut usize) -> Result<bool, Errno> {
        // Nor does anybody tell when the numbers have come round.
        self.strangers.clear();
        let mut met = HashSet::new();
        for _ in 0..CHASES {
            let pids = procfs::read_pids()?;
            let new: Vec<i32> = pids.into_iter().filter(|pid| met.insert(*pid)).collect();
            if new.is_empty() {
                return Ok(true);
            }
            self.meet_all(new, found)?;
        }
        Ok(false)
    }

    /// Notes up to which number everyone will have been met. False if the numbers have come round: then everyone
    /// is met anew by the next look.
    fn meets_up_to(&mut self, newest: i32) -> bool {
        let come_round = newest < std::mem::replace(&mut self.met_up_to, newest);
        if come_round {
            self.strangers.clear();
        }
        !come_round
    }

    /// The newest first. Everyone is met, also where somebody could not be read.
    fn meet_all(&mut self, mut pids: Vec<i32>, found: &mut usize) -> Result<(), Errno> {
        pids.retain(|pid| !self.strangers.contains(pid));
        let mut whole = Ok(());
        for pid in pids.into_iter().rev() {
            match self.meet(pid) {
                Ok(met) => *found += met,
                Err(e) => whole = Err(e),
            }
        }
        whole
    }

    /// Looks at one process; ends it if it carries the mark.
    fn meet(&mut self, pid: i32) -> Result<usize, Errno> {
        // Who it is comes first: if the number changes hands behind this, nobody is signalled.
        let member = match procfs::read_stat(pid) {
            Ok(stat) if stat.is_alive() => Member { pid, start: stat.start },
            Ok(_) => return Ok(0),
            Err(e) if procfs::is_final(e) => return Ok(0),
            Err(e) => return Err(e),
        };
        match self.mark.read(pid) {
            // The numbers that were given out last are also those of threads, and `/proc` knows them.
            Ok(true) if !procfs::is_process(pid)? => Ok(0),
            Ok(true) => Ok(self.end(member)),
            Ok(false) => {
                self.strangers.insert(pid);
                Ok(0)
            }
            Err(e) => Err(e),
        }
    }

    /// Stops a member and all below it, so that they start nobody else, then kills them.
    fn end(&mut self, member: Member) -> usize {
        // We would end ourselves in the middle of it.
        if self.lineage.contains(&member.pid) {
            return 0;
        }
        // A process that cannot be signalled is named as a survivor in the end. Whoever has its number when it is
        // gone is a stranger, and so are those below.
        let _refused = member.signal(Signal::STOP);
        let is_itself = || procfs::stat(member.pid).is_some_and(|stat| stat.start == member.start);
        let mut all = descent::freeze(member.pid, &[], |_| is_itself());
        all.push(member);
        for member in &all {
            let killed = member.signal(Signal::KILL) == Ok(true);
            // Whom we may not kill is not somebody new for ever.
            self.struck += u64::from(self.seen.insert(*member) && killed);
        }
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
        let report = sweep(Mark::random().unwrap(), None, &[], Duration::from_secs(5));
        assert_eq!((report.seen, report.survivors.len()), (0, 0));
    }
}
