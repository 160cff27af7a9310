//! Looking for signs that a host has forgotten its server.
//!
//! Only when it has been silent for long: in between nothing is watched and nothing is spent.

use super::policy::Signs;
use crate::books::Generation;

/// Where to look.
#[derive(Debug)]
pub(super) struct Clues {
    /// Which start of the server by its host this is.
    pub(super) generation: Generation,
}

impl Clues {
    /// What there is now.
    pub(super) fn look(&self) -> Signs {
        Signs { superseded: self.generation.is_superseded(), ..Signs::default() }
    }
}
