//! What waits for one who is slow to read: a host for its server's stderr, a server for its input.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A host that takes nothing for this long while that much waits has stalled: what comes is dropped
/// from then on, until it takes something.
const STALL: Duration = Duration::from_millis(250);

/// Between a thread that takes and one that gives, so that the first need not wait for the second.
#[derive(Debug)]
pub(super) struct Backlog {
    /// How much waits.
    most: usize,
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
    /// Everything has been given.
    through: bool,
}

impl Backlog {
    pub(super) fn new(most: usize) -> Backlog {
        Backlog { most, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Adds bytes, after waiting for room for as long as it takes. Each time that nothing was taken for
    /// so long, that is said.
    pub(super) fn push(&self, bytes: &[u8], stall: Duration, stalled: impl Fn()) {
        let mut state = self.state();
        while state.bytes >= self.most {
            let before = state.taken;
            let waited = self.changed.wait_timeout(state, stall);
            let (now, time) = waited.unwrap_or_else(PoisonError::into_inner);
            state = now;
            if time.timed_out() && state.taken == before {
                stalled();
            }
        }
        self.add(state, bytes);
    }

    fn add(&self, mut state: MutexGuard<'_, State>, bytes: &[u8]) {
        state.bytes += bytes.len();
        state.chunks.push_back(bytes.to_vec());
        self.changed.notify_all();
    }

    /// Closes it and waits until everything has been given, for as long as any of it is taken.
    pub(super) fn settle(&self, stall: Duration) {
        self.close();
        let mut state = self.state();
        while !state.through {
            let before = state.taken;
            let waited = self.changed.wait_timeout(state, stall);
            let (now, time) = waited.unwrap_or_else(PoisonError::into_inner);
            state = now;
            if time.timed_out() && state.taken == before {
                return;
            }
        }
    }

    /// Whoever gives has given everything.
    pub(super) fn through(&self) {
        self.state().through = true;
        self.changed.notify_all();
    }

    /// Adds bytes, after waiting for a host that does read. False if they were dropped.
    pub(super) fn put(&self, bytes: &[u8]) -> bool {
        let mut state = self.state();
        while state.bytes >= self.most && !state.stalled {
            let before = state.taken;
            let waited = self.changed.wait_timeout(state, STALL);
            let (now, time) = waited.unwrap_or_else(PoisonError::into_inner);
            state = now;
            state.stalled = time.timed_out() && state.taken == before;
        }
        if state.bytes >= self.most {
            return false;
        }
        self.add(state, bytes);
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
