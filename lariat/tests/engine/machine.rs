//! The machine that the tests stand on: what is installed, and running it to its end.

use crate::PATIENCE;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use trials::until;

/// Every program of this name on the path, first one first, each once.
pub(crate) fn on_path(program: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for dir in std::env::split_paths(&search_path()) {
        let Ok(file) = dir.join(program).canonicalize() else { continue };
        let executable = fs::metadata(&file)
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
        if executable && !found.contains(&file) {
            found.push(file);
        }
    }
    found
}

#[expect(clippy::disallowed_methods, reason = "the engines are found where the user has them")]
pub(crate) fn search_path() -> std::ffi::OsString {
    std::env::var_os("PATH").unwrap_or_default()
}

/// Waits until the condition holds, as [`until`] does, but looks only so often: who looks at an
/// engine or at all of `/proc` without a pause keeps them from what is waited for.
pub(crate) fn at_times(
    pace: Duration,
    deadline: Duration,
    mut condition: impl FnMut() -> bool,
) -> bool {
    let mut last: Option<Instant> = None;
    let held = until(deadline, || {
        let is_time = last.is_none_or(|last| last.elapsed() >= pace);
        is_time && {
            last = Some(Instant::now());
            condition()
        }
    });
    held || condition()
}

/// How a command ended and what it printed, as much as it likes. It must end.
#[track_caller]
pub(crate) fn output(command: &mut Command) -> Output {
    let streams = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = streams.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let pid = rustix::process::Pid::from_child(&child);
    let reader = thread::spawn(move || child.wait_with_output().unwrap());
    if !until(PATIENCE, || reader.is_finished()) {
        // Nobody has waited for it yet, so the number is still its own.
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        panic!("no end of {command:?}");
    }
    reader.join().unwrap()
}

/// What a command printed. It must succeed.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output = output(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
