//! A tree as its owner sees it: start it, ask it to leave, be told that it is empty.

use super::cgroup::Leaf;
use super::holder::{Brief, SOCKET, VERB};
use super::mark::{Mark, sweep};
use super::socket::{self, Received, hear, say};
use crate::error::{Error, SpawnStage};
use crate::event::Event;
use crate::ladder::{Ask, Ladder};
use crate::member::Member;
use crate::report::{Emptied, Report, Survivor, Survivors};
use crate::spec::Spec;
use crate::sys::Backend;
use crate::sys::wait::wait;
use crate::wire::{Order, Word};
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;

/// A process tree. Dropping it closes the socket and nothing more: that ends the tree, needs no
/// runtime, and cannot block or fail.
#[derive(Debug)]
pub struct Tree {
    owner: OwnedFd,
    mark: Mark,
    ladder: Ladder,
    leader: Option<Member>,
    backend: Backend,
    survivors: Vec<Survivor>,
}

impl Tree {
    /// Starts the command. Returns once it runs, or with the reason why it does not; then nothing
    /// is left of it.
    pub fn spawn(spec: Spec) -> Result<Tree, Error> {
        let failed = |e| Error::Spawn(SpawnStage::Holder, e);
        let mark = Mark::random().map_err(failed)?;
        let (ours, theirs) = socket::pair().map_err(|e| Error::Spawn(SpawnStage::Socket, e))?;
        let brief = Brief { choice: spec.backend, mark, ladder: spec.ladder };
        let mut command = std::process::Command::new(&spec.holder);
        command.arg(VERB).arg(brief.encode()).arg("--").arg(spec.program).args(spec.args);
        command.stdin(spec.stdin).stdout(spec.stdout).stderr(spec.stderr);
        if let Some(env) = spec.env {
            command.env_clear().envs(env);
        }
        if let Some(cwd) = spec.cwd {
            command.current_dir(cwd);
        }
        let socket = theirs.as_raw_fd();
        // SAFETY: between fork and exec only setpgid, dup2 and fcntl are called, all of which are
        // async-signal-safe; `socket` stays open in the parent until spawn has returned.
        unsafe {
            command.pre_exec(move || {
                // A terminal's signals are meant for the owner, not for its holder.
                let _already_leader = rustix::process::setpgid(None, None);
                // dup2 onto itself would leave close-on-exec set.
                let placed = if socket == SOCKET {
                    libc::fcntl(SOCKET, libc::F_SETFD, 0)
                } else {
                    libc::dup2(socket, SOCKET)
                };
                if placed < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        let mut starter = command.spawn().map_err(failed)?;
        drop((theirs, command));
        // It forks the holder and leaves; not waiting would leave a zombie in the owner. An owner that ignores
        // SIGCHLD, or waits for whatever child there is, has none left to wait for.
        match starter.wait() {
            Err(e) if e.raw_os_error() == Some(libc::ECHILD) => {}
            waited => drop(waited.map_err(failed)?),
        }
        let mut tree = Tree {
            owner: ours,
            mark,
            ladder: spec.ladder,
            leader: None,
            backend: Backend::Descent,
            survivors: Vec::new(),
        };
        tree.await_start()?;
        Ok(tree)
    }

    fn await_start(&mut self) -> Result<(), Error> {
        loop {
            match hear(&self.owner) {
                Received::Nothing => self.wait(),
                Received::Packet(text) => match Word::decode(&text) {
                    Some(Word::Started(leader, backend)) => {
                        self.leader = Some(leader);
                        self.backend = backend;
                        return Ok(());
                    }
                    Some(Word::NotExecuted(errno)) => {
                        return Err(Error::Exec(io::Error::from_raw_os_error(errno)));
                    }
                    Some(Word::Failed(stage, errno)) => {
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

    /// The command; in the `pidns` backend by its number in there.
    pub fn leader(&self) -> Option<Member> {
        self.leader
    }

    /// What holds the tree.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The number by which the sweep knows this tree.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Starts the end, or hastens it. The owner closes the command's standard input itself.
    pub fn ask(&self, ask: Ask) {
        say(&self.owner, &Order::Ask(ask).encode());
    }

    /// What has happened since the last call. Never blocks; [`AsFd`] says when to call.
    pub fn event(&mut self) -> Option<Event> {
        loop {
            match hear(&self.owner) {
                Received::Packet(text) => match Word::decode(&text) {
                    Some(Word::Exited(exit)) => return Some(Event::Exited(exit)),
                    Some(Word::Survivor(survivor)) => self.survivors.push(survivor),
                    Some(Word::Ended(report)) => {
                        return Some(Event::Ended(report.with_told(&mut self.survivors)));
                    }
                    _ => {}
                },
                Received::Nothing => return None,
                // Holder and guardian both died: nobody will report, so look ourselves.
                Received::Gone => return Some(Event::Ended(self.sweep())),
            }
        }
    }

    /// Ends the tree by the ladder and waits for the word that it is empty.
    pub fn close(mut self) -> Result<Emptied, Survivors> {
        self.ask(Ask::Closed);
        loop {
            match self.event() {
                Some(Event::Ended(report)) => return report.verdict(),
                Some(_) => {}
                None => self.wait(),
            }
        }
    }

    fn wait(&self) {
        wait(&mut [PollFd::new(&self.owner, PollFlags::IN)], None);
    }

    fn sweep(&self) -> Report {
        let leaf = Leaf::plan(self.mark).ok();
        sweep(self.mark, leaf.as_deref(), &[], self.ladder.look)
    }
}

impl AsFd for Tree {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.owner.as_fd()
    }
}
