//! The thread that keeps a server: it starts it, waits for its end, and accounts for it.
//!
//! It is what a holder is elsewhere, and has the job. Nothing that must happen depends on it: if this
//! process ends, the handle of the job closes, and the next lariat command finishes the books.

use super::duct::{Inlet, Outlet};
use super::local::{Brief, Said, Wish};
use super::stderr::Drain;
use super::word::{Order, Word};
use super::{Failure, Plan, named};
use crate::books::Entry;
use crate::receipt::Reason;
use contain::{Ask, Event, Exit, Member, Report, Spec, Tree};
use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::windows::io::AsHandle;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use tokio::sync::mpsc::UnboundedSender;

/// What is read at once.
const CHUNK: usize = 16 << 10;

/// A server's whole environment.
pub(super) type Variables = Vec<(OsString, OsString)>;

/// Between its owner and a server.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) wish: Arc<Wish>,
    pub(super) inbox: Receiver<Said>,
    pub(super) tell: UnboundedSender<Word>,
}

/// A server that runs.
struct Kept {
    tree: Tree,
    entry: Entry,
    drain: Drain,
}

impl Keeper {
    /// Does everything. Ends when the server has, and nothing of it is left.
    pub(super) fn keep(self, stdin: Outlet, stdout: Inlet, variables: Option<Variables>) {
        // An owner that is gone by now wants nothing started.
        let Ok(Said::Brief(brief)) = self.inbox.recv() else { return };
        let stopper = stdin.stopper();
        let program = brief.program.clone();
        match self.start(*brief, stdin, stdout, variables) {
            Ok(Some(kept)) => self.serve(kept),
            Ok(None) => {}
            Err(failure) => {
                let (why, code) = (failure.in_words(&program), failure.exit_code());
                self.say(Word::Failed { why, code });
            }
        }
        // Nobody reads it any more, and the thread that writes to it waits for more.
        stopper.stop();
    }

    fn say(&self, word: Word) {
        // Nobody may be listening any more; the books have it all the same.
        let _unheard = self.tell.send(word);
    }

    /// Books first, then the tree. Nothing, if the owner has changed its mind.
    fn start(
        &self,
        brief: Brief,
        stdin: Outlet,
        stdout: Inlet,
        variables: Option<Variables>,
    ) -> Result<Option<Kept>, Failure> {
        let plan = Plan {
            server: brief.server,
            within: Some(brief.within),
            host: brief.on_behalf.or_else(Member::current),
            state_dir: brief.state_dir,
            log_dir: None,
            receipt: None,
            sweep: brief.sweep,
        };
        let (opened, log) = plan.open()?;
        self.say(Word::Noted(opened.session().clone()));
        if self.wish.is_let_go() {
            opened.abandon();
            return Ok(None);
        }
        // Before there is a process: what cannot be had then is not missing afterwards.
        let made = streams(stdin, stdout).and_then(|(stdin, stdout)| {
            let (source, stderr) = io::pipe()?;
            Ok((stdin, stdout, stderr, Drain::new(source, log)?))
        });
        let (stdin, stdout, stderr, drain) = match made {
            Ok(made) => made,
            Err(e) => {
                opened.abandon();
                return Err(Failure::Streams(e));
            }
        };
        let spec = Spec {
            program: brief.program.into(),
            args: brief.args.into_iter().map(Into::into).collect(),
            env: variables,
            cwd: brief.cwd,
            stdin: stdin.into(),
            stdout: stdout.into(),
            stderr: stderr.into(),
            backend: brief.backend,
            ladder: brief.ladder,
        };
        let (tree, entry) = opened.launch(spec)?;
        if let Some(leader) = tree.leader() {
            let backend = tree.backend().name().into();
            let guardian = (leader.pid, leader.start);
            self.say(Word::Started { pid: leader.pid, guardian, backend });
        }
        Ok(Some(Kept { tree, entry, drain }))
    }

    /// Waits for the end, moves it along, and accounts for it.
    fn serve(&self, kept: Kept) {
        let Kept { mut tree, entry, drain } = kept;
        let mut reason = None;
        let report: Report = loop {
            match tree.event() {
                Some(Event::Ended(report)) => break report,
                Some(Event::Exited(exit)) => {
                    reason.get_or_insert(Reason::Exited);
                    self.say(exited(exit, &drain));
                    continue;
                }
                Some(_) => continue,
                None => {}
            }
            for said in self.inbox.try_iter() {
                match said {
                    Said::Order(order) => {
                        reason.get_or_insert(Reason::Closed);
                        tree.ask(if order == Order::Hasten { Ask::OwnerDied } else { Ask::Closed });
                    }
                    // There is one.
                    Said::Brief(_) => {}
                }
            }
            if self.wish.is_let_go() {
                reason.get_or_insert(Reason::OwnerGone);
                tree.ask(Ask::OwnerDied);
            }
            if self.wish.is_kill() {
                tree.ask(Ask::Kill);
            }
            tree.wait(&[self.wish.bell.as_handle()], None);
        };
        self.say(Word::Emptied);
        // With it goes the job, and whoever may be left.
        drop(tree);
        let receipt = entry.settle(&reason.unwrap_or(Reason::Exited), &report).receipt;
        self.say(Word::Ended(Box::new(receipt)));
    }
}

/// How the command ended, and what it said of that.
fn exited(exit: Exit, drain: &Drain) -> Word {
    let (how, code) = match exit {
        Exit::Code(code) => (format!("exit code {code}"), code),
        Exit::Signal(signal) => (contain::signal_name(signal), 128 + signal),
    };
    let code = u8::try_from(code).unwrap_or(u8::MAX);
    Word::Exited { how, code, last_words: drain.last_words() }
}

/// The server's ends of its stdin and stdout, with a thread at each of the other ends. Both threads
/// end with the server, or when nobody wants what they carry.
fn streams(from_owner: Outlet, to_owner: Inlet) -> io::Result<(PipeReader, PipeWriter)> {
    let (stdin, mut to_server) = io::pipe()?;
    let (mut from_server, stdout) = io::pipe()?;
    named("lariat stdin").spawn(move || {
        while let Some(bytes) = from_owner.take() {
            // Wine loses a thread that writes much at once while the machine is busy.
            if bytes.chunks(CHUNK).any(|piece| to_server.write_all(piece).is_err()) {
                return;
            }
        }
    })?;
    named("lariat stdout").spawn(move || {
        let mut buffer = vec![0; CHUNK];
        while let Some(bytes) = super::next(&mut from_server, &mut buffer) {
            if !to_owner.put(bytes) {
                return;
            }
        }
    })?;
    Ok((stdin, stdout))
}
