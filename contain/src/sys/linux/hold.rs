//! Holding a tree from the process that is its holder: one guardian, one command.
//!
//! The holder forks the guardian before the command exists and keeps one end of the socket. Losing
//! that end in any way (returning, panicking, dying) is what ends the tree. If the guardian dies
//! first, its children come back to the holder, which is a subreaper too, and the holder does the
//! guardian's work.

use super::aside::Aside;
use super::cgroup::Leaf;
use super::guard::Guard;
use super::guardian;
use super::launch::{self, Side};
use super::mark::Mark;
use super::signals::Signals;
use super::socket::{self, Received, hear, say};
use super::waits::Waits;
use super::{descent, member, pidns, procfs};
use crate::error::{Error, SpawnStage};
use crate::event::Event;
use crate::ladder::{Ask, Ladder};
use crate::limits::{Breach, Enforced, Limits, Usage};
use crate::member::Member;
use crate::report::{Report, Survivor};
use crate::sys::Backend;
use crate::sys::wait::wait;
use crate::wire::{Order, Word};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, WaitOptions};
use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long past the last grace the guardian may be silent before the holder looks what has become of it.
const OVERDUE: Duration = Duration::from_millis(500);

/// How long a holder that has finished waits for its guardian to leave.
const PARTING: Duration = Duration::from_millis(100);

/// What to run. Working directory and, but for `env`, environment are the holder's own.
#[derive(Debug)]
pub struct Command {
    /// Looked up in `PATH` unless it contains a slash.
    pub program: OsString,
    /// Its arguments, without the program itself.
    pub args: Vec<OsString>,
    /// Variables that it gets another value of, or none at all. The others it gets byte for byte.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// Its standard input.
    pub stdin: OwnedFd,
    /// Its standard output.
    pub stdout: OwnedFd,
    /// Its standard error.
    pub stderr: OwnedFd,
}

/// How to hold it.
#[derive(Debug)]
pub struct Options<'a> {
    /// How it is asked to leave.
    pub ladder: Ladder,
    /// What holds it.
    pub backend: Backend,
    /// True if the backend was asked for by name: then another one is an error, not a fallback.
    pub strict: bool,
    /// The number its processes carry.
    pub mark: Mark,
    /// Where the cgroup leaf goes, from [`Leaf::plan`].
    pub leaf: Option<&'a Path>,
    /// Descriptors the guardian keeps, such as a lock that says that somebody still cares.
    pub keep: &'a [BorrowedFd<'a>],
    /// The reading end of the command's stderr; the guardian empties it once the holder is dead.
    pub drain: Option<BorrowedFd<'a>>,
    /// Readable when the host is gone (its pidfd) or wants no more; then the tree ends even if the
    /// holder is stopped.
    pub host: Option<BorrowedFd<'a>>,
    /// The holder's signals, for the mask the command starts with.
    pub signals: &'a Signals,
    /// What it may use, as far as the kernel can be told; see [`Hold::enforced`].
    pub limits: Limits,
}

/// A tree held by this process. Dropping it ends the tree.
#[derive(Debug)]
pub struct Hold {
    control: Option<OwnedFd>,
    guardian: Member,
    /// It was killed and waited for, so its number need not be its own any more.
    guardian_is_reaped: bool,
    /// It has reported that somebody is left.
    has_survivors: bool,
    /// The guardian's work, once it is ours.
    own: Option<Guard>,
    spare: Option<Guard>,
    leader: Option<Member>,
    /// The guardian has waited for the leader: its number is not its own any more.
    has_exited: bool,
    backend: Backend,
    ladder: Ladder,
    survivors: Vec<Survivor>,
    overdue: Option<Instant>,
    /// Until when a guardian that is overdue may be merely slow.
    patience: Option<Instant>,
    limits: Limits,
    enforced: Enforced,
    /// What the last report said.
    breach: Option<Breach>,
    /// The most CPU time that was ever seen: who dies between two looks must not turn it back.
    cpu: Cell<Duration>,
}

impl Hold {
    /// Starts the command. Does not wait for it: [`Event::Started`] or [`Event::Failed`] comes
    /// first of all, so that a start that hangs can be ended like anything else.
    ///
    /// `epilogue` runs in the guardian, after the tree has ended, if the holder is not there any
    /// more to take the report.
    pub fn spawn(
        command: Command,
        options: &Options<'_>,
        mut epilogue: impl FnMut(&Report),
    ) -> Result<Hold, Error> {
        let unreadable = |e| Error::Spawn(SpawnStage::Proc, e);
        procfs::check().map_err(unreadable)?;
        match procfs::own_threads().map_err(unreadable)? {
            1 => {}
            n => return Err(Error::Threads(n)),
        }
        // A child that is missed here would pass for one of the tree, and so would the children of a dead one.
        let me = rustix::process::getpid().as_raw_pid();
        let strangers =
            descent::everyone_below(me, &[], |_| true).map_err(|e| unreadable(e.into()))?;
        // Without it a killed guardian's children would go to init, unseen by us.
        rustix::process::set_child_subreaper(Pid::from_raw(1))
            .map_err(|e| Error::Spawn(SpawnStage::Guardian, e.into()))?;
        let (backend, leaves) = make_leaf(options)?;
        let (leaf, copy) = leaves.unzip();
        let enforced =
            leaf.as_ref().map_or_else(Enforced::default, |leaf| leaf.limit(&options.limits));
        let discard = |leaf: Option<Leaf>| {
            if let Some(leaf) = leaf {
                // Nobody was born into it.
                let _busy = leaf.remove();
            }
        };
        let (ours, theirs) = match socket::pair() {
            Ok(pair) => pair,
            Err(e) => {
                discard(leaf);
                return Err(Error::Spawn(SpawnStage::Socket, e));
            }
        };
        let ids = pidns::Ids::current();
        let mut namespace = None;
        let mut side = Err(io::Error::from(io::ErrorKind::Unsupported));
        if backend == Backend::Pidns {
            // As root without a user namespace, where that is allowed.
            for user in [false, true] {
                side = launch::fork(pidns::flags(user), None);
                namespace = Some(user.then_some(ids));
                if side.is_ok() {
                    break;
                }
            }
        } else {
            side = launch::fork(0, None);
        }
        let options = Options { backend, ..*options };
        let guardian = match side {
            Ok(Side::Child) => {
                drop(ours);
                let birth = guardian::Birth {
                    control: theirs,
                    command: &command,
                    options: &options,
                    leaf,
                    namespace,
                    mask: options.signals.before(),
                };
                guardian::run(birth, &mut epilogue)
            }
            Ok(Side::Parent(pid)) => pid,
            Err(e) => {
                discard(leaf);
                return Err(match backend {
                    Backend::Pidns => Error::Backend("pidns", format!("the kernel refuses ({e})")),
                    _ => Error::Spawn(SpawnStage::Guardian, e),
                });
            }
        };
        drop((theirs, command));
        let mut own = Guard::new(options.ladder, backend, options.mark, copy);
        own.spare(strangers);
        Ok(Hold {
            control: Some(ours),
            guardian: Member::of(guardian).unwrap_or(Member { pid: guardian, start: 0 }),
            guardian_is_reaped: false,
            has_survivors: false,
            own: None,
            spare: Some(own),
            leader: None,
            has_exited: false,
            backend,
            ladder: options.ladder,
            survivors: Vec::new(),
            overdue: None,
            patience: None,
            limits: options.limits,
            enforced,
            breach: None,
            cpu: Cell::default(),
        })
    }

    /// The command, once it runs; in the `pidns` backend by its number in there.
    pub fn leader(&self) -> Option<Member> {
        self.leader
    }

    /// What holds the tree.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Whose descendants the tree's processes are, as long as it lives.
    pub fn guardian(&self) -> Member {
        self.guardian
    }

    /// Tells that this child of the holder is not of the tree. It must end before the tree can be
    /// seen to have ended without a guardian: only a holder with no children knows that it has none.
    pub fn set_aside(&mut self, aside: &Aside) {
        if let Some(guard) = self.own.as_mut().or(self.spare.as_mut()) {
            guard.set_aside(aside.member());
        }
    }

    /// Everyone in the tree as this process sees it, without the guardian.
    pub fn members(&self) -> Vec<Member> {
        let root = if self.own.is_some() {
            rustix::process::getpid().as_raw_pid()
        } else {
            self.guardian.pid
        };
        let others = self.own.as_ref().map(Guard::others).unwrap_or_default();
        descent::below(root, &others)
    }

    /// Which limits the kernel holds the tree to. Final once the command runs.
    pub fn enforced(&self) -> Enforced {
        match self.backend {
            Backend::Cgroup => self.enforced,
            // A leaf that nobody could be put into limits nobody.
            Backend::Descent | Backend::Pidns => Enforced::default(),
        }
    }

    /// What the tree uses now, without the guardian. Cheap enough for every second.
    pub fn usage(&self) -> Usage {
        let account = match &self.own {
            Some(guard) => {
                descent::account(rustix::process::getpid().as_raw_pid(), &guard.others())
            }
            None => descent::account(self.guardian.pid, &[]),
        };
        let charged = self.leaf().and_then(Leaf::memory);
        // A leaf does not know of those who left it, nor `/proc` of those nobody waited for.
        let counted = self.leaf().and_then(Leaf::cpu).unwrap_or_default();
        self.cpu.set(self.cpu.get().max(counted).max(procfs::time(account.ticks)));
        Usage {
            memory: charged.unwrap_or_else(|| self.resident(&account.members)),
            cpu: self.cpu.get(),
            processes: account.members.len(),
            tasks: account.tasks,
        }
    }

    /// How long the tree's threads have waited for a CPU. Looks at each of them.
    pub fn waits(&self) -> Waits {
        Waits::of(&self.members())
    }

    /// The limit that the kernel had to act on, if there is one; after the end what it was.
    pub fn breach(&self) -> Option<Breach> {
        self.breach.or_else(|| self.leaf()?.breach())
    }

    /// What the members have resident. A page that several share is counted for each of them, so
    /// before that passes for too much, it is counted exactly.
    fn resident(&self, members: &[Member]) -> u64 {
        let sum = |of: fn(i32) -> Option<u64>| members.iter().filter_map(|m| of(m.pid)).sum();
        let rough: u64 = sum(procfs::resident);
        if self.limits.memory.is_none_or(|most| rough <= most) {
            return rough;
        }
        sum(|pid| procfs::proportional(pid).or_else(|| procfs::resident(pid)))
    }

    /// The leaf as this process sees it.
    fn leaf(&self) -> Option<&Leaf> {
        self.own.as_ref().or(self.spare.as_ref())?.leaf()
    }

    /// Readable when [`Hold::event`] has something; `None` when only its deadline and SIGCHLD count.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.control.as_ref().map(AsFd::as_fd)
    }

    /// When [`Hold::event`] wants to be called even if nothing is readable.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.own {
            Some(guard) => guard.deadline(),
            None => self.overdue,
        }
    }

    /// Starts the end of the tree, or hastens it.
    pub fn ask(&mut self, ask: Ask) {
        match (&mut self.own, &self.control) {
            (Some(guard), _) => guard.ask(ask),
            (None, Some(control)) => {
                // If it cannot be said, the guardian is overdue later on.
                let _unsaid = say(control, &Order::Ask(ask).encode());
                let ladder = &self.ladder;
                let rungs = match ask {
                    Ask::Kill => Duration::ZERO,
                    _ => ladder.grace + ladder.linger + ladder.term_grace,
                };
                let due = Instant::now() + rungs + OVERDUE;
                self.overdue = Some(self.overdue.map_or(due, |before| before.min(due)));
            }
            (None, None) => {}
        }
    }

    /// Passes a signal to the command alone; nothing ends by it.
    pub fn forward(&self, signal: i32) {
        match (&self.own, &self.control) {
            (Some(guard), _) => guard.forward(signal),
            (None, Some(control)) => {
                let _unsaid = say(control, &Order::Forward(signal).encode());
            }
            (None, None) => {}
        }
    }

    /// What has happened since the last call, one thing at a time. Never blocks.
    pub fn event(&mut self) -> Option<Event> {
        if let Some(guard) = &mut self.own {
            let report = guard.tick()?;
            self.breach = report.breach;
            return Some(Event::Ended(report));
        }
        if let Some(event) = self.heard() {
            return Some(event);
        }
        let now = Instant::now();
        if self.overdue.is_none_or(|due| now < due) {
            return None;
        }
        if !self.guardian_is_reaped && self.guardian_works(now) {
            self.overdue = Some(now + OVERDUE);
            return None;
        }
        // What it said to the last counts. Whoever else has its end of the socket may keep that open.
        self.reap_guardian(self.ladder.look);
        Some(self.heard().unwrap_or_else(|| self.take_over(Ask::Kill)))
    }

    /// What the guardian has said, one thing at a time, and that it is gone.
    fn heard(&mut self) -> Option<Event> {
        loop {
            match hear(self.control.as_ref()?) {
                Received::Packet(text) => match Word::decode(&text) {
                    Some(Word::Started(leader, backend)) => {
                        (self.leader, self.backend) = (Some(leader), backend);
                        if let (Some(spare), Backend::Descent) = (&mut self.spare, backend) {
                            // The guardian could do nothing with a leaf.
                            spare.leave_leaf();
                        }
                        return Some(Event::Started);
                    }
                    Some(Word::NotExecuted(errno)) => {
                        return Some(self.fail(Error::Exec(io::Error::from_raw_os_error(errno))));
                    }
                    Some(Word::Failed(stage, errno)) => {
                        let error = io::Error::from_raw_os_error(errno);
                        return Some(self.fail(Error::Spawn(stage, error)));
                    }
                    Some(Word::Exited(exit)) => {
                        self.has_exited = true;
                        self.overdue.get_or_insert(
                            Instant::now() + self.ladder.linger + self.ladder.term_grace + OVERDUE,
                        );
                        return Some(Event::Exited(exit));
                    }
                    Some(Word::Killing(left)) => {
                        self.overdue = Some(Instant::now() + left + OVERDUE);
                        self.patience = None;
                    }
                    Some(Word::Survivor(survivor)) => self.survivors.push(survivor),
                    Some(Word::Ended(report)) => {
                        (self.overdue, self.breach) = (None, report.breach);
                        let report = report.with_told(&mut self.survivors);
                        self.has_survivors = !report.survivors.is_empty();
                        return Some(Event::Ended(report));
                    }
                    _ => {}
                },
                // An overdue one that was killed for it.
                Received::Gone if self.guardian_is_reaped => {
                    return Some(self.take_over(Ask::Kill));
                }
                Received::Gone => return Some(self.take_over(Ask::OwnerDied)),
                Received::Nothing => return None,
            }
        }
    }

    /// Whether an overdue guardian is merely slow: a kill may take as long as the ladder has for it, and on a
    /// busy machine nobody else would be quicker. One that somebody has stopped or traces will not go on, and
    /// one whose command has yet to be executed hears nothing: it waits for a file, perhaps for ever.
    fn guardian_works(&mut self, now: Instant) -> bool {
        if self.leader.is_none() {
            return false;
        }
        let patience = *self.patience.get_or_insert(now + self.ladder.look);
        let works = match procfs::read_stat(self.guardian.pid) {
            Ok(stat) => !matches!(stat.state, 'T' | 't' | 'Z' | 'X'),
            Err(e) => !procfs::is_final(e),
        };
        now < patience && works
    }

    /// Tells the guardian that the report has been dealt with, and ends the hold. Waits a moment
    /// for the guardian to leave, so that nothing of ours is left when the holder leaves.
    pub fn done(mut self) {
        if let Some(control) = self.control.take() {
            let guardian = self.guardian.pidfd();
            say(&control, &Order::Done.encode());
            drop(control);
            if let Some(fd) = &guardian {
                let deadline = Instant::now() + PARTING;
                wait(&mut [PollFd::new(fd, PollFlags::IN)], Some(deadline));
            }
            // A holder that goes on leaves no dead child lying about. It dies as soon as it has a CPU, unless somebody
            // is left of whom it is the first process.
            self.reap_guardian(if self.has_survivors { PARTING } else { self.ladder.look });
        }
    }

    /// Waits until [`Hold::event`] may have something, a signal has come, `other` is readable or
    /// the time is up.
    pub fn wait(
        &self,
        signals: &Signals,
        other: Option<BorrowedFd<'_>>,
        deadline: Option<Instant>,
    ) {
        let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        fds.extend(other.into_iter().chain(self.event_fd()).map(readable));
        wait(&mut fds, [self.deadline(), deadline].into_iter().flatten().min());
    }

    /// The guardian is dead or as good as: do its work, with a share of the CPU that is not the host's others'
    /// (see [`guardian`]). Who leads a group cannot have that.
    fn take_over(&mut self, ask: Ask) -> Event {
        self.reap_guardian(self.ladder.look);
        self.control = None;
        self.overdue = None;
        let _leads_a_group = rustix::process::setsid();
        if let Some(mut guard) = self.spare.take() {
            let leader = self.leader.filter(|_| self.backend != Backend::Pidns);
            guard.lead(leader);
            // The guardian may have waited for it and not lived to say so.
            if self.has_exited || !leader.is_some_and(|leader| member::is_child(leader.pid)) {
                guard.forget_leader();
            }
            guard.ask(ask);
            self.own = Some(guard);
        }
        Event::GuardianDied
    }

    /// The guardian has said that nothing was started, and leaves.
    fn fail(&mut self, error: Error) -> Event {
        self.control = None;
        self.reap_guardian(self.ladder.look);
        if let Some(mut guard) = self.spare.take() {
            guard.leave_leaf();
        }
        Event::Failed(error)
    }

    /// Kills the guardian and waits for it. Only when it is reaped have its children become ours (and a namespace
    /// of its own ended). It may be stopped or stuck; as our unreaped child its number is still its own.
    ///
    /// The first process of a namespace cannot be reaped before everybody in there can, and somebody may be tracing
    /// one of those. After `patience` it stays what it is: a child of ours that will not die, and so a survivor.
    fn reap_guardian(&mut self, patience: Duration) {
        if std::mem::replace(&mut self.guardian_is_reaped, true) {
            return;
        }
        let Some(pid) = Pid::from_raw(self.guardian.pid) else { return };
        let _gone = rustix::process::kill_process(pid, Signal::KILL);
        let mut fd = self.guardian.pidfd();
        let deadline = Instant::now() + patience;
        loop {
            match rustix::process::waitpid(Some(pid), WaitOptions::NOHANG) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(None) if Instant::now() < deadline => {
                    let mut fds: Vec<_> =
                        fd.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
                    // Of one that is dead and traced this says no more.
                    if wait(&mut fds, Some(deadline.min(Instant::now() + PARTING))) {
                        fd = None;
                    }
                }
                _ => return,
            }
        }
    }
}

/// Makes the leaf if the backend wants one, once for the guardian and once for the holder, who may have to do
/// its work; falls back to descent unless it was asked for by name.
fn make_leaf(options: &Options<'_>) -> Result<(Backend, Option<(Leaf, Leaf)>), Error> {
    if options.backend != Backend::Cgroup {
        return Ok((options.backend, None));
    }
    let twice = |leaf: Leaf| match leaf.again() {
        Ok(copy) => Ok((leaf, copy)),
        Err(e) => {
            // Nobody was born into it.
            let _busy = leaf.remove();
            Err(e)
        }
    };
    let made = match options.leaf {
        Some(path) => {
            Leaf::create(path).and_then(twice).map_err(|e| format!("{}: {e}", path.display()))
        }
        None => Err("no place for a leaf".into()),
    };
    match made {
        Ok(leaves) => Ok((Backend::Cgroup, Some(leaves))),
        Err(why) if options.strict => Err(Error::Backend("cgroup", why)),
        Err(_) => Ok((Backend::Descent, None)),
    }
}
