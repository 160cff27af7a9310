//! What Windows and macOS have in common: a session is written down, and only then does a process exist.

use super::{BACKEND, carried, spawn};
use crate::books::{Books, Entry, Page, prove};
use crate::id::{ServerName, SessionId};
use crate::journal::{Journal, make_private_dir};
use crate::moment;
use crate::receipt::Reason;
use contain::{Mark, Member, Report, Spec, Tree};
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

/// A server's log is rotated at this size.
const LOG_LIMIT: u64 = 1 << 20;

/// Why a server could not be started. Nothing of it is left.
#[derive(Debug)]
pub enum Failure {
    /// The state directory cannot be written.
    State(PathBuf, io::Error),
    /// The log cannot be written.
    Log(PathBuf, io::Error),
    /// The receipt cannot be written where it is wanted.
    Receipt(PathBuf, io::Error),
    /// The streams, or what wakes us, could not be made.
    Streams(io::Error),
    /// The server could not be started.
    Start(contain::Error),
}

impl Failure {
    /// With what `lariat run` ends.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Start(e) => e.exit_code(),
            _ => 125,
        }
    }
}

/// What is written down of a server before it is started.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Its name in receipts and logs.
    pub(crate) server: ServerName,
    /// The session of several servers that it is part of.
    pub(crate) within: Option<SessionId>,
    /// For whom it runs.
    pub(crate) host: Option<Member>,
    /// Where the books are.
    pub(crate) state_dir: PathBuf,
    /// Where its log is; `None` for the state directory.
    pub(crate) log_dir: Option<PathBuf>,
    /// Where the receipt goes besides the event log.
    pub(crate) receipt: Option<PathBuf>,
    /// True to finish first what crashed sessions left.
    pub(crate) sweep: bool,
}

/// A session that is written down. Nothing is started.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(super) mark: Mark,
    pub(super) entry: Entry,
}

impl Plan {
    /// Opens the books, finishes what crashed sessions left, and writes the session down. The file is
    /// the server's log.
    pub(crate) fn open(self) -> Result<(Opened, Journal), Failure> {
        let state = |e| Failure::State(self.state_dir.clone(), e);
        let books = Books::open(&self.state_dir).map_err(state)?;
        if self.sweep {
            let _swept = books.sweep().map_err(state)?;
        }
        let log_dir = self.log_dir.clone().unwrap_or_else(|| books.logs());
        let log = make_private_dir(&log_dir)
            .and_then(|()| Journal::open(&log_dir.join(format!("{}.log", self.server)), LOG_LIMIT))
            .map_err(|e| Failure::Log(log_dir, e))?;
        let mark = Mark::random().map_err(Failure::Streams)?;
        let identity = |member: Member| (member.pid, member.start);
        let page = Page {
            session: SessionId::of(mark),
            within: self.within.clone(),
            server: self.server.clone(),
            began_ms: moment::millis(SystemTime::now()),
            wrapper: Member::current().map(identity),
            host: self.host.map(identity),
            leader: None,
            mark: carried(mark),
            survivors: Vec::new(),
        };
        let wanted = self.receipt.clone();
        let entry = books.enter(page, wanted.clone()).map_err(state)?;
        if let Some(path) = wanted
            && let Err(e) = prove(&path, entry.session())
        {
            entry.settle(&Reason::Failed("receipt".into()), &Report::nothing(BACKEND));
            return Err(Failure::Receipt(path, e));
        }
        Ok((Opened { mark, entry }, log))
    }
}

impl Opened {
    /// Starts the server.
    pub(crate) fn launch(self, spec: Spec) -> Result<(Tree, Entry), Failure> {
        let Opened { mark, mut entry } = self;
        match spawn(spec, mark, entry.lock()) {
            Ok(tree) => {
                // A full disk is no reason to end a server that runs.
                let _full_disk = entry.started(tree.leader());
                Ok((tree, entry))
            }
            Err(e) => {
                let reason = Reason::not_started(e.exit_code());
                entry.settle(&reason, &Report::nothing(BACKEND));
                Err(Failure::Start(e))
            }
        }
    }
}
