//! How often one host has started one server, and who was the last.
//!
//! One small file per host process and command. Two things are read from it: whether a host has
//! gone wild and starts the same server again and again, and whether it has started another one
//! since, so that the earlier may be forgotten. A command's arguments can be secrets: only a hash of
//! them is in the file's name, and nothing else of them anywhere.
//!
//! A file that cannot be read, written or locked is no reason not to start a server. It is then not
//! counted.

use super::{Books, Place, paper};
use crate::id::{ServerName, SessionId};
use crate::journal::make_private_dir;
use contain::Member;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Every start of a host's is kept for as long as it counts, so there is a bound.
const MOST: u32 = 1000;

/// A longer file is not one of ours.
const LONGEST: u64 = 64 << 10;

/// How long a start waits for another one that is just being counted. Whoever holds the lock may
/// have been stopped.
const PATIENCE: Duration = Duration::from_millis(100);

/// The file of a host that has died is kept for this long.
const KEPT: Duration = Duration::from_secs(5 * 60);

/// The same for one whose host cannot be looked at from here.
const KEPT_UNSEEN: Duration = Duration::from_secs(24 * 3600);

/// Whoever makes a file looks for those of dead hosts on one shelf, at so many of the first so many.
/// However many there are, a start costs the same.
const LOOKS: usize = 8;
const NAMES: usize = 64;

/// The files lie on so many shelves, so that a short look at one of them is enough.
const SHELVES: u64 = 256;

/// How many starts are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// So many may be,
    pub most: u32,
    /// within this time.
    pub per: Duration,
}

impl Rate {
    /// No number is too many.
    pub const OFF: Rate = Rate { most: u32::MAX, per: Duration::ZERO };
}

impl Default for Rate {
    /// Thirty a minute.
    fn default() -> Rate {
        Rate { most: 30, per: Duration::from_secs(60) }
    }
}

impl FromStr for Rate {
    type Err = String;

    /// Reads `30/min`, `5/s`, `100/h` or `off`.
    fn from_str(text: &str) -> Result<Rate, String> {
        let usage = || "write 30/min, 5/s, 100/h or off".to_string();
        if text == "off" {
            return Ok(Rate::OFF);
        }
        let (most, unit) = text.split_once('/').ok_or_else(usage)?;
        let per = match unit {
            "s" => 1,
            "min" => 60,
            "h" => 3600,
            _ => return Err(usage()),
        };
        let digits = most.bytes().all(|b| b.is_ascii_digit());
        let most = most.parse().ok().filter(|_| digits).ok_or_else(usage)?;
        if !(1..=MOST).contains(&most) {
            return Err(format!("a number from 1 to {MOST}, or off"));
        }
        Ok(Rate { most, per: Duration::from_secs(per) })
    }
}

/// A start that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany {
    /// So many were,
    pub starts: usize,
    /// within this time.
    pub within: Duration,
    /// The next one is not too many after this time.
    pub wait: Duration,
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let within = match self.within.as_secs() {
            1 => "a second".into(),
            60 => "a minute".into(),
            3600 => "an hour".into(),
            other => format!("{other} s"),
        };
        write!(f, "this host has started this server {} times within {within}", self.starts)
    }
}

impl std::error::Error for TooMany {}

impl TooMany {
    /// What to do about it.
    pub fn advice(&self) -> String {
        let wait = self.wait.as_millis().div_ceil(1000).max(1);
        format!("find out why it starts so often, try again in {wait} s, or raise --max-starts")
    }
}

/// One start of a server by its host, among others.
#[derive(Debug, Clone)]
pub struct Generation {
    /// Where it was counted, and under which name; `None` if it could not be.
    counted: Option<(PathBuf, SessionId)>,
}

impl Generation {
    /// One that nothing is known about.
    pub const UNCOUNTED: Generation = Generation { counted: None };

    /// Under which name it was counted, below the directory of starts.
    pub(super) fn name(&self) -> Option<String> {
        let (path, _) = self.counted.as_ref()?;
        let [shelf, file] = [path.parent()?.file_name()?, path.file_name()?];
        Some(format!("{}/{}", shelf.to_str()?, file.to_str()?))
    }

    /// True if the host has started the same server again since. Looks again each time.
    pub fn is_superseded(&self) -> bool {
        let Some((path, session)) = &self.counted else { return false };
        // Without a lock: what is being written just now is read the next time.
        let record = paper::open(path, false).ok().and_then(|file| Record::read(&file));
        record.is_some_and(|record| record.newest != *session)
    }
}

/// What is in a file.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// The host, by pid and start time.
    host: (i32, u64),
    /// Where its pid means something.
    place: Place,
    /// Who was started last.
    newest: SessionId,
    /// When the last ones were started that still count, in milliseconds since boot.
    starts_ms: Vec<u64>,
}

impl Record {
    fn read(file: &File) -> Option<Record> {
        let mut text = Vec::new();
        file.take(LONGEST).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn write(&self, file: &File) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        // In place: a new file would leave those who wait for the lock with the old one.
        file.write_all_at(&text, 0)?;
        file.set_len(text.len() as u64)
    }
}

impl Books {
    /// Counts a start of this server by this host, unless there were too many. A refused start is
    /// not counted, and supersedes nobody: whoever keeps trying comes through when it is time.
    pub fn count_start(
        &self,
        host: Member,
        server: &ServerName,
        (program, args): (&OsStr, &[OsString]),
        session: &SessionId,
        most: Rate,
    ) -> Result<Generation, TooMany> {
        let Ok(here) = Place::here() else { return Ok(Generation::UNCOUNTED) };
        let path = self.starts().join(name(host, &here, server, (program, args)));
        let Ok(file) = lock(&path) else { return Ok(Generation::UNCOUNTED) };
        let (now, per) = (uptime_ms(), most.per.as_millis() as u64);
        let before = Record::read(&file).filter(|r| r.host == (host.pid, host.start));
        let is_new = before.is_none();
        let mut starts_ms = before.map(|record| record.starts_ms).unwrap_or_default();
        starts_ms.retain(|start| *start <= now && now - start < per);
        let many = starts_ms.len();
        if let Some(first) = many.checked_sub(most.most as usize) {
            // It must be over for that one before there is room for one more.
            let wait = Duration::from_millis(starts_ms[first] + per - now);
            return Err(TooMany { starts: many, within: most.per, wait });
        }
        if most != Rate::OFF {
            starts_ms.push(now);
        }
        let host = (host.pid, host.start);
        let record = Record { host, place: here, newest: session.clone(), starts_ms };
        if record.write(&file).is_err() {
            return Ok(Generation::UNCOUNTED);
        }
        drop(file);
        if is_new {
            let chance = hash(|hasher| session.hash(hasher));
            clean(&self.shelf(chance % SHELVES), &record.place, (chance / SHELVES) as usize);
        }
        Ok(Generation { counted: Some((path, session.clone())) })
    }

    /// Which start it was that was counted under this name.
    pub(super) fn generation(&self, name: &str, session: &SessionId) -> Generation {
        Generation { counted: Some((self.starts().join(name), session.clone())) }
    }

    fn starts(&self) -> PathBuf {
        self.dir.join("starts")
    }

    fn shelf(&self, number: u64) -> PathBuf {
        self.starts().join(format!("{number:02x}"))
    }
}

/// Opens a file, makes it if need be, and locks it until it is closed.
fn lock(path: &Path) -> io::Result<File> {
    let patience = Instant::now() + PATIENCE;
    let options =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
    loop {
        let file = match options.open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                make_private_dir(path.parent().unwrap_or(path))?;
                options.open(path)?
            }
            opened => opened?,
        };
        while let Err(e) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if e != Errno::WOULDBLOCK || Instant::now() >= patience {
                return Err(e.into());
            }
            contain::wait(&mut [], Some(Instant::now() + Duration::from_millis(1)));
        }
        // Unless it was removed between our open and our lock.
        if file.metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

/// The shelf and the name of the file, from which nobody can tell the command.
/// Two servers of one command differ in their names: they may have other environments.
fn name(host: Member, here: &Place, server: &ServerName, command: (&OsStr, &[OsString])) -> String {
    let half = |which: u8| {
        hash(|hasher| {
            (which, host, &here.machine, &here.boot, &here.pid_namespace).hash(hasher);
            (server.as_str(), command).hash(hasher);
        })
    };
    let (first, second) = (half(0), half(1));
    format!("{:02x}/{first:016x}{second:016x}", first % SHELVES)
}

/// The same every time in every process, unlike the hashes of a map.
fn hash(what: impl Fn(&mut DefaultHasher)) -> u64 {
    let mut hasher = DefaultHasher::new();
    what(&mut hasher);
    hasher.finish()
}

/// A clock that nobody sets.
fn uptime_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Removes a few files of hosts that have died, wherever chance begins.
fn clean(dir: &Path, here: &Place, chance: usize) {
    let files = fs::read_dir(dir).into_iter().flatten().flatten().take(NAMES);
    let files: Vec<PathBuf> = files.map(|file| file.path()).collect();
    let turn = chance.checked_rem(files.len()).unwrap_or(0);
    for path in files.iter().cycle().skip(turn).take(LOOKS.min(files.len())) {
        discard_if_over(path, here, KEPT);
    }
}

/// Removes a file whose host is gone for longer than this.
fn discard_if_over(path: &Path, here: &Place, kept: Duration) {
    let age = |path| {
        let changed = fs::symlink_metadata(path).and_then(|meta| meta.modified());
        changed.ok().and_then(|changed| changed.elapsed().ok()).unwrap_or_default()
    };
    if age(path) < kept {
        return;
    }
    let Ok(file) = paper::open(path, true) else { return };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    let over = match Record::read(&file) {
        Some(Record { host: (pid, start), place, .. }) if place.shares_pids(here) => {
            !Member { pid, start }.is_alive()
        }
        Some(record) if record.place.machine == here.machine => {
            record.place.boot != here.boot || age(path) >= KEPT_UNSEEN
        }
        _ => age(path) >= KEPT_UNSEEN,
    };
    if over {
        let _raced = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests;
