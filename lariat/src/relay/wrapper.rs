//! The loop around one life of a server: from its start until its tree is gone.

mod owner;

use super::bounds::{Beyond, Bounds};
use super::cause::Cause;
use super::ends::Ends;
use super::hibernation::{Act, Over};
use super::host::Host;
use super::pump::Flow;
use super::stderr::Drain;
use super::watched;
use super::{Outcome, PASSED_ON, STOP};
use crate::books::{Entry, Settled};
use crate::docker::door::Door;
use crate::receipt::Reason;
use crate::snapshot::State;
use crate::start::wire::Word;
use crate::start::{self, Failure, Owner};
use contain::signal::SIGCHLD;
use contain::{Ask, Event, Exit, Hold, Limits, Report, Signals};
use rustix::event::{PollFd, PollFlags};
use std::time::{Duration, Instant};

/// How long a host that does not read may keep a finished server's last words from being dropped.
const STALL: Duration = Duration::from_secs(1);

/// How often in a row the kernel may fail to poll before the session is ended.
const BLIND: u32 = 100;

/// What failed if a server did not come back.
const WAKE: &str = "wake";

/// How often to ask who our parent is where the kernel cannot tell us.
pub(super) const PARENT_CHECK: Duration = Duration::from_secs(1);

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
pub(super) struct Wrapper<'a> {
    hold: Hold,
    signals: &'a Signals,
    /// Until it has died.
    host: Option<&'a Host>,
    drain: Drain,
    ends: Ends<'a>,
    entry: &'a Entry,
    /// Where the server's processes find Docker.
    door: Option<Door>,
    /// Why the end began.
    cause: Cause,
    /// Stop signals received so far.
    had: Vec<i32>,
    exit: Option<Exit>,
    bounds: Bounds,
    /// That it ends was said.
    ending: bool,
}

impl<'a> Wrapper<'a> {
    pub(super) fn new(
        hold: Hold,
        door: Option<Door>,
        signals: &'a Signals,
        drain: Drain,
        ends: Ends<'a>,
        entry: &'a Entry,
        host: Option<&'a Host>,
    ) -> Wrapper<'a> {
        let (cause, had, exit, ending) = (Cause::default(), Vec::new(), None, false);
        let bounds = Bounds::new(Limits::default(), None);
        Wrapper { hold, signals, host, drain, ends, entry, door, cause, had, exit, bounds, ending }
    }

    /// The same, with bounds.
    pub(super) fn within(self, bounds: Bounds) -> Wrapper<'a> {
        Wrapper { bounds, ..self }
    }

    /// Serves until the tree is gone. `None` if only this life of the server is over.
    pub(super) fn serve(mut self) -> Result<Option<Outcome>, Failure> {
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
            self.attend();
            self.keep_within_bounds();
            self.drain.notice_stall();
            if self.host.is_some_and(|h| h.pidfd().is_none() && h.has_died()) {
                self.host_died();
            }
            while let Some(event) = tree_is_due.then(|| self.hold.event()).flatten() {
                match event {
                    Event::Started => {
                        start::began(self.entry, &self.hold);
                        self.tell_started();
                        contain::give_back_code();
                        self.bounds.begin(&self.hold);
                        if self.bounds.cannot_limit_cpu(&self.hold) {
                            self.drain.remark("lariat: --cpu is not kept here: the kernel has no cpu controller for us\n");
                        }
                        if let Ends::Watched(watch) = &mut self.ends {
                            if !watch.machine.is_waking() {
                                watched::tell(self.entry, State::Ready, None, &[]);
                            }
                            watch.machine.started(Instant::now());
                            self.attend();
                        }
                    }
                    Event::Failed(error) => return self.did_not_start(error),
                    Event::Exited(exit) => {
                        self.exit = Some(exit);
                        if let Ends::Held(_) = &self.ends {
                            // Its owner says that it is to end, too; but it has.
                            self.cause.note(Reason::Exited);
                        }
                        self.tell_exited(exit);
                        // Others of the tree may take their time.
                        self.tell_ending();
                    }
                    Event::GuardianDied => {
                        // A tree without a guardian is gone when we have no children at all.
                        if let Some(door) = &mut self.door {
                            door.dismiss();
                        }
                        self.cause.note(Reason::Failed("guardian-died".into()));
                    }
                    Event::Ended(report) => {
                        if let Ends::Held(control) = &self.ends {
                            control.say(&Word::Emptied);
                        }
                        return Ok(if report.breach.is_none() && self.only_rests() {
                            self.rest(report)
                        } else {
                            Some(self.finish(report))
                        });
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
            Ends::Watched(watch) => {
                slots.extend(watch.up_interest().map(|fd| (Who::Up, fd)));
                slots.extend(watch.down.interest().map(|fd| (Who::Down, fd)));
                slots.extend(watch.down.sink_watch().map(|fd| (Who::Stdout, fd)));
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
        let host = self.host;
        slots.extend(host.and_then(Host::pidfd).map(|fd| (Who::Host, readable(fd))));
        slots.extend(self.drain.interest().map(|fd| (Who::Stderr, fd)));
        slots.extend(self.drain.host_interest().map(|fd| (Who::HostStderr, fd)));
        let (who, mut fds): (Vec<Who>, Vec<PollFd<'_>>) = slots.into_iter().unzip();
        let unwatched = host.is_some_and(|h| h.pidfd().is_none());
        let parent_check = unwatched.then(|| Instant::now() + PARENT_CHECK);
        let knock_again = self.door.as_ref().and_then(Door::deadline);
        let watch = match &self.ends {
            Ends::Watched(watch) => watch.deadline(),
            _ => None,
        };
        let bounds = self.bounds.deadline().filter(|_| self.cause.reason().is_none());
        let deadlines =
            [self.hold.deadline(), parent_check, self.drain.deadline(), knock_again, watch, bounds];
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
            (Who::Up, Ends::Watched(watch)) => watch.turn_up(),
            (Who::Down, Ends::Watched(watch)) => {
                watch.turn_down();
                if watch.down.is_refused() {
                    watch.down.refuse();
                    self.end(Reason::Failed("stdout-closed".into()), Ask::Closed);
                }
            }
            (Who::Stdout, Ends::Watched(watch)) if hung_up => {
                if watch.machine.is_waking() {
                    // What has waited is said all the same, and the server has to be heard for that.
                    watch.down.drop_sink();
                } else {
                    watch.down.refuse();
                }
                self.end(Reason::Failed("stdout-closed".into()), Ask::Closed);
            }
            (Who::Owner, _) => self.hear_owner(),
            _ => {}
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
        self.cause.host_died();
        // Somebody else may hold the host's end of the pipe; the server is to see it close.
        match &mut self.ends {
            Ends::Relayed { up, .. } => up.stop(),
            Ends::Watched(watch) => {
                watch.up.drop_source();
                if !watch.machine.is_waking() {
                    watch.close_input();
                }
            }
            _ => {}
        }
        self.end(Reason::HostDied, Ask::Closed);
    }

    fn end(&mut self, reason: Reason, ask: Ask) {
        self.cause.note(reason);
        self.hold.ask(ask);
        self.tell_ending();
    }

    /// Says that the session ends, once: its tree has the graces to leave, and who looks sees why it
    /// does not answer any more. What only rests says so itself.
    fn tell_ending(&mut self) {
        if !self.only_rests() && !std::mem::replace(&mut self.ending, true) {
            watched::tell(self.entry, State::Ending, None, &[]);
        }
    }

    /// Does what the conversation asks for.
    fn attend(&mut self) {
        if let Ends::Watched(watch) = &mut self.ends {
            watch.tick();
        }
        loop {
            let Ends::Watched(watch) = &mut self.ends else { return };
            let Some(act) = watch.act() else {
                let talk = watch.machine.talk();
                return self.entry.beat(talk.is_awaited(Instant::now()), talk.spoke());
            };
            match act {
                Act::Rest { failed } => {
                    watch.up.drop_sink();
                    let failed = failed.then(|| Reason::Failed(WAKE.into()));
                    self.end(failed.unwrap_or(Reason::Idle), Ask::Closed);
                }
                Act::CloseInput => {
                    watch.close_input();
                    self.end(Reason::StdinClosed, Ask::Closed);
                }
                Act::Hurry | Act::End(Over::HostClosed) => {
                    self.end(Reason::StdinClosed, Ask::Closed);
                }
                Act::End(Over::InitTimeout) => {
                    watch.up.drop_sink();
                    self.end(Reason::InitTimeout, Ask::Closed);
                }
                Act::Tell(told) => watched::note(self.entry, &watch.machine, &told),
                // Said by the watch itself, or only when there is no server.
                Act::ToServer(_) | Act::ToHost(_) | Act::Start => {}
            }
        }
    }

    /// Ends a server that goes beyond what it may.
    fn keep_within_bounds(&mut self) {
        let alone = match &self.ends {
            Ends::Watched(watch) => watch.machine.alone_since(Instant::now()),
            _ => None,
        };
        if self.cause.reason().is_none()
            && let Some(beyond) = self.bounds.look(&self.hold, alone)
        {
            self.cut_off(&beyond.words);
            if let Ends::Watched(watch) = &mut self.ends {
                watch.up.drop_sink();
            }
            self.end(beyond.reason, beyond.ask);
        }
    }

    /// Tells whoever waits that there will be no answer.
    fn cut_off(&mut self, why: &str) {
        if let Ends::Watched(watch) = &mut self.ends {
            watch.machine.cut_off(why);
            self.attend();
        }
    }

    /// The command could not be started. If the session can do without, it goes on: whoever waits is told.
    fn did_not_start(mut self, error: contain::Error) -> Result<Option<Outcome>, Failure> {
        if !matches!(&self.ends, Ends::Watched(watch) if watch.machine.is_waking()) {
            return Err(start::give_up(self.entry, error));
        }
        match self.cause.reason() {
            None | Some(Reason::StdinClosed) => {
                if let Some(door) = self.door.take() {
                    door.close();
                }
                Err(Failure::Start(error))
            }
            // It was to end anyway.
            Some(_) => {
                let nothing = Report::nothing(self.hold.backend());
                Ok(Some(self.finish(nothing)))
            }
        }
    }

    /// True if the tree has ended but the session has not.
    fn only_rests(&self) -> bool {
        let Ends::Watched(watch) = &self.ends else { return false };
        let by_us = match self.cause.reason() {
            None => watch.machine.is_waking(),
            Some(Reason::Idle) => true,
            Some(Reason::Failed(what)) => what == WAKE,
            Some(_) => false,
        };
        by_us && !self.host.is_some_and(Host::has_died)
    }

    /// The tree has ended, and the conversation goes on.
    fn rest(mut self, report: Report) -> Option<Outcome> {
        self.drain.take_all();
        self.drain.flush();
        let how = match report.exit.or(self.exit) {
            Some(Exit::Code(code)) => format!("it exited with code {code}"),
            Some(Exit::Signal(signal)) => {
                format!("it was ended by {}", contain::signal_name(signal))
            }
            None => "it ended".into(),
        };
        let reason = self.cause.take().unwrap_or(Reason::Exited);
        if let Some(door) = self.door.take() {
            door.close();
        }
        self.entry.account(&reason, report);
        self.hold.done();
        if let Ends::Watched(watch) = &mut self.ends {
            watch.part();
            watch.machine.ended(&how, Instant::now());
        }
        None
    }

    /// The tree has ended: last words, receipt, books.
    fn finish(mut self, report: Report) -> Outcome {
        if let (None, Some(breach)) = (self.cause.reason(), report.breach) {
            // The kernel was quicker.
            let beyond = Beyond::breach(breach);
            self.cut_off(&beyond.words);
            self.cause.note(beyond.reason);
        }
        self.last_words();
        let host_is_gone = self.host.is_some_and(Host::has_died);
        let ends = &self.ends;
        let reason = self.cause.verdict(host_is_gone, || stdin_is_closed(ends));
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

    /// Passes on what the server wrote before it left, as long as the host takes it.
    ///
    /// A bare server would wait in its last write to stdout until the host reads. So do we, unless
    /// the host has ended the session itself. A host that does not read stderr is never waited for
    /// long.
    fn last_words(&mut self) {
        let left_alone = self.cause.reason().is_none();
        let mut deadline = Instant::now() + STALL;
        match &mut self.ends {
            Ends::Relayed { up, .. } => up.stop(),
            Ends::Watched(watch) => watch.up.drop_source(),
            _ => {}
        }
        loop {
            // The tree is empty: what can be read now is all there will be.
            self.drain.take_all();
            self.drain.flush();
            match &mut self.ends {
                Ends::Relayed { down, .. } => down.exhaust(),
                Ends::Watched(watch) => watch.exhaust_down(),
                _ => {}
            }
            let mut fds: Vec<PollFd<'_>> = self.drain.host_interest().into_iter().collect();
            let mut patient = false;
            match &self.ends {
                Ends::Relayed { down, .. } => {
                    fds.extend(down.interest().filter(|_| down.is_pending()));
                    patient = left_alone && down.is_pending();
                }
                Ends::Watched(watch) => {
                    fds.extend(watch.down.interest().filter(|_| watch.down.is_pending()));
                    patient = left_alone && watch.down.is_pending();
                }
                _ => {}
            }
            let waiting = fds.len();
            if waiting == 0 {
                return;
            }
            let host = self.host.and_then(Host::pidfd);
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

fn stdin_is_closed(ends: &Ends<'_>) -> bool {
    let Ends::Direct { stdin: Some(stdin), .. } = ends else { return false };
    let mut fds = [PollFd::new(stdin, PollFlags::RDHUP)];
    contain::wait(&mut fds, Some(Instant::now()));
    !fds[0].revents().is_empty()
}
