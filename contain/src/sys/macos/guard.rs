//! The guard: a tree's state and the one way in which it ends.
//!
//! It never blocks: its runner calls [`Guard::tick`] whenever something has happened or the
//! deadline has come. While nobody has asked for an end and nobody forks, it does not look at all.

use super::events::Woken;
use super::herd::Herd;
use super::mark::Mark;
use super::{Backend, process};
use crate::census::{Census, Gone};
use crate::climb::{Act, Climb};
use crate::ladder::{Ask, Ladder};
use crate::member::Member;
use crate::report::{Exit, Report};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Looks that must find nobody before nobody is there: no kernel says so here.
const CLEAN_LOOKS: u32 = 3;

/// How soon to look again: after a look that found nobody, while the command is on its way out,
/// while others are, and after a fork.
const AFTER_NOBODY: Duration = Duration::from_millis(4);
const WHILE_LEAVING: Duration = Duration::from_millis(2);
const WHILE_ENDING: Duration = Duration::from_millis(50);
const AFTER_FORK: Duration = Duration::from_millis(50);

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
    census: Census,
    clean_looks: u32,
    has_forked: bool,
    looked: Instant,
}

impl Guard {
    /// The command, a child of this process that leads a session of its own, and whoever is behind us.
    pub(crate) fn new(ladder: Ladder, mark: Mark, leader: Member, behind: Option<Member>) -> Guard {
        let mut census = Census::default();
        census.note([leader]);
        Guard {
            leader,
            herd: Herd::led_by(mark, leader, behind),
            climb: Climb::new(ladder),
            has_left: false,
            is_leaving: false,
            exit: None,
            census,
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
        self.census.members().into_iter().collect()
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
            Some(self.looked + AFTER_NOBODY)
        } else if self.is_leaving && !self.has_left {
            // Nobody looks meanwhile, so it is counted from now.
            Some(Instant::now() + WHILE_LEAVING)
        } else if self.climb.is_ending() {
            Some(self.looked + WHILE_ENDING)
        } else {
            self.has_forked.then(|| self.looked + AFTER_FORK)
        };
        again.into_iter().chain(self.climb.deadline()).min()
    }

    /// How much longer the kill may take than the holder knows.
    pub(crate) fn overtime(&mut self) -> Option<Duration> {
        self.climb.overtime(Instant::now())
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
            // A look has come before each of them.
            Act::Nothing | Act::Look | Act::Finish => {}
            Act::Signal(number) => self.signal_group(number),
            Act::AskEveryone => {
                for member in self.census.to_be_terminated() {
                    self.hail(member, Signal::TERM);
                }
                self.climb.asked(Instant::now());
            }
            Act::Kill { .. } => {
                let newcomers = self.herd.kill();
                self.look();
                self.climb.struck(Instant::now(), Duration::ZERO, newcomers);
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
            self.census.note_signal(member, signal.as_raw());
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
            // A debugger that has attached to it is its parent until it lets go.
            Err(_) if self.leader.is_alive() => return,
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
        self.census.settle(&living, self.climb.is_killing());
        self.census.note(living);
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
        let Gone { left, asked, killed } = self.census.gone;
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
