//! What this process was given by whoever started it, noted before the runtime changes it.
//!
//! Rust's runtime ignores SIGPIPE before `main`, and an ignored signal stays ignored over exec. A
//! host may ignore SIGCHLD, in which case the kernel would tell us nothing about our children. We
//! need our own dispositions, and a command under us must get what it would have got without us; so
//! both are read by a constructor that runs earlier.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
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

/// Takes a descriptor above 2 that this process was given over exec. Each can be taken once; `None` if
/// there is none.
///
/// As with those that leaked: what survived an exec lacks close-on-exec and is nobody's, and once it is
/// taken it has that.
pub fn inherited(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: fcntl only reads the flags, and fails on a number that is not open.
    if number <= 2 || unsafe { libc::fcntl(number, libc::F_GETFD) } != 0 {
        return None;
    }
    // SAFETY: it is open and lacks close-on-exec, so it was opened by another program, and nothing in
    // this one owns it: whoever is given it here gives it that flag first.
    unsafe {
        libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC);
        Some(OwnedFd::from_raw_fd(number))
    }
}

/// Becomes another program, which has these descriptors under the same numbers. Returns only if that
/// fails; this process is then as it was, but that SIGCHLD has its default handling.
pub fn turn_into(
    program: BorrowedFd<'_>,
    args: &[CString],
    env: &[CString],
    keep: &[RawFd],
) -> io::Error {
    let pointers = |words: &[CString]| {
        let words = words.iter().map(|word| word.as_ptr());
        words.chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (args, env) = (pointers(args), pointers(env));
    let mark = |flag: i32| {
        for number in keep {
            // SAFETY: fcntl only sets a flag, and fails on a number that is not open.
            unsafe { libc::fcntl(*number, libc::F_SETFD, flag) };
        }
    };
    mark(0);
    // Until the next program can hear them, signals that mean something wait.
    mask(libc::SIG_BLOCK);
    restore_dispositions();
    // SAFETY: both lists end with a null and point to words that end with one, all of them there
    // until the call returns, if it does.
    unsafe { libc::fexecve(program.as_raw_fd(), args.as_ptr(), env.as_ptr()) };
    let error = io::Error::last_os_error();
    set(libc::SIGPIPE, true);
    mask(libc::SIG_UNBLOCK);
    mark(libc::FD_CLOEXEC);
    error
}

/// Lets the signals come that wait since this process [became](turn_into) this program. To be called by
/// its first thread, once somebody hears them.
pub fn hear_signals() {
    mask(libc::SIG_UNBLOCK);
}

fn mask(how: i32) {
    // SAFETY: a set is plain numbers, and the calls only write to the one that is ours; the mask is that of
    // the calling thread.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR2] {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(how, &set, std::ptr::null_mut());
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn what_this_program_opened_was_not_inherited() {
        let own = File::open("/proc/self/exe").unwrap();
        assert!(inherited(own.as_raw_fd()).is_none());
        assert!(inherited(9999).is_none() && inherited(-1).is_none() && inherited(0).is_none());
    }

    #[test]
    fn each_can_be_taken_once() {
        let own = File::open("/proc/self/exe").unwrap();
        // As if it came over exec: its number, and no flag.
        let given = rustix::io::dup(&own).unwrap();
        let number = std::os::fd::IntoRawFd::into_raw_fd(given);
        assert!(inherited(number).is_some_and(|taken| taken.as_raw_fd() == number));
        assert!(inherited(number).is_none());
    }

    #[test]
    fn what_is_no_program_changes_nothing() {
        let file = File::open("/proc/self/status").unwrap();
        let (kept, word) = (File::open("/proc/self/exe").unwrap(), c"x".to_owned());
        let error = turn_into(std::os::fd::AsFd::as_fd(&file), &[word], &[], &[kept.as_raw_fd()]);
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        assert!(inherited(kept.as_raw_fd()).is_none(), "it would be leaked");
        assert!(is_ignored(libc::SIGPIPE));
    }
}
