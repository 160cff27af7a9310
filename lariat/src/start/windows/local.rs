//! What an owner has of a server: a leash, a line to the thread that keeps it, and its streams.

use super::duct::{self, Inlet, Outlet};
pub(crate) use super::duct::{Receiver, Sender};
use super::environment::Environment;
use super::keeper::{Keeper, Variables};
use super::named;
use super::word::{Order, Word};
use crate::books::Pulse;
use crate::id::{ServerName, SessionId};
use contain::{Bell, Choice, Ladder, Member};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// This program, which holds its servers itself.
pub(crate) fn this_program() -> Option<PathBuf> {
    Some(std::env::current_exe().unwrap_or_default())
}

/// What the owner wants, where its server's keeper sees it whenever it looks.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) bell: Bell,
    /// It wants the server no more, or is gone.
    let_go: AtomicBool,
    /// It has waited long enough.
    kill: AtomicBool,
}

impl Wish {
    pub(super) fn is_let_go(&self) -> bool {
        self.let_go.load(Ordering::SeqCst)
    }

    pub(super) fn is_kill(&self) -> bool {
        self.kill.load(Ordering::SeqCst)
    }

    fn make(&self, wish: &AtomicBool) {
        wish.store(true, Ordering::SeqCst);
        self.bell.ring();
    }
}

/// What keeps a server alive. Letting go of it ends the server; that is one system call, which needs
/// no runtime and cannot block or fail.
#[derive(Debug, Clone)]
pub(crate) struct Leash(Arc<Wish>);

impl Leash {
    /// Ends the server. Whoever listens still hears how it ended.
    pub(crate) fn let_go(&self) {
        self.0.make(&self.0.let_go);
    }
}

/// What to run and how to hold it.
#[derive(Debug, Clone)]
pub(crate) struct Brief {
    /// For whom, if not for this process.
    pub(crate) on_behalf: Option<Member>,
    /// The session of several servers that it is part of.
    pub(crate) within: SessionId,
    /// Its name in receipts and logs.
    pub(crate) server: ServerName,
    /// The program.
    pub(crate) program: String,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// Its working directory.
    pub(crate) cwd: Option<PathBuf>,
    /// What holds it.
    pub(crate) backend: Choice,
    /// How it is asked to leave.
    pub(crate) ladder: Ladder,
    /// Where the books are.
    pub(crate) state_dir: PathBuf,
    /// True to finish first what crashed sessions left.
    pub(crate) sweep: bool,
}

/// What a keeper hears.
#[derive(Debug)]
pub(super) enum Said {
    Brief(Box<Brief>),
    Order(Order),
}

/// The owner's end. Dropped, it ends the server.
#[derive(Debug)]
pub(crate) struct Line {
    wish: Arc<Wish>,
    said: mpsc::Sender<Said>,
    words: UnboundedReceiver<Word>,
}

impl Drop for Line {
    fn drop(&mut self) {
        // Somebody may still hold the leash.
        self.leash().let_go();
    }
}

/// What becomes the keeper's.
#[derive(Debug)]
pub(crate) struct Theirs {
    keeper: Keeper,
    stdin: Outlet,
    stdout: Inlet,
}

/// The server's stdin and stdout, from our side.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) stdin: Sender,
    pub(crate) stdout: Receiver,
    /// What those who look on see of the conversation: here, nothing.
    pub(crate) pulse: Option<Pulse>,
}

impl Line {
    /// Nothing is started yet, so that the leash is known to whoever may want to let go of it before
    /// there is a process.
    pub(crate) fn new() -> io::Result<(Line, Theirs, Streams)> {
        let (let_go, kill) = (AtomicBool::new(false), AtomicBool::new(false));
        let wish = Arc::new(Wish { bell: Bell::new()?, let_go, kill });
        let (said, inbox) = mpsc::channel();
        // A few words in a server's life.
        let (tell, words) = unbounded_channel();
        let ((stdin, to_server), (from_server, stdout)) = (duct::outward(), duct::inward());
        let keeper = Keeper { wish: wish.clone(), inbox, tell };
        let theirs = Theirs { keeper, stdin: to_server, stdout: from_server };
        Ok((Line { wish, said, words }, theirs, Streams { stdin, stdout, pulse: None }))
    }

    /// What ends the server, for whoever must be able to.
    pub(crate) fn leash(&self) -> Leash {
        Leash(self.wish.clone())
    }

    /// Tells the keeper what to run.
    pub(crate) async fn brief(&self, brief: &Brief) -> io::Result<()> {
        let gone = |_| io::ErrorKind::BrokenPipe.into();
        self.said.send(Said::Brief(Box::new(brief.clone()))).map_err(gone)
    }

    /// Tells the keeper what to do. If it is not there to hear it, nothing is left to do.
    pub(crate) async fn order(&self, order: Order) {
        let _gone = self.said.send(Said::Order(order));
        self.wish.bell.ring();
    }

    /// What the keeper says next; `None` when it is not there any more. Nothing is lost if this is
    /// dropped before it is done.
    pub(crate) async fn word(&mut self) -> Option<Word> {
        self.words.recv().await
    }
}

/// A keeper that works.
#[derive(Debug)]
pub(crate) struct Holder {
    wish: Arc<Wish>,
    thread: JoinHandle<()>,
}

/// How long it may take from its last word to being gone.
const LEAVES: Duration = Duration::from_millis(100);

impl Holder {
    /// It is to end the server at once.
    pub(crate) fn kill(&mut self) {
        self.wish.make(&self.wish.kill);
    }

    /// Waits until it has left, which it is about to.
    pub(crate) async fn reaped(&mut self) {
        let until = Instant::now() + LEAVES;
        while !self.thread.is_finished() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Sets a keeper to work. Its server gets these variables beside all of ours, or beside those that are
/// around it.
pub(crate) async fn execute(
    _here: &Path,
    theirs: Theirs,
    own: impl Iterator<Item = (&String, &String)>,
    around: Option<&Environment>,
) -> io::Result<Holder> {
    let own: Variables =
        own.map(|(name, value)| (OsString::from(name), OsString::from(value))).collect();
    let whole = |around: Variables| Some(around.into_iter().chain(own.clone()).collect());
    let variables = match around {
        Some(around) => whole(around.variables.clone()),
        None if own.is_empty() => None,
        None => whole(contain::process::variables()),
    };
    let Theirs { keeper, stdin, stdout } = theirs;
    let wish = keeper.wish.clone();
    let thread = named("lariat keeper").spawn(move || keeper.keep(stdin, stdout, variables))?;
    Ok(Holder { wish, thread })
}
