//! Reading a journal while others write to it, on Windows: whatever has come since the last look.
//!
//! A journal that is full is renamed to `NAME.1` and begun anew. Nothing is kept open between two looks,
//! so nobody is kept from renaming it; which file is which is known by what the file system calls it. If it
//! is filled and renamed twice between two looks, what was in between is gone.

use super::{plain, predecessor};
use contain::machine::{FileId, file_id};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A journal that is looked at now and then.
#[derive(Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    now: Option<Place>,
    /// The one before, to which somebody may still write.
    before: Option<Place>,
}

/// How much of a file was read.
#[derive(Debug)]
struct Place {
    id: FileId,
    read: u64,
}

impl Tail {
    /// Opens a journal, which need not be there yet, and returns all lines that there are.
    pub(crate) fn unwatched(path: &Path) -> io::Result<(Tail, Vec<u8>)> {
        let mut tail = Tail { path: path.into(), now: None, before: None };
        let mut text = Vec::new();
        tail.read_into(&mut text)?;
        Ok((tail, text))
    }

    /// What has come since.
    pub(crate) fn read_into(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        // In this order: if it is renamed in between, both are the same.
        let now = open(&self.path)?;
        let before = open(&predecessor(&self.path))?;
        let renamed = before.as_ref().map(|(_, id)| *id);
        self.before = match self.now.take_if(|it| Some(it.id) == renamed) {
            Some(place) => Some(place),
            None => self.before.take(),
        };
        if let Some((file, id)) = before {
            read_on(&mut self.before, file, id, text)?;
        }
        match now {
            Some((file, id)) if Some(id) != renamed => read_on(&mut self.now, file, id, text),
            _ => Ok(()),
        }
    }
}

/// Reads what was not read of this file: all of it if it is not the one that was there.
fn read_on(
    place: &mut Option<Place>,
    mut file: File,
    id: FileId,
    text: &mut Vec<u8>,
) -> io::Result<()> {
    let there = place.take().filter(|place| place.id == id);
    let there = place.insert(there.unwrap_or(Place { id, read: 0 }));
    if there.read > file.metadata()?.len() {
        // Somebody has cut it: begin again.
        there.read = 0;
    }
    file.seek(SeekFrom::Start(there.read))?;
    there.read += file.read_to_end(text)? as u64;
    Ok(())
}

/// A file and what it is called by the file system, if it is there.
fn open(path: &Path) -> io::Result<Option<(File, FileId)>> {
    match plain(File::options().read(true), path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => {
            let file = opened?;
            let id = file_id(&file)?;
            Ok(Some((file, id)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;

    #[test]
    fn no_line_is_lost_or_read_twice_when_it_is_rotated() {
        let dir = std::env::temp_dir().join(format!("lariat-tail-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("events.jsonl");
        let (mut tail, text) = Tail::unwatched(&path).unwrap();
        assert_eq!(text, b"", "there is none yet");
        let (mut read, mut written) = (Vec::new(), Vec::new());
        for number in 0..500 {
            let line = format!("line {number}\n");
            Journal::open(&path, 1000).unwrap().append(line.as_bytes()).unwrap();
            written.extend_from_slice(line.as_bytes());
            if number % 7 == 0 {
                tail.read_into(&mut read).unwrap();
            }
        }
        tail.read_into(&mut read).unwrap();
        assert!(predecessor(&path).exists(), "it was rotated");
        assert_eq!(String::from_utf8(read).unwrap(), String::from_utf8(written).unwrap());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
