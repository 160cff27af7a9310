//! The books: which sessions there are, written before their first process exists.
//!
//! One small file per session in the state directory. Its owner holds an advisory lock on it, and
//! so does the guardian, by inheritance; the kernel frees the lock when both are dead. A file whose
//! lock is free is the definition of a crash, and whoever finds it finishes the work. The kernel is
//! the ledger of processes: a file says only where to look (a cgroup leaf, a mark).
//!
//! | | |
//! | --- | --- |
//! | `place`, `paper`, `events`, `issued` | where that is, and what lies in it: pages, the log, receipts |
//! | `starts` | how often a host has started a server |
//! | `status`, `sharing`, `slumber` | what the living say of themselves beside their pages |
//! | `crowd`, `onlooker`, `living` | the picture behind `ps`, `top` and the web page, and asking one to end |
//! | `checkup`, `health` | whether the books themselves are in order |

mod checkup;
mod crowd;
mod events;
mod health;
mod issued;
mod living;
mod onlooker;
mod paper;
mod place;
mod sharing;
mod slumber;
mod starts;
mod status;

pub use health::{Health, Left};
pub use issued::Settled;
pub(crate) use issued::prove;
pub use onlooker::Onlooker;
pub use place::Place;
pub use slumber::Sleeper;
pub use starts::{Generation, Rate, TooMany};
pub(crate) use status::Pulse;

use crate::docker::door::Door;
use crate::docker::endpoint::Endpoint;
use crate::docker::label::Labels;
use crate::docker::podman::Podman;
use crate::docker::sweep::{self, Swept};
use crate::docker::tally::{self, Expect};
use crate::held::Gone;
use crate::id::{ServerName, SessionId};
use crate::journal::make_private_dir;
use crate::moment;
use crate::receipt::{Containers, Reason, Receipt, Survivor};
use contain::{Machine, Mark, Member, Report};
use issued::{replace, write_receipt};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use status::Shown;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long one sweep looks for the processes of one crashed session.
const SWEEP_LOOK: Duration = Duration::from_secs(1);

/// How long one sweep waits for the locks of processes that are just being killed.
const DYING: Duration = Duration::from_millis(200);

/// A half-written file older than this belongs to nobody.
const STALE: Duration = Duration::from_secs(60);

/// The state directory.
#[derive(Debug, Clone)]
pub struct Books {
    dir: PathBuf,
}

/// What a file says about its session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Page {
    /// Which session.
    pub session: SessionId,
    /// The session of several servers that this one is part of.
    #[serde(default)]
    pub within: Option<SessionId>,
    /// Which server.
    pub server: ServerName,
    /// The wrapper, by pid and start time.
    pub wrapper: (i32, u64),
    /// The host, by pid and start time.
    pub host: Option<(i32, u64)>,
    /// For whom the host wanted it, if that is somebody else, by pid and start time.
    #[serde(default)]
    pub on_behalf: Option<(i32, u64)>,
    /// The backend that was planned.
    pub backend: String,
    /// The number its processes carry.
    pub mark: u64,
    /// Its cgroup leaf.
    pub leaf: Option<PathBuf>,
    /// The engine that its processes reach, and by which socket.
    #[serde(default)]
    pub docker: Option<Docker>,
    /// The podman that it is.
    #[serde(default)]
    podman: Option<Podman>,
    /// Where the user wants the receipt, as bytes: a path need not be text.
    receipt: Option<Vec<u8>>,
    /// Where its start by its host was counted.
    #[serde(default)]
    generation: Option<String>,
    /// When it began, in milliseconds since 1970.
    pub started_ms: u64,
    /// Machine, boot and pid namespace in which the pids above mean something.
    pub place: Place,
}

/// Where a session's containers are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Docker {
    /// The real engine.
    pub endpoint: Endpoint,
    /// The socket that the session's processes know.
    pub socket: PathBuf,
}

/// A session that is about to be.
#[derive(Debug)]
pub struct Opening<'a> {
    /// Which server.
    pub server: ServerName,
    /// The session of several servers that it is part of.
    pub within: Option<SessionId>,
    /// Its number.
    pub mark: Mark,
    /// What will hold it.
    pub machine: &'a Machine,
    /// Who started us.
    pub host: Option<Member>,
    /// For whom they did, if that is somebody else.
    pub on_behalf: Option<Member>,
    /// The engine that its processes may use.
    pub engine: Option<Endpoint>,
    /// The podman that the server is.
    pub podman: Option<Podman>,
    /// Where the user wants the receipt.
    pub receipt: Option<PathBuf>,
    /// Which start by its host this is.
    pub generation: Generation,
}

impl Books {
    /// Opens the state directory, making it if need be.
    pub fn open(dir: &Path) -> io::Result<Books> {
        make_private_dir(&dir.join("sessions"))?;
        make_private_dir(&dir.join("logs"))?;
        Ok(Books { dir: dir.into() })
    }

    /// The state directory as it is, for whoever only looks: nothing is made. None if there is none.
    pub fn open_existing(dir: &Path) -> io::Result<Option<Books>> {
        match fs::read_dir(dir) {
            Ok(_) => Ok(Some(Books { dir: dir.into() })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where servers' logs go unless told otherwise.
    pub fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// Where the event log is.
    pub fn events(&self) -> PathBuf {
        self.dir.join("events.jsonl")
    }

    fn sessions(&self) -> PathBuf {
        self.dir.join("sessions")
    }

    /// Where the creates of a session with this name are tallied.
    pub(crate) fn tally_of(dir: &Path, session: &str) -> PathBuf {
        dir.join("sessions").join(format!("{session}.docker"))
    }

    /// Writes down a session before it begins.
    pub fn note(&self, opening: Opening<'_>) -> io::Result<Entry> {
        let session = SessionId::of(opening.mark);
        let started = SystemTime::now();
        let me = Member::current().map_or((0, 0), |m| (m.pid, m.start));
        let docker = opening.engine.map(|endpoint| Docker {
            endpoint,
            socket: Door::place(&self.sessions(), &session.to_string()),
        });
        let page = Page {
            docker,
            podman: opening.podman,
            session: session.clone(),
            within: opening.within,
            server: opening.server,
            wrapper: me,
            host: opening.host.map(|m| (m.pid, m.start)),
            on_behalf: opening.on_behalf.map(|m| (m.pid, m.start)),
            backend: opening.machine.backend.name().into(),
            mark: opening.mark.number(),
            leaf: opening.machine.leaf.clone(),
            receipt: opening.receipt.map(|path| path.into_os_string().into_vec()),
            generation: opening.generation.name(),
            started_ms: moment::millis(started),
            place: Place::here()?,
        };
        // Locked before it has its name, so nobody can take it for a crash.
        let draft = self.sessions().join(format!("{session}.new"));
        let path = self.sessions().join(format!("{session}.json"));
        let written = (|| {
            let options = OpenOptions::new().write(true).create_new(true).mode(0o600).clone();
            let mut file = options.open(&draft)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            file.write_all(&serde_json::to_vec(&page)?)?;
            fs::rename(&draft, &path)?;
            Ok(file)
        })();
        match written {
            Ok(file) => Ok(Entry::new(file, path, page, self.clone())),
            Err(e) => {
                // Whatever of it exists holds no session.
                let _absent = fs::remove_file(&draft);
                Err(e)
            }
        }
    }

    /// Sessions that crashed here and that nobody else is dealing with.
    fn crashed(&self, here: &Place) -> Vec<Entry> {
        let Ok(dir) = fs::read_dir(self.sessions()) else {
            return Vec::new();
        };
        let patience = Instant::now() + DYING;
        let mut found = Vec::new();
        for path in dir.flatten().map(|e| e.path()) {
            match path.extension().and_then(|e| e.to_str()) {
                Some("json") => found.extend(self.if_crashed(&path, here, patience)),
                Some("new") => discard_stale(&path),
                Some("state" | "share") if !path.with_extension("json").exists() => {
                    discard_stale(&path)
                }
                Some(slumber::ENDING) => slumber::discard_if_orphaned(&path, here),
                _ => {}
            }
        }
        found
    }

    fn if_crashed(&self, path: &Path, here: &Place, patience: Instant) -> Option<Entry> {
        let file = paper::open(path, true).ok()?;
        // What a page says is done. One that somebody else has put there is not ours.
        if file.metadata().ok()?.uid() != rustix::process::geteuid().as_raw() {
            return None;
        }
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            // Held by a living session, or by a guardian that is at work. If the wrapper is dead,
            // the guardian may be dying at this very moment; a moment is what it gets.
            let page = serde_json::from_slice::<Page>(&paper::read(path).ok()?).ok()?;
            if !page.place.shares_pids(here) {
                return None;
            }
            let lives = |(pid, start): (i32, u64)| Member { pid, start }.is_alive();
            let wrapper_lives = lives(page.wrapper) && !contain::process::is_dying(page.wrapper.0);
            if wrapper_lives || Instant::now() >= patience {
                if !wrapper_lives || page.host.is_some_and(|host| !lives(host)) {
                    wake_keepers(path);
                }
                return None;
            }
            contain::wait(&mut [], Some(Instant::now() + Duration::from_millis(2)));
        }
        // Struck between our open and our lock.
        if file.metadata().ok()?.nlink() == 0 {
            return None;
        }
        let Ok(page) = serde_json::from_slice::<Page>(&paper::read(path).ok()?) else {
            // Nothing is written in it: the power was cut. What another version wrote is not ours to
            // judge, nor to forget.
            if file.metadata().is_ok_and(|meta| meta.len() == 0) {
                discard_stale(path);
            }
            return None;
        };
        // What we are of ourselves, somebody else ends: nobody sweeps the ground that he stands on.
        let is_own = Mark::from_number(page.mark).is_some_and(Mark::is_own);
        (page.place.is_finished_from(here) && !is_own).then(|| {
            let mut entry = Entry::new(file, path.into(), page, self.clone());
            entry.swept = true;
            entry.resume();
            entry
        })
    }

    /// Finishes one session whose wrapper and guardian are both gone. Blocks; `None` if somebody
    /// else has done it.
    pub fn finish(&self, session: &SessionId) -> Option<Receipt> {
        let path = self.sessions().join(format!("{session}.json"));
        let here = Place::here().ok()?;
        let entry = self.if_crashed(&path, &here, Instant::now() + DYING)?;
        let report = entry.look(&here);
        Some(entry.settle(&Reason::WrapperDied, report).receipt)
    }

    /// Finishes what crashed sessions left behind. Returns the receipts of those that are done: an
    /// engine can take its time, so containers are removed by a process of its own that nobody waits
    /// for. To be called by a process of one thread, before it holds anything.
    pub fn sweep(&self) -> Vec<Receipt> {
        let mut receipts = Vec::new();
        let Ok(here) = Place::here() else {
            return receipts;
        };
        for entry in self.crashed(&here) {
            let report = entry.look(&here);
            let settle = || entry.settle(&Reason::WrapperDied, report.clone()).receipt;
            let slow = entry.expect() != Expect::Nothing || entry.page.podman.is_some();
            let detached = slow
                && contain::detach(c"lariat-sweep", &[entry.lock()], || {
                    settle();
                    0
                })
                .is_ok();
            if !detached {
                receipts.push(settle());
            }
        }
        receipts
    }
}

/// Wakes whoever holds a page that it should have struck by now, and was stopped. It goes on then.
fn wake_keepers(path: &Path) {
    for pid in contain::process::pids() {
        let Some(member) = Member::of(pid) else { continue };
        let stopped = || contain::process::stat(pid).is_some_and(|stat| stat.state == 'T');
        let holds = || {
            let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            files.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| file == path)
        };
        if stopped() && holds() {
            let _gone = member.signal(Signal::CONT);
        }
    }
}

/// Removes a file that is too old to be in the making.
fn discard_stale(path: &Path) {
    let age =
        fs::metadata(path).and_then(|m| m.modified()).map(|t| t.elapsed().unwrap_or_default());
    if age.is_ok_and(|age| age > STALE) {
        let _raced = fs::remove_file(path);
    }
}

/// A session in the books, with its lock.
#[derive(Debug)]
pub struct Entry {
    file: File,
    path: PathBuf,
    page: Page,
    books: Books,
    /// Where the next receipt begins, in milliseconds since 1970.
    began_ms: AtomicU64,
    /// Nobody had it any more when it was found.
    swept: bool,
    /// What changes too often to be written down.
    pulse: OnceLock<Shown>,
}

impl Entry {
    fn new(file: File, path: PathBuf, page: Page, books: Books) -> Entry {
        let began_ms = AtomicU64::new(page.started_ms);
        Entry { file, path, page, books, began_ms, swept: false, pulse: OnceLock::new() }
    }

    /// What is written.
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// The lock that says that somebody cares. Whoever holds a copy keeps the session alive.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// What everything that the session creates in an engine carries.
    pub fn labels(&self) -> Labels {
        let (pid, start) = self.page.wrapper;
        Labels {
            session: self.page.session.to_string(),
            server: self.page.server.to_string(),
            owner: format!("{}:{pid}:{start}", self.page.place.boot),
            birth: self.page.started_ms.to_string(),
        }
    }

    /// Where the session's creates are tallied.
    pub fn tally(&self) -> PathBuf {
        self.path.with_extension("docker")
    }

    /// Where the receipt is kept of a session that has ended and left survivors.
    fn so_far(&self) -> PathBuf {
        self.path.with_extension("receipt")
    }

    fn unfinished(&self) -> Option<Receipt> {
        let file = paper::open(&self.so_far(), false).ok()?;
        // Whom it names is killed. What somebody else has put there is not ours.
        let is_ours = file.metadata().ok()?.uid() == rustix::process::geteuid().as_raw();
        serde_json::from_slice(&paper::rest(&file).ok().filter(|_| is_ours)?).ok()
    }

    /// Ends what is left of the processes of a session that nobody holds any more.
    fn look(&self, here: &Place) -> Report {
        let report = match Mark::from_number(self.page.mark) {
            Some(mark) if !self.page.place.is_of_another_boot(here) => {
                // In another namespace they have other numbers.
                let earlier = self.unfinished().filter(|_| self.page.place.shares_pids(here));
                let known = earlier.iter().flat_map(|earlier| &earlier.survivors);
                let known: Vec<Member> = known.filter_map(process).collect();
                contain::sweep(mark, self.page.leaf.as_deref(), &known, SWEEP_LOOK)
            }
            _ => Report::nothing(contain::Backend::Descent),
        };
        // What held it is what it was held by, whoever ends it.
        let backend = contain::Backend::named(&self.page.backend).unwrap_or(report.backend);
        Report { backend, ..report }
    }

    fn expect(&self) -> Expect {
        tally::expect(&self.tally())
    }

    /// Removes what the session started in engines.
    fn sweep_engines(&self) -> Swept {
        let session = self.page.session.to_string();
        let mut swept = Swept::default();
        if let Some(docker) = &self.page.docker {
            let _never_used = fs::remove_file(&docker.socket);
            swept = sweep::sweep(&docker.endpoint, &session, &self.tally());
        }
        if let Some(podman) = &self.page.podman {
            swept.add(podman.sweep(&session));
        }
        swept
    }

    /// Another life of the server begins, and the next receipt is about that one. To be said before
    /// the guardian is there: it writes that receipt if nobody else can.
    pub fn begin(&self) {
        self.began_ms.store(moment::millis(SystemTime::now()), Ordering::Relaxed);
    }

    fn began(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.began_ms.load(Ordering::Relaxed))
    }

    /// Accounts for an ended session: containers, receipt, event, and the strike if nothing
    /// survived. Blocks for as long as an engine takes, if the session has used one.
    pub fn settle(&self, reason: &Reason, report: Report) -> Settled {
        let (settled, gone) = self.reckon(reason, report);
        if let Some(gone) = gone {
            self.strike(gone);
        }
        settled
    }

    /// Accounts for one life of a session that goes on without processes: all that `settle` does,
    /// except that the page stays. The session's Docker socket goes, like its containers.
    pub fn account(&self, reason: &Reason, report: Report) -> Settled {
        let (settled, gone) = self.reckon(reason, report);
        if gone.is_some() {
            // What the next life starts in an engine is a tally of its own.
            self.clear();
        }
        self.begin();
        settled
    }

    /// Sweeps the engines and writes the receipt and the event. With the proof, if all is gone.
    fn reckon(&self, reason: &Reason, report: Report) -> (Settled, Option<Gone>) {
        let begun = Instant::now();
        let swept = self.sweep_engines();
        let (session, server) = (self.page.session.clone(), self.page.server.clone());
        let mut receipt =
            Receipt::new(session, server, reason, (self.began(), SystemTime::now()), &report);
        receipt.within = self.page.within.clone();
        receipt.swept = self.swept;
        receipt.teardown_ms += begun.elapsed().as_millis() as u64;
        receipt.containers = Containers { seen: swept.seen, removed: swept.removed };
        receipt.survivors.extend(swept.left.iter().map(|left| Survivor {
            kind: left.kind.into(),
            pid: 0,
            start: 0,
            id: Some(left.id.clone()),
            command: left.name.clone(),
            why: left.why.clone(),
        }));
        let earlier = self.unfinished();
        // Whoever survived an earlier life, or an earlier look, and is still there keeps the page as well.
        let haunting =
            earlier.as_ref().map(|before| haunting(before, &receipt)).unwrap_or_default();
        let haunted = !haunting.is_empty();
        receipt.survivors.extend(haunting);
        // Another look that found the same is no news.
        let same_life = earlier.filter(|earlier| earlier.started == receipt.started);
        let news = same_life.as_ref().is_none_or(|e| e.survivors != receipt.survivors);
        let receipt = same_life.map_or(receipt.clone(), |earlier| receipt.after(earlier));
        if news {
            // The tree is gone either way; an unwritable log must not keep it in the books.
            let _unlogged = self.log("ended", &receipt);
        }
        if !receipt.survivors.is_empty() {
            // Whoever looks again goes on from here. Unwritten, they begin anew.
            let draft = self.path.with_extension("receipt.new");
            let _begin_anew = serde_json::to_vec(&receipt)
                .map_err(io::Error::from)
                .and_then(|text| replace(&self.so_far(), &draft, &text));
        }
        let unwritten = self.page.receipt.as_ref().and_then(|path| {
            let path = Path::new(OsStr::from_bytes(path));
            write_receipt(path, &self.page.session, &receipt).err()
        });
        let gone = match (report.verdict(), swept.verdict()) {
            (Ok(emptied), Some(removed)) if !haunted => Some(Gone::proven(emptied, removed)),
            _ => None,
        };
        (Settled { receipt, unwritten }, gone)
    }

    /// True if somebody has accounted for it already: wrapper, guardian and sweep may each come to.
    pub fn is_struck(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.nlink() == 0)
    }

    /// Strikes the session. Only what is gone can be forgotten.
    fn strike(&self, _proof: Gone) {
        self.clear();
        self.hush();
        let _already_gone = fs::remove_file(&self.path);
        // A pool that said something meanwhile looked for the page after that, and found it.
        let _never_told = fs::remove_file(sharing::beside(&self.path));
    }

    /// Forgets what lies beside the page about things that are gone.
    fn clear(&self) {
        for beside in [self.tally(), self.so_far()] {
            let _never_used = fs::remove_file(beside);
        }
    }
}

/// Processes that survived earlier, are still there, and were not found again by the look that `now` is about.
/// Engines and the cgroup are the same ones, and were asked anew.
fn haunting(earlier: &Receipt, now: &Receipt) -> Vec<Survivor> {
    let found: Vec<Member> = now.survivors.iter().filter_map(process).collect();
    let is_left = |s: &&Survivor| process(s).is_some_and(|m| !found.contains(&m) && m.is_alive());
    earlier.survivors.iter().filter(is_left).cloned().collect()
}

/// Which process it is, if it is one that has a name.
fn process(survivor: &Survivor) -> Option<Member> {
    let Survivor { pid, start, .. } = *survivor;
    (pid != 0).then_some(Member { pid, start })
}

#[cfg(test)]
mod tests;
