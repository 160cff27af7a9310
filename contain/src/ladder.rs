//! The ladder: how a tree is asked to leave, step by step, each step bounded.
//!
//! Only durations and decisions live here. Who is in the tree and how signals reach them is the
//! guard's business.

use std::time::Duration;

/// The number that asks a process to leave, wherever there are signals.
pub(crate) const SIGTERM: i32 = 15;

/// How long each rung lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ladder {
    /// After standard input closed (or a first, gentle signal): time to leave unasked.
    pub grace: Duration,
    /// After `SIGTERM`: time to leave before the kill.
    pub term_grace: Duration,
    /// For descendants that outlive a command which left by itself: time before they are asked.
    pub linger: Duration,
    /// After the kill: time to look for emptiness before what remains is called a survivor.
    pub look: Duration,
}

impl Default for Ladder {
    fn default() -> Self {
        Ladder {
            grace: Duration::from_secs(2),
            term_grace: Duration::from_secs(2),
            linger: Duration::from_millis(250),
            look: Duration::from_secs(5),
        }
    }
}

/// Why and how an end begins. A later ask may only climb higher, never lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Standard input was closed: leave in your own time, bounded by the grace.
    Closed,
    /// Somebody signalled the wrapper: pass that signal on, as the bare command would have got it.
    Signal(i32),
    /// The owner is gone and with it whoever could still read: `SIGTERM` at once.
    OwnerDied,
    /// No grace.
    Kill,
}

impl Ask {
    /// The rung an ask starts on: 0 close, 1 a gentle signal, 2 SIGTERM, 3 kill.
    pub(crate) fn rung(self) -> u8 {
        match self {
            Ask::Closed => 0,
            Ask::Signal(SIGTERM) | Ask::OwnerDied => 2,
            Ask::Signal(_) => 1,
            Ask::Kill => 3,
        }
    }
}
