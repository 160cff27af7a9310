//! A tree to be probed, on macOS.

use super::Streams;
use contain::{Choice, Error, Ladder, Mark, Member, SpawnStage, Spec, Tree, process};
use rustix::event::{PollFd, PollFlags};
use std::ffi::OsString;

/// Starts it, with this program as its guardian.
pub(super) fn start(
    (program, args): (OsString, Vec<OsString>),
    streams: Streams,
    ladder: Ladder,
    mark: Mark,
) -> Result<Tree, Error> {
    let holder = std::env::current_exe().map_err(|e| Error::Spawn(SpawnStage::Holder, e))?;
    let spec = Spec {
        holder,
        program,
        args,
        env: None,
        cwd: None,
        stdin: streams.stdin.into(),
        stdout: streams.stdout.into(),
        stderr: streams.stderr.into(),
        backend: Choice::Auto,
        ladder,
    };
    Tree::spawn_marked(spec, mark, None)
}

/// Who is in it now, as far as descent and session tell.
pub(super) fn members(tree: &Tree) -> Vec<Member> {
    tree.leader().map(process::around).unwrap_or_default()
}

/// Waits until something has happened to it.
pub(super) fn wait(tree: &Tree) {
    contain::wait(&mut [PollFd::new(tree, PollFlags::IN)], tree.deadline());
}
