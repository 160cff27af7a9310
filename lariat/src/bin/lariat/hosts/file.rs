//! Files of other programs: read whole, replaced whole, or not at all.
//!
//! A config may be written by its host at any moment. It is replaced by a rename, and only if it still
//! is what was read. What a link points to is replaced, never the link.

use rustix::fs::{Access, AtFlags, CWD, OFlags};
use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Larger than any config that a person could mean.
const LARGEST: u64 = 256 << 20;

/// Backups that are kept of one file.
const BACKUPS: usize = 5;

/// No draft is written for so long: whoever began an older one is dead.
const STALE: Duration = Duration::from_secs(60);

/// What drafts of backups begin with.
const BACKUP_DRAFT: &str = ".draft-";

/// A file as it was.
pub(crate) struct Read {
    pub(crate) text: String,
    /// Where it really is.
    real: PathBuf,
    was: Identity,
}

/// By what a file is known to be unchanged, besides its content.
#[derive(PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Identity {
        Identity {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// Why a file was left alone.
#[derive(Debug)]
pub(crate) enum Trouble {
    Io(&'static str, io::Error),
    /// The byte where it stops to be text.
    NotText(usize),
    Large,
    /// What is there instead.
    NotAFile(&'static str),
    /// So many names.
    Links(u64),
    Changed,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Io(what, _) => write!(f, "cannot {what}"),
            Trouble::NotText(at) => write!(f, "byte {at} is not UTF-8"),
            Trouble::Large => write!(f, "it is larger than any config"),
            Trouble::NotAFile(what) => write!(f, "it is {what}, not a file"),
            Trouble::Links(n) => {
                write!(f, "it has {n} names (hard links), and would keep only one")
            }
            Trouble::Changed => write!(f, "it changed in the meantime"),
        }
    }
}

impl std::error::Error for Trouble {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Trouble::Io(_, error) => Some(error),
            Trouble::NotText(_)
            | Trouble::Large
            | Trouble::NotAFile(_)
            | Trouble::Links(_)
            | Trouble::Changed => None,
        }
    }
}

fn io(what: &'static str) -> impl FnOnce(io::Error) -> Trouble {
    move |error| Trouble::Io(what, error)
}

impl Read {
    /// Reads a file, through links.
    pub(crate) fn of(path: &Path) -> Result<Read, Trouble> {
        let real = path.canonicalize().map_err(io("find it"))?;
        let metadata = fs::metadata(&real).map_err(io("look at it"))?;
        if metadata.is_dir() {
            // One that nobody may look into is told as that.
            fs::read_dir(&real).map_err(io("look into it"))?;
            return Err(Trouble::NotAFile("a directory"));
        }
        // Reading a pipe would wait for whoever writes.
        if !metadata.is_file() {
            return Err(Trouble::NotAFile("a pipe, a socket or a device"));
        }
        if metadata.size() > LARGEST {
            return Err(Trouble::Large);
        }
        let bytes = fs::read(&real).map_err(io("read it"))?;
        let text = String::from_utf8(bytes)
            .map_err(|error| Trouble::NotText(error.utf8_error().valid_up_to()))?;
        Ok(Read { text, real, was: Identity::of(&metadata) })
    }

    /// Puts another text in its place, and the old one into `backups`. Gives the backup's path.
    pub(crate) fn replace(&self, text: &str, backups: &Path) -> Result<PathBuf, Trouble> {
        let metadata = self.ready(backups)?;
        let prefix = self.draft_prefix();
        let dir = self.real.parent().unwrap_or(Path::new("/"));
        tidy(dir, &prefix);
        let backup = self.back_up(backups).map_err(io("make a backup of it"))?;
        let draft = dir.join(prefix + &chance().map_err(io("write beside it"))?);
        let written = self.draft(&draft, text, &metadata).and_then(|()| {
            // As late as can be.
            self.unchanged()?;
            fs::rename(&draft, &self.real).map_err(io("replace it"))
        });
        if written.is_err() {
            // It was never more than a draft.
            let _gone = fs::remove_file(&draft);
            // Nothing was lost, so it would only push out one that is worth something.
            let _gone = fs::remove_file(&backup);
        }
        written?;
        self.forget_oldest(backups);
        if let Some(dir) = self.real.parent().and_then(|dir| File::open(dir).ok()) {
            // The rename is done; only a loss of power could undo it.
            let _later = dir.sync_all();
        }
        Ok(backup)
    }

    /// Whether it could be replaced now: all that is known to prevent it, with nothing written.
    pub(crate) fn ready(&self, backups: &Path) -> Result<Metadata, Trouble> {
        let metadata = self.unchanged()?;
        if metadata.nlink() > 1 {
            return Err(Trouble::Links(metadata.nlink()));
        }
        let writable = |dir: &Path| {
            let access = Access::WRITE_OK | Access::EXEC_OK;
            rustix::fs::accessat(CWD, dir, access, AtFlags::EACCESS).map_err(io::Error::from)
        };
        writable(self.real.parent().unwrap_or(Path::new("/"))).map_err(io("write beside it"))?;
        let own = rustix::process::geteuid();
        if metadata.uid() != own.as_raw() && !own.is_root() {
            return Err(Trouble::Io("keep its owner", io::ErrorKind::PermissionDenied.into()));
        }
        if backups.symlink_metadata().is_ok() {
            open_backups(backups).map_err(io("make a backup of it"))?;
        }
        Ok(metadata)
    }

    /// What the names of its drafts begin with.
    fn draft_prefix(&self) -> String {
        let name = self.real.file_name().unwrap_or_default().to_string_lossy();
        format!(".{name}.lariat-")
    }

    fn draft(&self, draft: &Path, text: &str, like: &Metadata) -> Result<(), Trouble> {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(draft)
            .map_err(io("write beside it"))?;
        file.write_all(text.as_bytes()).map_err(io("write beside it"))?;
        let made = file.metadata().map_err(io("write beside it"))?;
        if (made.uid(), made.gid()) != (like.uid(), like.gid()) {
            std::os::unix::fs::fchown(&file, Some(like.uid()), Some(like.gid()))
                .map_err(io("keep its owner"))?;
        }
        file.set_permissions(Permissions::from_mode(like.mode() & 0o7777))
            .map_err(io("keep its mode"))?;
        file.sync_all().map_err(io("write beside it"))
    }

    /// Fails if it is not what was read any more.
    fn unchanged(&self) -> Result<Metadata, Trouble> {
        let metadata = fs::metadata(&self.real).map_err(io("look at it"))?;
        let same = Identity::of(&metadata) == self.was
            && fs::read(&self.real).map_err(io("read it"))? == self.text.as_bytes();
        if same { Ok(metadata) } else { Err(Trouble::Changed) }
    }

    /// Copies it where only this user can read it: whole, or not at all.
    fn back_up(&self, backups: &Path) -> io::Result<PathBuf> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(backups)?;
        let dir = open_backups(backups)?;
        dir.set_permissions(Permissions::from_mode(0o700))?;
        tidy(backups, BACKUP_DRAFT);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let backup = backups.join(format!("{}{:020}", self.backup_stem(), now.as_nanos()));
        let draft = backups.join(format!("{BACKUP_DRAFT}{}", chance()?));
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&draft)?;
        let written = file
            .write_all(self.text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&draft, &backup));
        if written.is_err() {
            let _gone = fs::remove_file(&draft);
        }
        written?;
        // The copy is there; only a loss of power could undo it.
        let _later = dir.sync_all();
        Ok(backup)
    }

    /// What the names of its backups begin with.
    fn backup_stem(&self) -> String {
        let path = self.real.to_string_lossy().replace('/', "%");
        let mut cut = path.len().saturating_sub(180);
        while !path.is_char_boundary(cut) {
            cut += 1;
        }
        format!("{}.", &path[cut..])
    }

    fn forget_oldest(&self, backups: &Path) {
        let stem = self.backup_stem();
        let of_this = |name: &str| {
            name.strip_prefix(&stem).is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()))
        };
        let entries = fs::read_dir(backups).into_iter().flatten().flatten();
        let mut all: Vec<PathBuf> = entries
            .filter(|entry| entry.file_name().to_str().is_some_and(of_this))
            .map(|entry| entry.path())
            .collect();
        all.sort();
        for old in all.iter().rev().skip(BACKUPS) {
            // One too many is no harm.
            let _gone = fs::remove_file(old);
        }
    }
}

/// The directory itself, never what a link in its place points to: that may be anybody's.
fn open_backups(backups: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::DIRECTORY;
    let dir = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(backups);
    dir.map_err(|error| {
        let what = format!("{} is not a directory that can be used: {error}", backups.display());
        io::Error::new(error.kind(), what)
    })
}

/// A word that nobody else has: a name that recurs would fail for ever.
fn chance() -> io::Result<String> {
    let (mut bytes, mut filled) = ([0; 8], 0);
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

/// Removes drafts that were left by somebody who was killed.
fn tidy(dir: &Path, prefix: &str) {
    let is_draft = |name: &str| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(is_draft) {
            continue;
        }
        let Ok(metadata) = entry.metadata() else { continue };
        let age = metadata.modified().ok().and_then(|at| at.elapsed().ok());
        // One of root's may have been given to the file's owner already.
        let own = rustix::process::geteuid();
        let ours = metadata.uid() == own.as_raw() || own.is_root();
        if metadata.is_file() && ours && age.is_some_and(|age| age > STALE) {
            // The next one tries again.
            let _gone = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that goes with the test.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let dir = std::env::temp_dir().join(format!("lariat-{name}-{}", std::process::id()));
            fs::create_dir(&dir).unwrap();
            Dir(dir)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_file_that_changed_underneath_is_left_alone() {
        let dir = Dir::new("underneath");
        let path = dir.0.join("config");
        fs::write(&path, "one").unwrap();
        let read = Read::of(&path).unwrap();
        // Of the same length, at the same place.
        fs::write(&path, "two").unwrap();
        assert!(matches!(read.replace("new", &dir.0.join("b")), Err(Trouble::Changed)));
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        // The same content, but another file.
        let read = Read::of(&path).unwrap();
        fs::write(dir.0.join("other"), "two").unwrap();
        fs::rename(dir.0.join("other"), &path).unwrap();
        assert!(matches!(read.replace("new", &dir.0.join("b")), Err(Trouble::Changed)));
        assert_eq!(dir.names(), ["config"]);
        // And gone.
        let read = Read::of(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(matches!(read.replace("new", &dir.0.join("b")), Err(Trouble::Io(..))));
        assert_eq!(dir.names(), [""; 0]);
    }

    #[test]
    fn a_replaced_file_leaves_a_backup_and_no_draft() {
        let dir = Dir::new("replaced");
        let path = dir.0.join("config");
        fs::write(&path, "one").unwrap();
        let backup = Read::of(&path).unwrap().replace("new", &dir.0.join("b")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_to_string(backup).unwrap(), "one");
        assert_eq!(dir.names(), ["b", "config"]);
    }

    fn age(path: &Path) {
        let long_ago = SystemTime::now() - Duration::from_secs(3600);
        File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
    }

    #[test]
    fn drafts_of_the_dead_go_and_those_of_the_living_stay() {
        let dir = Dir::new("drafts");
        let path = dir.0.join("config");
        fs::write(&path, "one").unwrap();
        for (name, old) in [
            (".config.lariat-1234", true),
            (".config.lariat-abcd", false),
            (".config.lariat-notes", true),
            (".other.lariat-1234", true),
        ] {
            fs::write(dir.0.join(name), "").unwrap();
            if old {
                age(&dir.0.join(name));
            }
        }
        Read::of(&path).unwrap().replace("new", &dir.0.join("b")).unwrap();
        let left = [".config.lariat-abcd", ".config.lariat-notes", ".other.lariat-1234", "b"];
        assert_eq!(dir.names(), [&left[..], &["config"]].concat());
    }

    #[test]
    fn backups_are_nobody_elses_and_not_behind_a_link() {
        let dir = Dir::new("backups");
        let (path, backups) = (dir.0.join("config"), dir.0.join("b"));
        fs::write(&path, "one").unwrap();
        fs::create_dir(dir.0.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", &backups).unwrap();
        let read = Read::of(&path).unwrap();
        assert!(matches!(read.ready(&backups), Err(Trouble::Io(..))));
        assert!(matches!(read.replace("new", &backups), Err(Trouble::Io(..))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        assert_eq!(fs::read_dir(dir.0.join("elsewhere")).unwrap().count(), 0);
        fs::remove_file(&backups).unwrap();
        fs::create_dir(&backups).unwrap();
        fs::set_permissions(&backups, Permissions::from_mode(0o777)).unwrap();
        read.replace("new", &backups).unwrap();
        assert_eq!(fs::metadata(&backups).unwrap().mode() & 0o777, 0o700);
    }
}
