//! The guard: a tree's state and the one way in which it ends.
//!
//! It never blocks: its runner calls [`Guard::tick`] whenever something has happened or the
//! deadline has come. While nobody has asked for an end and nobody forks, it does not look at all.

use super::events::Woken;
use super::herd::Herd;
use super::mark::Mark;
use super::{Backend, process};
use crate::climb::{Act, Climb};
use crate::ladder::{Ask, Ladder};
use crate::member::Member;
use crate::report::{Exit, Report};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Looks that must find nobody before nobody is there: no kernel says so here.
const CLEAN_LOOKS: u32 = 3;

/// How soon to look again: after a look that found nobody, while the command is on its way out,
/// while others are, and after a fork.
const AFTER_NOBODY: Duration = Duration::from_millis(4);
const WHILE_LEAVING: Duration = Duration::from_millis(2);
const WHILE_ENDING: Duration = Duration::from_millis(50);
const AFTER_FORK: Duration = Duration::from_millis(50);

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
    leader: Member,
    herd: Herd,
    climb: Climb,
    /// The command has ended. It is not waited for before the report: until then its number, and
    /// with it its session's, is nobody else's.
    has_left: bool,
    is_leaving: bool,
    exit: Option<Exit>,
    /// Everyone seen alive and not yet seen gone, and whether they were asked to leave.
    census: HashMap<Member, bool>,
    counts: Counts,
    clean_looks: u32,
    has_forked: bool,
    looked: Instant,
}

impl Guard {
    /// The command, a child of this process that leads a session of its own.
    pub(crate) fn new(ladder: Ladder, mark: Mark, leader: Member) -> Guard {
        Guard {
            leader,
            herd: Herd::led_by(mark, leader),
            climb: Climb::new(ladder),
            has_left: false,
            is_leaving: false,
            exit: None,
            census: HashMap::from([(leader, false)]),
            counts: Counts::default(),
            clean_looks: 0,
            has_forked: false,
            looked: Instant::now(),
        }
    }

    /// How the command ended, once it has.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.exit
    }

    /// Who is worth watching.
    pub(crate) fn members(&self) -> HashSet<Member> {
        self.census.keys().copied().collect()
    }

    /// Takes a hint.
    pub(crate) fn heed(&mut self, woken: &Woken) {
        self.has_forked |= woken.forked;
        self.is_leaving |= woken.left.contains(&self.leader.pid);
    }

    /// When `tick` wants to be called even if nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let again = if self.climb.is_over() {
            None
        } else if self.clean_looks > 0 {
            Some(AFTER_NOBODY)
        } else if self.is_leaving && !self.has_left {
            Some(WHILE_LEAVING)
        } else if self.climb.is_ending() {
            Some(WHILE_ENDING)
        } else {
            self.has_forked.then_some(AFTER_FORK)
        };
        again.map(|again| self.looked + again).into_iter().chain(self.climb.deadline()).min()
    }

    /// Starts the end, or climbs higher on the ladder. Never lower.
    pub(crate) fn ask(&mut self, ask: Ask) {
        self.look();
        let act = self.climb.ask(ask, Instant::now(), self.has_left);
        self.perform(act);
    }

    /// Passes a signal to the command alone.
    pub(crate) fn forward(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            let _gone = self.leader.signal(signal);
        }
    }

    /// Takes in what has happened and does what is due. `Some` once, when it is over.
    pub(crate) fn tick(&mut self) -> Option<Report> {
        if self.climb.is_over() {
            return None;
        }
        self.note_exit();
        let fork_is_old = self.has_forked && self.looked.elapsed() >= AFTER_FORK;
        if self.has_left || self.climb.is_ending() || fork_is_old {
            self.look();
        }
        let empty = self.clean_looks >= CLEAN_LOOKS;
        let act = self.climb.tick(Instant::now(), self.has_left, empty);
        self.perform(act);
        (act == Act::Finish).then(|| self.report())
    }

    fn perform(&mut self, act: Act) {
        match act {
            Act::Nothing | Act::Finish => {}
            Act::Signal(number) => self.signal_group(number),
            Act::AskEveryone => {
                for member in self.members() {
                    if self.census.get(&member) == Some(&false) {
                        self.hail(member, Signal::TERM);
                    }
                }
            }
            Act::Kill => {
                self.herd.kill();
                self.look();
            }
        }
    }

    /// Signals the members of the command's group one by one: `killpg` can fail with EPERM because
    /// one of them is dead or another user's.
    fn signal_group(&mut self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else { return };
        for member in self.members() {
            if process::look(member.pid).is_some_and(|seen| seen.group == self.leader.pid) {
                self.hail(member, signal);
            }
        }
    }

    /// Signals one member and wakes it if it is stopped: a stopped process cannot heed anything.
    fn hail(&mut self, member: Member, signal: Signal) {
        if let Ok(true) = member.signal(signal) {
            self.census.insert(member, true);
            if process::look(member.pid).is_some_and(|seen| seen.is_stopped()) {
                let _gone = member.signal(Signal::CONT);
            }
        }
    }

    /// Sees whether the command has ended, without letting go of its number.
    fn note_exit(&mut self) {
        let Some(pid) = Pid::from_raw(self.leader.pid).filter(|_| !self.has_left) else { return };
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        match rustix::process::waitid(WaitId::Pid(pid), look) {
            Ok(None) | Err(Errno::INTR) => return,
            // The kernel names the code here but not the signal; that is in the process's own entry.
            Ok(Some(status)) => {
                let code = status.exit_status().map(Exit::Code);
                self.exit = code.or_else(|| process::look(self.leader.pid)?.exit());
            }
            Err(_) => {}
        }
        self.has_left = true;
    }

    /// Takes a census: notes who is new, and how those that have gone since the last one left.
    fn look(&mut self) {
        self.has_forked = false;
        let thorough = self.has_left || self.climb.is_ending();
        let looked = self.herd.look(thorough);
        self.looked = Instant::now();
        let Ok(living) = looked else {
            // A list that could not be read says nothing about anybody.
            self.clean_looks = 0;
            return;
        };
        let nobody = living.is_empty() && self.has_left && thorough;
        self.clean_looks = if nobody { self.clean_looks + 1 } else { 0 };
        let living: HashSet<Member> = living.into_iter().collect();
        let killing = self.climb.is_killing();
        let counts = &mut self.counts;
        self.census.retain(|member, asked| {
            if living.contains(member) {
                return true;
            }
            match (killing, *asked) {
                (true, _) => counts.killed += 1,
                (false, true) => counts.asked += 1,
                (false, false) => counts.left += 1,
            }
            false
        });
        for member in living {
            self.census.entry(member).or_insert(false);
        }
    }

    fn report(&mut self) -> Report {
        let survivors = self.herd.survivors();
        if self.has_left {
            // Nobody needs the session any more, and this is the kernel's last word on the exit.
            let pid = Pid::from_raw(self.leader.pid);
            if let Ok(Some((_, status))) = rustix::process::waitpid(pid, WaitOptions::NOHANG) {
                self.exit = Some(process::exit(status.as_raw()));
            }
        }
        let Counts { left, asked, killed } = self.counts;
        Report {
            exit: self.exit,
            backend: Backend::Session,
            seen: left + asked + killed + survivors.len() as u32,
            left,
            asked,
            killed,
            survivors,
            breach: None,
            took: self.climb.took(Instant::now()),
        }
    }
}
