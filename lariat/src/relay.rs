//! One server and its host, for as long as the host wants it.
//!
//! Three modes with one loop. *Direct*: the server inherits the host's streams themselves and no byte
//! passes through here; the loop only watches for hang-up. *Relayed*: bytes are copied as they come,
//! unchanged. *Held*: the host embeds the library, has its own ends of the streams, and says on a
//! socket what it wants. Either way stderr is drained, signals are passed on, and the loop ends when
//! the tree has.
//!
//! Nothing that must happen depends on this process living: the guardian ends the tree if it dies.

mod host;
mod outlet;
mod pump;
mod stderr;

use crate::books::{Entry, Settled};
use crate::docker::door::Door;
use crate::id::ServerName;
use crate::journal::{Journal, make_private_dir};
use crate::receipt::{Reason, Receipt};
use crate::start::wire::{Control, Order, Word};
use crate::start::{self, Around, Failure, Ground, Owner, Plan, Running};
use contain::signal::{
    SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGPWR, SIGQUIT, SIGTERM, SIGURG, SIGUSR1,
    SIGUSR2, SIGVTALRM, SIGWINCH, SIGXCPU, SIGXFSZ,
};
use contain::{Ask, Command, Event, Exit, Hold, Member, Report, Signals};
use host::Host;
use outlet::Outlet;
use pump::{Flow, Pump, Sink};
use rustix::event::{PollFd, PollFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use stderr::Drain;

/// A server's log is rotated at this size.
const LOG_LIMIT: u64 = 1 << 20;

/// How long a host that does not read may keep a finished server's last words from being dropped.
const STALL: Duration = Duration::from_secs(1);

/// If the host dies this soon after its end of the pipe closed, the one explains the other.
const SAME_MOMENT: Duration = Duration::from_millis(100);

/// How often in a row the kernel may fail to poll before the session is ended.
const BLIND: u32 = 100;

/// How often to ask who our parent is where the kernel cannot tell us.
const PARENT_CHECK: Duration = Duration::from_secs(1);

/// Signals that mean stop.
const STOP: &[i32] = &[SIGTERM, SIGINT, SIGHUP, SIGQUIT];

/// Signals that a server may have a use for; they end nothing here.
const PASSED_ON: &[i32] =
    &[SIGUSR1, SIGUSR2, SIGWINCH, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR, SIGURG, SIGXCPU];

/// What to run and how.
#[derive(Debug)]
pub struct Run {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// How it is held.
    pub plan: Plan,
    /// True to copy bytes instead of handing the streams over.
    pub relayed: bool,
    /// Where its stderr log goes; `None` for the state directory.
    pub log_dir: Option<PathBuf>,
}

/// What a finished run leaves.
#[derive(Debug)]
pub struct Outcome {
    /// How the server ended, if that is known.
    pub exit: Option<Exit>,
    /// The receipt.
    pub receipt: Receipt,
    /// Why it could not be written where the user wants it.
    pub unwritten: Option<io::Error>,
}

/// A server of a host that embeds the library.
#[derive(Debug)]
pub(crate) struct Held {
    /// The program.
    pub(crate) program: OsString,
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
    /// How it is held.
    pub(crate) plan: Plan,
    /// The server's own ends.
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    /// The host, by pid and start time.
    pub(crate) owner: Option<(i32, u64)>,
}

/// Runs a server until its session ends. Returns when its tree has.
pub fn run(run: Run) -> Result<Outcome, Failure> {
    let signals = block_signals()?;
    contain::close_leaked();
    let host = Host::find();
    let server = run.plan.server.clone();
    let ground = Ground::prepare(run.plan)?;
    let log = open_log(run.log_dir.unwrap_or_else(|| ground.books.logs()), &server)?;
    let streams = Streams::open(run.relayed).map_err(|e| Failure::Streams(e.into()))?;
    let drain = Drain::new(streams.stderr, Outlet::new(io::stderr().as_fd()).ok(), Some(log));
    let command = Command {
        program: run.program,
        args: run.args,
        env: Vec::new(),
        stdin: streams.server_stdin,
        stdout: streams.server_stdout,
        stderr: streams.server_stderr,
    };
    let around = Around {
        signals: &signals,
        host: host.member(),
        host_gone: host.pidfd(),
        stderr: drain.source(),
        owner: None,
    };
    let running = ground.start(command, &around)?;
    let (entry, ends) = (running.entry, streams.ends);
    Wrapper::new(running.hold, running.door, &signals, drain, ends, &entry, Some(host)).serve()
}

/// Holds a server until its owner wants no more. Says on the way what happens.
pub(crate) fn hold(held: Held, control: &mut Control) -> Result<Outcome, Failure> {
    let signals = block_signals()?;
    let streams_error = |e: rustix::io::Errno| Failure::Streams(e.into());
    let owner = held.owner.map(|(pid, start)| Member { pid, start });
    let server = held.plan.server.clone();
    let ground = Ground::prepare(held.plan)?;
    let log = open_log(ground.books.logs(), &server)?;
    let (stderr, server_stderr) = pipe_with(PipeFlags::CLOEXEC).map_err(streams_error)?;
    set_nonblocking(&stderr).map_err(streams_error)?;
    let drain = Drain::new(stderr, None, Some(log)).remembering();
    let command = Command {
        program: held.program,
        args: held.args,
        env: Vec::new(),
        stdin: held.stdin,
        stdout: held.stdout,
        stderr: server_stderr,
    };
    let around = Around {
        signals: &signals,
        host: owner,
        // Readable when the owner wants an end or has gone, and we may be stopped.
        host_gone: Some(control.line()),
        stderr: drain.source(),
        owner: Some(control),
    };
    let Running { hold, entry, door } = ground.start(command, &around)?;
    control.say(&Word::Noted(entry.page().session.clone()));
    let ends = Ends::Held(control);
    Wrapper::new(hold, door, &signals, drain, ends, &entry, None).serve()
}

/// First of all: a signal that comes from here on is handled, not fatal.
fn block_signals() -> Result<Signals, Failure> {
    let mut all = [STOP, PASSED_ON].concat();
    // A file too large is an error of ours to handle, not one to die of.
    all.extend([SIGCHLD, SIGXFSZ]);
    Signals::block(&all).map_err(Failure::Streams)
}

fn open_log(dir: PathBuf, server: &ServerName) -> Result<Journal, Failure> {
    make_private_dir(&dir)
        .and_then(|()| Journal::open(&dir.join(format!("{server}.log")), LOG_LIMIT))
        .map_err(|e| Failure::Log(dir, e))
}

/// The ends of the conversation that stay with us.
enum Ends<'a> {
    /// The server has the host's own streams; these copies are only watched.
    Direct { stdin: Option<OwnedFd>, stdout: Option<OwnedFd> },
    /// Bytes pass through here.
    Relayed { up: Pump, down: Pump },
    /// The host has them; we have its word.
    Held(&'a mut Control),
}

/// The server's streams and ours.
struct Streams {
    server_stdin: OwnedFd,
    server_stdout: OwnedFd,
    server_stderr: OwnedFd,
    stderr: OwnedFd,
    ends: Ends<'static>,
}

impl Streams {
    fn open(relayed: bool) -> Result<Streams, rustix::io::Errno> {
        let copy = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 3);
        let (stderr, server_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        set_nonblocking(&stderr)?;
        let (stdin, stdout) = (copy(io::stdin().as_fd())?, copy(io::stdout().as_fd())?);
        if !relayed {
            let ends = Ends::Direct {
                stdin: Some(copy(stdin.as_fd())?),
                stdout: Some(copy(stdout.as_fd())?),
            };
            return Ok(Streams {
                server_stdin: stdin,
                server_stdout: stdout,
                server_stderr,
                stderr,
                ends,
            });
        }
        let (server_stdin, to_server) = pipe_with(PipeFlags::CLOEXEC)?;
        let (from_server, server_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        set_nonblocking(&to_server)?;
        set_nonblocking(&from_server)?;
        let ends = Ends::Relayed {
            up: Pump::new(stdin, Sink::Own(to_server)),
            down: Pump::new(from_server, Sink::Host(Outlet::new(stdout.as_fd())?)),
        };
        Ok(Streams { server_stdin, server_stdout, server_stderr, stderr, ends })
    }
}

/// Only for pipes of ours: the flag belongs to the description, which nobody else shares.
fn set_nonblocking(fd: &OwnedFd) -> Result<(), rustix::io::Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)
}

/// Whose descriptor was ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Signals,
    Tree,
    Host,
    Stderr,
    HostStderr,
    Stdin,
    Stdout,
    Up,
    Down,
    Door,
    Owner,
}

/// The loop's state.
struct Wrapper<'a> {
    hold: Hold,
    signals: &'a Signals,
    /// Until it has died.
    host: Option<Host>,
    drain: Drain,
    ends: Ends<'a>,
    entry: &'a Entry,
    /// Where the server's processes find Docker.
    door: Option<Door>,
    /// Why the end began, and when.
    cause: Option<(Reason, Instant)>,
    /// Stop signals received so far.
    had: Vec<i32>,
    exit: Option<Exit>,
}

impl<'a> Wrapper<'a> {
    fn new(
        hold: Hold,
        door: Option<Door>,
        signals: &'a Signals,
        drain: Drain,
        ends: Ends<'a>,
        entry: &'a Entry,
        host: Option<Host>,
    ) -> Wrapper<'a> {
        let (cause, had, exit) = (None, Vec::new(), None);
        Wrapper { hold, signals, host, drain, ends, entry, door, cause, had, exit }
    }

    fn serve(mut self) -> Result<Outcome, Failure> {
        let mut blind = 0;
        loop {
            let ready = self.wait();
            blind = if ready.is_some() { 0 } else { blind + 1 };
            if blind == BLIND {
                // We would not even see the host leave.
                self.end(Reason::Failed("poll".into()), Ask::Closed);
            }
            let ready = ready.unwrap_or_default();
            // A message that passes through has nothing to do with the tree.
            let only_bytes = |(who, _): &(Who, PollFlags)| matches!(who, Who::Up | Who::Down);
            let late = self.hold.deadline().is_some_and(|d| Instant::now() >= d);
            let tree_is_due = late || ready.is_empty() || !ready.iter().all(only_bytes);
            for (who, flags) in ready {
                self.handle(who, flags);
            }
            self.drain.notice_stall();
            if self.host.as_ref().is_some_and(|h| h.pidfd().is_none() && h.has_died()) {
                self.host_died();
            }
            while let Some(event) = tree_is_due.then(|| self.hold.event()).flatten() {
                match event {
                    Event::Started => {
                        start::began(self.entry, &self.hold);
                        self.tell_started();
                        contain::give_back_code();
                    }
                    Event::Failed(error) => return Err(start::give_up(self.entry, error)),
                    Event::Exited(exit) => {
                        self.exit = Some(exit);
                        if let Ends::Held(_) = &self.ends {
                            // Its owner says that it is to end, too; but it has.
                            self.cause(Reason::Exited);
                        }
                        self.tell_exited(exit);
                    }
                    Event::GuardianDied => {
                        // A tree without a guardian is gone when we have no children at all.
                        if let Some(door) = &mut self.door {
                            door.dismiss();
                        }
                        self.cause(Reason::Failed("guardian-died".into()));
                    }
                    Event::Ended(report) => {
                        if let Ends::Held(control) = &self.ends {
                            control.say(&Word::Emptied);
                        }
                        return Ok(self.finish(report));
                    }
                }
            }
        }
    }

    /// Waits until something happens and says what; `None` if the kernel cannot wait.
    fn wait(&self) -> Option<Vec<(Who, PollFlags)>> {
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut slots = Vec::with_capacity(8);
        slots.push((Who::Signals, PollFd::new(self.signals, PollFlags::IN)));
        match &self.ends {
            Ends::Relayed { up, down } => {
                slots.extend(up.interest().map(|fd| (Who::Up, fd)));
                slots.extend(down.interest().map(|fd| (Who::Down, fd)));
                slots.extend(down.sink_watch().map(|fd| (Who::Stdout, fd)));
            }
            Ends::Direct { stdin, stdout } => {
                // Hang-up is reported unasked; asking for data would wake us for every message. A
                // host may half-close a socket from which it only reads: that is no hang-up.
                let watch = |fd, flags| PollFd::new(fd, flags);
                let (half, whole) = (PollFlags::RDHUP, PollFlags::empty());
                slots.extend(stdin.as_ref().map(|fd| (Who::Stdin, watch(fd, half))));
                slots.extend(stdout.as_ref().map(|fd| (Who::Stdout, watch(fd, whole))));
            }
            Ends::Held(control) => slots.extend(control.interest().map(|fd| (Who::Owner, fd))),
        }
        slots.extend(self.hold.event_fd().map(|fd| (Who::Tree, readable(fd))));
        let knock = self.door.as_ref().and_then(Door::interest);
        slots.extend(knock.map(|fd| (Who::Door, readable(fd))));
        let host = self.host.as_ref();
        slots.extend(host.and_then(Host::pidfd).map(|fd| (Who::Host, readable(fd))));
        slots.extend(self.drain.interest().map(|fd| (Who::Stderr, fd)));
        slots.extend(self.drain.host_interest().map(|fd| (Who::HostStderr, fd)));
        let (who, mut fds): (Vec<Who>, Vec<PollFd<'_>>) = slots.into_iter().unzip();
        let unwatched = host.is_some_and(|h| h.pidfd().is_none());
        let parent_check = unwatched.then(|| Instant::now() + PARENT_CHECK);
        let knock_again = self.door.as_ref().and_then(Door::deadline);
        let deadlines = [self.hold.deadline(), parent_check, self.drain.deadline(), knock_again];
        if !contain::wait(&mut fds, deadlines.into_iter().flatten().min()) {
            return None;
        }
        let flags = fds.iter().map(PollFd::revents);
        Some(who.into_iter().zip(flags).filter(|(_, f)| !f.is_empty()).collect())
    }

    fn handle(&mut self, who: Who, flags: PollFlags) {
        let hung_up = flags.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP);
        match (who, &mut self.ends) {
            (Who::Signals, _) => {
                while let Some(signal) = self.signals.next() {
                    self.signalled(signal);
                }
            }
            (Who::Host, _) => self.host_died(),
            (Who::Door, _) => {
                if let Some(door) = &mut self.door {
                    door.answer(&mut self.hold);
                }
            }
            (Who::Stderr, _) => {
                // More is reported again by the next wait.
                let _more = self.drain.take();
            }
            (Who::HostStderr, _) => self.drain.flush(),
            (Who::Stdin, Ends::Direct { stdin, .. }) if hung_up => {
                *stdin = None;
                self.end(Reason::StdinClosed, Ask::Closed);
            }
            (Who::Stdout, Ends::Direct { stdout, .. }) if hung_up => {
                *stdout = None;
                self.end(Reason::Failed("stdout-closed".into()), Ask::Closed);
            }
            (Who::Up, Ends::Relayed { up, .. }) => {
                up.turn();
                // A server that does not read any more is the host's business: it sees the pipe
                // break. A host that does not write any more has ended the session.
                if matches!(up.flow(), Flow::Draining | Flow::Closed) {
                    self.end(Reason::StdinClosed, Ask::Closed);
                }
            }
            (Who::Down, Ends::Relayed { down, .. }) => {
                down.turn();
                if down.flow() == Flow::Refused {
                    self.end(Reason::Failed("stdout-closed".into()), Ask::Closed);
                }
            }
            (Who::Stdout, Ends::Relayed { down, .. }) if hung_up => {
                down.refuse();
                self.end(Reason::Failed("stdout-closed".into()), Ask::Closed);
            }
            (Who::Owner, Ends::Held(control)) => {
                let listens = control.hear();
                let orders: Vec<Order> = std::iter::from_fn(|| control.order()).collect();
                for order in orders {
                    match order {
                        Order::Close => self.end(Reason::Closed, Ask::Closed),
                    }
                }
                if !listens {
                    self.end(Reason::OwnerGone, Ask::OwnerDied);
                }
            }
            _ => {}
        }
    }

    /// Tells an owner that the command runs.
    fn tell_started(&self) {
        if let (Ends::Held(control), Some(leader)) = (&self.ends, self.hold.leader()) {
            control.say(&Word::Started {
                pid: leader.pid,
                guardian: (self.hold.guardian().pid, self.hold.guardian().start),
                backend: self.hold.backend().name().into(),
            });
        }
    }

    /// Tells an owner how the command ended, and what it said of that.
    fn tell_exited(&mut self, exit: Exit) {
        if let Ends::Held(control) = &self.ends {
            self.drain.take();
            let how = match exit {
                Exit::Code(code) => format!("exit code {code}"),
                Exit::Signal(signal) => contain::signal_name(signal),
            };
            control.say(&Word::Exited { how, last_words: self.drain.last_words() });
        }
    }

    fn signalled(&mut self, signal: i32) {
        match signal {
            stop if STOP.contains(&stop) => {
                // Whoever says it twice means it.
                let again = self.had.contains(&signal);
                self.had.push(signal);
                self.end(
                    Reason::Signal(signal),
                    if again { Ask::Kill } else { Ask::Signal(signal) },
                );
            }
            other if PASSED_ON.contains(&other) => self.hold.forward(other),
            SIGCHLD => {
                if let Some(door) = &mut self.door {
                    door.notice();
                }
            }
            _ => {}
        }
    }

    fn host_died(&mut self) {
        self.host = None;
        let same_moment =
            self.cause.as_ref().is_some_and(|(_, since)| since.elapsed() < SAME_MOMENT);
        let by_hang_up = self
            .cause
            .as_ref()
            .is_some_and(|(reason, _)| matches!(reason, Reason::StdinClosed | Reason::Failed(_)));
        if same_moment && by_hang_up {
            self.cause = None;
        }
        // Somebody else may hold the host's end of the pipe; the server is to see it close.
        if let Ends::Relayed { up, .. } = &mut self.ends {
            up.stop();
        }
        self.end(Reason::HostDied, Ask::Closed);
    }

    fn end(&mut self, reason: Reason, ask: Ask) {
        self.cause(reason);
        self.hold.ask(ask);
    }

    /// The first cause is the reason.
    fn cause(&mut self, reason: Reason) {
        self.cause.get_or_insert((reason, Instant::now()));
    }

    /// The tree has ended: last words, receipt, books.
    fn finish(mut self, report: Report) -> Outcome {
        self.last_words();
        // A host that was killed with the pipe still full may be seen only now.
        let host_gone = self.host.as_ref().is_some_and(Host::has_died);
        let reason = match self.cause.take() {
            Some((Reason::StdinClosed, _)) if host_gone => Reason::HostDied,
            Some((reason, _)) => reason,
            // The server may have heeded the hang-up before we were told of it.
            None if self.stdin_is_closed() => Reason::StdinClosed,
            None => Reason::Exited,
        };
        let exit = report.exit.or(self.exit);
        if let Some(door) = self.door.take() {
            door.close();
        }
        let Settled { receipt, unwritten } = self.entry.settle(&reason, report);
        if let Ends::Held(control) = &self.ends {
            control.tell(&receipt);
        }
        self.hold.done();
        Outcome { exit, receipt, unwritten }
    }

    fn stdin_is_closed(&self) -> bool {
        let Ends::Direct { stdin: Some(stdin), .. } = &self.ends else {
            return false;
        };
        let mut fds = [PollFd::new(stdin, PollFlags::RDHUP)];
        contain::wait(&mut fds, Some(Instant::now()));
        !fds[0].revents().is_empty()
    }

    /// Passes on what the server wrote before it left, as long as the host takes it.
    ///
    /// A bare server would wait in its last write to stdout until the host reads. So do we, unless
    /// the host has ended the session itself. A host that does not read stderr is never waited for
    /// long.
    fn last_words(&mut self) {
        let left_alone = self.cause.is_none();
        let mut deadline = Instant::now() + STALL;
        if let Ends::Relayed { up, .. } = &mut self.ends {
            up.stop();
        }
        loop {
            // The tree is empty: what can be read now is all there will be.
            self.drain.take_all();
            self.drain.flush();
            if let Ends::Relayed { down, .. } = &mut self.ends {
                down.exhaust();
            }
            let mut fds: Vec<PollFd<'_>> = self.drain.host_interest().into_iter().collect();
            let mut patient = false;
            if let Ends::Relayed { down, .. } = &self.ends {
                fds.extend(down.interest().filter(|_| down.is_pending()));
                patient = left_alone && down.is_pending();
            }
            let waiting = fds.len();
            if waiting == 0 {
                return;
            }
            let host = self.host.as_ref().and_then(Host::pidfd);
            fds.push(PollFd::new(self.signals, PollFlags::IN));
            fds.extend(host.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            // Where the kernel does not tell us of the host's death, patience has an end.
            let limit = (!patient || host.is_none()).then_some(deadline);
            contain::wait(&mut fds, limit);
            let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
            let moves = fds[..waiting].iter().any(ready);
            let called_off = fds.get(waiting + 1).is_some_and(ready)
                || (ready(&fds[waiting]) && self.had_stop_signal());
            if moves {
                // A slow reader is not a stalled one.
                deadline = Instant::now() + STALL;
            } else if called_off || limit.is_some_and(|d| Instant::now() >= d) {
                return;
            }
        }
    }

    /// True if one of the signals that have come means stop.
    fn had_stop_signal(&self) -> bool {
        std::iter::from_fn(|| self.signals.next()).any(|s| STOP.contains(&s))
    }
}
