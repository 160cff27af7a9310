//! The guardian: the command's parent, in a session of its own, waiting for one socket to close.
//!
//! It is a fork of the holder, so its code is already in memory and an upgrade of the binary on
//! disk cannot take it away. It keeps nothing of the host's: standard streams and every descriptor
//! but its own few are closed as soon as the command runs.

use super::cgroup::Leaf;
use super::guard::Guard;
use super::hold::{Command, Options};
use super::launch::{self, Failure};
use super::signals::{Mask, Signals};
use super::socket::{Received, Sent, hear, say};
use super::{pidns, text};
use crate::error::SpawnStage;
use crate::ladder::Ask;
use crate::member::Member;
use crate::report::Report;
use crate::sys::wait::wait;
use crate::wire::{Order, Word};
use rustix::event::{PollFd, PollFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long after the host's death the holder may stay silent before the guardian acts alone. A
/// living holder needs microseconds; a stopped one would never act.
const HOLDER_SILENCE: Duration = Duration::from_millis(500);

/// What the guardian is born with.
pub(crate) struct Birth<'a> {
    pub(crate) control: OwnedFd,
    pub(crate) command: &'a Command,
    pub(crate) options: &'a Options<'a>,
    pub(crate) leaf: Option<Leaf>,
    /// For the `pidns` backend: who to be in the user namespace, if there is one.
    pub(crate) namespace: Option<Option<pidns::Ids>>,
    /// The signal mask the command starts with.
    pub(crate) mask: Mask,
}

/// Runs in the forked child and never returns, not even by a panic: above it on the stack are the
/// holder's own functions, which must not go on in two processes.
pub(crate) fn run(birth: Birth<'_>, epilogue: &mut dyn FnMut(&Report)) -> ! {
    let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| live(birth, epilogue)));
    launch::leave(lived.unwrap_or(125))
}

fn live(birth: Birth<'_>, epilogue: &mut dyn FnMut(&Report)) -> i32 {
    let Birth { control, command, options, leaf, namespace, mask } = birth;
    // Nothing but the socket ends this process; whoever signals all of ours means the holder.
    Mask::full().enforce();
    leave_group(command);
    let _unnamed = rustix::thread::set_name(c"lariat-guardian");
    // The holder's death wakes a guardian that somebody stopped.
    let _unarmed =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::CONT));
    // What cannot be said is said by leaving: the holder then looks for itself.
    let fail = |stage, error: std::io::Error| -> ! {
        say(&control, &Word::Failed(stage, error.raw_os_error().unwrap_or(0)).encode());
        launch::leave(125)
    };
    if let Some(user) = namespace {
        if let Err(e) = pidns::furnish(user) {
            fail(SpawnStage::Namespace, e);
        }
    } else if let Err(e) = rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1)) {
        fail(SpawnStage::Guardian, e.into());
    }
    let signals = match Signals::block(&[libc::SIGCHLD]) {
        Ok(signals) => signals,
        Err(e) => fail(SpawnStage::Signals, e),
    };
    let stdio = [&command.stdin, &command.stdout, &command.stderr].map(AsRawFd::as_raw_fd);
    let mut keep = vec![control.as_raw_fd(), signals.as_fd().as_raw_fd()];
    keep.extend(options.keep.iter().map(AsRawFd::as_raw_fd));
    keep.extend(options.drain.map(|d| d.as_raw_fd()));
    keep.extend(options.host.map(|h| h.as_raw_fd()));
    keep.extend(leaf.iter().flat_map(Leaf::descriptors).map(|fd| fd.as_raw_fd()));
    let mut early = keep.clone();
    early.extend(stdio);
    launch::close_all_but(3, &early);

    let mut guard = Guard::new(options.ladder, options.backend, options.mark, leaf);
    guard.be_guardian();
    if namespace.is_some() {
        guard.be_its_init();
    }
    if let Err(word) = start(&mut guard, &control, command, options, &mask) {
        // Nothing was born. The holder removes the leaf.
        say(&control, &word.encode());
        return 125;
    }
    leave_session(guard.leader());
    launch::let_go_of_stdio();
    launch::close_all_but(3, &keep);
    let started = guard.leader().map(|leader| Word::Started(leader, guard.backend()));
    if started.is_some_and(|word| say(&control, &word.encode()) == Sent::No) {
        return 125;
    }
    text::give_back_code();
    let report = watch(&mut guard, &control, &signals, options);
    hand_over(&control, &report, epilogue);
    0
}

/// Perhaps the holder is merely stopped; then it has work to do as well.
fn wake_holder() {
    if let Some(holder) = rustix::process::getppid().filter(|p| !p.is_init()) {
        let _gone = rustix::process::kill_process(holder, rustix::process::Signal::CONT);
    }
}

/// Leaves the holder's process group: hosts kill whole groups.
///
/// The session is left only when the command runs. The scheduler gives CPU by session: a server in
/// another session than its host answers a quarter slower. At a terminal the command needs another
/// session all the same, because there a process of a background group may not read.
fn leave_group(command: &Command) {
    let streams = [&command.stdin, &command.stdout, &command.stderr];
    if streams.into_iter().any(rustix::termios::isatty) {
        let _already_leader = rustix::process::setsid();
    } else {
        let _already_leader = rustix::process::setpgid(None, None);
    }
}

/// Leaves the session, with the command in it: a guardian that has to chase a storm needs a share of
/// the CPU of its own. Who leads a group cannot make a session, so the guardian first joins the
/// command's group.
fn leave_session(leader: Option<Member>) {
    let group = leader.and_then(|m| rustix::process::Pid::from_raw(m.pid));
    if rustix::process::setpgid(None, group).is_ok() && rustix::process::setsid().is_err() {
        // Never stay in the command's group: a kill of that group must not reach the guardian.
        let _still_there = rustix::process::setpgid(None, None);
    }
}

/// Starts the command, in its leaf where there is one.
fn start(
    guard: &mut Guard,
    control: &OwnedFd,
    command: &Command,
    options: &Options<'_>,
    mask: &Mask,
) -> Result<(), Word> {
    let attempt = |cgroup: Option<BorrowedFd<'_>>, procs: Option<BorrowedFd<'_>>| {
        let place = launch::Place { cgroup, procs };
        launch::launch(command, options.mark, mask, place, control.as_fd())
    };
    let launched = match guard.leaf() {
        None => attempt(None, None),
        Some(leaf) => {
            let born =
                leaf.open().map_err(Failure::Fork).and_then(|d| attempt(Some(d.as_fd()), None));
            match born {
                // No CLONE_INTO_CGROUP (before Linux 5.7, or filtered): move in before exec.
                Err(Failure::Fork(_)) => leaf
                    .open_procs()
                    .map_err(Failure::Fork)
                    .and_then(|p| attempt(None, Some(p.as_fd()))),
                other => other,
            }
        }
    };
    let launched = match launched {
        // The leaf is there but nobody can be put into it: descent holds the tree as well.
        Err(Failure::Fork(_) | Failure::Stdio(_)) if guard.leaf().is_some() && !options.strict => {
            guard.leave_leaf();
            attempt(None, None)
        }
        other => other,
    };
    match launched {
        Ok(pid) => {
            // A command that is gone already is a zombie of ours and still has its start time.
            guard.lead(Some(Member::of(pid).unwrap_or(Member { pid, start: 0 })));
            Ok(())
        }
        Err(Failure::Exec(e)) => Err(Word::NotExecuted(e.raw_os_error().unwrap_or(0))),
        Err(Failure::Fork(e)) => Err(Word::Failed(SpawnStage::Fork, e.raw_os_error().unwrap_or(0))),
        Err(Failure::Stdio(e)) => {
            Err(Word::Failed(SpawnStage::Stdio, e.raw_os_error().unwrap_or(0)))
        }
    }
}

/// The main loop: waits for a word, for the socket to close, for a child to end.
fn watch(guard: &mut Guard, control: &OwnedFd, signals: &Signals, options: &Options<'_>) -> Report {
    let mut owner_lives = true;
    let mut host = options.host;
    let mut host_deadline: Option<Instant> = None;
    let mut drain = options.drain;
    let mut told_exit = false;
    loop {
        // Whoever replaces us must know that the command's number is not the command's any more.
        guard.notice();
        tell_exit(guard, control, &mut told_exit);
        let over = guard.tick();
        tell_exit(guard, control, &mut told_exit);
        if let Some(left) = guard.overtime() {
            say(control, &Word::Killing(left).encode());
        }
        if let Some(report) = over {
            return report;
        }
        let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
        if owner_lives {
            fds.push(PollFd::new(control, PollFlags::IN));
        }
        let host_at = host.map(|h| push(&mut fds, h));
        // While the holder lives it reads what the tree writes to stderr; after that we do, so
        // that a server is not broken by a closed pipe while it cleans up.
        let drain_at = drain.filter(|_| !owner_lives).map(|d| push(&mut fds, d));
        let deadline = [guard.deadline(), host_deadline].into_iter().flatten().min();
        wait(&mut fds, deadline);
        let ready = |at: Option<usize>| at.is_some_and(|i| !fds[i].revents().is_empty());
        let (host_died, drain_ready) = (ready(host_at), ready(drain_at));
        while signals.next().is_some() {}
        while owner_lives {
            match hear(control) {
                Received::Packet(text) => match Order::decode(&text) {
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
        if host_died {
            host = None;
            host_deadline = Some(Instant::now() + HOLDER_SILENCE);
        }
        if host_deadline.is_some_and(|d| Instant::now() >= d) {
            host_deadline = None;
            if !guard.is_ending() {
                wake_holder();
                guard.ask(Ask::OwnerDied);
            }
        }
        if drain_ready && drain.is_some_and(|fd| !drain_some(fd)) {
            drain = None;
        }
    }
}

fn tell_exit(guard: &Guard, control: &OwnedFd, told: &mut bool) {
    if let (Some(exit), false) = (guard.exit(), *told) {
        say(control, &Word::Exited(exit).encode());
        *told = true;
    }
}

/// Reports to the holder; if it is not there to say that it took the report, does its last work.
fn hand_over(control: &OwnedFd, report: &Report, epilogue: &mut dyn FnMut(&Report)) {
    // To whom nobody listens any more nothing needs to be said.
    if hear(control) == Received::Gone {
        return epilogue(report);
    }
    let words = report.survivors.iter().map(|survivor| Word::Survivor(survivor.clone()).encode());
    if words.into_iter().any(|word| say(control, &word) == Sent::No) {
        return;
    }
    if say(control, &Word::Ended(report.clone()).encode()) == Sent::No {
        // The holder will see us leave and look for itself.
        return;
    }
    loop {
        match hear(control) {
            Received::Packet(text) if Order::decode(&text) == Some(Order::Done) => return,
            Received::Packet(_) => {}
            Received::Nothing => {
                let silence = Instant::now() + HOLDER_SILENCE;
                wait(&mut [PollFd::new(control, PollFlags::IN)], Some(silence));
                if Instant::now() >= silence {
                    wake_holder();
                }
            }
            Received::Gone => break,
        }
    }
    epilogue(report);
}

fn push<'a>(fds: &mut Vec<PollFd<'a>>, fd: BorrowedFd<'a>) -> usize {
    fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
    fds.len() - 1
}

/// Throws away what is there. False once nobody can write any more.
fn drain_some(fd: BorrowedFd<'_>) -> bool {
    let mut buffer = [0u8; 4096];
    match rustix::io::read(fd, &mut buffer) {
        Ok(n) => n > 0,
        Err(e) => e == rustix::io::Errno::AGAIN || e == rustix::io::Errno::INTR,
    }
}
