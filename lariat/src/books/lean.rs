//! The books where there are neither containers nor sleepers, on Windows and macOS: one small file per
//! session, and the event log.
//!
//! A page is written before the server starts, and its lock is held by the wrapper for as long as it
//! lives. A page whose lock is free is a crash. What has to be done then differs
//! by platform (`sweep`); here it is noted in the event log, and the page is struck.

use crate::id::{ServerName, SessionId};
use crate::journal::make_private_dir;
use crate::receipt::{Reason, Receipt, Survivor};
use contain::{Member, Report};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg_attr(
    all(test, target_os = "linux"),
    expect(clippy::duplicate_mod, reason = "where it is only tried, the real books have it too")
)]
mod events;
#[cfg_attr(
    all(test, target_os = "linux"),
    expect(clippy::duplicate_mod, reason = "where it is only tried, the real books have it too")
)]
mod issued;

#[cfg(all(windows, feature = "cli"))]
#[path = "windows/onlooker.rs"]
mod onlooker;
#[cfg(windows)]
#[path = "windows/pulse.rs"]
mod pulse;
#[cfg(windows)]
#[path = "windows/sweep.rs"]
mod sweep;

#[cfg(target_os = "macos")]
#[path = "macos/checkup.rs"]
mod checkup;
#[cfg(target_os = "macos")]
mod health;
#[cfg(target_os = "macos")]
#[path = "macos/sweep.rs"]
mod sweep;

#[cfg(target_os = "macos")]
pub use health::{Health, Left};
pub use issued::Settled;
pub(crate) use issued::prove;
#[cfg(all(windows, feature = "cli"))]
pub use onlooker::Onlooker;
#[cfg(windows)]
pub(crate) use pulse::Pulse;

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
    /// The session of several servers that it is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<SessionId>,
    /// Which server.
    pub server: ServerName,
    /// When it began, in milliseconds since 1970.
    pub began_ms: u64,
    /// Who holds it, a wrapper or a host that embeds the library, by number and creation time.
    pub wrapper: Option<(i32, u64)>,
    /// For whom: who started the wrapper, or the host itself.
    pub host: Option<(i32, u64)>,
    /// The server itself, once it runs.
    pub leader: Option<(i32, u64)>,
    /// The number that its processes carry, where they carry one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<u64>,
    /// Who was left when somebody last tried to end it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survivors: Vec<Survivor>,
}

/// A session that is ours, until it is struck or dropped.
#[derive(Debug)]
pub struct Entry {
    books: Books,
    page: Page,
    /// Where the receipt goes besides the event log.
    wanted: Option<PathBuf>,
    /// Locked. Whoever can lock it knows that we are gone.
    lock: File,
}

impl Books {
    /// Opens them, and makes the directory if it is not there.
    pub fn open(dir: &Path) -> io::Result<Books> {
        let books = Books { dir: dir.into() };
        make_private_dir(&books.sessions())?;
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

    /// Writes a session down, before anything of it exists, and where somebody wants its receipt.
    pub fn enter(&self, page: Page, wanted: Option<PathBuf>) -> io::Result<Entry> {
        let lock = File::create(self.lock(&page.session))?;
        lock.lock()?;
        let entry = Entry { books: self.clone(), page, wanted, lock };
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
            let Some(page) = read(&path) else { continue };
            let Ok(lock) = File::options().write(true).open(self.lock(&page.session)) else {
                continue;
            };
            match lock.try_lock() {
                // Whoever ends in good order strikes the page before its lock is free.
                Ok(()) if read(&path).is_none() => {}
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

    /// Finishes what wrappers left that were ended, each in this way: the receipts of their sessions,
    /// which are in the event log as well.
    fn sweep_by(&self, end: impl Fn(&Page) -> Report) -> io::Result<Vec<Receipt>> {
        let mut receipts = Vec::new();
        for (page, free) in self.pages()? {
            let Some(lock) = free else { continue };
            let mut entry = Entry { books: self.clone(), page, wanted: None, lock };
            let mut receipt = entry.receipt(&Reason::WrapperDied, &end(&entry.page));
            receipt.swept = true;
            // Another look that found the same is no news.
            if receipt.survivors.is_empty() || receipt.survivors != entry.page.survivors {
                let _full_disk = self.log("ended", &receipt);
            }
            if receipt.survivors.is_empty() {
                entry.strike();
            } else {
                entry.page.survivors.clone_from(&receipt.survivors);
                let _told_again = entry.write();
            }
            receipts.push(receipt);
        }
        Ok(receipts)
    }
}

impl Page {
    /// When it began.
    pub fn began(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.began_ms)
    }
}

impl Entry {
    /// What says that somebody cares. Whoever holds a copy keeps the session alive.
    pub fn lock(&self) -> &File {
        &self.lock
    }

    /// Which session it is.
    pub fn session(&self) -> &SessionId {
        &self.page.session
    }

    /// Writes down who the server is, now that it runs.
    pub fn started(&mut self, leader: Option<Member>) -> io::Result<()> {
        self.page.leader = leader.map(|leader| (leader.pid, leader.start));
        self.write()?;
        self.books.log("started", &self.page)
    }

    fn write(&self) -> io::Result<()> {
        // Another name first: nobody reads half a page.
        let (path, text) = (self.books.page(&self.page.session), serde_json::to_vec(&self.page)?);
        issued::replace(&path, &path.with_extension("draft"), &text)
    }

    fn receipt(&self, reason: &Reason, report: &Report) -> Receipt {
        let (session, server) = (self.page.session.clone(), self.page.server.clone());
        let times = (self.page.began(), SystemTime::now());
        let within = self.page.within.clone();
        Receipt { within, ..Receipt::new(session, server, reason, times, report) }
    }

    /// Accounts for the end. The page goes if nobody is left.
    pub fn settle(self, reason: &Reason, report: &Report) -> Settled {
        let receipt = self.receipt(reason, report);
        // A full disk must not keep a session from ending.
        let _full_disk = self.books.log("ended", &receipt);
        let wanted = self.wanted.as_ref();
        let unwritten =
            wanted.and_then(|path| issued::write_receipt(path, &self.page.session, &receipt).err());
        if receipt.survivors.is_empty() {
            self.strike();
        }
        Settled { receipt, unwritten }
    }

    /// Takes the page out again: nobody is left, or nothing is to be started.
    pub(crate) fn strike(self) {
        let Entry { books, page, lock, .. } = self;
        // The page first: a lock without a page means nothing. Empty, because it stays where it is for
        // as long as somebody reads it.
        let _full_disk = fs::write(books.page(&page.session), "");
        let _gone = fs::remove_file(books.page(&page.session));
        drop(lock);
        let _gone = fs::remove_file(books.lock(&page.session));
    }
}

/// The page in this file. One that is just being struck is no page any more.
fn read(path: &Path) -> Option<Page> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// A process as a page has it.
pub fn member((pid, start): (i32, u64)) -> Member {
    Member { pid, start }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contain::Backend;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    fn books(name: &str) -> (PathBuf, Books) {
        let dir = std::env::temp_dir().join(format!("lariat-{name}-{}", std::process::id()));
        (dir.clone(), Books::open(&dir).unwrap())
    }

    fn page() -> Page {
        Page {
            session: SessionId::of(contain::Mark::random().unwrap()),
            within: None,
            server: ServerName::given("x").unwrap(),
            began_ms: 0,
            wrapper: None,
            host: None,
            leader: None,
            mark: None,
            survivors: Vec::new(),
        }
    }

    /// Nothing was there, whatever holds trees here.
    fn nothing() -> Report {
        let named = ["job", "session", "descent"].into_iter().find_map(Backend::named);
        Report::nothing(named.unwrap())
    }

    #[test]
    fn who_ends_in_good_order_is_never_taken_for_a_crash() {
        let ((dir, books), done) = (books("order"), AtomicBool::new(false));
        let swept: usize = thread::scope(|scope| {
            let sweepers = [(); 2].map(|()| {
                scope.spawn(|| {
                    let mut swept = 0;
                    while !done.load(Ordering::SeqCst) {
                        swept += books.sweep_by(|_| nothing()).unwrap().len();
                    }
                    swept
                })
            });
            for _ in 0..300 {
                let entry = books.enter(page(), None).unwrap();
                entry.settle(&Reason::Closed, &nothing());
            }
            done.store(true, Ordering::SeqCst);
            sweepers.into_iter().map(|sweeper| sweeper.join().unwrap()).sum()
        });
        assert_eq!((swept, books.living().unwrap().len()), (0, 0));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn who_is_gone_without_a_word_is_finished_once_and_only_when_nobody_is_left() {
        let (dir, books) = books("gone");
        let (living, crashed) =
            (books.enter(page(), None).unwrap(), books.enter(page(), None).unwrap());
        let session = crashed.session().clone();
        assert_eq!(books.living().unwrap().len(), 2);
        assert_eq!(books.sweep_by(|_| nothing()).unwrap(), []);
        // As if its process had gone: nobody has the lock any more, and the page is there.
        drop(crashed);
        let left = |page: &Page| {
            let survivor = contain::Survivor {
                kind: contain::Kind::Process,
                member: Member { pid: 7, start: 8 },
                name: page.server.to_string(),
                why: "it would not go".into(),
            };
            Report { survivors: vec![survivor], ..nothing() }
        };
        for look in ["first", "second"] {
            let told = books.sweep_by(left).unwrap();
            assert_eq!(
                (told.len(), &told[0].session, told[0].swept),
                (1, &session, true),
                "{look}"
            );
            assert_eq!((told[0].survivors.len(), told[0].reason.as_str()), (1, "wrapper-died"));
            let noted = fs::read_to_string(dir.join("events.jsonl")).unwrap();
            let ends = noted.lines().filter(|line| line.contains("it would not go")).count();
            assert_eq!(ends, 1, "another look that finds the same is no news: {noted}");
        }
        assert_eq!(books.sweep_by(|_| nothing()).unwrap().len(), 1, "it is tried again");
        assert_eq!(books.sweep_by(|_| nothing()).unwrap(), [], "and forgotten then");
        let left = books.living().unwrap();
        assert_eq!((left.len(), &left[0].session), (1, living.session()));
        // On Windows nothing that is open can be removed.
        drop(living);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_receipt_is_where_it_is_wanted_or_somebody_is_told() {
        let (dir, books) = books("wanted");
        let file = dir.join("receipt.json");
        let entry = books.enter(page(), Some(file.clone())).unwrap();
        prove(&file, entry.session()).unwrap();
        assert!(!file.exists(), "nothing is promised before the end");
        let settled = entry.settle(&Reason::Closed, &nothing());
        assert!(settled.unwritten.is_none());
        let written: Receipt = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(written, settled.receipt);
        let drafts = fs::read_dir(&dir).unwrap().filter_map(Result::ok);
        let drafts = drafts.filter(|file| file.path().extension().is_some_and(|e| e == "new"));
        assert_eq!(drafts.count(), 0);

        let entry = books.enter(page(), Some(dir.clone())).unwrap();
        assert!(prove(&dir, entry.session()).is_err(), "a directory is no file");
        assert!(prove(&dir.join("no/receipt"), entry.session()).is_err());
        assert!(entry.settle(&Reason::Closed, &nothing()).unwritten.is_some());
        fs::remove_dir_all(dir).unwrap();
    }
}
