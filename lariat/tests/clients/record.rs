//! The recorder: a program between two others that writes down what passes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

/// Says where two recordings part.
pub(crate) fn same(what: &str, one: &[u8], other: &[u8]) -> Result<(), String> {
    if one == other {
        return Ok(());
    }
    let at = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let near = |bytes: &[u8]| {
        let from = at.saturating_sub(80).min(bytes.len());
        String::from_utf8_lossy(&bytes[from..bytes.len().min(at + 80)]).into_owned()
    };
    Err(format!(
        "{what} differ at byte {at} ({} and {} bytes):\n  {}\n  {}",
        one.len(),
        other.len(),
        near(one),
        near(other)
    ))
}

/// One direction of a recording: `in` went to the server, `out` came from it.
pub(crate) fn read(record: &Path, direction: &str) -> io::Result<Vec<u8>> {
    fs::read(record.with_extension(direction))
}

/// Runs a command and writes down what passes, in files next to each other.
pub(crate) fn tee(record: &Path, words: Vec<OsString>) -> io::Result<u8> {
    let (program, args) = words.split_first().expect("a command");
    let mut child =
        Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (mut to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let mut asked = File::create(record.with_extension("in"))?;
    let told = File::create(record.with_extension("out"))?;
    thread::spawn(move || copy(io::stdin(), &mut to, &mut asked));
    copy(from, &mut io::stdout(), &mut { told })?;
    let status = child.wait()?;
    Ok(status.code().or(status.signal().map(|n| 128 + n)).map_or(1, |code| code as u8))
}

/// Each piece goes into the record first, so that what arrived is never missing there.
fn copy(mut from: impl Read, to: &mut impl Write, record: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let got = from.read(&mut buffer)?;
        if got == 0 {
            return Ok(());
        }
        record.write_all(&buffer[..got])?;
        to.write_all(&buffer[..got])?;
        to.flush()?;
    }
}
