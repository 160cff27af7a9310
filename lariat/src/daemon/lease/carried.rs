//! What sessions hang on, handed from one program to the next that this process becomes.

use super::{Lease, Line, NEXT, Watched};
use crate::daemon::api;
use contain::Member;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};

/// What a session hangs on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::daemon) struct Kept {
    owner: api::Owner,
    member: Option<(i32, u64)>,
    /// It ends with that process.
    process: bool,
    /// It ends with the connection of this number.
    line: Option<u64>,
}

/// A connection, without what is said by it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(in crate::daemon) struct Held {
    /// By which it is known.
    pub(in crate::daemon) number: u64,
    peer: Option<(i32, u64)>,
}

/// The connections that there are again.
pub(in crate::daemon) type Lines = BTreeMap<u64, Arc<Line>>;

impl Line {
    /// For the next program.
    pub(in crate::daemon) fn carry(&self) -> Held {
        Held { number: self.number, peer: self.peer.map(|peer| (peer.pid, peer.start)) }
    }

    /// The same from the program before.
    pub(in crate::daemon) fn carried(
        from: Held,
        permit: OwnedSemaphorePermit,
        changed: Arc<Notify>,
    ) -> Line {
        NEXT.fetch_max(from.number + 1, Ordering::Relaxed);
        let peer = from.peer.map(|(pid, start)| Member { pid, start });
        Line::numbered(from.number, peer, permit, changed)
    }
}

impl Lease {
    /// For the next program.
    pub(in crate::daemon) fn carry(&self) -> Kept {
        Kept {
            owner: self.owner.clone(),
            member: self.member.map(|member| (member.pid, member.start)),
            process: self.process.is_some(),
            line: self.line,
        }
    }

    /// The same from the program before. Of what is not there any more, the end is seen at once.
    pub(in crate::daemon) fn carried(from: Kept, lines: &Lines) -> Lease {
        let member = from.member.map(|(pid, start)| Member { pid, start });
        let open = |number| match lines.get(&number) {
            Some(line) => line.open.subscribe(),
            None => watch::Sender::new(()).subscribe(),
        };
        Lease {
            owner: from.owner,
            member,
            process: member.filter(|_| from.process).map(Watched::maybe),
            connection: from.line.map(open),
            line: from.line,
        }
    }
}
