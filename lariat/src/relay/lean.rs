//! What `lariat run` is told and what it leaves, on Windows and macOS.

use crate::books::{Entry, Settled};
use crate::id::ServerName;
use crate::receipt::{Reason, Receipt};
use crate::start::Plan;
use contain::{Exit, Ladder, Member, Report};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// What to run and how.
#[derive(Debug)]
pub struct Run {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its name in receipts and logs.
    pub server: ServerName,
    /// How it is asked to leave.
    pub ladder: Ladder,
    /// Where the receipt goes besides the event log.
    pub receipt: Option<PathBuf>,
    /// Where the books are.
    pub state_dir: PathBuf,
    /// Where its stderr log goes; `None` for the state directory.
    pub log_dir: Option<PathBuf>,
}

/// What a finished run leaves.
#[derive(Debug)]
pub struct Outcome {
    /// How the server ended, if that is known.
    pub exit: Option<Exit>,
    /// The receipt.
    pub receipt: Receipt,
    /// Why it could not be written where the user wants it.
    pub unwritten: Option<io::Error>,
}

impl Run {
    /// What is written down of it, for this host.
    pub(super) fn plan(&self, host: Option<Member>) -> Plan {
        Plan {
            server: self.server.clone(),
            within: None,
            host,
            state_dir: self.state_dir.clone(),
            log_dir: self.log_dir.clone(),
            receipt: self.receipt.clone(),
            sweep: true,
        }
    }
}

impl Outcome {
    /// Accounts for a session that has ended, in the books and where the user wants it.
    pub(super) fn settled(entry: Entry, reason: &Reason, report: &Report) -> Outcome {
        let Settled { receipt, unwritten } = entry.settle(reason, report);
        Outcome { exit: report.exit, receipt, unwritten }
    }
}
