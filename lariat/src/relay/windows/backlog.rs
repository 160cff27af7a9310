//! What waits for a host that is slow to read its server's stderr.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How much waits.
const MOST: usize = 256 << 10;

/// A host that takes nothing for this long while that much waits has stalled: what comes is dropped
/// from then on, until it takes something.
const STALL: Duration = Duration::from_millis(250);

/// Between the thread that takes from the server and the one that gives to the host.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    chunks: VecDeque<Vec<u8>>,
    bytes: usize,
    /// How often something was taken.
    taken: u64,
    stalled: bool,
    closed: bool,
}

impl Backlog {
    /// Adds bytes, after waiting for a host that does read. False if they were dropped.
    pub(super) fn put(&self, bytes: &[u8]) -> bool {
        let mut state = self.state();
        while state.bytes >= MOST && !state.stalled {
            let before = state.taken;
            let waited = self.changed.wait_timeout(state, STALL);
            let (now, time) = waited.unwrap_or_else(PoisonError::into_inner);
            state = now;
            state.stalled = time.timed_out() && state.taken == before;
        }
        if state.bytes >= MOST {
            return false;
        }
        state.bytes += bytes.len();
        state.chunks.push_back(bytes.to_vec());
        self.changed.notify_all();
        true
    }

    /// The next bytes; nothing once it is closed and empty.
    pub(super) fn take(&self) -> Option<Vec<u8>> {
        let mut state = self.state();
        while state.chunks.is_empty() && !state.closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let chunk = state.chunks.pop_front()?;
        state.bytes -= chunk.len();
        state.taken += 1;
        state.stalled = false;
        self.changed.notify_all();
        Some(chunk)
    }

    /// Nothing more will come.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
