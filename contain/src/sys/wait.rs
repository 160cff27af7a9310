//! Waiting: for descriptors, until a deadline, and never at full speed.

use rustix::event::{PollFd, poll};
use rustix::time::Timespec;
use std::time::Instant;

/// Waits until something is ready or the deadline has come. Callers look again in any case, so an
/// interruption is no news. False if the kernel cannot poll; a moment has passed then.
pub fn wait(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> bool {
    let timeout = deadline.map(|d| {
        let left = d.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
    });
    let polled = !poll(fds, timeout.as_ref()).is_err_and(|e| e != rustix::io::Errno::INTR);
    if !polled {
        let moment = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        let _interrupted = rustix::thread::nanosleep(&moment);
    }
    polled
}
