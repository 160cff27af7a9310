//! Files that are only appended to and never grow without bound: the event log, servers' stderr.

#[cfg(target_os = "linux")]
mod tail;

#[cfg(target_os = "linux")]
pub use tail::Tail;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An append-only file of bounded size with one predecessor (`NAME.1`).
///
/// Several processes may append to the same file: each write is one `O_APPEND` write. Whoever finds
/// the file too long renames it, and only with that file locked: two that had both found it too long
/// would otherwise rename it, and then the new one over it.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    limit: u64,
    file: File,
}

impl Journal {
    /// Opens or makes the file, readable by its owner alone.
    pub fn open(path: &Path, limit: u64) -> io::Result<Journal> {
        let file = plain(OpenOptions::new().append(true).create(true).mode(0o600), path)?;
        Ok(Journal { path: path.into(), limit, file })
    }

    /// Appends. The file may pass its limit by one write of each writer before it is rotated.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let meta = self.file.metadata()?;
        if meta.len() >= self.limit && self.turn(meta.ino())? {
            self.file = Journal::open(&self.path, self.limit)?.file;
        }
        self.file.write_all(bytes)
    }

    /// Sees to it that the full file is not called so any more. False if somebody else
    /// is just doing that: what is written to the old file meanwhile is not lost.
    fn turn(&self, inode: u64) -> io::Result<bool> {
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(false),
            locked => locked?,
        }
        let turned = match std::fs::metadata(&self.path) {
            Ok(there) if there.ino() == inode => {
                std::fs::rename(&self.path, predecessor(&self.path))
            }
            // Somebody has renamed it already: only the reopening is needed.
            _ => Ok(()),
        };
        rustix::fs::flock(&self.file, FlockOperation::Unlock)?;
        turned.map(|()| true)
    }
}

/// What a file that was full is called.
pub fn predecessor(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// Opens a plain file and nothing else: whoever opened a pipe would wait for ever, in front of a host.
pub(crate) fn plain(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(path)?;
    let is_plain = file.metadata()?.is_file();
    is_plain.then_some(file).ok_or_else(|| io::Error::other("it is no plain file"))
}

/// Makes a directory and its parents, the last ones for their owner alone.
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_writers_share_a_bounded_file() {
        let dir = std::env::temp_dir().join(format!("lariat-journal-{}", std::process::id()));
        make_private_dir(&dir).unwrap();
        let path = dir.join("a.log");
        let mut one = Journal::open(&path, 1000).unwrap();
        let mut two = Journal::open(&path, 1000).unwrap();
        for i in 0..100 {
            one.append(format!("one {i:04}\n").as_bytes()).unwrap();
            two.append(format!("two {i:04}\n").as_bytes()).unwrap();
        }
        let now = std::fs::metadata(&path).unwrap().len();
        let before = std::fs::metadata(dir.join("a.log.1")).unwrap().len();
        assert!(now <= 1010 && (1000..=1010).contains(&before), "{now} {before}");
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("two 0099\n"));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
