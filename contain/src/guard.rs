//! The guard: a tree's state and the one way in which it ends.
//!
//! The guardian runs it from the first moment; the holder runs the same code if the guardian alone
//! was killed and its children came back to the holder. It never blocks: its runner calls
//! [`Guard::tick`] whenever a child has ended or the deadline has come.

use crate::ladder::{Ask, Ladder};
use crate::member::Member;
use crate::report::{Exit, Report, Survivor};
use crate::sys::cgroup::Leaf;
use crate::sys::mark::Mark;
use crate::sys::{Backend, descent, procfs};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// While killing, how soon to look again at first, and at most. Looking takes time that those who
/// are dying need.
const FIRST_ROUND: Duration = Duration::from_millis(2);
const LAST_ROUND: Duration = Duration::from_millis(40);

/// The same after the kernel was told to kill a leaf whole.
const LEAF_ROUND: Duration = Duration::from_millis(15);

/// Where the tree stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nobody has asked for an end.
    Running,
    /// Asked gently: standard input closed, or a signal other than SIGTERM passed on.
    Closing { until: Instant },
    /// The command left by itself; its descendants have a moment to follow.
    Lingering { until: Instant },
    /// SIGTERM was sent.
    Asked { until: Instant },
    /// Killing and looking until nobody is left or the time is up.
    Killing { until: Instant, next: Instant, round: Duration },
    /// Reported.
    Ended,
}

/// How the processes that have gone so far left.
#[derive(Debug, Default)]
struct Counts {
    left: u32,
    asked: u32,
    killed: u32,
}

/// A tree and its end.
#[derive(Debug)]
pub(crate) struct Guard {
    ladder: Ladder,
    backend: Backend,
    mark: Mark,
    leaf: Option<Leaf>,
    leader: Option<Member>,
    exit: Option<Exit>,
    /// Children that were ours before the tree was (a shell may exec us): never touched.
    strangers: Vec<Member>,
    /// Children of ours that are not of the tree either, and that have no children of theirs.
    asides: Vec<Member>,
    phase: Phase,
    /// Everyone seen alive and not yet seen gone, and whether they were asked to leave.
    census: HashMap<Member, bool>,
    counts: Counts,
    refused: HashMap<Member, Errno>,
    /// When somebody first asked for an end, or the command left.
    ending: Option<Instant>,
}

impl Guard {
    pub(crate) fn new(ladder: Ladder, backend: Backend, mark: Mark, leaf: Option<Leaf>) -> Guard {
        Guard {
            ladder,
            backend,
            mark,
            leaf,
            leader: None,
            exit: None,
            strangers: Vec::new(),
            asides: Vec::new(),
            phase: Phase::Running,
            census: HashMap::new(),
            counts: Counts::default(),
            refused: HashMap::new(),
            ending: None,
        }
    }

    /// The command runs as this process.
    pub(crate) fn lead(&mut self, leader: Option<Member>) {
        self.leader = leader;
        self.census.extend(leader.map(|m| (m, false)));
    }

    /// These children are not of the tree.
    pub(crate) fn spare(&mut self, strangers: Vec<Member>) {
        self.strangers = strangers;
    }

    /// Neither is this one, which helps the holder.
    pub(crate) fn set_aside(&mut self, member: Member) {
        self.asides.retain(Member::is_alive);
        self.asides.push(member);
    }

    /// Whom the walk goes around.
    pub(crate) fn others(&self) -> Vec<Member> {
        [self.strangers.as_slice(), &self.asides].concat()
    }

    pub(crate) fn backend(&self) -> Backend {
        self.backend
    }

    pub(crate) fn leaf(&self) -> Option<&Leaf> {
        self.leaf.as_ref()
    }

    /// Gives up the leaf before anyone was born into it.
    pub(crate) fn leave_leaf(&mut self) {
        if let Some(leaf) = self.leaf.take() {
            // The holder tries again in the end.
            let _busy = leaf.remove();
        }
        self.backend = Backend::Descent;
    }

    pub(crate) fn leader(&self) -> Option<Member> {
        self.leader
    }

    /// How the command ended, once it has.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.exit
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.phase != Phase::Running
    }

    /// When `tick` wants to be called even if nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running | Phase::Ended => None,
            Phase::Closing { until } | Phase::Lingering { until } | Phase::Asked { until } => {
                Some(until)
            }
            Phase::Killing { next, .. } => Some(next),
        }
    }

    /// Starts the end, or climbs higher on the ladder. Never lower.
    pub(crate) fn ask(&mut self, ask: Ask) {
        let now = Instant::now();
        let rung = match self.phase {
            Phase::Running => None,
            Phase::Closing { .. } | Phase::Lingering { .. } => Some(1),
            Phase::Asked { .. } => Some(2),
            Phase::Killing { .. } | Phase::Ended => Some(3),
        };
        if rung.is_some_and(|now| now >= ask.rung()) {
            return;
        }
        self.ending.get_or_insert(now);
        match ask {
            Ask::Closed => {
                self.look();
                self.phase = Phase::Closing { until: now + self.ladder.grace };
            }
            Ask::Signal(libc::SIGTERM) | Ask::OwnerDied => self.terminate(now),
            Ask::Signal(number) => {
                self.look();
                self.signal_group(number);
                self.phase = Phase::Closing { until: now + self.ladder.grace };
            }
            Ask::Kill => self.begin_kill(now),
        }
    }

    /// Passes a signal to the command alone.
    pub(crate) fn forward(&self, number: i32) {
        if let (Some(leader), Some(signal)) = (self.leader, Signal::from_named_raw(number)) {
            let _gone = leader.signal(signal);
        }
    }

    /// Takes in what has happened and does what is due. `Some` once, when it is over.
    pub(crate) fn tick(&mut self) -> Option<Report> {
        let childless = self.reap();
        let now = Instant::now();
        if self.phase == Phase::Ended {
            return None;
        }
        if self.is_empty(childless) {
            return Some(self.finish());
        }
        match self.phase {
            Phase::Running if self.has_left() => {
                self.ending = Some(now);
                self.look();
                self.phase = Phase::Lingering { until: now + self.ladder.linger };
            }
            Phase::Closing { until } if self.has_left() => {
                self.look();
                // A slow command must not buy its descendants more time than the ladder has.
                self.phase = Phase::Lingering { until: until.min(now + self.ladder.linger) };
            }
            Phase::Closing { until } | Phase::Lingering { until } if now >= until => {
                self.terminate(now);
            }
            Phase::Asked { until } if now >= until => self.begin_kill(now),
            // The command heeded the signal; those it never reached are asked now.
            Phase::Asked { .. } if self.has_left() => self.ask_everyone(),
            Phase::Killing { until, .. } if now >= until => return Some(self.finish()),
            Phase::Killing { until, next, round } if now >= next => {
                self.kill(false);
                let round = (round * 2).min(LAST_ROUND);
                self.phase = Phase::Killing { until, next: Instant::now() + round, round };
            }
            _ => {}
        }
        // The kill itself may have emptied it.
        let childless = self.reap();
        self.is_empty(childless).then(|| self.finish())
    }

    /// True once the command is known to have ended, or was never known to have begun.
    fn has_left(&self) -> bool {
        self.exit.is_some() || self.leader.is_none()
    }

    /// SIGTERM: to the command's process group while the command lives, else to whoever is left.
    fn terminate(&mut self, now: Instant) {
        self.look();
        if self.has_left() {
            self.ask_everyone();
        } else {
            self.signal_group(libc::SIGTERM);
        }
        self.phase = Phase::Asked { until: now + self.ladder.term_grace };
    }

    fn ask_everyone(&mut self) {
        for member in self.look() {
            if self.census.get(&member) == Some(&false) {
                self.hail(member, Signal::TERM);
            }
        }
    }

    /// Signals the members of the command's process group one by one: the group's number could
    /// have become somebody else's.
    fn signal_group(&mut self, number: i32) {
        let (Some(leader), Some(signal)) = (self.leader, Signal::from_named_raw(number)) else {
            return;
        };
        let members: Vec<Member> = self.census.keys().copied().collect();
        for member in members {
            if procfs::stat(member.pid).is_some_and(|s| s.pgrp == leader.pid) {
                self.hail(member, signal);
            }
        }
    }

    /// Signals one member and wakes it if it is stopped: a stopped process cannot heed anything.
    fn hail(&mut self, member: Member, signal: Signal) {
        if let Ok(true) = member.signal(signal) {
            self.census.insert(member, true);
            if procfs::stat(member.pid).is_some_and(|s| s.state == 'T') {
                let _gone = member.signal(Signal::CONT);
            }
        }
    }

    fn begin_kill(&mut self, now: Instant) {
        self.look();
        let until = now + self.ladder.look;
        let round = if self.leaf.is_some() { LEAF_ROUND } else { FIRST_ROUND };
        self.kill(true);
        self.phase = Phase::Killing { until, next: Instant::now() + round, round };
    }

    /// One pass of the kill. What it misses the next pass finds.
    fn kill(&mut self, first: bool) {
        // The kernel kills a leaf whole. Walking at the same time would only take the CPU that the
        // dying need; a later pass walks, for whoever had moved out.
        let killed_whole = self.leaf.as_ref().is_some_and(|leaf| leaf.kill().is_ok());
        let emptied_by_kernel = killed_whole && first;
        if self.backend == Backend::Pidns && rustix::process::getpid().is_init() {
            crate::sys::signals::kill_namespace();
            return;
        }
        // The command has not been waited for, so its number is still its own and its group's; this
        // needs no /proc and no descriptor.
        if let (Some(leader), None) = (self.leader.and_then(|l| Pid::from_raw(l.pid)), self.exit) {
            let _gone = rustix::process::kill_process_group(leader, Signal::KILL);
            let _gone = rustix::process::kill_process(leader, Signal::KILL);
        }
        if emptied_by_kernel {
            return;
        }
        let me = rustix::process::getpid().as_raw_pid();
        let mut found = descent::freeze(me, &self.others(), |m| self.is_ours(m));
        self.add_leaf_members(&mut found);
        for member in found {
            self.census.entry(member).or_insert(false);
            if let Err(errno) = member.signal(Signal::KILL) {
                self.refused.insert(member, errno);
            }
        }
    }

    /// Who is in the tree now.
    fn members(&self) -> Vec<Member> {
        let me = rustix::process::getpid().as_raw_pid();
        let mut found = descent::below(me, &self.others());
        found.retain(|m| self.is_ours(m));
        self.add_leaf_members(&mut found);
        found
    }

    /// True for everyone below us, unless we had children before the tree: the orphans of those
    /// come to us as well, and they do not carry the mark.
    fn is_ours(&self, member: &Member) -> bool {
        self.strangers.is_empty() || Some(*member) == self.leader || self.mark.is_on(member.pid)
    }

    /// Whoever is in the leaf and not below us: it was moved there, or its parent was elsewhere.
    fn add_leaf_members(&self, found: &mut Vec<Member>) {
        if let Some(leaf) = &self.leaf {
            let me = rustix::process::getpid().as_raw_pid();
            let known: HashSet<Member> = found.iter().copied().collect();
            let others = leaf.members().into_iter();
            found.extend(others.filter(|m| !known.contains(m) && m.pid != me));
        }
    }

    /// Takes a census: notes who is new, and how those that have gone since the last one left.
    fn look(&mut self) -> Vec<Member> {
        let live = self.members();
        self.settle(&live);
        for member in &live {
            self.census.entry(*member).or_insert(false);
        }
        live
    }

    fn settle(&mut self, live: &[Member]) {
        let live: HashSet<Member> = live.iter().copied().collect();
        let killing = matches!(self.phase, Phase::Killing { .. });
        let counts = &mut self.counts;
        self.census.retain(|member, asked| {
            if live.contains(member) {
                return true;
            }
            match (killing, *asked) {
                (true, _) => counts.killed += 1,
                (false, true) => counts.asked += 1,
                (false, false) => counts.left += 1,
            }
            false
        });
    }

    /// Collects every child that has ended. True if the kernel says there are no children at all.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let pid = pid.as_raw_pid();
                    if self.leader.is_some_and(|l| l.pid == pid) && self.exit.is_none() {
                        self.exit = Exit::from_wait(status);
                    }
                }
                Ok(None) => return false,
                Err(Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }

    /// Empty is the kernel's word: no child of ours, dead or alive, and nobody in the leaf. Every
    /// descendant hangs below some child of ours, so no children means no descendants.
    fn is_empty(&self, childless: bool) -> bool {
        let nobody_below = childless || (!self.strangers.is_empty() && self.members().is_empty());
        nobody_below && self.leaf.as_ref().is_none_or(|l| !l.populated())
    }

    /// Whoever is left after the last look is a survivor, also if only the kernel knows of them:
    /// calling a tree empty because nothing could be read would be the worst of lies.
    fn finish(&mut self) -> Report {
        let live = self.members();
        self.settle(&live);
        self.phase = Phase::Ended;
        let childless = self.reap();
        let mut survivors: Vec<Survivor> = live
            .into_iter()
            .map(|member| {
                let mut survivor = Survivor::unkilled(member);
                if let Some(errno) = self.refused.get(&member) {
                    survivor.why = format!("the kill was refused: {errno}");
                }
                survivor
            })
            .collect();
        if survivors.is_empty() && !self.is_empty(childless) {
            survivors.push(Survivor::unseen());
        }
        let seen_alive = survivors.len() as u32;
        // Nobody can ask the leaf any more once it is removed.
        let breach = self.leaf.as_ref().and_then(Leaf::breach);
        if let Some(leaf) = &self.leaf
            && let Err(e) = leaf.remove()
            && survivors.is_empty()
        {
            survivors.push(Survivor::leaf(e));
        }
        let Counts { left, asked, killed } = self.counts;
        Report {
            exit: self.exit,
            backend: self.backend,
            seen: left + asked + killed + seen_alive,
            left,
            asked,
            killed,
            survivors,
            breach,
            took: self.ending.map_or(Duration::ZERO, |since| since.elapsed()),
        }
    }
}
