//! Every environment variable we read, and what is found from it.
//!
//! Hosts strip a server's environment to HOME, LOGNAME, PATH, SHELL, TERM and USER, so for a
//! wrapper nothing but HOME may matter: no XDG variable, no option. Options are in argv. The others
//! are about looks, for commands that a person types.

use lariat::docker::endpoint::Surroundings;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

#[expect(clippy::disallowed_methods, reason = "this is the one place")]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The names of all variables: a server that is told others may say other things of itself.
pub(crate) fn names() -> Vec<OsString> {
    std::env::vars_os().map(|(name, _)| name).collect()
}

/// All of them as they are, for a server that somebody else starts in our place.
pub(crate) fn all() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

/// `HOME`: where the state directory is, unless told otherwise. Without it, the home directory of
/// the user as `/etc/passwd` has it.
pub(crate) fn home() -> Option<PathBuf> {
    let named = variable("HOME").map(PathBuf::from).filter(|p| p.is_absolute());
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

/// `DOCKER_HOST` and its kin: which engine the docker command would use here. A host may have
/// stripped them; then the home directory and the usual sockets are left.
pub(crate) fn docker() -> Surroundings {
    let text = |name| variable(name).and_then(|value| value.into_string().ok());
    Surroundings {
        home: home(),
        uid: rustix::process::getuid().as_raw(),
        host: text("DOCKER_HOST"),
        context: text("DOCKER_CONTEXT"),
        config: variable("DOCKER_CONFIG").map(PathBuf::from),
        cert_path: variable("DOCKER_CERT_PATH").map(PathBuf::from),
        tls_verify: variable("DOCKER_TLS_VERIFY").is_some(),
        tls: variable("DOCKER_TLS").is_some(),
        ..Surroundings::default()
    }
}

/// `XDG_CONFIG_HOME`, and what each host calls the place of its configs (`CODEX_HOME` and its kin; the
/// table of hosts has them all).
pub(crate) fn hosts(project: Option<PathBuf>) -> Option<crate::hosts::Surroundings> {
    let path = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let named = crate::hosts::table::variables().filter_map(|name| Some((name, path(name)?)));
    Some(crate::hosts::Surroundings {
        home: home()?,
        config: path("XDG_CONFIG_HOME"),
        named: named.collect(),
        project,
        root: None,
    })
}

/// What of the above was set and is not followed: a relative path would mean another place in every
/// directory, and each host takes it differently.
pub(crate) fn passed_over() -> Vec<&'static str> {
    let all = ["HOME", "XDG_CONFIG_HOME"].into_iter().chain(crate::hosts::table::variables());
    let relative = |name: &&str| variable(name).is_some_and(|it| !PathBuf::from(it).is_absolute());
    all.filter(relative).collect()
}

/// `TERM`: false where the cursor cannot be moved.
pub(crate) fn terminal_can_draw() -> bool {
    variable("TERM").is_some_and(|term| term != "dumb")
}

/// `NO_COLOR`: set, there is no colour.
pub(crate) fn wants_colour() -> bool {
    variable("NO_COLOR").is_none()
}

/// `LC_ALL`, `LC_CTYPE`, `LANG`: whether the locale can show blocks; none at all is taken as the
/// UTF-8 that it mostly is.
pub(crate) fn speaks_utf8() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable);
    locale.is_none_or(|locale| {
        let locale = locale.to_string_lossy().to_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// What opens a link in the browser of the desktop.
pub(crate) const OPENER: (&str, &[&str]) = ("xdg-open", &[]);

/// `PATH`: where a person's command is looked up when somebody else is to start it.
pub(crate) fn path() -> Option<OsString> {
    variable("PATH")
}

/// Where a command is, by our own PATH: the daemon has another. As it is if it is nowhere.
pub(crate) fn find(command: &str, path: &str) -> Option<String> {
    if command.contains('/') || command.is_empty() {
        return None;
    }
    use std::os::unix::fs::PermissionsExt;
    let is_program = |file: &PathBuf| {
        let there = file.metadata();
        there.is_ok_and(|there| there.is_file() && there.permissions().mode() & 0o111 != 0)
    };
    let candidates = std::env::split_paths(path).map(|dir| absolute(dir.join(command)));
    candidates.into_iter().find(is_program)?.into_os_string().into_string().ok()
}

/// This program's own file, as it is best written down for others to start: by the path on which `PATH`
/// finds it, which stays the same when a package is updated, or else where it is.
pub(crate) fn lariat() -> std::io::Result<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let own = std::env::current_exe()?;
    let file = |path: &PathBuf| std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let identity = file(&own)?;
    let dirs: Vec<PathBuf> =
        path().map(|all| std::env::split_paths(&all).collect()).unwrap_or_default();
    let mut named = dirs.into_iter().filter(|dir| dir.is_absolute()).map(|dir| dir.join("lariat"));
    let found = named.find(|path| file(path).is_ok_and(|other| other == identity));
    Ok(found.unwrap_or(own))
}

/// One variable by the name that a person gave, to be passed on.
pub(crate) fn named(name: &str) -> Option<OsString> {
    #[expect(clippy::disallowed_methods, reason = "this is the one place; empty is a value here")]
    std::env::var_os(name)
}

/// What a daemon inherits that serves whoever comes after the first: `HOME`, `LOGNAME`, `PATH`,
/// `SHELL`, `TERM`, `USER`, `LANG`, `LC_*`, `TZ`, `TMPDIR`, `DOCKER_*`. The others can be secrets of
/// the one who happened to start it.
pub(crate) fn for_daemon() -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| is_for_daemon(&name.to_string_lossy())).collect()
}

fn is_for_daemon(name: &str) -> bool {
    const NAMES: [&str; 9] =
        ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"];
    NAMES.contains(&name) || name.starts_with("LC_") || name.starts_with("DOCKER_")
}

/// Where the books, logs and events are.
pub(crate) fn state_dir(given: Option<PathBuf>) -> Option<PathBuf> {
    given.or_else(|| Some(home()?.join(".local/state/lariat"))).map(absolute)
}

/// A path that still means the same after a change of directory.
pub(crate) fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_reach_a_daemon() {
        for name in ["HOME", "PATH", "LC_ALL", "DOCKER_HOST", "TZ"] {
            assert!(is_for_daemon(name), "{name}");
        }
        for name in ["GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "XPATH", "path", ""]
        {
            assert!(!is_for_daemon(name), "{name}");
        }
    }
}
