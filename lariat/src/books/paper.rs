//! Reading what lies in the books: plain files of a bounded size, and nothing else.

use crate::journal::plain;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Nothing of ours is as long.
const LONGEST: u64 = 4 << 20;

/// Opens a plain file, to be locked or read.
pub(super) fn open(path: &Path, write: bool) -> io::Result<File> {
    plain(OpenOptions::new().read(true).write(write), path)
}

/// What is written in a file.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    rest(&open(path, false)?)
}

/// What has not been read of an open one.
pub(super) fn rest(file: &File) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(file.metadata()?.len().min(LONGEST) as usize + 1);
    file.take(LONGEST + 1).read_to_end(&mut text)?;
    let fits = text.len() as u64 <= LONGEST;
    fits.then_some(text).ok_or_else(|| io::Error::other("it is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::fs;

    #[test]
    fn only_plain_files_are_read() {
        let dir = std::env::temp_dir().join(format!("lariat-paper-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let [plain, pipe, zero] = ["plain", "pipe", "zero"].map(|name| dir.join(name));
        fs::write(&plain, "text").unwrap();
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &zero).unwrap();
        let read = [&plain, &pipe, &zero, &dir].map(|path| read(path).ok());
        assert_eq!(read, [Some(b"text".to_vec()), None, None, None]);
        assert!(open(&pipe, true).is_err());
        fs::File::create(&plain).unwrap().set_len(LONGEST + 1).unwrap();
        assert!(super::read(&plain).is_err());
        fs::remove_dir_all(dir).unwrap();
    }
}
