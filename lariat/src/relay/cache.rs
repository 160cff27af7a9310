//! What a server said of itself when it last ran, so that it need not run to be asked again.
//!
//! One small file per command, arguments, names of environment variables and executable. Neither
//! arguments nor environment are in it, only a hash of them in its name. A file that cannot be read
//! or written is one that is not there.

use crate::mcp::conversation::Known;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A longer file is not one of ours.
const LONGEST: u64 = 1 << 20;

/// Which server an answer is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct Key(u64, u64);

impl Key {
    /// Of a command as it would be started here: looked up in `path`, with variables of these names, in
    /// this directory.
    pub fn new(
        program: &OsStr,
        args: &[OsString],
        names: impl IntoIterator<Item = OsString>,
        path: Option<&OsStr>,
        directory: &Path,
    ) -> Key {
        let mut names: Vec<OsString> = names.into_iter().collect();
        names.sort();
        let identity = executable(program, path).and_then(|file| {
            let meta = fs::metadata(&file).ok()?;
            Some((file, meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()))
        });
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, program, args, &names, &identity, directory).hash(&mut hasher);
            hasher.finish()
        };
        Key(half(0), half(1))
    }
}

/// The file that would be executed.
fn executable(program: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let places = std::env::split_paths(path?).map(|dir| dir.join(program));
    places.into_iter().find(|file| file.is_file())
}

/// Where a server's answers are kept.
#[derive(Debug)]
pub(super) struct Cache {
    file: PathBuf,
    /// How much was known when it was last written.
    written: u32,
}

impl Cache {
    pub(super) fn open(state_dir: &Path, key: &Key) -> Cache {
        Cache {
            file: state_dir.join("cache").join(format!("{:016x}{:016x}.json", key.0, key.1)),
            written: 0,
        }
    }

    /// What was written, if it can be used.
    pub(super) fn read(&self) -> Option<Known> {
        let long = fs::metadata(&self.file).ok()?.len() > LONGEST;
        Known::from_json(&fs::read(&self.file).ok().filter(|_| !long)?)
    }

    /// Writes down what is known, if that is more or other than before.
    pub(super) fn update(&mut self, known: &Known) {
        if known.learned() != self.written
            && let Some(text) = known.to_json()
        {
            self.written = known.learned();
            // Whoever reads it sees all of it or the one before.
            let _not_this_time = self.write(&text);
        }
    }

    fn write(&self, text: &[u8]) -> io::Result<()> {
        if let Some(dir) = self.file.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let draft = self.file.with_extension(format!("{}.new", std::process::id()));
        let options =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).clone();
        let written = options.open(&draft).and_then(|mut file| file.write_all(text));
        let written = written.and_then(|()| fs::rename(&draft, &self.file));
        if written.is_err() {
            let _absent = fs::remove_file(&draft);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_command_is_another_key() {
        let key = |program: &str, args: &[&str], names: &[&str]| {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            let names = names.iter().map(OsString::from);
            Key::new(
                program.as_ref(),
                &args,
                names,
                Some(OsStr::new("/usr/bin:/bin")),
                Path::new("/"),
            )
        };
        let one = key("sh", &["-c", "x"], &["A", "B"]);
        assert_eq!(one, key("sh", &["-c", "x"], &["B", "A"]));
        for other in [
            key("cat", &["-c", "x"], &["A", "B"]),
            key("sh", &["-cx"], &["A", "B"]),
            key("sh", &["-c", "x"], &["A"]),
            key("/bin/../bin/sh", &["-c", "x"], &["A", "B"]),
        ] {
            assert_ne!(one, other);
        }
    }
}
