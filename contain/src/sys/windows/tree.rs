//! A tree as its owner sees it: start it, ask it to leave, be told that it is empty.
//!
//! The owner climbs the ladder itself, whenever it asks what has happened. If it cannot (it was
//! dropped, it panicked, it was killed), the handle of the job closes, and the kernel ends
//! everybody at once.

use super::Backend;
use super::console;
use super::job::{Count, Job, KILLED};
use super::launch::launch;
use super::member::{self, Handle};
use super::roll;
use crate::error::{Error, SpawnStage};
use crate::event::Event;
use crate::ladder::{Ask, Ladder};
use crate::member::Member;
use crate::report::{Emptied, Exit, Kind, Report, Survivor, Survivors};
use crate::spec::Spec;
use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle, BorrowedHandle};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windows_sys::Win32::System::Threading::{GetExitCodeProcess, INFINITE, WaitForMultipleObjects};

/// A process tree. Dropping it closes the job and nothing more: the kernel ends the tree, without
/// any grace; that cannot block or fail.
#[derive(Debug)]
pub struct Tree {
    /// Nobody else has it for longer than a look takes.
    job: Arc<Job>,
    leader: Handle,
    shares_console: bool,
    ladder: Ladder,
    exit: Option<Exit>,
    /// Since when it has been ending.
    began: Option<Instant>,
    step: Step,
    /// How many there were when they were asked, and when they were killed.
    at_ask: Option<u32>,
    at_kill: Option<Count>,
}

/// Where on the ladder the tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Nobody has asked for an end.
    Running,
    /// On this rung until then.
    Asked(u8, Instant),
    /// The report has been given.
    Over,
}

/// How often a job is looked at whose members should be gone any moment: its messages are heard
/// at once, but none is promised.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Those whom a wait may watch besides the tree.
const MOST_OTHERS: usize = 32;

impl Tree {
    /// Starts the command. Returns once it runs, or with the reason why it does not; then nothing
    /// is left of it.
    pub fn spawn(spec: Spec) -> Result<Tree, Error> {
        let job = Job::new().map_err(|e| Error::Spawn(SpawnStage::Job, e))?;
        let launched = launch(&spec, &job)?;
        let job = Arc::new(job);
        roll::enter(launched.process.member(), &job);
        Ok(Tree {
            job,
            leader: launched.process,
            shares_console: launched.shares_console,
            ladder: spec.ladder,
            exit: None,
            began: None,
            step: Step::Running,
            at_ask: None,
            at_kill: None,
        })
    }

    /// The command.
    pub fn leader(&self) -> Option<Member> {
        Some(self.leader.member())
    }

    /// What holds the tree.
    pub fn backend(&self) -> Backend {
        Backend::Job
    }

    /// Everyone who is in the tree now, as the kernel has it.
    pub fn members(&self) -> io::Result<Vec<Member>> {
        self.job.members()
    }

    /// Starts the end, or hastens it. The owner closes the command's standard input itself, and
    /// goes on asking for [`events`](Tree::event): they are what moves the end along.
    pub fn ask(&mut self, ask: Ask) {
        let rung = ask.rung();
        match self.step {
            Step::Over => return,
            Step::Asked(now, _) if now >= rung => return,
            Step::Running | Step::Asked(..) => {}
        }
        self.began.get_or_insert_with(Instant::now);
        self.climb(rung);
    }

    /// Steps onto a rung and does what is done there.
    fn climb(&mut self, rung: u8) {
        let time = match rung {
            0 => self.ladder.grace,
            1 if self.interrupt() => self.ladder.grace,
            2 if self.interrupt() => self.ladder.term_grace,
            // Who cannot be asked is not waited for.
            _ => return self.kill(),
        };
        self.step = Step::Asked(rung, Instant::now() + time);
    }

    fn interrupt(&mut self) -> bool {
        let group = self.leader.member().pid.cast_unsigned();
        // While we have its handle, the leader's number is nobody else's.
        let sent = self.shares_console && console::interrupt(group);
        if sent && self.at_ask.is_none() {
            self.at_ask = self.job.count().ok().map(|count| count.active);
        }
        sent
    }

    fn kill(&mut self) {
        if self.at_kill.is_none() {
            self.at_kill = self.job.count().ok();
        }
        self.step = Step::Asked(3, Instant::now() + self.ladder.look);
        // What it says is not believed either way: the job is looked at until it is empty.
        let _refused = self.job.terminate();
    }

    /// What has happened since the last call. Never blocks; [`wait`](Tree::wait) says when to call.
    pub fn event(&mut self) -> Option<Event> {
        if self.step == Step::Over {
            return None;
        }
        if self.exit.is_none() && !self.leader.is_alive() {
            let exit = self.leader_exit();
            self.exit = Some(exit);
            self.began.get_or_insert_with(Instant::now);
            let linger = Instant::now() + self.ladder.linger;
            self.step = match self.step {
                // Those it leaves behind have as long as after any leader that left by itself.
                Step::Running => Step::Asked(0, linger),
                Step::Asked(rung, until) if rung < 2 => Step::Asked(rung, until.min(linger)),
                other => other,
            };
            return Some(Event::Exited(exit));
        }
        let Step::Asked(rung, until) = self.step else { return None };
        let count = self.job.count();
        if self.exit.is_some() && count.as_ref().is_ok_and(|count| count.active == 0) {
            return Some(Event::Ended(self.report(Vec::new())));
        }
        let late = Instant::now() >= until;
        match rung {
            3 if late => {
                let survivors = self.survivors(count);
                return Some(Event::Ended(self.report(survivors)));
            }
            // A member may have been on its way into the job during the last kill.
            3 => drop(self.job.terminate()),
            rung if late => self.climb(if rung < 2 { 2 } else { 3 }),
            _ => {}
        }
        None
    }

    /// Waits for a reason to call [`event`](Tree::event): until something may have happened to the
    /// tree, one of the others is signalled, or the deadline has come.
    pub fn wait(&self, others: &[BorrowedHandle<'_>], deadline: Option<Instant>) {
        let now = Instant::now();
        let until = match self.step {
            // Nothing more will happen here.
            Step::Over | Step::Running => None,
            Step::Asked(_, until) => Some(until),
        };
        let until = until.into_iter().chain(deadline).min();
        let left = until.map(|until| until.saturating_duration_since(now));
        if self.exit.is_some() && self.step != Step::Over {
            // Everybody is leaving, and the job says when the last one has.
            self.job.listen(left.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN));
            return;
        }
        let leader = (self.exit.is_none()).then(|| self.leader.as_handle().as_raw_handle());
        let others = others.iter().take(MOST_OTHERS).map(AsRawHandle::as_raw_handle);
        let handles: Vec<_> = leader.into_iter().chain(others).collect();
        if handles.is_empty() {
            self.job.listen(left.unwrap_or(LOOK_AGAIN));
            return;
        }
        let mut left = left.map_or(INFINITE, milliseconds);
        if matches!(self.step, Step::Asked(3, _)) {
            // The kill is repeated while it lasts.
            left = left.min(milliseconds(LOOK_AGAIN));
        }
        // SAFETY: every handle is open (each is borrowed for the call), and there are as many as is
        // said.
        let _woken =
            unsafe { WaitForMultipleObjects(handles.len() as u32, handles.as_ptr(), 0, left) };
    }

    /// Ends the tree by the ladder and waits until it is empty.
    pub fn close(mut self) -> Result<Emptied, Survivors> {
        self.ask(Ask::Closed);
        loop {
            match self.event() {
                Some(Event::Ended(report)) => return report.verdict(),
                Some(_) => {}
                None => self.wait(&[], None),
            }
        }
    }

    fn leader_exit(&self) -> Exit {
        let mut code = KILLED;
        // SAFETY: the handle is open, and the code goes to a number of ours.
        let _known =
            unsafe { GetExitCodeProcess(self.leader.as_handle().as_raw_handle(), &mut code) };
        Exit::Code(code.cast_signed())
    }

    fn report(&mut self, survivors: Vec<Survivor>) -> Report {
        self.step = Step::Over;
        let seen = self.job.count().map_or(1, |count| count.total);
        // Whoever was born during the kill was killed as well.
        let killed = self.at_kill.map_or(0, |at| at.active + seen.saturating_sub(at.total));
        let killed = killed.saturating_sub(survivors.len() as u32);
        let after_ask = self.at_kill.map_or(0, |at| at.active);
        let asked = self.at_ask.map_or(0, |active| active.saturating_sub(after_ask));
        let asked = asked.min(seen.saturating_sub(killed));
        let gone = killed + asked + survivors.len() as u32;
        Report {
            exit: self.exit,
            backend: Backend::Job,
            seen,
            left: seen.saturating_sub(gone),
            asked,
            killed,
            survivors,
            breach: None,
            took: self.began.map(|began| began.elapsed()).unwrap_or_default(),
        }
    }

    /// Those who are still there after everything, by name where that may be known.
    fn survivors(&self, count: io::Result<Count>) -> Vec<Survivor> {
        let mut survivors: Vec<Survivor> =
            self.job.members().unwrap_or_default().into_iter().map(Survivor::unended).collect();
        // Those who may not be looked at have a number all the same.
        let unnamed = self.job.numbers().unwrap_or_default().into_iter().map(u32::cast_signed);
        let listed = |pid: &i32, named: &[Survivor]| named.iter().any(|s| s.member.pid == *pid);
        let unnamed: Vec<i32> = unnamed.filter(|pid| !listed(pid, &survivors)).collect();
        let nameless = |pid| Survivor::unended(Member { pid, start: 0 });
        survivors.extend(unnamed.into_iter().map(nameless));
        if survivors.is_empty() {
            let why = match count {
                Ok(count) => format!("the kernel counts {} members but lists none", count.active),
                Err(e) => format!("the job cannot be asked: {e}"),
            };
            let member = Member { pid: 0, start: 0 };
            survivors.push(Survivor { kind: Kind::Process, member, name: "unknown".into(), why });
        }
        survivors
    }
}

impl Survivor {
    fn unended(member: Member) -> Survivor {
        Survivor {
            kind: Kind::Process,
            name: member::name(member).unwrap_or_else(|| "unknown".into()),
            member,
            why: "ended with its job but still there".into(),
        }
    }
}

impl AsHandle for Tree {
    /// The command's handle: signalled once the command has ended.
    fn as_handle(&self) -> BorrowedHandle<'_> {
        self.leader.as_handle()
    }
}

/// Rounded up: a wait that ends too early begins again at once.
fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis() + 1).unwrap_or(INFINITE - 1)
}
