//! All sessions, handed from one program to the next that this process becomes.

use super::{Config, Entry, Lease, Manager, Registry};
use crate::daemon::lease::carried::{Kept, Lines};
use crate::pool::carried::Hubs;
use crate::session::carried::Carried as CarriedSession;
use serde::{Deserialize, Serialize};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A session and what it hangs on.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) struct Carried {
    session: CarriedSession,
    lease: Kept,
}

impl Carried {
    /// How many places it has in the pool.
    pub(in crate::daemon) fn places(&self) -> usize {
        self.session.places()
    }
}

impl Registry {
    /// True if no session is being opened, changed or ended.
    pub(in crate::daemon) fn is_settled(&self) -> bool {
        let table = self.table();
        !table.closing && table.entries.iter().all(|entry| entry.is_settled())
    }

    /// True if there is no server whose task is in the middle of something.
    pub(in crate::daemon) fn rests(&self) -> bool {
        self.table().entries.iter().all(|entry| entry.session.rests())
    }

    /// True if everybody who listens has heard what happened.
    pub(in crate::daemon) fn is_told(&self) -> bool {
        self.events.is_empty()
    }

    /// For the next program, while everything rests. `None` if something cannot be handed over.
    pub(in crate::daemon) fn carry(&self, keep: &mut Vec<RawFd>) -> Option<Vec<Carried>> {
        let table = self.table();
        let carry = |entry: &Arc<Entry>| {
            let session = entry.session.carry(keep).filter(|_| entry.is_settled())?;
            Some(Carried { session, lease: entry.lease.clone() })
        };
        table.entries.iter().map(carry).collect()
    }

    /// The same from the program before.
    pub(in crate::daemon) fn take_over(
        self: &Arc<Registry>,
        config: &Config,
        from: Vec<Carried>,
        lines: &Lines,
        hubs: &mut Hubs,
    ) {
        for Carried { session, lease } in from {
            let events = Some(self.events.clone());
            let config = Config { events, ..config.clone() };
            // Without its books it ends, by its guardians.
            let Ok(manager) = Manager::carried(config, session, hubs) else { continue };
            let servers = manager.session().states().len();
            self.enter(&mut self.table(), manager, servers, Lease::carried(lease, lines));
        }
    }
}

impl Entry {
    fn is_settled(&self) -> bool {
        !self.is_ending() && self.ordered.load(Ordering::Relaxed) == 0 && self.session.is_settled()
    }
}
