//! A tree as its owner sees it: start it, ask it to leave, be told that it is empty.

use super::Backend;
use super::guardian::{Brief, KEPT, SOCKET, VERB};
use super::mark::{Mark, sweep};
use super::socket::{self, Line, Received};
use crate::choice::Choice;
use crate::error::{Error, SpawnStage};
use crate::event::Event;
use crate::ladder::{Ask, Ladder};
use crate::member::Member;
use crate::report::{Emptied, Report, Survivor, Survivors};
use crate::spec::Spec;
use crate::sys::wait::wait;
use crate::wire::{Order, Word};
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

/// How long past the end of the ladder the guardian may be silent before the owner looks itself.
const OVERDUE: Duration = Duration::from_secs(1);

/// A process tree. Dropping it closes the socket and nothing more: that ends the tree, needs no
/// runtime, and cannot block or fail.
#[derive(Debug)]
pub struct Tree {
    guardian: Line,
    mark: Mark,
    ladder: Ladder,
    leader: Option<Member>,
    survivors: Vec<Survivor>,
    /// When a guardian that was asked should have answered.
    overdue: Option<Instant>,
    is_over: bool,
}

impl Tree {
    /// Starts the command. Returns once it runs, or with the reason why it does not; then nothing
    /// is left of it.
    pub fn spawn(spec: Spec) -> Result<Tree, Error> {
        let mark = Mark::random().map_err(|e| Error::Spawn(SpawnStage::Holder, e))?;
        Tree::spawn_marked(spec, mark, None)
    }

    /// The same with a mark that was written down before. `keep` stays open for as long as this
    /// process or one of the guardian's has it: a lock on it says that somebody cares.
    pub fn spawn_marked(
        spec: Spec,
        mark: Mark,
        keep: Option<BorrowedFd<'_>>,
    ) -> Result<Tree, Error> {
        let failed = |e| Error::Spawn(SpawnStage::Holder, e);
        let (Choice::Auto | Choice::Named(Backend::Session)) = spec.backend;
        let (ours, socket) = socket::pair().map_err(|e| Error::Spawn(SpawnStage::Socket, e))?;
        // Above both numbers, so that putting one in its place cannot close the other.
        let above = |fd: BorrowedFd<'_>| {
            rustix::io::fcntl_dupfd_cloexec(fd, KEPT + 1).map_err(|e| failed(e.into()))
        };
        let theirs = [socket.as_fd()].into_iter().chain(keep).map(above);
        let theirs = theirs.collect::<Result<Vec<OwnedFd>, Error>>()?;
        let brief = Brief { mark, ladder: spec.ladder, keeps: keep.is_some() };
        let mut command = std::process::Command::new(&spec.holder);
        command.arg(VERB).arg(brief.encode()).arg("--").arg(spec.program).args(spec.args);
        command.stdin(spec.stdin).stdout(spec.stdout).stderr(spec.stderr);
        if let Some(env) = spec.env {
            command.env_clear().envs(env);
        }
        // The guardian carries it as well: should it hang, the sweep finds it too.
        command.env(mark.variable(), "1");
        if let Some(cwd) = spec.cwd {
            command.current_dir(cwd);
        }
        let places: Vec<(RawFd, RawFd)> =
            theirs.iter().map(AsRawFd::as_raw_fd).zip([SOCKET, KEPT]).collect();
        // SAFETY: between fork and exec only setpgid and dup2 are called, both of which are
        // async-signal-safe; what is copied stays open in the parent until spawn has returned, and
        // is above every place that it goes to.
        unsafe {
            command.pre_exec(move || {
                // A terminal's signals are meant for the owner, not for its guardian.
                let _already_leader = rustix::process::setpgid(None, None);
                for (from, to) in &places {
                    if libc::dup2(*from, *to) < 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let mut starter = command.spawn().map_err(failed)?;
        // Every copy of its end: only then is its death heard.
        drop((theirs, socket, command));
        // It forks the guardian and leaves; not waiting would leave a zombie in the owner.
        starter.wait().map_err(failed)?;
        let mut tree = Tree {
            guardian: ours,
            mark,
            ladder: spec.ladder,
            leader: None,
            survivors: Vec::new(),
            overdue: None,
            is_over: false,
        };
        tree.await_start()?;
        Ok(tree)
    }

    fn await_start(&mut self) -> Result<(), Error> {
        loop {
            match self.guardian.hear() {
                Received::Nothing => self.wait(),
                Received::Word(text) => match Word::decode(&text) {
                    Some(Word::Started(leader, Backend::Session)) => {
                        self.leader = Some(leader);
                        return Ok(());
                    }
                    Some(Word::NotExecuted(errno)) => {
                        return Err(Error::Exec(io::Error::from_raw_os_error(errno)));
                    }
                    Some(Word::Failed(stage, errno)) => {
                        let _report = self.sweep();
                        return Err(Error::Spawn(stage, io::Error::from_raw_os_error(errno)));
                    }
                    _ => {}
                },
                Received::Gone => {
                    let _report = self.sweep();
                    let lost = io::Error::from(io::ErrorKind::BrokenPipe);
                    return Err(Error::Spawn(SpawnStage::Holder, lost));
                }
            }
        }
    }

    /// The command.
    pub fn leader(&self) -> Option<Member> {
        self.leader
    }

    /// What holds the tree.
    pub fn backend(&self) -> Backend {
        Backend::Session
    }

    /// The number by which the sweep knows this tree.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Starts the end, or hastens it. The owner closes the command's standard input itself.
    pub fn ask(&mut self, ask: Ask) {
        self.guardian.say(&Order::Ask(ask).encode());
        let Ladder { grace, term_grace, linger, look } = self.ladder;
        let rungs = match ask {
            Ask::Kill => look,
            _ => grace + linger + term_grace + look,
        };
        let due = Instant::now() + rungs + OVERDUE;
        self.overdue = Some(self.overdue.map_or(due, |before| before.min(due)));
    }

    /// Passes a signal to the command alone; nothing ends.
    pub fn forward(&self, signal: i32) {
        self.guardian.say(&Order::Forward(signal).encode());
    }

    /// When [`Tree::event`] wants to be called even if nothing happens.
    pub fn deadline(&self) -> Option<Instant> {
        self.overdue.filter(|_| !self.is_over)
    }

    /// What has happened since the last call. Never blocks; [`AsFd`] says when to call.
    pub fn event(&mut self) -> Option<Event> {
        while !self.is_over {
            match self.guardian.hear() {
                Received::Word(text) => match Word::decode(&text) {
                    Some(Word::Exited(exit)) => return Some(Event::Exited(exit)),
                    Some(Word::Killing(left)) => {
                        self.overdue = Some(Instant::now() + left + OVERDUE);
                    }
                    Some(Word::Survivor(survivor)) => self.survivors.push(survivor),
                    Some(Word::Ended(report)) => {
                        self.is_over = true;
                        return Some(Event::Ended(report.with_told(&mut self.survivors)));
                    }
                    _ => {}
                },
                Received::Nothing if self.overdue.is_none_or(|due| Instant::now() < due) => break,
                // The guardian died or hangs: nobody will report, so look ourselves.
                Received::Nothing | Received::Gone => {
                    self.is_over = true;
                    return Some(Event::Ended(self.sweep()));
                }
            }
        }
        None
    }

    /// Ends the tree by the ladder and waits for the word that it is empty.
    pub fn close(mut self) -> Result<Emptied, Survivors> {
        self.ask(Ask::Closed);
        loop {
            match self.event() {
                Some(Event::Ended(report)) => return report.verdict(),
                Some(_) => {}
                // It was told before; what was told then is no longer ours to give.
                None if self.is_over => return self.sweep().verdict(),
                None => self.wait(),
            }
        }
    }

    fn wait(&self) {
        wait(&mut [PollFd::new(&self.guardian, PollFlags::IN)], self.overdue);
    }

    fn sweep(&self) -> Report {
        sweep(self.mark, self.leader, self.ladder.look)
    }
}

impl AsFd for Tree {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.guardian.as_fd()
    }
}
