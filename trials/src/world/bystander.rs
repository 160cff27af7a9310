//! Bystanders: innocent processes that look exactly like the server.
//!
//! They have the server's executable, command line, environment and user, and are no part of the
//! session. They block every signal, so whatever is sent to them stays pending, for the runner to
//! read. A wrapper that guesses by name, command line or bare pid is caught here.

use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::lines::{Line, Lines};
use super::{Process, until};

/// A look-alike of the server, and the runner's line to it.
#[derive(Debug)]
pub struct Bystander {
    place: &'static str,
    process: Process,
    /// Its stdin is the other end: closing this is how it is told to leave.
    control: Lines<OwnedFd>,
    child: Option<Child>,
}

impl Bystander {
    /// Starts one as a child of the runner. `place` says where it stands, for the verdict.
    ///
    /// # Errors
    ///
    /// If it cannot be started or does not report.
    pub fn start(mut command: Command, place: &'static str) -> io::Result<Self> {
        let (ours, theirs) = control_pair()?;
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn()?;
        // The command holds the other end; while it does, the bystander would never see us leave.
        drop(command);
        Self::meet(ours, Some(child), place)
    }

    /// Waits for the report of one whose stdin is the other end of `control`.
    pub(crate) fn meet(
        control: OwnedFd,
        child: Option<Child>,
        place: &'static str,
    ) -> io::Result<Self> {
        let mut control = Lines::new(control);
        let Line::Text(line) = control.next(Duration::from_secs(10)) else {
            return Err(io::Error::other("a bystander did not report"));
        };
        let process = line.parse().ok().and_then(Process::now);
        let process = process.ok_or_else(|| io::Error::other("a bystander ended at once"))?;
        Ok(Self { place, process, control, child })
    }

    /// Who it is.
    #[must_use]
    pub fn process(&self) -> Process {
        self.process
    }

    /// What was done to it, if anything.
    #[must_use]
    pub fn harm(&self) -> Option<String> {
        let what = self.damage()?;
        Some(format!("bystander {} ({}) was {what}", self.process.pid, self.place))
    }

    fn damage(&self) -> Option<String> {
        let Some(stat) = self.process.stat().filter(|stat| stat.is_alive(self.process.pid)) else {
            return Some("ended".to_owned());
        };
        if matches!(stat.state, 'T' | 't') {
            return Some(format!("stopped (state {})", stat.state));
        }
        let Ok(status) = fs::read_to_string(format!("/proc/{}/status", self.process.pid)) else {
            return Some("ended".to_owned());
        };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        if field("TracerPid:").is_some_and(|tracer| tracer.trim() != "0") {
            return Some("traced".to_owned());
        }
        let pending = |name| {
            let mask = u64::from_str_radix(field(name).unwrap_or("0").trim(), 16);
            mask.unwrap_or(u64::MAX)
        };
        let signals = sent(pending("SigPnd:") | pending("ShdPnd:"));
        (!signals.is_empty()).then(|| format!("sent signal {signals:?}"))
    }

    /// Tells it to leave and sees that it does.
    pub fn end(self) {
        let Self { process, control, child, .. } = self;
        drop(control);
        let gone = until(Duration::from_secs(2), || !process.is_alive());
        if !gone {
            // It was stopped, perhaps; it is ours to end in any case.
            process.signal(libc::SIGKILL).ok();
        }
        if let Some(mut child) = child {
            child.wait().ok();
        }
    }
}

/// The signals in a pending mask that somebody must have sent on purpose.
fn sent(mask: u64) -> Vec<i32> {
    // The kernel sends these two by itself: for a child's end, for a terminal's change of size.
    let by_kernel = [libc::SIGCHLD, libc::SIGWINCH];
    let set = |signal: &i32| mask & (1 << (signal - 1)) != 0;
    (1..=64).filter(set).filter(|signal| !by_kernel.contains(signal)).collect()
}

/// A connected pair of the one kind of socket that no host uses as stdin: by it a bystander knows
/// its part although its command line is the server's.
pub(crate) fn control_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the array has room for the two descriptors that socketpair writes.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both descriptors are new and nobody else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_from_a_mask() {
        let term_and_chld = (1 << (libc::SIGTERM - 1)) | (1 << (libc::SIGCHLD - 1));
        assert_eq!(sent(term_and_chld), [libc::SIGTERM]);
        assert!(sent(0).is_empty());
    }
}
