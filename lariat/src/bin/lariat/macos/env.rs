//! Every environment variable we read on macOS, and what is found from it.
//!
//! For a wrapper nothing but HOME may matter: hosts strip the others. Options are in argv.

use std::ffi::OsString;
use std::path::PathBuf;

#[expect(clippy::disallowed_methods, reason = "this is the one place")]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Where the books, logs and events are. Without `HOME`, in the home directory of the user as the system
/// has it.
pub(crate) fn state_dir(given: Option<PathBuf>) -> Option<PathBuf> {
    let home = || std::env::home_dir().filter(|home| home.is_absolute());
    given.or_else(|| Some(home()?.join(".local/state/lariat"))).map(absolute)
}

/// A path that still means the same after a change of directory.
pub(crate) fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// `NO_COLOR`: set, there is no colour.
pub(crate) fn wants_colour() -> bool {
    variable("NO_COLOR").is_none()
}
