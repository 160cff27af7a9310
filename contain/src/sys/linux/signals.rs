//! Signals as something to read, not as something that interrupts.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Blocked signals, readable one by one, and the mask that was in force before.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    before: Mask,
}

/// A signal mask.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask")
    }
}

impl Mask {
    fn of(signals: &[i32]) -> Mask {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: sigemptyset initialises the set it is given, which is valid for writes.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: just initialised.
        let mut set = unsafe { set.assume_init() };
        for signal in signals {
            // SAFETY: `set` is initialised; a bad number is refused with EINVAL.
            unsafe { libc::sigaddset(&mut set, *signal) };
        }
        Mask(set)
    }

    /// All that can be blocked.
    pub(crate) fn full() -> Mask {
        let all: Vec<i32> = (1..=64).collect();
        Mask::of(&all)
    }

    /// Nothing is blocked.
    pub(crate) fn none() -> Mask {
        Mask::of(&[])
    }

    /// Makes this the mask of the calling thread and returns the one before.
    pub(crate) fn enforce(&self) -> Mask {
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: both sets are valid for their direction; SIG_SETMASK only touches the mask.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &self.0, before.as_mut_ptr()) };
        // SAFETY: zero is a valid set, and the call above filled it in.
        Mask(unsafe { before.assume_init() })
    }
}

impl Signals {
    /// Blocks these signals for the calling thread and makes them readable.
    ///
    /// A signal that is ignored stays ignored: a process started with `nohup` is not woken by
    /// SIGHUP. Only SIGCHLD is heard in any case.
    pub fn block(signals: &[i32]) -> io::Result<Signals> {
        if signals.contains(&libc::SIGCHLD) {
            super::inherited::hear_of_children();
        }
        let set = Mask::of(signals);
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: both sets are valid for their direction; SIG_BLOCK only adds to the mask.
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, &set.0, before.as_mut_ptr()) };
        // SAFETY: zero is a valid set, and the call above filled it in.
        let before = Mask(unsafe { before.assume_init() });
        // SAFETY: `set.0` is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            before.enforce();
            return Err(error);
        }
        // SAFETY: signalfd just returned this descriptor and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Signals { fd, before })
    }

    /// The next signal that has arrived, if any.
    pub fn next(&self) -> Option<i32> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is `size` bytes long and valid for writes.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if n != size as isize {
            return None;
        }
        // SAFETY: the kernel filled the whole struct; all bit patterns are valid integers.
        Some(unsafe { info.assume_init() }.ssi_signo as i32)
    }

    /// The mask that was in force before, which is what a command should start with.
    pub(crate) fn before(&self) -> Mask {
        self.before
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The numbers of the signals that a wrapper deals with, for crates without libc.
pub mod number {
    pub use libc::{
        SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGPWR, SIGQUIT, SIGTERM, SIGURG,
        SIGUSR1, SIGUSR2, SIGVTALRM, SIGWINCH, SIGXCPU, SIGXFSZ,
    };
}

/// Kills everyone in this pid namespace but its first process, which must be the caller, and which must have been
/// made for the tree.
pub(crate) fn kill_namespace() {
    if rustix::process::getpid().is_init() {
        // SAFETY: kill(2) takes plain numbers. For pid 1, -1 means every other process of its namespace and
        // nobody outside it.
        unsafe { libc::kill(-1, libc::SIGKILL) };
    }
}
