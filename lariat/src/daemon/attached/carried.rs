//! An attached client, handed from one program to the next that this process becomes.

use super::Attached;
use crate::bytes::Bytes;
use crate::daemon::lease::Line;
use crate::daemon::lease::carried::Held;
use crate::daemon::line::carried::stream;
use crate::id::SessionId;
use crate::mcp::connection::carried as conversation;
use crate::session::Session;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// An attached client.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) struct Carried {
    stream: RawFd,
    pub(in crate::daemon) line: Held,
    pub(in crate::daemon) session: SessionId,
    server: String,
    place: conversation::Place,
    /// What it has said that is not a whole line yet.
    heard: Bytes,
    said_all: bool,
    /// What it is told and has not taken.
    told: Bytes,
}

impl Attached {
    /// For the next program, while everything rests.
    pub(in crate::daemon) fn carry(&mut self, keep: &mut Vec<RawFd>) -> Carried {
        let stream = self.stream.as_raw_fd();
        keep.push(stream);
        Carried {
            stream,
            line: self.line.carry(),
            session: self.session.clone(),
            server: self.server.clone(),
            place: conversation::place(Some(&self.mouth), &mut self.ear),
            heard: Bytes(self.frames.waiting().into()),
            said_all: self.said_all,
            told: Bytes(self.lines[self.written..].into()),
        }
    }

    /// The same from the program before, of this session. `None` if there is no such place any more.
    pub(in crate::daemon) fn carried(
        from: Carried,
        line: Arc<Line>,
        session: &Session,
    ) -> Option<Attached> {
        let stream = stream(from.stream).ok()?;
        let place = session.sit_again(&from.server, from.place)?;
        let whose = (from.session, from.server);
        let attached = Attached::new((stream, from.heard.0), line, whose, place);
        Some(Attached { said_all: from.said_all, lines: from.told.0, ..attached })
    }
}
