//! Running something to its end, which must come.

use crate::place::PATIENCE;
use std::process::{Command, Output, Stdio};
use trials::until;

/// What a command printed and how it ended. It may print as much as a pipe holds.
#[track_caller]
pub(crate) fn finish(command: &mut Command) -> Output {
    finish_with(command, Stdio::null())
}

/// The same with another stdin. A pipe stays open until the end.
#[track_caller]
pub(crate) fn finish_with(command: &mut Command, stdin: Stdio) -> Output {
    let streams = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = streams.spawn().unwrap();
    if !until(PATIENCE, || child.try_wait().unwrap().is_some()) {
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("no end of {command:?}");
    }
    child.wait_with_output().unwrap()
}
