//! What this process was given by whoever started it, noted before the runtime changes it.
//!
//! Rust's runtime ignores SIGPIPE before `main`, and an ignored signal stays ignored over exec. A
//! host may ignore SIGCHLD, in which case the kernel would tell us nothing about our children. We
//! need our own dispositions, and a command under us must get what it would have got without us; so
//! both are read by a constructor that runs earlier.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
static SIGCHLD_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

// SAFETY: `.init_array` holds pointers to C functions without arguments that the loader calls
// before `main`; `note` is one, and it only calls sigaction(2) and stores to atomics.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    SIGPIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    SIGCHLD_WAS_IGNORED.store(is_ignored(libc::SIGCHLD), Ordering::Relaxed);
}

fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only queries; `action` is valid for writes of its type.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zero is a valid sigaction, and the call filled it in if it succeeded.
    asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

fn set(signal: i32, ignored: bool) {
    let disposition = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: SIG_IGN and SIG_DFL are no handlers, so there is nothing that could run unsafely.
    unsafe { libc::signal(signal, disposition) };
}

/// Makes sure that the kernel tells us when a child ends.
pub(crate) fn hear_of_children() {
    set(libc::SIGCHLD, false);
}

/// Gives a command, just before exec, the dispositions that we were given.
pub(crate) fn restore_dispositions() {
    set(libc::SIGPIPE, SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed));
    set(libc::SIGCHLD, SIGCHLD_WAS_IGNORED.load(Ordering::Relaxed));
}

/// Closes descriptors above 2 that leaked into this process over exec.
///
/// A careless host leaks the ends of other pipes into everything it starts, perhaps the writing end
/// of our own stdin; as long as we held it, nobody would ever see that pipe close. What survived an
/// exec lacks close-on-exec, and whatever this program opens has it: that tells them apart.
pub fn close_leaked() {
    let Ok(dir) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let open: Vec<RawFd> = dir.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // SAFETY: fcntl only reads the flags, and fails on a number that is not open. A descriptor
        // without close-on-exec was opened by another program: nothing in this one owns it.
        unsafe {
            if libc::fcntl(fd, libc::F_GETFD) == 0 {
                libc::close(fd);
            }
        }
    }
}
