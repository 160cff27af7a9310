//! Every environment variable we read on Windows, and what is found from it.
//!
//! A wrapper needs none: hosts strip them. The others are for commands that a person types.

use std::ffi::OsString;
use std::path::PathBuf;

#[expect(clippy::disallowed_methods, reason = "this is the one place")]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Where the books, logs and events are: in the user's own directory, which is found without any
/// variable that a host might strip.
pub(crate) fn state_dir(given: Option<PathBuf>) -> Option<PathBuf> {
    given.or_else(|| Some(std::env::home_dir()?.join("AppData/Local/lariat"))).map(absolute)
}

/// A path that still means the same after a change of directory.
pub(crate) fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// What opens a link in the browser of the desktop.
pub(crate) const OPENER: (&str, &[&str]) = ("rundll32", &["url.dll,FileProtocolHandler"]);

/// `PATH`: where a person's command is looked up when somebody else is to start it.
pub(crate) fn path() -> Option<OsString> {
    variable("PATH")
}

/// Where a command is, by our own PATH. It is looked up where it is started, by the PATH that it gets
/// and with the endings of programs.
pub(crate) fn find(_command: &str, _path: &str) -> Option<String> {
    None
}

/// One variable by the name that a person gave, to be passed on.
pub(crate) fn named(name: &str) -> Option<OsString> {
    #[expect(clippy::disallowed_methods, reason = "this is the one place; empty is a value here")]
    std::env::var_os(name)
}

/// `NO_COLOR`: set, there is no colour.
pub(crate) fn wants_colour() -> bool {
    variable("NO_COLOR").is_none()
}

/// What a daemon inherits that serves whoever comes after the first: what the system gives to every
/// program of the user. The others can be secrets of the one who happened to start it.
pub(crate) fn for_daemon() -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| is_for_daemon(&name.to_string_lossy())).collect()
}

fn is_for_daemon(name: &str) -> bool {
    const NAMES: [&str; 28] = [
        "ALLUSERSPROFILE",
        "APPDATA",
        "COMMONPROGRAMFILES",
        "COMMONPROGRAMFILES(X86)",
        "COMMONPROGRAMW6432",
        "COMPUTERNAME",
        "COMSPEC",
        "HOMEDRIVE",
        "HOMEPATH",
        "LANG",
        "LOCALAPPDATA",
        "NUMBER_OF_PROCESSORS",
        "OS",
        "PATH",
        "PATHEXT",
        "PROCESSOR_ARCHITECTURE",
        "PROGRAMDATA",
        "PROGRAMFILES",
        "PROGRAMFILES(X86)",
        "PROGRAMW6432",
        "PUBLIC",
        "SYSTEMDRIVE",
        "SYSTEMROOT",
        "TEMP",
        "TMP",
        "USERNAME",
        "USERPROFILE",
        "WINDIR",
    ];
    let name = name.to_uppercase();
    NAMES.contains(&name.as_str()) || name == "TZ" || name.starts_with("LC_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_reach_a_daemon() {
        for name in ["Path", "PATH", "SystemRoot", "ProgramFiles(x86)", "TEMP", "LC_ALL"] {
            assert!(is_for_daemon(name), "{name}");
        }
        for name in ["GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "XPATH", "USERDOMAIN_TOKEN", ""] {
            assert!(!is_for_daemon(name), "{name}");
        }
    }
}
