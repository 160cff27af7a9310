//! When a server may sleep: what was asked for, and what speaks for it.

use super::cache::Key;
use crate::snapshot::Evidence;
use std::time::Duration;

/// How patient to be with a silent or a hanging server.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(test, derive(Hash))]
pub struct Policy {
    /// When a server that nobody speaks with is put to sleep.
    pub idle: Idle,
    /// To start it only when it is needed: where to find what it said of itself when it last ran.
    pub lazy: Option<Key>,
    /// How long it may take to introduce itself.
    pub init_timeout: Option<Duration>,
    /// How long it may take for any other answer.
    pub call_timeout: Option<Duration>,
    /// How long it may keep a CPU busy while nobody waits for it.
    pub spin_limit: Option<Duration>,
}

/// When a silent server is put to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum Idle {
    /// Never.
    Off,
    /// After this long, because the user says so.
    After(Duration),
    /// After this long, if something speaks for it.
    Auto(Duration),
}

impl Idle {
    /// How long it must have been silent.
    pub(crate) fn after(self) -> Option<Duration> {
        match self {
            Idle::Off => None,
            Idle::After(after) | Idle::Auto(after) => Some(after),
        }
    }
}

/// What speaks for putting a server to sleep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct Signs {
    /// The same host has started the same command again since.
    pub(crate) superseded: bool,
    /// An ancestor of the host has died.
    pub(crate) host_orphaned: bool,
    /// The host has closed another end.
    pub(crate) ends_closed: bool,
    /// It keeps no state between requests.
    pub(crate) stateless: bool,
    /// The user said so.
    pub(crate) asked: bool,
}

impl Signs {
    /// The same as others may read them.
    pub(crate) fn evidence(self) -> Vec<Evidence> {
        let all = [
            (self.superseded, Evidence::Superseded),
            (self.host_orphaned, Evidence::HostOrphaned),
            (self.ends_closed, Evidence::EndsClosed),
            (self.stateless, Evidence::Stateless),
            (self.asked, Evidence::Asked),
        ];
        all.into_iter().filter_map(|(there, what)| there.then_some(what)).collect()
    }

    /// True if they are enough. Who watches for changes is not made blind but by a host that has
    /// replaced the server.
    pub(crate) fn suffice(self, is_watched: bool) -> bool {
        let abandoned = self.superseded || self.host_orphaned || self.ends_closed;
        (abandoned || self.stateless || self.asked) && (!is_watched || self.superseded)
    }
}
