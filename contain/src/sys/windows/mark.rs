//! The number by which a tree is known in the books.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;

/// A random number, different for each tree. Nobody carries it here: who is in the tree is known to
/// the job alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// A new one.
    pub fn random() -> io::Result<Mark> {
        // The standard library's seeds come from the system, and there is one of them per thread:
        // what is added to it here is the moment.
        Ok(Mark(RandomState::new().hash_one(std::time::SystemTime::now())))
    }

    /// The number, as the books keep it.
    pub fn number(self) -> u64 {
        self.0
    }
}
