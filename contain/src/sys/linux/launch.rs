//! The forks: the guardian's, and the command's with everything between fork and exec.
//!
//! Callers are single-threaded (the holder checks it), so a forked child may do anything its
//! parent could. What must not happen is a return into the parent's code by accident: every child
//! path here ends in exec or `_exit`.

use super::environ::Environment;
use super::hold::Command;
use super::inherited;
use super::mark::Mark;
use super::signals::Mask;
use crate::sys::wait::wait;
use rustix::io::Errno;
use std::convert::Infallible;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

/// From linux/sched.h; libc's constant does not fit its type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which side of a fork this is.
pub(crate) enum Side {
    Child,
    Parent(i32),
}

/// Forks, plainly or into namespaces or a cgroup.
pub(crate) fn fork(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    let pid = if flags == 0 && cgroup.is_none() {
        // SAFETY: the process has one thread, so the child's copy of every lock is consistent.
        i64::from(unsafe { libc::fork() })
    } else {
        // SAFETY: zero is a valid clone_args: no descriptors, no stack, no extra flags.
        let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
        args.flags = flags;
        args.exit_signal = libc::SIGCHLD as u64;
        if let Some(fd) = cgroup {
            args.flags |= CLONE_INTO_CGROUP;
            args.cgroup = fd.as_raw_fd() as u64;
        }
        // SAFETY: without CLONE_VM and with a null stack the child continues on a copy of this
        // one, like fork; `args` is valid for its size; the process has one thread.
        unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) }
    };
    match pid {
        0 => Ok(Side::Child),
        n if n > 0 => Ok(Side::Parent(n as i32)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends this process at once, without unwinding or exit handlers: it is a fork of another one.
pub fn leave(code: i32) -> ! {
    // SAFETY: _exit(2) has no preconditions and does not return.
    unsafe { libc::_exit(code) }
}

/// Closes every descriptor from `from` on that is not in `keep`.
pub(crate) fn close_all_but(from: RawFd, keep: &[RawFd]) {
    let mut keep: Vec<RawFd> = keep.iter().copied().filter(|fd| *fd >= from).collect();
    keep.sort_unstable();
    keep.dedup();
    let mut start = from;
    for fd in keep {
        close_range(start, fd - 1);
        start = fd + 1;
    }
    close_range(start, RawFd::MAX);
}

fn close_range(first: RawFd, last: RawFd) {
    if first > last {
        return;
    }
    // SAFETY: called only in forked children (the command on its way to exec, the guardian, a helper), all of
    // which end in exec or `_exit`, and whose callers keep what is used afterwards: no OwnedFd for a number
    // in the range is used or dropped there.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first as u32, last as u32, 0u32) };
    if done == 0 {
        return;
    }
    // Before Linux 5.9: one by one, as listed.
    let Ok(dir) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let open: Vec<RawFd> = dir.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| (first..=last).contains(fd)) {
        // SAFETY: as above.
        unsafe { libc::close(fd) };
    }
}

/// Points 0, 1 and 2 at `/dev/null`, so that a host sees its pipes close when the command's do.
pub(crate) fn let_go_of_stdio() {
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        for fd in 0..3 {
            // SAFETY: both are open descriptors of this process; 0 to 2 stay open throughout.
            unsafe { libc::dup2(null.as_raw_fd(), fd) };
        }
    } else {
        for fd in 0..3 {
            // SAFETY: guardian, helpers and holder, which alone call this, neither read nor write 0 to 2 from here on.
            unsafe { libc::close(fd) };
        }
    }
}

/// How a launch failed.
pub(crate) enum Failure {
    /// No child could be made.
    Fork(io::Error),
    /// The child could not set itself up.
    Stdio(io::Error),
    /// The command could not be executed.
    Exec(io::Error),
}

/// Where the command is born.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// Directly in this cgroup.
    pub(crate) cgroup: Option<BorrowedFd<'a>>,
    /// Or here, to move through this list of processes before exec.
    pub(crate) procs: Option<BorrowedFd<'a>>,
}

/// Starts the command as a child of this process, in its own process group, and returns its pid
/// once it runs the command's own code. An exec can take for ever (a program on a file system that
/// does not answer); if `owner` closes meanwhile, the child is killed.
pub(crate) fn launch(
    command: &Command,
    mark: Mark,
    mask: &Mask,
    place: Place<'_>,
    owner: BorrowedFd<'_>,
) -> Result<i32, Failure> {
    let words: Result<Vec<CString>, _> = std::iter::once(&command.program)
        .chain(&command.args)
        .map(|w| CString::new(w.as_bytes()))
        .collect();
    let words = words.map_err(|_| Failure::Exec(Errno::INVAL.into()))?;
    let environment =
        Environment::changed(&command.env).map_err(|_| Failure::Exec(Errno::INVAL.into()))?;
    let (read, write) = status_pipe().map_err(Failure::Fork)?;
    let parent = rustix::process::getpid();
    match fork(0, place.cgroup).map_err(Failure::Fork)? {
        Side::Child => {
            let Err((step, error)) = become_command(
                command,
                (&words, &environment),
                mark,
                mask,
                place.procs,
                parent,
                &write,
            );
            let mut report = [step; 5];
            report[1..].copy_from_slice(&error.raw_os_error().unwrap_or(0).to_ne_bytes());
            // If even this fails the parent sees end-of-file and then the exit code.
            let _lost = rustix::io::write(&write, &report);
            leave(127)
        }
        Side::Parent(pid) => {
            drop(write);
            await_exec(&read, owner, pid);
            let mut report = [0u8; 5];
            let n = loop {
                match rustix::io::read(&read, &mut report) {
                    Err(Errno::INTR) => continue,
                    other => break other.unwrap_or(0),
                }
            };
            if n == 0 {
                return Ok(pid);
            }
            let mut errno = [0u8; 4];
            errno.copy_from_slice(&report[1..]);
            let error = io::Error::from_raw_os_error(i32::from_ne_bytes(errno));
            // The child is on its way out; wait so that no zombie is mistaken for a member.
            let _reaped = rustix::process::waitpid(
                rustix::process::Pid::from_raw(pid),
                rustix::process::WaitOptions::empty(),
            );
            Err(if report[0] == b'x' { Failure::Exec(error) } else { Failure::Stdio(error) })
        }
    }
}

/// Waits until the child has executed or failed, or until nobody wants it any more.
fn await_exec(status: &OwnedFd, owner: BorrowedFd<'_>, pid: i32) {
    use rustix::event::{PollFd, PollFlags};
    loop {
        let mut fds =
            [PollFd::new(status, PollFlags::IN), PollFd::from_borrowed_fd(owner, PollFlags::RDHUP)];
        // Where the kernel cannot poll, the read that follows waits just as well.
        if !wait(&mut fds, None) || !fds[0].revents().is_empty() {
            return;
        }
        if !fds[1].revents().is_empty() {
            // Our unreaped child: the number is its own.
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            return;
        }
    }
}

/// The pipe that tells exec from failure: it closes by itself when exec succeeds.
fn status_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// In the child: everything between fork and exec.
fn become_command(
    command: &Command,
    (words, environment): (&[CString], &Environment),
    mark: Mark,
    mask: &Mask,
    procs: Option<BorrowedFd<'_>>,
    parent: rustix::process::Pid,
    status: &OwnedFd,
) -> Result<Infallible, (u8, io::Error)> {
    let setup = |e: Errno| (b's', io::Error::from(e));
    if let Some(procs) = procs {
        rustix::io::write(procs, b"0").map_err(setup)?;
    }
    rustix::process::setpgid(None, None).map_err(setup)?;
    // Second net, between two processes of one thread each: if holder and guardian die at the
    // same moment, at least the command itself is asked to leave.
    let _unarmed =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    if rustix::process::getppid() != Some(parent) {
        // In a pid namespace of its own the guardian is 1 and always there; elsewhere it has died
        // between fork and now, and nobody would end this child.
        leave(125);
    }
    mark.wear();
    place_stdio(command).map_err(|e| (b's', e))?;
    close_all_but(3, &[status.as_raw_fd()]);
    inherited::restore_dispositions();
    mask.enforce();
    let mut pointers: Vec<*const libc::c_char> = words.iter().map(|w| w.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: both are null-terminated arrays of null-terminated strings: these live in `words`,
    // those in `environment` or in this process's own, which nobody changes between fork and exec;
    // execvpe returns only on failure.
    unsafe { libc::execvpe(pointers[0], pointers.as_ptr(), environment.as_ptr()) };
    Err((b'x', io::Error::last_os_error()))
}

/// Makes the command's streams 0, 1 and 2.
fn place_stdio(command: &Command) -> io::Result<()> {
    let streams = [&command.stdin, &command.stdout, &command.stderr];
    // First above 2, so that no target is overwritten before it was copied.
    let mut sources = [0; 3];
    for (slot, stream) in sources.iter_mut().zip(streams) {
        // SAFETY: the stream is an open descriptor; F_DUPFD_CLOEXEC makes a new one above 2.
        *slot = unsafe { libc::fcntl(stream.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
        if *slot < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    for (target, source) in (0..3).zip(sources) {
        // SAFETY: `source` was just made; dup2 clears close-on-exec on the target.
        if unsafe { libc::dup2(source, target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
