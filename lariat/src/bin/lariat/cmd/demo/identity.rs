//! Which process is meant: pid and start time together, as procfs tells and an argv carries them.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// One process for good: a pid is reused, a pid with its start time is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    pub(super) pid: i32,
    pub(super) start: u64,
}

impl Identity {
    /// The identity of the calling process.
    pub(super) fn mine() -> io::Result<Self> {
        let stat = Stat::of("self")?;
        Ok(Self { pid: stat.pid, start: stat.start })
    }

    /// Opens the process, or gives `None` if it has ended.
    ///
    /// The start time is compared after opening: if it still fits, the descriptor cannot be of a
    /// later process with the same pid.
    pub(super) fn open(self) -> Option<OwnedFd> {
        let fd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        let stat = Stat::of(&self.pid.to_string()).ok()?;
        (stat.start == self.start).then_some(fd)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.pid, self.start)
    }
}

impl FromStr for Identity {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        text.split_once(':')
            .and_then(|(pid, start)| {
                Some(Self { pid: pid.parse().ok()?, start: start.parse().ok()? })
            })
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a pid:start"))
    }
}

/// The fields of `/proc/PID/stat` that matter here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) start: u64,
}

impl Stat {
    /// Reads them of a process, by its pid or `self`.
    pub(super) fn of(process: &str) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
        Self::parse(&text).ok_or_else(|| io::Error::other("cannot understand /proc/PID/stat"))
    }

    /// The name in brackets may hold spaces and brackets, so fields are counted from the last one.
    fn parse(text: &str) -> Option<Self> {
        let pid = text.split(' ').next()?.parse().ok()?;
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_counted_from_the_last_bracket() {
        let text = "7 (a) b (c) S 3 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        assert_eq!(Stat::parse(text), Some(Stat { pid: 7, parent: 3, start: 4242 }));
        assert_eq!(Stat::parse("7 (cut off) S 3"), None);
    }

    #[test]
    fn an_identity_survives_argv() {
        let mine = Identity::mine().expect("this process is in /proc");
        assert_eq!(mine.to_string().parse::<Identity>().expect("as it was written"), mine);
        assert!(mine.open().is_some());
    }

    #[test]
    fn another_start_time_is_another_process() {
        let mine = Identity::mine().expect("this process is in /proc");
        assert!(Identity { start: mine.start + 1, ..mine }.open().is_none());
    }
}
