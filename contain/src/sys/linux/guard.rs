//! The guard: a tree's state and the one way in which it ends.
//!
//! The guardian runs it from the first moment; the holder runs the same code if the guardian alone
//! was killed and its children came back to the holder. It never blocks: its runner calls
//! [`Guard::tick`] whenever a child has ended or the deadline has come.

use super::cgroup::Leaf;
use super::mark::Mark;
use super::{descent, member, procfs};
use crate::census::{Census, Gone};
use crate::climb::{Act, Climb};
use crate::ladder::{Ask, Ladder};
use crate::member::Member;
use crate::report::{Exit, Report, Survivor};
use crate::sys::Backend;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// How long the dying have at least after the kernel was told to kill a leaf whole. Looking takes time
/// that they need.
const LEAF_ROUND: Duration = Duration::from_millis(15);

/// Kills children of this process about whom `/proc` says nothing, though they may be signalled: mounted with
/// `hidepid` it hides from an ordinary user also those of his own that are not dumpable. What such a one leaves
/// behind comes to us, and so is killed by one of the next passes.
fn kill_hidden_children() {
    let me = rustix::process::getpid().as_raw_pid();
    let is_hidden = |pid: &i32| procfs::read_stat(*pid).is_err_and(procfs::is_final);
    for pid in procfs::children(me, 1).unwrap_or_default().into_iter().filter(is_hidden) {
        // The number is its own for as long as nobody has waited for it, and nobody but us does.
        if let (true, Some(pid)) = (member::is_child(pid), Pid::from_raw(pid)) {
            let _gone = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// A tree and its end.
#[derive(Debug)]
pub(crate) struct Guard {
    climb: Climb,
    backend: Backend,
    /// This process is the first of the tree's own pid namespace.
    is_its_init: bool,
    /// This process had no children before the tree.
    is_guardian: bool,
    mark: Mark,
    leaf: Option<Leaf>,
    leader: Option<Member>,
    exit: Option<Exit>,
    /// Children that were ours before the tree was (a shell may exec us): never touched.
    strangers: Vec<Member>,
    /// Children of ours that are not of the tree either, and that have no children of theirs.
    asides: Vec<Member>,
    census: Census,
    refused: HashMap<Member, Errno>,
}

impl Guard {
    pub(crate) fn new(ladder: Ladder, backend: Backend, mark: Mark, leaf: Option<Leaf>) -> Guard {
        Guard {
            climb: Climb::new(ladder),
            backend,
            is_its_init: false,
            is_guardian: false,
            mark,
            leaf,
            leader: None,
            exit: None,
            strangers: Vec::new(),
            asides: Vec::new(),
            census: Census::default(),
            refused: HashMap::new(),
        }
    }

    /// This process is the first of the tree's own pid namespace: everybody else in there is of the tree. A holder
    /// that takes over is outside, even if it is the first process of a container.
    pub(crate) fn be_its_init(&mut self) {
        self.is_its_init = true;
    }

    /// This process was made for the tree, so whatever children it has are of the tree.
    pub(crate) fn be_guardian(&mut self) {
        self.is_guardian = true;
    }

    /// The command runs as this process.
    pub(crate) fn lead(&mut self, leader: Option<Member>) {
        self.leader = leader;
        self.census.note(leader);
    }

    /// Somebody else has waited for the command: there is nobody to wait for, and its number may be a stranger's.
    pub(crate) fn forget_leader(&mut self) {
        self.leader = None;
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

    /// Gives up the leaf before anyone was born into it. One that will not go is tried again in the end.
    pub(crate) fn leave_leaf(&mut self) {
        self.leaf = self.leaf.take().filter(|leaf| leaf.remove().is_err());
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
        self.climb.is_ending()
    }

    /// When `tick` wants to be called even if nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.climb.deadline()
    }

    /// How much longer the kill may take than the holder knows.
    pub(crate) fn overtime(&mut self) -> Option<Duration> {
        self.climb.overtime(Instant::now())
    }

    /// Starts the end, or climbs higher on the ladder. Never lower.
    pub(crate) fn ask(&mut self, ask: Ask) {
        let act = self.climb.ask(ask, Instant::now(), self.has_left());
        self.perform(act);
    }

    /// Passes a signal to the command alone.
    pub(crate) fn forward(&self, number: i32) {
        if let (Some(leader), Some(signal)) = (self.leader, Signal::from_named_raw(number)) {
            let _gone = leader.signal(signal);
        }
    }

    /// Takes in how the command has ended, if it has. Quick, so that it can be told before anything else is done.
    pub(crate) fn notice(&mut self) {
        self.reap();
    }

    /// Takes in what has happened and does what is due. `Some` once, when it is over.
    pub(crate) fn tick(&mut self) -> Option<Report> {
        let childless = self.reap();
        if self.climb.is_over() {
            return None;
        }
        let empty = self.is_empty(childless);
        self.step(empty).or_else(|| {
            // The kill itself may have emptied it.
            let childless = self.reap();
            if self.is_empty(childless) { self.step(true) } else { None }
        })
    }

    /// One step on the ladder, and the report behind the last.
    fn step(&mut self, empty: bool) -> Option<Report> {
        let killing = self.climb.is_killing();
        let act = self.climb.tick(Instant::now(), self.has_left(), empty);
        self.perform(act);
        (act == Act::Finish).then(|| self.finish(killing))
    }

    fn perform(&mut self, act: Act) {
        match act {
            Act::Nothing | Act::Finish => {}
            Act::Look => self.look(),
            Act::Signal(number) => {
                self.look();
                self.signal_group(number);
            }
            Act::AskEveryone => {
                self.look();
                for member in self.census.to_be_terminated() {
                    self.hail(member, Signal::TERM);
                }
                self.climb.asked(Instant::now());
            }
            Act::Kill { first } => {
                if first {
                    self.look();
                }
                let newcomers = self.kill(first);
                let dying = if self.leaf.is_some() { LEAF_ROUND } else { Duration::ZERO };
                self.climb.struck(Instant::now(), dying, newcomers);
            }
        }
    }

    /// True once the command is known to have ended, or was never known to have begun.
    fn has_left(&self) -> bool {
        self.exit.is_some() || self.leader.is_none()
    }

    /// Signals the members of the command's process group one by one: the group's number could
    /// have become somebody else's.
    fn signal_group(&mut self, number: i32) {
        let (Some(leader), Some(signal)) = (self.leader, Signal::from_named_raw(number)) else {
            return;
        };
        for member in self.census.members() {
            if procfs::stat(member.pid).is_some_and(|s| s.pgrp == leader.pid) {
                self.hail(member, signal);
            }
        }
    }

    /// Signals one member and wakes it if it is stopped: a stopped process cannot heed anything.
    fn hail(&mut self, member: Member, signal: Signal) {
        if let Ok(true) = member.signal(signal) {
            self.census.note_signal(member, signal.as_raw());
            if procfs::stat(member.pid).is_some_and(|s| s.state == 'T') {
                let _gone = member.signal(Signal::CONT);
            }
        }
    }

    /// One pass of the kill. What it misses the next pass finds. True if it has killed somebody new.
    fn kill(&mut self, first: bool) -> bool {
        // The kernel kills a leaf whole. Walking at the same time would only take the CPU that the
        // dying need; a later pass walks, for whoever had moved out.
        let killed_whole = self.leaf.as_ref().is_some_and(|leaf| leaf.kill().is_ok());
        if self.is_its_init {
            super::signals::kill_namespace();
            return false;
        }
        // The command has not been waited for, so its number is still its own and its group's; this
        // needs no /proc and no descriptor.
        if let (Some(leader), None) = (self.leader.and_then(|l| Pid::from_raw(l.pid)), self.exit) {
            let _gone = rustix::process::kill_process_group(leader, Signal::KILL);
            let _gone = rustix::process::kill_process(leader, Signal::KILL);
        }
        if killed_whole && first {
            return false;
        }
        let me = rustix::process::getpid().as_raw_pid();
        let mut found = descent::freeze(me, &self.others(), |m| self.is_ours(m));
        self.add_leaf_members(&mut found);
        if self.is_guardian {
            kill_hidden_children();
        }
        let mut newcomers = false;
        for member in found {
            let is_new = self.census.meet(member);
            match member.signal(Signal::KILL) {
                // Whom we may not kill buys nobody time.
                Ok(killed) => newcomers |= is_new && killed,
                Err(errno) => drop(self.refused.insert(member, errno)),
            }
        }
        newcomers
    }

    /// Who is in the tree now.
    fn members(&self) -> Vec<Member> {
        let me = rustix::process::getpid().as_raw_pid();
        let mut found = descent::members_below(me, &self.others(), |m| self.is_ours(m));
        self.add_leaf_members(&mut found);
        found
    }

    /// True for everyone below us, unless we had children before the tree: the orphans of those
    /// come to us as well, and they do not carry the mark. Who is below one of ours is not asked.
    fn is_ours(&self, member: &Member) -> bool {
        self.belongs(member).unwrap_or(false)
    }

    fn belongs(&self, member: &Member) -> Result<bool, Errno> {
        let is_known = || self.census.members().contains(member);
        if self.strangers.is_empty() || Some(*member) == self.leader || is_known() {
            return Ok(true);
        }
        self.mark.read(member.pid)
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

    /// Takes a census, before anybody is killed: notes who is new, and how those that have gone since left.
    fn look(&mut self) {
        let live = self.members();
        self.census.settle(&live, false);
        self.census.note(live);
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
        let nobody_below = childless || (!self.strangers.is_empty() && self.only_strangers_below());
        nobody_below && self.leaf.as_ref().is_none_or(|l| !l.populated())
    }

    /// Whether everyone below us could be looked at and is not of the tree. A dead member of the tree counts as one:
    /// the next look will have waited for it, and will see the children that it left to us.
    fn only_strangers_below(&self) -> bool {
        self.everyone().is_ok_and(|all| all.is_empty())
    }

    /// Everyone below us who is not known to be a stranger, also the dead.
    fn everyone(&self) -> Result<Vec<Member>, Errno> {
        let me = rustix::process::getpid().as_raw_pid();
        descent::everyone_below(me, &self.others(), |member| self.belongs(member) != Ok(false))
    }

    /// Whoever is left after the last look is a survivor, also if only the kernel knows of them:
    /// calling a tree empty because nothing could be read would be the worst of lies.
    fn finish(&mut self, killing: bool) -> Report {
        let live = self.members();
        self.census.settle(&live, killing);
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
            // The dead whom we cannot wait for, because somebody traces them.
            survivors.extend(self.everyone().into_iter().flatten().map(Survivor::unkilled));
            if survivors.is_empty() {
                survivors.push(Survivor::unseen());
            }
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
        let Gone { left, asked, killed } = self.census.gone;
        Report {
            exit: self.exit,
            backend: self.backend,
            seen: left + asked + killed + seen_alive,
            left,
            asked,
            killed,
            survivors,
            breach,
            took: self.climb.took(Instant::now()),
        }
    }
}
