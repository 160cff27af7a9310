//! One process by identity. A pid alone is a number that the kernel hands out again.

use std::fmt;

/// A process, named by its pid and its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// The process id, as this process sees it.
    pub pid: i32,
    /// Start time as the platform counts it: on Linux in clock ticks since boot (field 22 of
    /// `/proc/PID/stat`), on Windows in steps of 100 ns since 1601, on macOS in microseconds since
    /// 1970.
    pub start: u64,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.pid, self.start)
    }
}
