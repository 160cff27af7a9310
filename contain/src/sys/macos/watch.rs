//! Waiting for a process and a descriptor at once, with a kqueue.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// What wakes the guardian.
#[derive(Debug)]
pub(crate) struct Watch {
    queue: OwnedFd,
}

impl Watch {
    /// The exits and forks of one process, and something to read.
    pub(crate) fn new(pid: i32, line: BorrowedFd<'_>) -> io::Result<Watch> {
        // SAFETY: takes nothing.
        let raw = unsafe { libc::kqueue() };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else owns it.
        let watch = Watch { queue: unsafe { OwnedFd::from_raw_fd(raw) } };
        watch.add(line.as_raw_fd() as usize, libc::EVFILT_READ, 0)?;
        let process = watch.add(pid as usize, libc::EVFILT_PROC, libc::NOTE_EXIT | libc::NOTE_FORK);
        match process {
            // It has gone already: whoever looks will see.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(watch),
            other => other.map(|()| watch),
        }
    }

    fn add(&self, ident: usize, filter: i16, notes: u32) -> io::Result<()> {
        let change = libc::kevent {
            ident,
            filter,
            flags: libc::EV_ADD | libc::EV_CLEAR,
            fflags: notes,
            data: 0,
            udata: std::ptr::null_mut(),
        };
        // SAFETY: one change is read from a value of ours, and no event is written.
        let done = unsafe {
            let (queue, none) = (self.queue.as_raw_fd(), std::ptr::null_mut());
            libc::kevent(queue, &change, 1, none, 0, std::ptr::null())
        };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits until something happens, at most that long. Callers look again in any case.
    pub(crate) fn wait(&self, at_most: Duration) {
        let timeout = libc::timespec {
            tv_sec: at_most.as_secs().cast_signed(),
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        // SAFETY: plain numbers and a pointer; all zeros are a value of it.
        let mut event: libc::kevent = unsafe { std::mem::zeroed() };
        // SAFETY: no change is read, and at most one event is written to a value of ours.
        let _happened = unsafe {
            let queue = self.queue.as_raw_fd();
            libc::kevent(queue, std::ptr::null(), 0, &mut event, 1, &timeout)
        };
    }
}
