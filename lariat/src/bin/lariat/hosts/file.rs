//! Files of other programs: read whole, replaced whole, or not at all.
//!
//! A config may be written by its host at any moment. It is replaced by a rename, and only if it still
//! is what was read. What a link points to is replaced, never the link.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Larger than any config that a person could mean.
const LARGEST: u64 = 256 << 20;

/// Backups that are kept of one file.
const BACKUPS: usize = 5;

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
            Trouble::NotText(_) | Trouble::Large | Trouble::Links(_) | Trouble::Changed => None,
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
        let metadata = self.unchanged()?;
        if metadata.nlink() > 1 {
            return Err(Trouble::Links(metadata.nlink()));
        }
        let backup = self.back_up(backups).map_err(io("make a backup of it"))?;
        let name = self.real.file_name().unwrap_or_default().to_string_lossy();
        let draft = self.real.with_file_name(format!(".{name}.lariat-{}", std::process::id()));
        let written = self.draft(&draft, text, &metadata).and_then(|()| {
            // As late as can be.
            self.unchanged()?;
            fs::rename(&draft, &self.real).map_err(io("replace it"))
        });
        if written.is_err() {
            // It was never more than a draft.
            let _gone = fs::remove_file(&draft);
        }
        written?;
        if let Some(dir) = self.real.parent().and_then(|dir| File::open(dir).ok()) {
            // The rename is done; only a loss of power could undo it.
            let _later = dir.sync_all();
        }
        Ok(backup)
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

    /// Copies it where only this user can read it, and forgets the oldest copies.
    fn back_up(&self, backups: &Path) -> io::Result<PathBuf> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(backups)?;
        let path = self.real.to_string_lossy().replace('/', "%");
        let mut cut = path.len().saturating_sub(180);
        while !path.is_char_boundary(cut) {
            cut += 1;
        }
        let stem = format!("{}.", &path[cut..]);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let backup = backups.join(format!("{stem}{:020}", now.as_nanos()));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&backup)?;
        file.write_all(self.text.as_bytes())?;
        file.sync_all()?;
        let of_this = |name: &str| {
            name.strip_prefix(&stem).is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()))
        };
        let entries = fs::read_dir(backups)?.flatten();
        let mut all: Vec<PathBuf> = entries
            .filter(|entry| entry.file_name().to_str().is_some_and(of_this))
            .map(|entry| entry.path())
            .collect();
        all.sort();
        for old in all.iter().rev().skip(BACKUPS) {
            // One too many is no harm.
            let _gone = fs::remove_file(old);
        }
        Ok(backup)
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
}
