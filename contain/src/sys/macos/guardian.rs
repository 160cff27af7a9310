//! The guardian: a process of its own, the command's parent, waiting for one socket to close.
//!
//! The owner executes it (its own binary through [`main_if_asked`], or an installed one), so that
//! no host with threads is forked. It inherits the command's streams, environment and directory as
//! its own, hands them on, and keeps nothing of them.
//!
//! Behind it is a second process that only waits for it. If the guardian alone is killed, that one
//! ends the tree; if that one is killed, the guardian does not miss it.

use super::events::Events;
use super::guard::Guard;
use super::mark::{Mark, sweep};
use super::socket::{Line, Received};
use super::{Backend, process};
use crate::error::SpawnStage;
use crate::ladder::{Ask, Ladder};
use crate::member::Member;
use crate::report::Report;
use crate::wire::{Order, Word};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions};
use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::time::Duration;

/// The hidden verb.
pub(crate) const VERB: &str = "__hold";

/// The descriptor on which a guardian finds its socket.
pub(crate) const SOCKET: RawFd = 3;

/// And what it keeps open for its owner, if the brief says that there is something.
pub(crate) const KEPT: RawFd = 4;

/// What a guardian is told on its command line, before `--` and the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Brief {
    pub(crate) mark: Mark,
    pub(crate) ladder: Ladder,
    /// There is a descriptor to be kept.
    pub(crate) keeps: bool,
}

impl Brief {
    pub(crate) fn encode(&self) -> String {
        let Ladder { grace, term_grace, linger, look } = self.ladder;
        let times = [grace, term_grace, linger, look].map(|d| d.as_millis().to_string()).join(",");
        let (mark, keeps) = (self.mark.number(), u8::from(self.keeps));
        format!("{}:{mark}:{times}:{keeps}", Backend::Session.name())
    }

    fn decode(text: &str) -> Option<Brief> {
        let mut parts = text.split(':');
        Backend::named(parts.next()?)?;
        let mark = Mark::from_number(parts.next()?.parse().ok()?)?;
        let mut times = parts.next()?.split(',').map(|t| t.parse().ok().map(Duration::from_millis));
        let mut time = || times.next().flatten();
        let ladder = Ladder { grace: time()?, term_grace: time()?, linger: time()?, look: time()? };
        let keeps = parts.next()? == "1";
        Some(Brief { mark, ladder, keeps })
    }
}

/// Becomes a guardian if the command line says so, and then never returns. Call it first thing in
/// `main` of a program that starts trees from its own executable, before there is a second thread.
pub fn main_if_asked() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|verb| verb != VERB) {
        return;
    }
    let brief = args.next().and_then(|text| Brief::decode(text.to_str()?));
    let command: Vec<OsString> = args.skip(1).collect();
    let (Some(brief), false) = (brief, command.is_empty()) else { leave(125) };
    // The owner waits for this process only; the guardian itself must not become a zombie that the
    // owner has to remember.
    // SAFETY: `main` has only begun, so there is one thread, and the child's copy of every lock is
    // consistent.
    match unsafe { libc::fork() } {
        0 => {}
        child if child > 0 => leave(0),
        _ => leave(125),
    }
    // SAFETY: the owner placed its socket on this number before exec, and nothing else in this
    // process knows it. Were it not open, every use would fail with EBADF.
    let owner = unsafe { OwnedFd::from_raw_fd(SOCKET) };
    let lived = std::panic::catch_unwind(|| live(owner, &brief, command));
    leave(lived.unwrap_or(125))
}

/// Ends this process at once, without unwinding or exit handlers: it is a fork of another one.
fn leave(code: i32) -> ! {
    // SAFETY: _exit(2) has no preconditions and does not return.
    unsafe { libc::_exit(code) }
}

fn live(owner: OwnedFd, brief: &Brief, command: Vec<OsString>) -> i32 {
    // Hosts kill whole groups and sessions.
    let _already_leader = rustix::process::setsid();
    // Neither we nor the command may hold what the host leaked: perhaps the other end of a pipe that
    // somebody waits for.
    close_leaked_above(if brief.keeps { KEPT } else { SOCKET });
    if brief.keeps {
        // It closes when both processes of ours have left, and the command never has it.
        // SAFETY: the owner placed it on this number before exec. Were it not open, this would fail.
        unsafe { libc::fcntl(KEPT, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    let (Ok(line), Ok((told, tell))) = (Line::new(owner), std::io::pipe()) else { return 125 };
    // Nothing but the socket ends these two; whoever signals all of ours means the owner.
    let mask = block_signals();
    // A host may ignore SIGCHLD; then the kernel would not keep the dead for us.
    // SAFETY: SIG_DFL is no handler, so there is nothing that could run unsafely.
    let children = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let behind = Member::current();
    // SAFETY: there is still only one thread.
    match unsafe { libc::fork() } {
        0 => {
            drop(told);
            let _already_leader = rustix::process::setsid();
            guard((line, behind), brief, launch(command, mask, children), tell)
        }
        guardian if guardian > 0 => {
            drop((tell, command));
            stand_by(guardian, &line, brief, told)
        }
        _ => {
            let error = io::Error::last_os_error();
            line.say(&Word::Failed(SpawnStage::Guardian, errno(&error)).encode());
            125
        }
    }
}

/// Waits for the guardian, and does the rest of its work if it was killed.
fn stand_by(guardian: i32, line: &Line, brief: &Brief, mut told: PipeReader) -> i32 {
    let_go_of_stdio();
    let pid = Pid::from_raw(guardian);
    let status = loop {
        match rustix::process::waitpid(pid, WaitOptions::empty()) {
            Ok(Some((_, status))) => break status,
            Err(Errno::INTR) | Ok(None) => {}
            Err(_) => return 125,
        }
    };
    if let Some(code) = status.exit_status() {
        return code;
    }
    // The other end closed with the guardian.
    let mut leader = String::new();
    let _unread = told.read_to_string(&mut leader);
    tell_report(line, sweep(brief.mark, decode_member(&leader), brief.ladder.look));
    0
}

fn guard(
    (mut line, behind): (Line, Option<Member>),
    brief: &Brief,
    leader: io::Result<Member>,
    mut tell: PipeWriter,
) -> i32 {
    let leader = match leader {
        Ok(leader) => leader,
        Err(e) => {
            let word = match e.kind() {
                io::ErrorKind::WouldBlock => Word::Failed(SpawnStage::Fork, errno(&e)),
                _ => Word::NotExecuted(errno(&e)),
            };
            line.say(&word.encode());
            return 125;
        }
    };
    // Without it the one behind us knows the tree by its mark alone.
    let _unsaid = tell.write_all(leader.to_string().as_bytes());
    let_go_of_stdio();
    let mut guard = Guard::new(brief.ladder, brief.mark, leader, behind);
    let mut events = match Events::new(line.as_fd()) {
        Ok(events) => events,
        Err(e) => {
            // A tree that cannot be watched is not begun. The owner looks again when it hears this.
            line.say(&Word::Failed(SpawnStage::Guardian, errno(&e)).encode());
            guard.ask(Ask::Kill);
            return 125;
        }
    };
    line.say(&Word::Started(leader, Backend::Session).encode());
    let report = watch(&mut guard, &mut line, &mut events);
    tell_report(&line, report);
    0
}

fn tell_report(line: &Line, report: Report) {
    for survivor in &report.survivors {
        line.say(&Word::Survivor(survivor.clone()).encode());
    }
    line.say(&Word::Ended(report).encode());
}

/// A member as [`Member`] prints itself.
fn decode_member(text: &str) -> Option<Member> {
    let (pid, start) = text.split_once('@')?;
    Some(Member { pid: pid.parse().ok()?, start: start.parse().ok()? })
}

/// The main loop: waits for a word, for the socket to close, for somebody to fork or leave.
fn watch(guard: &mut Guard, line: &mut Line, events: &mut Events) -> Report {
    let mut owner_lives = true;
    let mut told_exit = false;
    loop {
        let report = guard.tick();
        if let (Some(exit), false) = (guard.exit(), told_exit) {
            line.say(&Word::Exited(exit).encode());
            told_exit = true;
        }
        if let Some(left) = guard.overtime() {
            line.say(&Word::Killing(left).encode());
        }
        if let Some(report) = report {
            return report;
        }
        // Who is too far gone to be watched may have been the command, and nobody would say so again.
        guard.heed(&events.watch(&guard.members()));
        guard.heed(&events.wait(guard.deadline()));
        while owner_lives {
            match line.hear() {
                Received::Word(text) => match Order::decode(&text) {
                    Some(Order::Ask(ask)) => guard.ask(ask),
                    Some(Order::Forward(signal)) => guard.forward(signal),
                    Some(Order::Done) | None => {}
                },
                Received::Nothing => break,
                Received::Gone => {
                    owner_lives = false;
                    guard.ask(Ask::OwnerDied);
                }
            }
        }
    }
}

/// Starts the command as the leader of a session of its own, and returns once it runs.
/// It gets the signal mask and the disposition of SIGCHLD that were in force before ours.
fn launch(
    mut words: Vec<OsString>,
    mask: libc::sigset_t,
    children: libc::sighandler_t,
) -> io::Result<Member> {
    let program = words.remove(0);
    let mut command = std::process::Command::new(program);
    command.args(words);
    // SAFETY: between fork and exec only setsid, signal and sigprocmask are called, all of which
    // are async-signal-safe. `children` is what was in force: SIG_DFL or SIG_IGN, as no handler
    // outlives an exec and `main` has only begun.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            libc::signal(libc::SIGCHLD, children);
            libc::sigprocmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
            Ok(())
        });
    }
    // The handle goes, the child stays: dropping it neither waits nor kills.
    let pid = command.spawn()?.id().cast_signed();
    // A command that is gone already is a zombie of ours and still has its start time.
    Ok(process::look(pid).map_or(Member { pid, start: 0 }, |seen| seen.member))
}

/// Blocks every signal that can be blocked, and returns the mask that was in force before.
fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both sets are valid for their direction, and the first is filled in before it is used.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    // SAFETY: zero is a valid set, and the call above filled it in.
    unsafe { before.assume_init() }
}

/// Closes whatever leaked into this process and is no standard stream: perhaps the other end of a pipe
/// that somebody waits for. For a program that has only begun.
pub fn close_leaked() {
    close_leaked_above(2);
}

/// Closes descriptors above this one that leaked into this process over exec. What survived an exec
/// lacks close-on-exec, and whatever this program or the system's libraries opened has it; some of
/// those the kernel guards, and closing one would end us.
fn close_leaked_above(last: RawFd) {
    let Ok(dir) = std::fs::read_dir("/dev/fd") else { return };
    let open: Vec<RawFd> = dir.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| *fd > last) {
        // SAFETY: fcntl only reads the flags, and fails on a number that is not open. A descriptor
        // without close-on-exec was opened by another program: nothing in this one owns it.
        unsafe {
            if libc::fcntl(fd, libc::F_GETFD) == 0 {
                libc::close(fd);
            }
        }
    }
}

/// Points 0, 1 and 2 at `/dev/null`, so that a host sees its pipes close when the command's do.
fn let_go_of_stdio() {
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _kept = rustix::stdio::dup2_stdin(&null);
        let _kept = rustix::stdio::dup2_stdout(&null);
        let _kept = rustix::stdio::dup2_stderr(&null);
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brief_survives_the_command_line() {
        for keeps in [false, true] {
            let brief = Brief { mark: Mark::random().unwrap(), ladder: Ladder::default(), keeps };
            assert_eq!(Brief::decode(&brief.encode()), Some(brief));
        }
        for text in ["", "session", "session:1:2:0", "what:1:1,2,3,4:0", "session:2:1,2,3,4:0"] {
            assert_eq!(Brief::decode(text), None, "{text}");
        }
        let member = Member { pid: 7, start: 11 };
        assert_eq!(decode_member(&member.to_string()), Some(member));
        assert_eq!(decode_member("7@"), None);
    }
}
