//! Processes of ours beside the tree: they help its holder and are none of the tree's.
//!
//! An aside is a fork like the guardian: it runs code that is already in memory, in a session of its
//! own, with nothing of the holder's but the descriptors it is given. It must end by itself when
//! whoever it helps is gone; the holder can only hasten that.

use super::launch::{self, Side};
use super::signals::Mask;
use super::{inherited, procfs};
use crate::member::Member;
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A helper that is a child of this process.
#[derive(Debug)]
pub struct Aside {
    member: Member,
}

impl Aside {
    /// Forks a helper. It is called `name` in `ps`, keeps the descriptors in `keep`, and its exit
    /// code is what `work` returns.
    pub fn fork(
        name: &CStr,
        keep: &[BorrowedFd<'_>],
        work: impl FnOnce() -> i32,
    ) -> io::Result<Aside> {
        single_threaded()?;
        match launch::fork(0, None)? {
            Side::Child => live(name, keep, work),
            Side::Parent(pid) => {
                // Our unreaped child, dead or alive, so the number is its own.
                Ok(Aside { member: Member::of(pid).unwrap_or(Member { pid, start: 0 }) })
            }
        }
    }

    /// Who it is.
    pub fn member(&self) -> Member {
        self.member
    }

    /// True once it has ended. Collects it.
    pub fn has_ended(&self) -> bool {
        !matches!(waitpid(Pid::from_raw(self.member.pid), WaitOptions::NOHANG), Ok(None))
    }

    /// Ends it at once.
    pub fn kill(&self) {
        let _gone = self.member.signal(Signal::KILL);
    }
}

/// Forks a helper that nobody waits for: it belongs to init, and outlives this process if need be.
/// To be called before this process holds a tree, or else the helper would come back to it.
///
/// Every descriptor above 2 that is not in `keep` is closed before `work` begins, also one that `work` owns: it
/// makes for itself what it needs.
pub fn detach(name: &CStr, keep: &[BorrowedFd<'_>], work: impl FnOnce() -> i32) -> io::Result<()> {
    single_threaded()?;
    // Where children are ignored there would be nobody to wait for.
    inherited::hear_of_children();
    match launch::fork(0, None)? {
        Side::Child => match launch::fork(0, None) {
            Ok(Side::Child) => live(name, keep, work),
            Ok(Side::Parent(_)) => launch::leave(0),
            Err(_) => launch::leave(1),
        },
        Side::Parent(pid) => loop {
            match waitpid(Pid::from_raw(pid), WaitOptions::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(Some((_, status))) if status.exit_status() == Some(0) => return Ok(()),
                _ => return Err(io::ErrorKind::WouldBlock.into()),
            }
        },
    }
}

/// A fork copies one thread. Whoever has more must not fork.
fn single_threaded() -> io::Result<()> {
    match procfs::own_threads()? {
        1 => Ok(()),
        n => Err(io::Error::other(format!("{n} threads run in this process"))),
    }
}

/// In the child: never returns, not even by a panic.
fn live(name: &CStr, keep: &[BorrowedFd<'_>], work: impl FnOnce() -> i32) -> ! {
    // Hosts signal whole groups; a terminal signals whole sessions.
    let _already_leader = rustix::process::setsid();
    let _unnamed = rustix::thread::set_name(name);
    Mask::none().enforce();
    inherited::hear_of_children();
    launch::let_go_of_stdio();
    let keep: Vec<i32> = keep.iter().map(AsRawFd::as_raw_fd).collect();
    launch::close_all_but(3, &keep);
    let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    launch::leave(worked.unwrap_or(125))
}
