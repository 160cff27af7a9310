//! The tally: whether a session ever created anything in an engine, and whether it still might.
//!
//! One mark in a small file before a create goes to the engine, another when the engine has answered.
//! No file: there is nothing to look for, and a session that never used Docker ends without asking
//! any engine. More of the first than of the second: a create may still be on its way, and one look
//! that finds nothing proves nothing.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const SENT: u8 = b'+';
const ANSWERED: u8 = b'-';

/// The writing side, in the proxy.
#[derive(Debug)]
pub(crate) struct Tally {
    file: File,
}

impl Tally {
    /// Before the create is sent.
    pub(crate) fn sent(path: &Path) -> io::Result<Tally> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let mut tally = Tally { file };
        tally.file.write_all(&[SENT])?;
        Ok(tally)
    }

    /// The engine has answered, or was never told.
    pub(crate) fn answered(mut self) {
        // Unwritten, the sweep looks a little longer than it had to.
        let _looks_longer = self.file.write_all(&[ANSWERED]);
    }
}

/// Notes a container that a sweep has seen.
pub fn see(path: &Path, id: &str) {
    let noted = OpenOptions::new().append(true).open(path);
    // Unwritten, it is missing in the receipt of whoever finishes an interrupted sweep.
    let _uncounted = noted.and_then(|mut file| file.write_all(format!("\n{id}\n").as_bytes()));
}

/// The containers that earlier sweeps have seen.
pub fn seen(path: &Path) -> HashSet<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let ids = text.lines().filter(|line| !line.is_empty() && !line.contains(['+', '-']));
    ids.map(String::from).collect()
}

/// What a sweep has to expect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Nothing was ever created.
    Nothing,
    /// All creates were answered.
    Settled,
    /// Some create may still come true.
    Unsettled,
}

/// Reads the tally of a session.
pub fn expect(path: &Path) -> Expect {
    match fs::read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Expect::Nothing,
        Err(_) => Expect::Unsettled,
        Ok(marks) => {
            let of = |mark| marks.iter().filter(|m| **m == mark).count();
            if of(SENT) > of(ANSWERED) { Expect::Unsettled } else { Expect::Settled }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unanswered_create_is_remembered() {
        let path = std::env::temp_dir().join(format!("lariat-tally-{}", std::process::id()));
        assert_eq!(expect(&path), Expect::Nothing);
        let first = Tally::sent(&path).unwrap();
        let second = Tally::sent(&path).unwrap();
        first.answered();
        assert_eq!(expect(&path), Expect::Unsettled);
        see(&path, "abc");
        second.answered();
        assert_eq!(expect(&path), Expect::Settled);
        assert_eq!(seen(&path), HashSet::from(["abc".to_string()]));
        fs::remove_file(path).unwrap();
    }
}
