//! The books on Windows: one small file per session, and the event log.
//!
//! A page is written before the server starts, and its lock is held by the wrapper for as long as it
//! lives. A page whose lock is free is a crash: the kernel has ended the server's tree by then, so
//! all that is left to do is to look, to say so, and to strike it.

use crate::id::{ServerName, SessionId};
use crate::journal::Journal;
use crate::moment;
use crate::receipt::{Reason, Receipt};
use contain::{Backend, Member, Report};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The event log is rotated at this size.
const LIMIT: u64 = 4 << 20;

/// Where sessions are written down.
#[derive(Debug, Clone)]
pub struct Books {
    dir: PathBuf,
}

/// What is written down of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Which session.
    pub session: SessionId,
    /// Which server.
    pub server: ServerName,
    /// When it began, in milliseconds since 1970.
    pub began_ms: u64,
    /// The wrapper, by number and creation time.
    pub wrapper: Option<(i32, u64)>,
    /// Who started the wrapper.
    pub host: Option<(i32, u64)>,
    /// The server itself, once it runs.
    pub leader: Option<(i32, u64)>,
}

/// A session that is ours, until it is struck or dropped.
#[derive(Debug)]
pub struct Entry {
    books: Books,
    page: Page,
    /// Locked. Whoever can lock it knows that we are gone.
    _lock: File,
}

impl Books {
    /// Opens them, and makes the directory if it is not there.
    pub fn open(dir: &Path) -> io::Result<Books> {
        let books = Books { dir: dir.into() };
        fs::create_dir_all(books.sessions())?;
        Ok(books)
    }

    /// Where servers' logs are, unless told otherwise.
    pub fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// The event log.
    pub fn events(&self) -> PathBuf {
        self.dir.join("events.jsonl")
    }

    fn sessions(&self) -> PathBuf {
        self.dir.join("sessions")
    }

    fn page(&self, session: &SessionId) -> PathBuf {
        self.sessions().join(format!("{session}.json"))
    }

    fn lock(&self, session: &SessionId) -> PathBuf {
        self.sessions().join(format!("{session}.lock"))
    }

    /// Writes a session down, before anything of it exists.
    pub fn enter(&self, page: Page) -> io::Result<Entry> {
        let lock = File::create(self.lock(&page.session))?;
        lock.lock()?;
        let entry = Entry { books: self.clone(), page, _lock: lock };
        entry.write()?;
        Ok(entry)
    }

    /// Everything that is written down, and whether its wrapper is gone.
    fn pages(&self) -> io::Result<Vec<(Page, Option<File>)>> {
        let mut pages = Vec::new();
        for file in fs::read_dir(self.sessions())? {
            let path = file?.path();
            if path.extension().is_none_or(|ending| ending != "json") {
                continue;
            }
            // One that is just being struck is no page any more.
            let Ok(text) = fs::read(&path) else { continue };
            let Ok(page) = serde_json::from_slice::<Page>(&text) else { continue };
            let Ok(lock) = File::options().write(true).open(self.lock(&page.session)) else {
                continue;
            };
            match lock.try_lock() {
                Ok(()) => pages.push((page, Some(lock))),
                Err(TryLockError::WouldBlock) => pages.push((page, None)),
                Err(TryLockError::Error(e)) => return Err(e),
            }
        }
        Ok(pages)
    }

    /// The sessions whose wrappers live, oldest first.
    pub fn living(&self) -> io::Result<Vec<Page>> {
        let pages = self.pages()?.into_iter();
        let mut living: Vec<Page> =
            pages.filter(|(_, free)| free.is_none()).map(|(page, _)| page).collect();
        living.sort_by_key(|page| page.began_ms);
        Ok(living)
    }

    /// Finishes what wrappers left that were ended: the receipts of their sessions, which are in the
    /// event log as well.
    pub fn sweep(&self) -> io::Result<Vec<Receipt>> {
        let mut receipts = Vec::new();
        for (page, free) in self.pages()? {
            let Some(lock) = free else { continue };
            let entry = Entry { books: self.clone(), page, _lock: lock };
            let alive = entry.page.leader.map(member).filter(Member::is_alive);
            let mut report = Report::nothing(Backend::Job);
            report.survivors.extend(alive.map(|member| contain::Survivor {
                kind: contain::Kind::Process,
                name: contain::process::name(member).unwrap_or_default(),
                member,
                why: "its job was closed but it is still there".into(),
            }));
            let mut receipt = entry.receipt(&Reason::WrapperDied, &report);
            receipt.swept = true;
            let is_over = receipt.survivors.is_empty();
            let _full_disk = self.log("ended", &receipt);
            if is_over {
                entry.strike();
            }
            receipts.push(receipt);
        }
        Ok(receipts)
    }

    /// Adds a line to the event log.
    pub fn log(&self, event: &str, fields: &impl Serialize) -> io::Result<()> {
        #[derive(Serialize)]
        struct Line<'a, T> {
            event: &'a str,
            time: String,
            #[serde(flatten)]
            fields: &'a T,
        }
        let line = Line { event, time: moment::rfc3339(SystemTime::now()), fields };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        Journal::open(&self.events(), LIMIT)?.append(&text)
    }
}

impl Page {
    /// When it began.
    pub fn began(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.began_ms)
    }
}

impl Entry {
    /// Writes down who the server is, now that it runs.
    pub fn started(&mut self, leader: Option<Member>) -> io::Result<()> {
        self.page.leader = leader.map(|leader| (leader.pid, leader.start));
        self.write()?;
        self.books.log("started", &self.page)
    }

    fn write(&self) -> io::Result<()> {
        // Another name first: nobody reads half a page.
        let (path, text) = (self.books.page(&self.page.session), serde_json::to_vec(&self.page)?);
        let draft = path.with_extension("draft");
        fs::write(&draft, text)?;
        fs::rename(draft, path)
    }

    fn receipt(&self, reason: &Reason, report: &Report) -> Receipt {
        let (session, server) = (self.page.session.clone(), self.page.server.clone());
        let times = (self.page.began(), SystemTime::now());
        Receipt::new(session, server, reason, times, report)
    }

    /// Accounts for the end. The page goes if nobody is left.
    pub fn settle(self, reason: &Reason, report: &Report) -> Receipt {
        let receipt = self.receipt(reason, report);
        // A full disk must not keep a session from ending.
        let _full_disk = self.books.log("ended", &receipt);
        if receipt.survivors.is_empty() {
            self.strike();
        }
        receipt
    }

    /// Takes the page out again.
    pub fn strike(self) {
        let Entry { books, page, _lock: lock } = self;
        // The page first: a lock without a page means nothing.
        let _gone = fs::remove_file(books.page(&page.session));
        drop(lock);
        let _gone = fs::remove_file(books.lock(&page.session));
    }
}

/// A process as a page has it.
pub fn member((pid, start): (i32, u64)) -> Member {
    Member { pid, start }
}
