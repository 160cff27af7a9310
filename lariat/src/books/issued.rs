//! The receipt where the user wants it: a file of its own, whole or not at all.

use crate::id::SessionId;
use crate::receipt::Receipt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A session that was accounted for.
#[derive(Debug)]
pub struct Settled {
    /// Its receipt.
    pub receipt: Receipt,
    /// Why the receipt could not be written where the user wants it.
    pub unwritten: Option<io::Error>,
}

/// Proves at the start that the receipt can be written at the end.
pub(crate) fn prove(path: &Path, session: &SessionId) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    fs::write(draft(path, session), "")
}

/// Writes a receipt where the user wants it.
pub(super) fn write_receipt(path: &Path, session: &SessionId, receipt: &Receipt) -> io::Result<()> {
    let mut text = serde_json::to_vec(receipt)?;
    text.push(b'\n');
    replace(path, &draft(path, session), &text)
}

/// Puts a file in the place of another. Whoever reads it sees all of it or the one before, and
/// whoever looks at the directory sees that something has changed.
pub(super) fn replace(path: &Path, draft: &Path, text: &[u8]) -> io::Result<()> {
    let written = fs::write(draft, text).and_then(|()| fs::rename(draft, path));
    if written.is_err() {
        let _absent = fs::remove_file(draft);
    }
    written
}

/// The name a receipt has while it is being written.
fn draft(path: &Path, session: &SessionId) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{session}.new"));
    name.into()
}
