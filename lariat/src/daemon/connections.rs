//! Who is connected by TCP: those who have shown a key, and strangers, of whom the oldest makes room.
//!
//! Anybody on the machine can connect, and must not be able to keep the owner out by it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// How many strangers there may be.
const STRANGERS: usize = 32;

/// How many others there may be: a few tabs, a scraper, and clients of MCP with two or three each.
pub(super) const MOST: usize = 2048;

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<Kinds>);

#[derive(Debug, Default)]
struct Kinds {
    strangers: VecDeque<Arc<Notify>>,
    known: usize,
}

impl Connections {
    fn kinds(&self) -> MutexGuard<'_, Kinds> {
        // Nothing in here can be left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if nobody is connected.
    pub(super) fn is_empty(&self) -> bool {
        let kinds = self.kinds();
        kinds.strangers.is_empty() && kinds.known == 0
    }

    /// A stranger's place, if need be that of the oldest stranger.
    pub(super) fn enter(self: &Arc<Self>) -> Guest {
        let leave = Arc::new(Notify::new());
        let mut kinds = self.kinds();
        kinds.strangers.push_back(leave.clone());
        if kinds.strangers.len() > STRANGERS
            && let Some(oldest) = kinds.strangers.pop_front()
        {
            oldest.notify_one();
        }
        Guest { connections: self.clone(), leave, known: Mutex::new(false) }
    }
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Guest {
    connections: Arc<Connections>,
    leave: Arc<Notify>,
    known: Mutex<bool>,
}

impl Guest {
    /// Returns when somebody else needs the place.
    pub(super) async fn must_leave(&self) {
        self.leave.notified().await;
    }

    /// True if it has shown a key.
    pub(super) fn is_known(&self) -> bool {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has shown a key, and makes room for nobody from now on; false if there are too many such.
    pub(super) fn shows_key(&self) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kinds = self.connections.kinds();
        if !*known && kinds.known < MOST {
            let at = kinds.strangers.iter().position(|other| Arc::ptr_eq(other, &self.leave));
            // Who was just told to leave does.
            if let Some(at) = at {
                kinds.strangers.remove(at);
                kinds.known += 1;
                *known = true;
            }
        }
        *known
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kinds = self.connections.kinds();
        if known {
            kinds.known -= 1;
        } else {
            kinds.strangers.retain(|other| !Arc::ptr_eq(other, &self.leave));
        }
    }
}
