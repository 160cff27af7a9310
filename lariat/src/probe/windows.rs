//! A tree to be probed, on Windows.

use super::Streams;
use contain::{Choice, Ladder, Mark, Member, Spec, Tree};
use std::ffi::OsString;

/// Starts it. The mark is for the receipt alone: the job knows its processes.
pub(super) fn start(
    (program, args): (OsString, Vec<OsString>),
    streams: Streams,
    ladder: Ladder,
    _mark: Mark,
) -> Result<Tree, contain::Error> {
    Tree::spawn(Spec {
        program,
        args,
        env: None,
        cwd: None,
        stdin: streams.stdin.into(),
        stdout: streams.stdout.into(),
        stderr: streams.stderr.into(),
        backend: Choice::Auto,
        ladder,
    })
}

/// Who is in it now.
pub(super) fn members(tree: &Tree) -> Vec<Member> {
    tree.members().unwrap_or_default()
}

/// Waits until something has happened to it.
pub(super) fn wait(tree: &Tree) {
    tree.wait(&[], None);
}
