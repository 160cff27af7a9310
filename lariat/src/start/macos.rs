//! Starting a server on macOS: books first, then the tree.

mod lean;

pub use lean::Failure;
pub(crate) use lean::Plan;

use contain::{Backend, Mark, Spec, Tree};
use std::fs::File;
use std::os::fd::AsFd;

/// What holds a tree here.
const BACKEND: Backend = Backend::Session;

/// The number that a page has: by that the sweep knows whoever is left.
fn carried(mark: Mark) -> Option<u64> {
    Some(mark.number())
}

/// Starts a tree. Its guardian has the lock as well: as long as that is at work, nobody takes the
/// session for a crash.
fn spawn(spec: Spec, mark: Mark, lock: &File) -> Result<Tree, contain::Error> {
    Tree::spawn_marked(spec, mark, Some(lock.as_fd()))
}
