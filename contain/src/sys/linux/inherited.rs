//! What this process was given by whoever started it, noted before the runtime changes it.
//!
//! Rust's runtime ignores SIGPIPE before `main`; an ignored signal stays ignored over exec. A
//! command under us must get what it would have got without us, so the disposition is read by a
//! constructor that runs earlier.

use std::sync::atomic::{AtomicBool, Ordering};

static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

// SAFETY: `.init_array` holds pointers to C functions without arguments that the loader calls
// before `main`; `note` is one, and it only calls sigaction(2) and stores to an atomic.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only queries; `action` is valid for writes of its type.
    let asked = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), action.as_mut_ptr()) };
    if asked == 0 {
        // SAFETY: zero is a valid sigaction, and the call succeeded in filling it in.
        let action = unsafe { action.assume_init() };
        SIGPIPE_WAS_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
}

/// The SIGPIPE disposition a command should start with.
pub(crate) fn sigpipe() -> libc::sighandler_t {
    if SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed) { libc::SIG_IGN } else { libc::SIG_DFL }
}
