//! The event log: one line for everything that happens to a session, and to what is found.

use super::{Books, Entry};
use crate::id::SessionId;
use crate::journal::{Journal, predecessor};
use crate::moment;
use crate::receipt::Receipt;
use serde::Serialize;
use std::path::PathBuf;
use std::time::SystemTime;
use std::{fs, io};

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

    /// The last receipt of a session that the log still has.
    pub fn last_receipt(&self, session: &SessionId) -> Option<Receipt> {
        let found = |path: PathBuf| {
            let text = fs::read(path).ok()?;
            let text = String::from_utf8_lossy(&text);
            // Most lines are about others, and need not be understood.
            let lines = text.lines().rev().filter(|line| line.contains(session.as_str()));
            let mut receipts = lines.filter_map(|line| serde_json::from_str(line).ok());
            receipts.find(|receipt: &Receipt| receipt.session == *session)
        };
        found(self.events()).or_else(|| found(predecessor(&self.events())))
    }
}

impl Entry {
    /// Adds a line about the session.
    pub fn log(&self, event: &str, fields: &impl Serialize) -> io::Result<()> {
        self.books.log(event, fields)
    }
}
