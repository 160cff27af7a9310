//! What an ended tree looked like, and the two values that say whether it is empty.

use crate::limits::Breach;
use crate::member::Member;
use crate::sys::Backend;
use std::fmt;
use std::time::Duration;

/// How the command itself ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Exit {
    /// The exit code a transparent wrapper reports: the command's own, or 128 + the signal.
    pub fn code(self) -> u8 {
        match self {
            Exit::Code(code) => (code & 0xff) as u8,
            Exit::Signal(signal) => 128u8.wrapping_add(signal as u8),
        }
    }
}

/// Something that could not be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survivor {
    /// What it is.
    pub kind: Kind,
    /// Which one; zeros where no process could be named.
    pub member: Member,
    /// The kernel's short name for it. Never its arguments: those can hold secrets.
    pub name: String,
    /// Why it is still there.
    pub why: String,
}

/// What a survivor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A process.
    Process,
    /// A cgroup that could not be removed. Nobody is in it.
    Cgroup,
}

impl Kind {
    /// Its name in receipts.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Process => "process",
            Kind::Cgroup => "cgroup",
        }
    }
}

/// What was in the tree and how each process left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// How the command ended, if it was there to be waited for.
    pub exit: Option<Exit>,
    /// What held the tree.
    pub backend: Backend,
    /// Distinct processes that were observed.
    pub seen: u32,
    /// Left by themselves.
    pub left: u32,
    /// Left after they were asked with a signal.
    pub asked: u32,
    /// Had to be killed.
    pub killed: u32,
    /// Still there.
    pub survivors: Vec<Survivor>,
    /// The limit that the kernel had to act on, if there was one.
    pub breach: Option<Breach>,
    /// The time from when an end was asked for, or the command left, until nobody was there.
    pub took: Duration,
}

impl Report {
    /// A report about nothing, for trees that never came to be.
    pub fn nothing(backend: Backend) -> Report {
        Report {
            exit: None,
            backend,
            seen: 0,
            left: 0,
            asked: 0,
            killed: 0,
            survivors: Vec::new(),
            breach: None,
            took: Duration::ZERO,
        }
    }

    /// Splits into the proof of emptiness or the list of those that are left.
    pub fn verdict(self) -> Result<Emptied, Survivors> {
        if self.survivors.is_empty() {
            Ok(Emptied { report: self, _observed: () })
        } else {
            Err(Survivors { report: self })
        }
    }
}

/// Proof that a tree was observed empty.
///
/// Only a report without survivors can become one; it cannot be written down by hand:
///
/// ```compile_fail
/// # let report: lariat_contain::Report = todo!();
/// let forged = lariat_contain::Emptied { report, _observed: () };
/// ```
#[derive(Debug)]
#[must_use = "this is the receipt: strike the books with it or show it"]
pub struct Emptied {
    report: Report,
    _observed: (),
}

impl Emptied {
    /// What was there and how it left.
    pub fn report(&self) -> &Report {
        &self.report
    }
}

/// Processes of the tree are still alive.
#[derive(Debug)]
#[must_use = "something is still alive"]
pub struct Survivors {
    report: Report,
}

impl Survivors {
    /// What was there, how the rest left, and who is left.
    pub fn report(&self) -> &Report {
        &self.report
    }
}

impl fmt::Display for Survivors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} processes of the tree are still alive", self.report.survivors.len())
    }
}

impl std::error::Error for Survivors {}
