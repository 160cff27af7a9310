//! A server that may sleep: one life after another, and the time between.

use super::bounds::Bounds;
use super::cache::Cache;
use super::ends::{Ends, set_nonblocking};
use super::evidence::Clues;
use super::hibernation::{Act, Hibernation, Over, Told};
use super::host::Host;
use super::outlet::Outlet;
use super::policy::Policy;
use super::stderr::Drain;
use super::watch::Watch;
use super::wrapper::Wrapper;
use super::{Outcome, STOP, open_log};
use crate::books::{Entry, Generation, Settled};
use crate::moment;
use crate::receipt::Reason;
use crate::snapshot::{Evidence, State, Status};
use crate::start::{Around, Failure, Ground, Opened};
use contain::{Command, Exit, Signals};
use rustix::event::{PollFd, PollFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::json;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// What is served, in every life of the server.
pub(super) struct Served<'a> {
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
    pub(super) log_dir: PathBuf,
    pub(super) host: &'a Host,
    pub(super) signals: &'a Signals,
}

/// The lives of a server, one after the other, and the session that they are lived in.
struct Lives<'a> {
    served: Served<'a>,
    opened: Opened,
    spin_limit: Option<Duration>,
}

impl Served<'_> {
    /// Serves a host until its session ends, with a server or without.
    pub(super) fn serve(
        self,
        ground: Ground,
        generation: Generation,
        policy: Policy,
    ) -> Result<Outcome, Failure> {
        let opened = ground.open(self.host.member())?;
        let clues = Clues::find(generation, self.host);
        let lives = Lives { served: self, opened, spin_limit: policy.spin_limit };
        let cache = policy.lazy.as_ref().map(|key| Cache::open(lives.opened.state_dir(), key));
        let name = lives.opened.entry.page().session.to_string();
        let watch = Watch::open(policy, clues, cache, &name);
        let watch = watch.map_err(|e| lives.opened.give_up(Failure::Streams(e.into())))?;
        lives.opened.entry.show_pulse();
        let (state, silent) = match watch.machine.is_asleep() {
            true => (State::Asleep, Some(SystemTime::now())),
            false => (State::Starting, None),
        };
        tell(&lives.opened.entry, state, silent, &[]);
        lives.serve(watch)
    }
}

impl Lives<'_> {
    fn serve(&self, mut watch: Watch) -> Result<Outcome, Failure> {
        // Why there is no server, if the last start came to nothing.
        let mut unstarted = None;
        loop {
            if watch.machine.is_asleep()
                && let Some(end) = self.sleep(&mut watch)
            {
                let outcome = self.over(&end);
                // Whoever closes its end of such a session sees what it would see of the command itself.
                let failure = unstarted.filter(|_| end == Reason::StdinClosed);
                return failure.map_or(Ok(outcome), Err);
            }
            let waking = watch.machine.is_waking();
            unstarted = match self.live(&mut watch) {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => None,
                Err(failure) if !waking => return Err(failure),
                Err(failure) => {
                    let program = self.served.program.to_string_lossy();
                    watch.part();
                    watch.machine.ended(&failure.in_words(&program), Instant::now());
                    Some(failure)
                }
            };
        }
    }

    /// One life of the server. `None` if it is asleep afterwards.
    fn live(&self, watch: &mut Watch) -> Result<Option<Outcome>, Failure> {
        let waking = watch.machine.is_waking();
        let streams = |e: rustix::io::Errno| Failure::Streams(e.into());
        let give_up = |failure| if waking { failure } else { self.opened.give_up(failure) };
        let Served { program, args, log_dir, host, signals } = &self.served;
        let log = open_log(log_dir, &self.opened.entry.page().server).map_err(give_up)?;
        let (stderr, server_stderr) =
            pipe_with(PipeFlags::CLOEXEC).map_err(streams).map_err(give_up)?;
        set_nonblocking(&stderr).map_err(streams).map_err(give_up)?;
        let drain = Drain::new(stderr, Outlet::new(io::stderr().as_fd()).ok(), Some(log));
        let ends = watch.join().map_err(streams).map_err(give_up)?;
        let command = Command {
            program: program.clone(),
            args: args.clone(),
            env: Vec::new(),
            stdin: ends.stdin,
            stdout: ends.stdout,
            stderr: server_stderr,
        };
        let around = Around {
            signals,
            host: host.member(),
            host_gone: host.pidfd(),
            stderr: drain.source(),
            owner: None,
        };
        self.opened.entry.begin();
        let (hold, door) = self.opened.launch(command, &around).map_err(give_up)?;
        let bounds = Bounds::new(self.opened.limits(), self.spin_limit);
        let (entry, ends) = (&self.opened.entry, Ends::Watched(watch));
        let wrapper = Wrapper::new(hold, door, signals, drain, ends, entry, Some(host));
        wrapper.within(bounds).serve()
    }

    /// The session has ended while there was no server.
    fn over(&self, reason: &Reason) -> Outcome {
        let Settled { receipt, unwritten } =
            self.opened.entry.settle(reason, self.opened.nothing());
        let exit = match reason {
            Reason::Signal(signal) => Exit::Signal(*signal),
            // As a server leaves whose input has ended.
            _ => Exit::Code(0),
        };
        Outcome { exit: Some(exit), receipt, unwritten }
    }

    /// Waits until the server is needed (`None`), or the session ends.
    fn sleep(&self, watch: &mut Watch) -> Option<Reason> {
        let (host, signals) = (self.served.host, self.served.signals);
        let mut settled = false;
        loop {
            while let Some(act) = watch.act() {
                match act {
                    Act::Start => return None,
                    Act::End(Over::HostClosed) if host.dies_now() => return Some(Reason::HostDied),
                    Act::End(Over::HostClosed) => return Some(Reason::StdinClosed),
                    Act::Tell(told) => note(&self.opened.entry, &watch.machine, &told),
                    _ => {}
                }
            }
            if !std::mem::replace(&mut settled, true) {
                // Nothing more happens for long: what was needed to get here is not.
                contain::give_back_code();
            }
            let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
            fds.extend(host.pidfd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let host_at = host.pidfd().map(|_| 1);
            let up_at = watch.up_interest().map(|fd| (fds.len(), fds.push(fd)).0);
            let out_at = watch.down.interest().or(watch.down.sink_watch());
            let out_at = out_at.map(|fd| (fds.len(), fds.push(fd)).0);
            let parent_check =
                host.pidfd().is_none().then(|| Instant::now() + super::wrapper::PARENT_CHECK);
            contain::wait(&mut fds, [watch.deadline(), parent_check].into_iter().flatten().min());
            let flags = |at: Option<usize>| at.map_or(PollFlags::empty(), |at| fds[at].revents());
            let (host_ready, up, out) = (flags(host_at), flags(up_at), flags(out_at));
            let died = !host_ready.is_empty() || host.has_died();
            while let Some(signal) = signals.next() {
                if STOP.contains(&signal) {
                    return Some(Reason::Signal(signal));
                }
            }
            if out.intersects(PollFlags::OUT) {
                watch.down.flush();
            }
            let deaf = out.intersects(PollFlags::HUP | PollFlags::ERR) || watch.down.is_refused();
            if died || deaf {
                // What it said before it went is said.
                if watch.hear_the_rest() {
                    continue;
                }
                let died = died || host.dies_now();
                let closed = || Reason::Failed("stdout-closed".into());
                return Some(if died { Reason::HostDied } else { closed() });
            }
            if up.is_empty() {
                watch.tick();
            } else {
                watch.turn_up();
            }
        }
    }
}

/// Writes down what happens to the server.
pub(super) fn note(entry: &Entry, machine: &Hibernation, told: &Told) {
    let page = entry.page();
    let silent = || Some(SystemTime::now() - machine.talk().spoke().elapsed());
    let (event, what) = match told {
        Told::Slept(signs) => {
            return tell(entry, State::Ending, silent(), &signs.evidence());
        }
        Told::Stayed(signs) => return tell(entry, State::Ready, silent(), &signs.evidence()),
        Told::Waking => {
            entry.begin();
            return tell(entry, State::Waking, None, &[]);
        }
        Told::Asleep(signs) => {
            tell(entry, State::Asleep, silent(), &signs.evidence());
            (
                "asleep",
                Some(signs.evidence().iter().map(|e| e.word()).collect::<Vec<_>>().join(" ")),
            )
        }
        Told::Woke(after) => {
            tell(entry, State::Ready, None, &[]);
            ("woke", Some(format!("{} ms", after.as_millis())))
        }
        Told::WakeFailed(why) => ("wake-failed", Some(why.clone())),
        Told::Differs(what) => ("differs", Some(what.clone())),
    };
    let line = json!({ "session": page.session, "server": page.server, "what": what });
    // An unwritable event log is no reason not to serve.
    let _unlogged = entry.log(event, &line);
}

/// Says how the session is.
pub(super) fn tell(entry: &Entry, state: State, silent: Option<SystemTime>, evidence: &[Evidence]) {
    entry.tell(&Status {
        state,
        since_ms: moment::millis(SystemTime::now()),
        quiet_since_ms: silent.map(moment::millis),
        evidence: evidence.to_vec(),
    });
}
