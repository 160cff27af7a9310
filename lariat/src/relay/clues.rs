//! Looking for signs that a host has forgotten its server.
//!
//! Only when it has been silent for long: in between nothing is watched and nothing is spent.

use super::evidence::{Ancestors, is_closed};
use super::host::Host;
use super::policy::Signs;
use crate::books::Generation;
use std::io;
use std::os::fd::AsFd;

/// Where to look.
#[derive(Debug)]
pub(super) struct Clues {
    /// Which start of the server by its host this is.
    generation: Generation,
    ancestors: Option<Ancestors>,
    /// Whether anybody read what we say on stderr, at first.
    had_stderr: bool,
}

impl Clues {
    /// Remembers how things are now.
    pub(super) fn find(generation: Generation, host: &Host) -> Clues {
        let ancestors = host.member().map(Ancestors::of);
        Clues { generation, ancestors, had_stderr: !is_closed(io::stderr().as_fd()) }
    }

    /// What has changed since.
    pub(super) fn look(&self) -> Signs {
        Signs {
            superseded: self.generation.is_superseded(),
            host_orphaned: self.ancestors.as_ref().is_some_and(Ancestors::lost_one),
            ends_closed: self.had_stderr && is_closed(io::stderr().as_fd()),
            ..Signs::default()
        }
    }
}
