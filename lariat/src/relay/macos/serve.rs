//! The loop around a server: from its start until its tree is gone.

use super::cause::Cause;
use super::pump::{Flow, Pump};
use super::stderr::Drain;
use super::{PASSED_ON, STOP};
use crate::receipt::Reason;
use contain::{Ask, Event, Exit, Report, Sign, Tree, Vigil};
use rustix::event::{PollFd, PollFlags};
use std::time::{Duration, Instant};

/// How long a host that does not read may keep a finished server's last words from being dropped.
const STALL: Duration = Duration::from_secs(1);

/// How often in a row the kernel may fail to poll before the session is ended.
const BLIND: u32 = 100;

/// Both directions, where bytes pass through here.
#[derive(Debug)]
pub(super) struct Pumps {
    pub(super) up: Pump,
    pub(super) down: Pump,
}

/// Whose descriptor was ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Vigil,
    Tree,
    Stderr,
    HostStderr,
    Up,
    Down,
}

/// The loop's state.
#[derive(Debug)]
pub(super) struct Wrapper {
    tree: Tree,
    vigil: Vigil,
    drain: Drain,
    pumps: Option<Pumps>,
    cause: Cause,
    /// Stop signals received so far.
    had: Vec<i32>,
    exit: Option<Exit>,
    host_is_gone: bool,
    input_is_closed: bool,
}

impl Wrapper {
    pub(super) fn new(tree: Tree, vigil: Vigil, drain: Drain, pumps: Option<Pumps>) -> Wrapper {
        Wrapper {
            tree,
            vigil,
            drain,
            pumps,
            cause: Cause::default(),
            had: Vec::new(),
            exit: None,
            host_is_gone: false,
            input_is_closed: false,
        }
    }

    /// Serves until the tree is gone. Says why it ended, and how.
    pub(super) fn serve(mut self) -> (Reason, Report) {
        let mut blind = 0;
        loop {
            let ready = self.wait();
            blind = if ready.is_some() { 0 } else { blind + 1 };
            if blind == BLIND {
                // We would not even see the host leave.
                self.end(Reason::Failed("poll".into()), Ask::Closed);
            }
            for who in ready.unwrap_or_default() {
                self.handle(who);
            }
            self.drain.notice_stall();
            for sign in self.signs() {
                self.heed(sign);
            }
            while let Some(event) = self.tree.event() {
                match event {
                    Event::Exited(exit) => self.exit = Some(exit),
                    Event::Ended(report) => return self.finish(report),
                    Event::Started | Event::Failed(_) | Event::GuardianDied => {}
                }
            }
        }
    }

    /// Waits until something happens and says to whom; `None` if the kernel cannot wait.
    fn wait(&self) -> Option<Vec<Who>> {
        let mut slots = Vec::with_capacity(6);
        slots.push((Who::Vigil, PollFd::new(&self.vigil, PollFlags::IN)));
        slots.push((Who::Tree, PollFd::new(&self.tree, PollFlags::IN)));
        if let Some(Pumps { up, down }) = &self.pumps {
            slots.extend(up.interest().map(|fd| (Who::Up, fd)));
            slots.extend(down.interest().map(|fd| (Who::Down, fd)));
        }
        slots.extend(self.drain.interest().map(|fd| (Who::Stderr, fd)));
        slots.extend(self.drain.host_interest().map(|fd| (Who::HostStderr, fd)));
        let (who, mut fds): (Vec<Who>, Vec<PollFd<'_>>) = slots.into_iter().unzip();
        let deadlines = [self.tree.deadline(), self.vigil.deadline(), self.drain.deadline()];
        if !contain::wait(&mut fds, deadlines.into_iter().flatten().min()) {
            return None;
        }
        let ready = fds.iter().map(|fd| !fd.revents().is_empty());
        Some(who.into_iter().zip(ready).filter(|(_, ready)| *ready).map(|(who, _)| who).collect())
    }

    fn handle(&mut self, who: Who) {
        match (who, &mut self.pumps) {
            // Asked in any case.
            (Who::Vigil | Who::Tree, _) => {}
            (Who::Stderr, _) => {
                // More is reported again by the next wait.
                let _more = self.drain.take();
            }
            (Who::HostStderr, _) => self.drain.flush(),
            (Who::Up, Some(Pumps { up, .. })) => {
                up.turn();
                // A server that does not read any more is the host's business: it sees the pipe
                // break. A host that does not write any more has ended the session.
                if matches!(up.flow(), Flow::Draining | Flow::Closed) {
                    self.end(Reason::StdinClosed, Ask::Closed);
                }
            }
            (Who::Down, Some(Pumps { down, .. })) => {
                down.turn();
                if down.flow() == Flow::Refused {
                    self.end(Reason::Failed("stdout-closed".into()), Ask::Closed);
                }
            }
            (Who::Up | Who::Down, None) => {}
        }
    }

    /// What was heard. What the reason may depend on is remembered, whoever asks.
    fn signs(&mut self) -> Vec<Sign> {
        let signs = self.vigil.signs();
        self.host_is_gone |= signs.contains(&Sign::HostGone);
        self.input_is_closed |= signs.contains(&Sign::InputClosed);
        signs
    }

    fn heed(&mut self, sign: Sign) {
        match sign {
            Sign::Signal(signal) if STOP.contains(&signal) => {
                // Whoever says it twice means it.
                let again = self.had.contains(&signal);
                self.had.push(signal);
                let ask = if again { Ask::Kill } else { Ask::Signal(signal) };
                self.end(Reason::Signal(signal), ask);
            }
            Sign::Signal(signal) if PASSED_ON.contains(&signal) => self.tree.forward(signal),
            Sign::Signal(_) => {}
            Sign::HostGone => {
                self.cause.host_died();
                // Somebody else may hold the host's end of the pipe; the server is to see it close.
                if let Some(Pumps { up, .. }) = &mut self.pumps {
                    up.stop();
                }
                self.end(Reason::HostDied, Ask::Closed);
            }
            Sign::InputClosed => self.end(Reason::StdinClosed, Ask::Closed),
            Sign::OutputClosed => {
                if let Some(Pumps { down, .. }) = &mut self.pumps {
                    down.refuse();
                }
                self.end(Reason::Failed("stdout-closed".into()), Ask::Closed);
            }
        }
    }

    fn end(&mut self, reason: Reason, ask: Ask) {
        self.cause.note(reason);
        self.tree.ask(ask);
    }

    /// The tree has ended: last words, and the reason.
    fn finish(mut self, report: Report) -> (Reason, Report) {
        self.last_words();
        let _remembered = self.signs();
        let reason = self.cause.verdict(self.host_is_gone, || self.input_is_closed);
        let exit = report.exit.or(self.exit);
        (reason, Report { exit, ..report })
    }

    /// Passes on what the server wrote before it left, as long as the host takes it.
    ///
    /// A bare server would wait in its last write to stdout until the host reads. So do we, unless
    /// the host has ended the session itself. A host that does not read stderr is never waited for
    /// long.
    fn last_words(&mut self) {
        let left_alone = self.cause.reason().is_none();
        let (mut deadline, mut called_off) = (Instant::now() + STALL, false);
        if let Some(Pumps { up, .. }) = &mut self.pumps {
            up.stop();
        }
        loop {
            // The tree is empty: what can be read now is all there will be.
            self.drain.take_all();
            self.drain.flush();
            if let Some(Pumps { down, .. }) = &mut self.pumps {
                down.exhaust();
            }
            let down = self.pumps.as_ref().map(|pumps| &pumps.down).filter(|p| p.is_pending());
            let mut fds: Vec<PollFd<'_>> = self.drain.host_interest().into_iter().collect();
            fds.extend(down.and_then(Pump::interest));
            let waiting = fds.len();
            if waiting == 0 {
                return;
            }
            let limit = (!left_alone || down.is_none()).then_some(deadline);
            fds.push(PollFd::new(&self.vigil, PollFlags::IN));
            let limits = [limit, self.vigil.deadline()];
            contain::wait(&mut fds, limits.into_iter().flatten().min());
            let moves = fds[..waiting].iter().any(|fd| !fd.revents().is_empty());
            called_off |= self.signs().into_iter().any(|sign| match sign {
                Sign::Signal(signal) => STOP.contains(&signal),
                Sign::HostGone | Sign::OutputClosed => true,
                // Its input is nothing to a server that is gone.
                Sign::InputClosed => false,
            });
            if moves {
                // A slow reader is not a stalled one.
                deadline = Instant::now() + STALL;
            } else if called_off || limit.is_some_and(|d| Instant::now() >= d) {
                return;
            }
        }
    }
}
