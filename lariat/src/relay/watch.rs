//! A conversation that is looked at: both directions, and what is to be done about it.
//!
//! Outlives the server, which may be ended and started anew while the host's ends stay open.

use super::cache::Cache;
use super::duct::Duct;
use super::ends::set_nonblocking;
use super::evidence::Clues;
use super::hibernation::{Act, Hibernation};
use super::outlet::{Outlet, Sink};
use super::policy::Policy;
use rustix::event::PollFd;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// While the host has said this much that nobody hears, it is not listened to.
const UNHEARD: usize = 1 << 20;

/// The host's ends, whatever server there is, and the state of the conversation.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) machine: Hibernation,
    pub(super) up: Duct,
    pub(super) down: Duct,
    clues: Clues,
    cache: Option<Cache>,
    /// The server's input is to be closed when it has taken everything.
    closing: bool,
}

/// What one life of the server needs.
#[derive(Debug)]
pub(super) struct ServerEnds {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
}

impl Watch {
    /// Takes the host's streams. With a cache, the server is not started before it is needed.
    pub(super) fn open(
        policy: Policy,
        clues: Clues,
        cache: Option<Cache>,
        name: &str,
    ) -> Result<Watch, Errno> {
        let now = Instant::now();
        let stdin = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?;
        let stdout = Outlet::new(io::stdout().as_fd())?;
        let machine = match &cache {
            Some(cache) => Hibernation::asleep(policy, cache.read().unwrap_or_default(), now),
            None => Hibernation::awake(policy, now),
        };
        let machine = machine.called(name);
        let up = Duct::new(Some(stdin), None, machine.host_is_heard());
        let down = Duct::new(None, Some(Sink::Host(stdout)), machine.server_is_heard());
        Ok(Watch { machine, up, down, clues, cache, closing: false })
    }

    /// Makes the streams of another server.
    pub(super) fn join(&mut self) -> Result<ServerEnds, Errno> {
        let (server_stdin, to_server) = pipe_with(PipeFlags::CLOEXEC)?;
        let (from_server, server_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        set_nonblocking(&to_server)?;
        set_nonblocking(&from_server)?;
        self.up.set_sink(Sink::Own(to_server));
        self.down.set_source(from_server);
        Ok(ServerEnds { stdin: server_stdin, stdout: server_stdout })
    }

    /// The server is gone.
    pub(super) fn part(&mut self) {
        self.up.drop_sink();
        self.down.drop_source();
    }

    /// What the host may have for us, unless it has to wait.
    pub(super) fn up_interest(&self) -> Option<PollFd<'_>> {
        let unheard = self.machine.waiting_bytes() >= UNHEARD;
        self.up.interest().filter(|_| self.up.is_pending() || !unheard)
    }

    /// When to call [`Watch::tick`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.machine.deadline()
    }

    /// Time has passed and nothing has come.
    pub(super) fn tick(&mut self) {
        let now = Instant::now();
        if self.deadline().is_some_and(|due| now >= due) {
            self.machine.tick(now, || self.clues.look());
        }
    }

    /// Closes the server's input when it has taken everything.
    pub(super) fn close_input(&mut self) {
        self.closing = true;
    }

    /// The host may have said something.
    pub(super) fn turn_up(&mut self) {
        let had_ended = self.up.has_ended();
        let machine = &mut self.machine;
        self.up.turn(&mut |sight| {
            machine.hear_host(sight, Instant::now());
            false
        });
        if self.up.has_ended() && !had_ended {
            self.machine.host_closed();
        }
        if self.up.is_refused() && self.machine.host_is_heard() {
            // A server that does not read any more is the host's business: it sees the pipe break.
            self.up.drop_source();
        }
    }

    /// The host has gone. Hears what it said before; true if that needs the server.
    pub(super) fn hear_the_rest(&mut self) -> bool {
        while !self.up.has_ended() && self.machine.waiting_bytes() < UNHEARD {
            let Some(fd) = self.up.interest() else { break };
            let mut fds = [fd];
            contain::wait(&mut fds, Some(Instant::now()));
            if fds[0].revents().is_empty() {
                break;
            }
            self.turn_up();
        }
        if !self.up.has_ended() {
            self.up.drop_source();
            self.machine.host_closed();
        }
        self.down.drop_sink();
        self.machine.is_waking()
    }

    /// The server may have said something.
    pub(super) fn turn_down(&mut self) {
        let machine = &mut self.machine;
        self.down.turn(&mut |sight| machine.hear_server(sight, Instant::now()));
        if let Some(cache) = &mut self.cache {
            cache.update(self.machine.talk().known());
        }
    }

    /// Passes on what a server said that is gone.
    pub(super) fn exhaust_down(&mut self) {
        let machine = &mut self.machine;
        self.down.exhaust(&mut |sight| machine.hear_server(sight, Instant::now()));
    }

    /// Says what is to be said, and gives what else is to be done.
    pub(super) fn act(&mut self) -> Option<Act> {
        let act = loop {
            match self.machine.act() {
                Some(Act::ToServer(line)) => self.up.say(&line),
                Some(Act::ToHost(line)) => self.down.say(&line),
                other => break other,
            }
        };
        // Behind what is still to be said, or the half of a line that has come since would overtake it.
        let (host, server) = (self.machine.host_is_heard(), self.machine.server_is_heard());
        if act.is_none() || !host {
            self.up.set_through(host);
        }
        if act.is_none() || !server {
            self.down.set_through(server);
        }
        let passing = !(self.up.is_at_rest() && self.down.is_at_rest());
        self.machine.set_passing(passing);
        if self.closing && !self.up.is_pending() {
            self.up.drop_sink();
        }
        act
    }
}
