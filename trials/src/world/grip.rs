//! What keeps a process where it is, from outside: a program that nobody can execute yet, and a death that nobody
//! else may collect. Both let go when they are dropped.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Which signal tells of somebody who waits for a lease; the C library's binding has no name for it.
const F_SETSIG: libc::c_int = 10;

/// A lease on a file: whoever wants to execute or open it waits, as for a file system that does not answer.
#[derive(Debug)]
pub struct Lease(#[expect(dead_code, reason = "closing it gives the lease back")] File);

impl Lease {
    /// Takes the lease. Nobody may have the file open, and it must be ours.
    ///
    /// # Errors
    ///
    /// The kernel's refusal.
    pub fn take(path: &Path) -> io::Result<Lease> {
        let file = File::open(path)?;
        // SAFETY: fcntl takes plain numbers here. SIGURG, which is ignored by default, tells of somebody waiting.
        let taken = unsafe {
            libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0
        };
        if taken { Ok(Lease(file)) } else { Err(io::Error::last_os_error()) }
    }
}

/// A process that is traced by this thread: when it has died, only this thread may collect it, and it stays a zombie
/// until then.
#[derive(Debug)]
pub struct Traced(i32);

impl Traced {
    /// Traces a process, which runs on.
    ///
    /// # Errors
    ///
    /// The kernel's refusal.
    pub fn seize(pid: i32) -> io::Result<Traced> {
        // SAFETY: PTRACE_SEIZE takes a number and two null pointers.
        let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0usize, 0usize) };
        if seized == 0 { Ok(Traced(pid)) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // SAFETY: the status is not asked for. If it lives it is let go when this thread ends.
        let _collected =
            unsafe { libc::waitpid(self.0, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) };
    }
}
