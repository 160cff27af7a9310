//! The event log: one line for everything that happens to a session, and to what is found.

use super::{Books, Entry};
use crate::journal::Journal;
use crate::moment;
use serde::Serialize;
use std::io;
use std::time::SystemTime;

/// The event log is rotated at this size.
const LIMIT: u64 = 4 << 20;

impl Books {
    /// Adds a line. A full disk must not keep a session from ending.
    pub fn log(&self, event: &str, fields: &impl Serialize) -> io::Result<()> {
        #[derive(Serialize)]
        struct Line<'a, T> {
            event: &'a str,
            time: String,
            #[serde(flatten)]
            fields: &'a T,
        }
        let line = Line { event, time: moment::rfc3339(SystemTime::now()), fields };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        Journal::open(&self.events(), LIMIT)?.append(&text)
    }
}

impl Entry {
    /// Adds a line about the session.
    pub fn log(&self, event: &str, fields: &impl Serialize) -> io::Result<()> {
        self.books.log(event, fields)
    }
}
