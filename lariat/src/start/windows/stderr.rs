//! A server's stderr, always drained: into its log, with a memory for its last words.

use super::named;
use crate::journal::Journal;
use std::io::{self, PipeReader};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How much is remembered for an owner who asks what the server last said.
const LAST_WORDS: usize = 2048;

/// How long what a server said before it left may take to arrive, if somebody else has its stderr as well.
const ARRIVAL: Duration = Duration::from_secs(1);

/// The drain of one server's stderr.
#[derive(Debug)]
pub(super) struct Drain {
    remembered: Arc<Mutex<Vec<u8>>>,
    /// The thread has the other end until it is through.
    through: Receiver<()>,
}

impl Drain {
    /// Begins to drain, until nobody can write to it any more.
    pub(super) fn new(mut source: PipeReader, log: Journal) -> io::Result<Drain> {
        let remembered = Arc::new(Mutex::new(Vec::new()));
        let memory = remembered.clone();
        let (end, through) = channel();
        named("lariat stderr").spawn(move || {
            let (mut log, mut buffer) = (Some(log), vec![0; 16 << 10]);
            while let Some(bytes) = crate::start::next(&mut source, &mut buffer) {
                // A full disk is no reason to stop draining.
                log = log.and_then(|mut log| log.append(bytes).is_ok().then_some(log));
                let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
                memory.extend_from_slice(bytes);
                let extra = memory.len().saturating_sub(LAST_WORDS);
                memory.drain(..extra);
            }
            drop(end);
        })?;
        Ok(Drain { remembered, through })
    }

    /// The last that a server said that has left. Others may still have its stderr.
    pub(super) fn last_words(&self) -> String {
        let _through = self.through.recv_timeout(ARRIVAL);
        let words = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&words).trim().into()
    }
}
