//! What to run and how to hold it, for an owner that embeds the library.

use crate::choice::Choice;
use crate::ladder::Ladder;
#[cfg(windows)]
use crate::sys::windows::stream::Stream;
use std::ffi::OsString;
use std::path::PathBuf;
#[cfg(unix)]
use std::process::Stdio as Stream;

/// What to run and how to hold it.
#[derive(Debug)]
pub struct Spec {
    /// The executable that becomes the holder (on macOS the guardian): one whose `main` begins with
    /// [`main_if_asked`](crate::main_if_asked).
    #[cfg(unix)]
    pub holder: PathBuf,
    /// Looked up in `PATH` (on Windows with the endings of `PATHEXT`), unless it is a path.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its whole environment (on macOS the mark comes with it); `None` for the owner's own.
    pub env: Option<Vec<(OsString, OsString)>>,
    /// Its working directory; `None` for the owner's own.
    pub cwd: Option<PathBuf>,
    /// Its standard input.
    pub stdin: Stream,
    /// Its standard output.
    pub stdout: Stream,
    /// Its standard error.
    pub stderr: Stream,
    /// What holds it.
    pub backend: Choice,
    /// How it is asked to leave.
    pub ladder: Ladder,
}
