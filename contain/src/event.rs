//! What an owner is told about its tree.

use crate::error::Error;
use crate::report::{Exit, Report};

/// Something that happened to a held tree.
#[derive(Debug)]
pub enum Event {
    /// The command runs.
    Started,
    /// The command could not be started. Nothing is left of it.
    Failed(Error),
    /// The command itself ended; others may still be there.
    Exited(Exit),
    /// The guardian was killed; the tree is being ended by the holder.
    GuardianDied,
    /// It is over.
    Ended(Report),
}
