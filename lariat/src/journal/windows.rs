//! Files that are only appended to and never grow without bound, on Windows.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[cfg(feature = "cli")]
#[path = "windows/tail.rs"]
mod tail;

#[cfg(feature = "cli")]
pub(crate) use tail::Tail;

/// An append-only file of bounded size with one predecessor (`NAME.1`).
///
/// Several processes may append to the same file. Whoever finds it too long renames it, and only if
/// it is still that long by its name: somebody else may have been first.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    limit: u64,
    file: File,
}

impl Journal {
    /// Opens or makes the file. What is in the user's own directories is readable by the user alone.
    pub fn open(path: &Path, limit: u64) -> io::Result<Journal> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok(Journal { path: path.into(), limit, file })
    }

    /// Appends. The file may pass its limit by one write of each writer before it is rotated.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.file.metadata()?.len() >= self.limit {
            if std::fs::metadata(&self.path).is_ok_and(|there| there.len() >= self.limit) {
                // Somebody who reads it can keep it from being renamed; it is tried again then.
                let _in_use = std::fs::rename(&self.path, predecessor(&self.path));
            }
            self.file = Journal::open(&self.path, self.limit)?.file;
        }
        self.file.write_all(bytes)
    }
}

/// Opens a plain file.
#[cfg(feature = "cli")]
pub(crate) fn plain(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.open(path)?;
    let is_plain = file.metadata()?.is_file();
    is_plain.then_some(file).ok_or_else(|| io::Error::other("it is no plain file"))
}

/// Makes a directory and its parents. In the user's own directories they are the user's alone.
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path)
}

/// What a file that was full is called.
pub fn predecessor(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}
