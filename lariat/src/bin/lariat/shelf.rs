//! Where the books stand, for verbs that look into them: finding them, and saying why not.

use crate::{env, show};
use lariat::books::Books;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The state directory, whether it is there or not. Says why there is none.
pub(crate) fn place(given: Option<&PathBuf>) -> Result<PathBuf, ExitCode> {
    env::state_dir(given.cloned()).ok_or_else(no_home)
}

/// The state directory, and the books in it if there are any. Looking is no reason to make them.
pub(crate) fn find(given: Option<&PathBuf>) -> Result<(PathBuf, Option<Books>), ExitCode> {
    let dir = place(given)?;
    let books = Books::open_existing(&dir).map_err(|error| unreadable(&dir, &error))?;
    Ok((dir, books))
}

/// Says so if `/proc` is not there, or shows processes that have other numbers here: a look would find nobody.
pub(crate) fn sees_processes() -> Result<(), ExitCode> {
    let me = std::process::id().to_string();
    let why = match std::fs::read_link("/proc/self") {
        Ok(who) if who.as_os_str() == me.as_str() => return Ok(()),
        Ok(_) => io::Error::other("it is that of another pid namespace"),
        Err(error) => error,
    };
    let advice = "mount it anew: mount -t proc proc /proc";
    show::failure("cannot see processes in /proc", Some(&why), advice);
    Err(ExitCode::FAILURE)
}

/// Says that something of the books cannot be read.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> ExitCode {
    let what = format!("cannot read {}", path.display());
    show::failure(&show::plain(&what), Some(error), "name another with --state-dir DIR");
    ExitCode::FAILURE
}

/// Says that there is no place for the books. A wrapper has a code of its own for that.
pub(crate) fn no_home() -> ExitCode {
    let what = "no home directory: HOME is not set and this user has none";
    show::failure(what, None, "set HOME, or name a directory with --state-dir DIR");
    ExitCode::FAILURE
}
