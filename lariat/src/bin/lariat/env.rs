//! Every environment variable we read, and what is found from it.
//!
//! Hosts strip a server's environment to HOME, LOGNAME, PATH, SHELL, TERM and USER, so nothing else
//! may matter: no XDG variable, no option. Options are in argv.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// `HOME`: where the state directory is, unless told otherwise. Without it, the home directory of
/// the user as `/etc/passwd` has it.
pub(crate) fn home() -> Option<PathBuf> {
    let named = std::env::var_os("HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    named.or_else(|| {
        let uid = rustix::process::getuid().as_raw().to_string();
        let passwd = std::fs::read("/etc/passwd").ok()?;
        passwd.split(|b| *b == b'\n').find_map(|line| {
            let fields: Vec<&[u8]> = line.split(|b| *b == b':').collect();
            (fields.get(2)? == &uid.as_bytes()).then_some(())?;
            Some(OsString::from_vec(fields.get(5)?.to_vec()).into())
        })
    })
}

/// Where the books, logs and events are.
pub(crate) fn state_dir(given: Option<PathBuf>) -> Option<PathBuf> {
    given.or_else(|| Some(home()?.join(".local/state/lariat"))).map(absolute)
}

/// A path that still means the same after a change of directory.
pub(crate) fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}
