//! A process on Linux: found by `/proc`, held and signalled by a pidfd.

use super::procfs;
use crate::member::Member;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use rustix::process::{kill_process, pidfd_open, pidfd_send_signal, waitid};

/// Whether this is the number of a child of ours that nobody has waited for, alive or dead: only then nobody else
/// can have it.
pub(crate) fn is_child(pid: i32) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Pid::from_raw(pid).is_some_and(|pid| waitid(WaitId::Pid(pid), options).is_ok())
}

impl Member {
    /// The process that has this pid now, if there is one.
    pub fn of(pid: i32) -> Option<Member> {
        procfs::stat(pid).map(|s| Member { pid, start: s.start })
    }

    /// This process.
    pub fn current() -> Option<Member> {
        Member::of(rustix::process::getpid().as_raw_pid())
    }

    /// True while the same process is there and not merely a zombie.
    pub fn is_alive(&self) -> bool {
        procfs::stat(self.pid).is_some_and(|s| s.start == self.start && s.is_alive())
    }

    /// A descriptor for this very process, or `None` if it has gone.
    ///
    /// The start time is compared after opening: once the descriptor exists, the number can no
    /// longer come to mean somebody else without the comparison failing.
    pub fn pidfd(&self) -> Option<OwnedFd> {
        let fd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        (procfs::stat(self.pid)?.start == self.start).then_some(fd)
    }

    /// Sends a signal to this process and to nobody else.
    ///
    /// `Ok(false)` means that it was already gone.
    pub fn signal(&self, signal: Signal) -> Result<bool, rustix::io::Errno> {
        use rustix::io::Errno;
        let Some(pid) = Pid::from_raw(self.pid) else {
            return Ok(false);
        };
        // First the descriptor, then the comparison. Without pidfds (an old kernel, a seccomp
        // filter, no free descriptor) the start time, looked at just before, is what is left.
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(false),
            fd => fd.ok(),
        };
        // Whether it is still the same may not be known, and nobody is signalled then.
        let is_it = || match procfs::read_stat(self.pid) {
            Ok(stat) => Ok(stat.start == self.start),
            Err(Errno::NOENT | Errno::SRCH) => Ok(false),
            Err(e) => Err(e),
        };
        if !is_it()? {
            return Ok(false);
        }
        let sent = match fd.map(|fd| pidfd_send_signal(&fd, signal)) {
            // A filter may refuse this call alone.
            Some(Err(Errno::NOSYS | Errno::PERM)) if is_it()? => kill_process(pid, signal),
            Some(sent) => sent,
            None => kill_process(pid, signal),
        };
        match sent {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(e) => Err(e),
        }
    }
}
