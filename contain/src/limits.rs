//! How much a tree may use, how much it uses, and what the kernel has said about it. Plain data.
//!
//! Only a cgroup can hold a tree to a limit, and only one whose controllers were handed down to
//! it. So a limit is a wish, [`Enforced`] says what became of it, and whoever asked for it looks at
//! [`Usage`] where the kernel does not.

use std::time::Duration;

/// What a tree may use at most, all its processes together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processes and their threads, which is what the kernel counts.
    pub processes: Option<u32>,
    /// CPUs' worth of time, such as 1.5.
    pub cpu: Option<f64>,
}

/// Which limits the kernel itself holds the tree to. False also for what was not asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Enforced {
    /// Allocating more ends the tree whole.
    pub memory: bool,
    /// Another fork or thread is refused.
    pub processes: bool,
    /// Whoever has used up the share waits for the next period.
    pub cpu: bool,
}

/// What a tree uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of memory: what the kernel has charged to the tree where it does, file cache
    /// included; else what its processes have resident.
    pub memory: u64,
    /// CPU time so far, of those that have gone as well. Never less than it was before.
    pub cpu: Duration,
    /// Living processes.
    pub processes: usize,
    /// Their threads, each process being one at least: what [`Limits::processes`] is about.
    pub tasks: usize,
}

/// A limit that the kernel had to act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breach {
    /// The tree wanted more memory than it may have; the kernel has killed it.
    Memory,
    /// A fork or a thread was refused.
    Processes,
}

impl Breach {
    /// Its name in receipts.
    pub fn name(self) -> &'static str {
        match self {
            Breach::Memory => "memory",
            Breach::Processes => "processes",
        }
    }
}
