//! A server's holder, handed from one program to the next that this process becomes.

use super::{Household, Place, Started, Talk, Trace};
use crate::bytes::Bytes;
use crate::id::{ServerName, SessionId};
use crate::start::local::{Holder, Line};
use crate::start::wire::Brief;
use contain::{Ladder, Member};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is known of a server that runs, and by which descriptor it is held.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Carried {
    server: ServerName,
    line: RawFd,
    heard: Bytes,
    noted: Option<SessionId>,
    pid: i32,
    guardian: (i32, u64),
    backend: String,
    emptied: bool,
    exited: Option<String>,
    how: Option<String>,
    code: Option<u8>,
    holder: Option<i32>,
    /// How it is asked to leave, which was said when it was started.
    ladder: [Duration; 4],
}

impl Talk {
    /// For the next program. `None` if nothing runs, or not any more.
    pub(crate) fn carry(&self, keep: &mut Vec<RawFd>) -> Option<Carried> {
        let started = self.started.as_ref().filter(|_| !self.over && self.receipt.is_none())?;
        let (line, heard) = self.line.carry();
        keep.push(line);
        Some(Carried {
            server: self.server.clone(),
            line,
            heard: Bytes(heard.into()),
            noted: self.noted.clone(),
            pid: started.pid,
            guardian: (started.guardian.pid, started.guardian.start),
            backend: started.backend.clone(),
            emptied: self.emptied,
            exited: self.exited.clone(),
            how: self.how.clone(),
            code: self.code,
            holder: self.holder.as_ref().and_then(Holder::pid),
            ladder: Brief::rungs(&self.household.ladder),
        })
    }

    /// The same from the program before.
    pub(crate) fn carried(household: &Household, from: Carried) -> io::Result<Talk> {
        let line = contain::inherited(from.line).ok_or(io::ErrorKind::NotFound)?;
        let [grace, term_grace, linger, look] = from.ladder;
        let household = Household {
            id: household.id.clone(),
            on_behalf: household.on_behalf,
            holder: household.holder.clone(),
            state_dir: household.state_dir.clone(),
            ladder: Ladder { grace, term_grace, linger, look },
            backend: household.backend,
            docker: household.docker.clone(),
            max_containers: household.max_containers,
            started: AtomicBool::new(true),
        };
        let (pid, start) = from.guardian;
        let guardian = Member { pid, start };
        let place = Place { guardian: Some(guardian), books: from.noted.clone() };
        Ok(Talk {
            household: Arc::new(household),
            trace: Arc::new(Trace(Mutex::new(place))),
            server: from.server,
            line: Line::carried(line, from.heard.0)?,
            noted: from.noted,
            started: Some(Started { pid: from.pid, guardian, backend: from.backend }),
            emptied: from.emptied,
            exited: from.exited,
            how: from.how,
            code: from.code,
            receipt: None,
            over: false,
            executed: true,
            holder: Some(Holder::inherited(from.holder)),
        })
    }
}
