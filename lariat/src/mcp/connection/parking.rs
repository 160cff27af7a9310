//! Requests that wait because their client has enough of them at the server already.
//!
//! A server takes one request after the other, and what one of several strangers has asked for stands
//! before what the others ask. So each has only so many there; the rest waits here. Whatever else a
//! client says goes by, taking back what waits included: otherwise a client that waits for its own
//! word to be heard would wait for ever.

use super::State;
use crate::bytes::Bytes;
use crate::mcp::envelope::{self, Line, Shape};
use crate::mcp::mux::{Port, Routed};
use crate::mcp::refusal;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// How many answers one of several strangers may wait for at the server.
const MOST: usize = 64;

/// Bytes that may wait here for one client. With more, it is not listened to.
const ROOM: usize = 1 << 20;

/// What waits, by client. Those for whom nothing does are not here.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Parking(BTreeMap<Port, Waiting>);

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Waiting {
    lines: VecDeque<(Box<str>, Bytes)>,
    bytes: usize,
}

/// What becomes of a line.
pub(super) enum Turn {
    /// It is to be passed on.
    Go(Vec<u8>),
    /// It waits here, or has been taken back.
    Parked,
    /// There is no room even here.
    Full(Vec<u8>),
}

impl State {
    /// Whether a client's line may go to the server now.
    pub(super) fn turn(&mut self, port: Port, line: Vec<u8>) -> Turn {
        let waiting = self.parking.0.get_mut(&port);
        if waiting.is_none() && self.mux.in_flight_of(port) < MOST {
            return Turn::Go(line);
        }
        let Line::One(envelope) = envelope::read(&line) else { return Turn::Go(line) };
        match (envelope.shape(), envelope.id) {
            (Shape::Request, Some(id)) => {
                let waiting = self.parking.0.entry(port).or_default();
                if waiting.bytes > ROOM {
                    return Turn::Full(line);
                }
                waiting.bytes += line.len();
                let id = id.get().into();
                waiting.lines.push_back((id, Bytes(line)));
                Turn::Parked
            }
            _ => {
                let taken_back = waiting.is_some_and(|waiting| waiting.takes_back(&envelope));
                if taken_back { Turn::Parked } else { Turn::Go(line) }
            }
        }
    }

    /// What may go on now, of this client's that waits.
    pub(super) fn next_of(&mut self, port: Port) -> Option<Routed> {
        if self.parking.0.is_empty() || self.mux.in_flight_of(port) >= MOST {
            return None;
        }
        let waiting = self.parking.0.get_mut(&port)?;
        let (_, Bytes(line)) = waiting.lines.pop_front()?;
        waiting.bytes -= line.len();
        if waiting.lines.is_empty() {
            self.parking.0.remove(&port);
        }
        Some(self.mux.port_says(port, line))
    }

    /// Has everything go on: nobody else is there for whose sake it would wait.
    pub(super) fn unpark(&mut self) -> Vec<Routed> {
        let all = std::mem::take(&mut self.parking.0).into_iter();
        let lines = all.flat_map(|(port, waiting)| {
            waiting.lines.into_iter().map(move |(_, Bytes(line))| (port, line))
        });
        lines.map(|(port, line)| self.mux.port_says(port, line)).collect()
    }

    /// True if something of anybody's waits here.
    pub(super) fn is_parked(&self) -> bool {
        !self.parking.0.is_empty()
    }

    /// It has left.
    pub(super) fn forget(&mut self, port: Port) {
        self.parking.0.remove(&port);
    }

    /// An answer for each that waits and will not be asked any more.
    pub(super) fn refuse_parked(&mut self, why: &str) -> Vec<(Port, Vec<u8>)> {
        let all = std::mem::take(&mut self.parking.0);
        let refused = |(port, waiting): (Port, Waiting)| {
            let refused = |(_, line): &(Box<str>, Bytes)| Some((port, refusal(&line.0, why)?));
            waiting.lines.iter().filter_map(refused).collect::<Vec<_>>()
        };
        all.into_iter().flat_map(refused).collect()
    }

    /// True if this client waits for an answer, here or at the server.
    pub(super) fn waits(&self, port: Port) -> bool {
        self.mux.waits(port) || self.parking.0.contains_key(&port)
    }
}

impl Waiting {
    /// Forgets a request that its client does not want any more, if it is one of these.
    fn takes_back(&mut self, envelope: &envelope::Envelope<'_>) -> bool {
        if envelope.method.as_deref() != Some("notifications/cancelled") {
            return false;
        }
        let request = envelope::Members::of(envelope.params).and_then(|params| params.request_id);
        let Some(request) = request else { return false };
        let Some(at) = self.lines.iter().position(|(id, _)| **id == *request.get()) else {
            return false;
        };
        if let Some((_, line)) = self.lines.remove(at) {
            self.bytes -= line.0.len();
        }
        true
    }
}
