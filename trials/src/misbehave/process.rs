//! The few system calls that misbehaviour is made of, each wrapped once.
//!
//! All of it runs in small helper processes that have just been executed, so a forked child may
//! go on in Rust; the two acts with threads fork only where no other thread holds a lock.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Ends this process at once, without destructors or buffers.
pub(super) fn leave(code: i32) -> ! {
    // SAFETY: _exit does not return and touches no memory of ours.
    unsafe { libc::_exit(code) }
}

/// Nanoseconds on the monotonic clock.
pub(super) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable for the whole call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Does nothing for a while. A helper has nobody to wait for, so this is not `until`.
pub(super) fn pause(time: Duration) {
    let request = timespec(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    // SAFETY: `request` is readable for the whole call, and no remainder is asked for.
    unsafe { libc::nanosleep(&raw const request, std::ptr::null_mut()) };
}

fn timespec(ns: u64) -> libc::timespec {
    let seconds = libc::time_t::try_from(ns / 1_000_000_000).unwrap_or(libc::time_t::MAX);
    let rest = libc::c_long::try_from(ns % 1_000_000_000).unwrap_or(0);
    libc::timespec { tv_sec: seconds, tv_nsec: rest }
}

/// Has the kernel send this process SIGKILL at that time of the monotonic clock.
pub(super) fn end_at(ns: u64) {
    // SAFETY: all-zero bytes are a valid sigevent.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_SIGNAL;
    event.sigev_signo = libc::SIGKILL;
    let mut timer: libc::timer_t = std::ptr::null_mut();
    // SAFETY: both pointers are valid for the whole call.
    let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
    if made == 0 {
        let when = libc::itimerspec { it_interval: timespec(0), it_value: timespec(ns) };
        // SAFETY: the timer was just made, `when` is readable, the old value is not asked for.
        unsafe {
            libc::timer_settime(timer, libc::TIMER_ABSTIME, &raw const when, std::ptr::null_mut());
        }
    }
}

/// Forks; the child runs `act` and exits. Returns the child's pid.
pub(super) fn fork(act: impl FnOnce()) -> io::Result<i32> {
    // SAFETY: the child goes on with a copy of this process; see the module's comment on threads.
    let pid = unsafe { libc::fork() };
    continue_as(pid, act)
}

/// Forks with extra clone flags that share no memory.
pub(super) fn fork_with(flags: i32, act: impl FnOnce()) -> io::Result<i32> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: no CLONE_VM and a null stack make this a fork: the child has copies of everything.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) };
    continue_as(i32::try_from(pid).unwrap_or(-1), act)
}

fn continue_as(pid: i32, act: impl FnOnce()) -> io::Result<i32> {
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            act();
            leave(0)
        }
        pid => Ok(pid),
    }
}

/// Collects a child that is known to leave.
pub(super) fn reap(pid: i32) {
    // SAFETY: no status is asked for, so no memory of ours is touched.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

/// Waits until a child stops.
pub(super) fn await_stop(pid: i32) {
    // SAFETY: no status is asked for, so no memory of ours is touched.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WUNTRACED) };
}

/// Blocks the given signals, or all of them.
pub(super) fn block(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: all-zero bytes are a valid signal set, and each call below only writes to it.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for all of these calls; the old mask is not asked for.
    unsafe {
        if signals.is_empty() {
            libc::sigfillset(&raw mut set);
        }
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
    set
}

/// Lets signals have their usual effect again.
pub(super) fn default_signals(signals: &[i32]) {
    for &signal in signals {
        // SAFETY: the default disposition runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// A descriptor that becomes readable when one of these (blocked) signals is pending.
pub(super) fn signal_descriptor(set: &libc::sigset_t) -> i32 {
    // SAFETY: `set` is a valid signal set; -1 asks for a new descriptor.
    unsafe { libc::signalfd(-1, set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) }
}

/// Whether any blocked signal is waiting.
pub(super) fn is_signalled() -> bool {
    // SAFETY: all-zero bytes are a valid signal set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable, then readable, for these calls.
    unsafe {
        libc::sigpending(&raw mut set);
        (1..32).any(|signal| libc::sigismember(&raw const set, signal) == 1)
    }
}

/// Becomes the leader of a new session.
pub(super) fn new_session() {
    // SAFETY: setsid takes nothing and touches no memory of ours.
    unsafe { libc::setsid() };
}

/// Becomes the leader of a new process group.
pub(super) fn new_group() {
    // SAFETY: two zeroes mean this process; no memory is touched.
    unsafe { libc::setpgid(0, 0) };
}

/// Sets an attribute of this process that takes one number.
pub(super) fn attribute(option: i32, value: libc::c_ulong) {
    // SAFETY: only called with options whose argument is a number.
    unsafe { libc::prctl(option, value, 0, 0, 0) };
}

/// Gives this process another name.
pub(super) fn rename(name: &CStr) {
    // SAFETY: the name is a C string, which the kernel copies up to 16 bytes of.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Stops this process until somebody continues it.
pub(super) fn stop() {
    // SAFETY: raise takes a number and touches no memory of ours.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Lets the parent trace this process.
pub(super) fn be_traced() -> io::Result<()> {
    // SAFETY: PTRACE_TRACEME ignores its other arguments.
    let done = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Leaves namespaces for new ones.
pub(super) fn unshare(flags: i32) -> io::Result<()> {
    // SAFETY: unshare takes flags and touches no memory of ours.
    if unsafe { libc::unshare(flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor.
pub(super) fn close_all() {
    // SAFETY: this process uses no descriptor from here on.
    unsafe { libc::syscall(libc::SYS_close_range, 0_u32, u32::MAX, 0_u32) };
}

/// Ends the main thread and leaves the others alone.
pub(super) fn end_this_thread() -> ! {
    // SAFETY: the raw call ends this thread only; its stack is never used again.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("a thread that has exited does not go on")
}

/// Executes a file with these arguments, with the environment or without; returns only on failure.
pub(super) fn execute(file: &CStr, argv: &[CString], keep_environment: bool) -> io::Error {
    let mut pointers: Vec<_> = argv.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let nothing = [std::ptr::null()];
    // SAFETY: file and arguments are C strings that outlive the call, both lists end with null.
    unsafe {
        if keep_environment {
            libc::execv(file.as_ptr(), pointers.as_ptr());
        } else {
            libc::execve(file.as_ptr(), pointers.as_ptr(), nothing.as_ptr());
        }
    }
    io::Error::last_os_error()
}

/// Reads once; `None` at the end or on an error.
pub(super) fn read(fd: i32, buffer: &mut [u8]) -> Option<usize> {
    loop {
        // SAFETY: the buffer is writable for its whole length.
        let got = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
        match usize::try_from(got) {
            Ok(0) => return None,
            Ok(got) => return Some(got),
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// Writes everything, or as much as the reader takes before it leaves.
pub(super) fn write_all(fd: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the bytes are readable for their whole length.
        let put = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(put) {
            Ok(put) => bytes = &bytes[put..],
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Sets a file's time of change to now; false if there is no such file.
pub(super) fn touch(file: &Path) -> bool {
    let Ok(file) = CString::new(file.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: the name is a C string that outlives the call; null times mean now.
    unsafe { libc::utimensat(libc::AT_FDCWD, file.as_ptr(), std::ptr::null(), 0) == 0 }
}

/// Waits for input on any of the descriptors (a negative one is left out); says which have some.
pub(super) fn wait_for<const N: usize>(fds: [i32; N], patience: Duration) -> [bool; N] {
    let mut polls = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let ms = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
    let count = libc::nfds_t::try_from(N).unwrap_or(0);
    // SAFETY: `polls` holds exactly `count` valid entries for the whole call.
    unsafe { libc::poll(polls.as_mut_ptr(), count, ms) };
    polls.map(|poll| poll.revents != 0)
}

/// Whether the other end of a descriptor was closed; reads nothing.
pub(super) fn is_hung_up(fd: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: `poll` is one valid entry for the whole call.
    unsafe { libc::poll(&raw mut poll, 1, 0) };
    poll.revents & (libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR) != 0
}

/// A pipe whose ends children inherit: reading end, writing end.
pub(super) fn pipe() -> io::Result<(i32, i32)> {
    let mut fds = [0; 2];
    // SAFETY: the array has room for the two descriptors that pipe writes.
    if unsafe { libc::pipe(fds.as_mut_ptr()) } == 0 {
        Ok((fds[0], fds[1]))
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Makes `to` another number for `from`.
pub(super) fn duplicate(from: i32, to: i32) {
    // SAFETY: dup2 takes two numbers; what `to` was before is not used any more.
    unsafe { libc::dup2(from, to) };
}

/// Closes one descriptor.
pub(super) fn close(fd: i32) {
    // SAFETY: the caller does not use the descriptor any more, and no owned handle holds it.
    unsafe { libc::close(fd) };
}
