//! A tree as its owner sees it: start it, ask it to leave, be told that it is empty.

use super::Backend;
use super::guardian::{SOCKET, VERB, encode};
use crate::choice::Choice;
use crate::error::{Error, SpawnStage};
use crate::event::Event;
use crate::ladder::{Ask, Ladder};
use crate::member::Member;
use crate::report::{Emptied, Kind, Report, Survivor, Survivors};
use crate::wire::{Order, Word};
use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::hash::BuildHasher;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

/// What to run and how to hold it.
#[derive(Debug)]
pub struct Spec {
    /// The executable that becomes the guardian: one whose `main` begins with
    /// [`main_if_asked`](crate::main_if_asked).
    pub holder: PathBuf,
    /// Looked up in `PATH` unless it contains a slash.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its whole environment, to which the mark is added; `None` for the owner's own.
    pub env: Option<Vec<(OsString, OsString)>>,
    /// Its working directory; `None` for the owner's own.
    pub cwd: Option<PathBuf>,
    /// Its standard input.
    pub stdin: Stdio,
    /// Its standard output.
    pub stdout: Stdio,
    /// Its standard error.
    pub stderr: Stdio,
    /// What holds it.
    pub backend: Choice,
    /// How it is asked to leave.
    pub ladder: Ladder,
}

/// A process tree. Dropping it closes the socket and nothing more: that ends the tree.
#[derive(Debug)]
pub struct Tree {
    line: BufReader<UnixStream>,
    guardian: Child,
    leader: Option<Member>,
    survivors: Vec<Survivor>,
    is_over: bool,
}

impl Tree {
    /// Starts the command. Returns once it runs, or with the reason why it does not.
    pub fn spawn(spec: Spec) -> Result<Tree, Error> {
        let (ours, theirs) = UnixStream::pair().map_err(|e| Error::Spawn(SpawnStage::Socket, e))?;
        let mark = format!("{:016x}", RandomState::new().hash_one(SystemTime::now()));
        let mut command = Command::new(&spec.holder);
        command.arg(VERB).arg(encode(&spec.ladder, &mark)).arg("--");
        command.arg(spec.program).args(spec.args);
        command.stdin(spec.stdin).stdout(spec.stdout).stderr(spec.stderr);
        if let Some(env) = spec.env {
            command.env_clear().envs(env);
        }
        if let Some(cwd) = spec.cwd {
            command.current_dir(cwd);
        }
        let socket = theirs.as_raw_fd();
        // SAFETY: between fork and exec only dup2 and fcntl are called, both async-signal-safe;
        // `socket` stays open in the parent until spawn has returned.
        unsafe {
            command.pre_exec(move || {
                // dup2 onto itself would leave close-on-exec set.
                let placed = if socket == SOCKET {
                    libc::fcntl(SOCKET, libc::F_SETFD, 0)
                } else {
                    libc::dup2(socket, SOCKET)
                };
                if placed < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        let guardian = command.spawn().map_err(|e| Error::Spawn(SpawnStage::Guardian, e))?;
        drop((theirs, command));
        let line = BufReader::new(ours);
        let mut tree = Tree { line, guardian, leader: None, survivors: Vec::new(), is_over: false };
        match tree.next() {
            Some(Word::Started(leader, _)) => tree.leader = Some(leader),
            Some(Word::NotExecuted(errno)) => {
                return Err(Error::Exec(io::Error::from_raw_os_error(errno)));
            }
            _ => {
                let lost = io::Error::from(io::ErrorKind::BrokenPipe);
                return Err(Error::Spawn(SpawnStage::Guardian, lost));
            }
        }
        Ok(tree)
    }

    /// The guardian's next word; none once it is gone.
    fn next(&mut self) -> Option<Word> {
        let mut line = String::new();
        let read = self.line.read_line(&mut line).unwrap_or(0);
        Word::decode(line.trim_end_matches('\n')).filter(|_| read > 0)
    }

    /// The command.
    pub fn leader(&self) -> Option<Member> {
        self.leader
    }

    /// What holds the tree.
    pub fn backend(&self) -> Backend {
        Backend::Session
    }

    /// Starts the end, or hastens it. The owner closes the command's standard input itself.
    pub fn ask(&mut self, ask: Ask) {
        // Without a guardian the next event says so.
        let _gone =
            self.line.get_mut().write_all(format!("{}\n", Order::Ask(ask).encode()).as_bytes());
    }

    /// Waits for what happens next. Nothing more comes after the end.
    pub fn wait(&mut self) -> Option<Event> {
        while !self.is_over {
            match self.next() {
                Some(Word::Exited(exit)) => return Some(Event::Exited(exit)),
                Some(Word::Survivor(survivor)) => self.survivors.push(survivor),
                Some(Word::Ended(mut report)) => {
                    self.is_over = true;
                    report.survivors = std::mem::take(&mut self.survivors);
                    return Some(Event::Ended(report));
                }
                Some(_) => {}
                None => {
                    self.is_over = true;
                    return Some(Event::Ended(self.unguarded()));
                }
            }
        }
        None
    }

    /// The guardian was killed: nobody knows who is left, and that is said.
    fn unguarded(&self) -> Report {
        let mut report = Report::nothing(Backend::Session);
        report.survivors.push(Survivor {
            kind: Kind::Process,
            member: self.leader.unwrap_or(Member { pid: 0, start: 0 }),
            name: "unknown".into(),
            why: "its guardian was killed; nobody has looked since".into(),
        });
        report
    }

    /// Ends the tree by the ladder and waits for the word that it is empty.
    pub fn close(mut self) -> Result<Emptied, Survivors> {
        self.ask(Ask::Closed);
        loop {
            if let Some(Event::Ended(report)) = self.wait() {
                // It leaves after its last word.
                let _left = self.guardian.wait();
                return report.verdict();
            }
        }
    }
}
