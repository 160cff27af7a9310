//! A conversation, handed from one program to the next that this process becomes.

use super::parking::Parking;
use super::run::Inbox;
use super::seat::{Chair, Unsaid};
use super::{Connection, Ear, Life, Mouth, Shared, State, Wire};
use crate::books::Pulse;
use crate::bytes::Bytes;
use crate::mcp::frame::Frames;
use crate::mcp::mux::{Company, Mux, Port};
use crate::mcp::queue::{Parcels, Queue};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{Notify, watch};

/// Everything about a conversation that has no run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Carried {
    capabilities: Map<String, Value>,
    company: Company,
    asleep: bool,
    wanted: bool,
    parting: bool,
    mux: Mux,
    /// What waits for the server. What is empty says that nothing more comes.
    to_server: Vec<Bytes>,
    /// What waits for each client and is not with its ear.
    ports: Vec<Port>,
    parking: Parking,
    silent: Duration,
    pulse: Option<RawFd>,
}

/// A server's streams, and what is on its way in them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Way {
    input: Option<RawFd>,
    output: RawFd,
    said: Said,
}

/// What a server has said.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Said {
    /// What is not a whole line yet.
    heard: Bytes,
    undelivered: Vec<(Port, Bytes)>,
}

/// A client's place, and what waits for it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    port: Port,
    unsaid: Option<Bytes>,
    told: Vec<Bytes>,
    to_client: Vec<Bytes>,
}

impl Connection {
    /// For the next program. `None` while there is a run, requests of our own, or nothing any more.
    pub(crate) fn carry(&self, keep: &mut Vec<RawFd>) -> Option<Carried> {
        let shared = &*self.0;
        let mut parcels = shared.parcels.try_lock().ok()?;
        let state = shared.lock();
        if !state.open || !state.waiting.is_empty() {
            return None;
        }
        let pulse = state.pulse.as_ref().map(|pulse| pulse.as_fd().as_raw_fd());
        keep.extend(pulse);
        Some(Carried {
            capabilities: shared.capabilities.clone(),
            company: shared.company,
            asleep: state.asleep,
            wanted: state.wanted,
            parting: state.parting,
            mux: state.mux.again()?,
            to_server: waiting(&mut parcels),
            ports: state.ports.keys().copied().collect(),
            parking: state.parking.clone(),
            silent: state.last.elapsed(),
            pulse,
        })
    }

    /// The same from the program before. Its clients are still to [sit down](Connection::sit_again).
    pub(crate) fn carried(from: Carried) -> Connection {
        let (queue, parcels) = Queue::new();
        from.to_server.into_iter().for_each(|line| queue.restore(line.0));
        let now = Instant::now();
        let pulse = from.pulse.and_then(contain::inherited).and_then(Pulse::again);
        let ports = from.ports.into_iter().map(|port| (port, Queue::new().0));
        let state = State {
            open: true,
            asleep: from.asleep,
            wanted: from.wanted,
            parting: from.parting,
            mux: from.mux,
            waiting: BTreeMap::new(),
            ports: ports.collect(),
            parking: from.parking,
            last: now.checked_sub(from.silent).unwrap_or(now),
            pulse,
        };
        state.beat();
        Connection(Arc::new(Shared {
            capabilities: from.capabilities,
            company: from.company,
            state: Mutex::new(state),
            queue,
            parcels: tokio::sync::Mutex::new(parcels),
            wanted: Notify::new(),
            company_changed: Notify::new(),
            tools_changed: watch::Sender::new(0),
            heard: Notify::new(),
            life: watch::Sender::new(Life::Open),
        }))
    }

    /// A client's place, as it was. `None` if there is none.
    pub(crate) fn sit_again(&self, from: Place) -> Option<(Mouth, Ear)> {
        let (queue, parcels) = Queue::new();
        from.to_client.into_iter().for_each(|line| queue.restore(line.0));
        let known = self.0.lock().ports.get_mut(&from.port).map(|known| *known = queue.clone());
        known?;
        let chair = Chair {
            shared: Arc::clone(&self.0),
            port: from.port,
            queue,
            left: AtomicBool::new(false),
        };
        // What was lent before may have room now. Then nobody takes anything lent, by which what has waited for
        // that would go on.
        chair.go_on();
        let chair = Arc::new(chair);
        let told = from.told.into_iter().map(|line| line.0).collect();
        let unsaid = Unsaid { line: from.unsaid.map(|line| line.0), told };
        Some((Mouth { chair: chair.clone(), unsaid }, Ear { chair, parcels }))
    }

    /// Whoever had a place and has not sat down again has left.
    pub(crate) fn only(&self, seated: &[Port]) {
        let ports: Vec<Port> = self.0.lock().ports.keys().copied().collect();
        for port in ports.into_iter().filter(|port| !seated.contains(port)) {
            self.0.part_with(port);
        }
    }

    /// The same without a list: whoever had a place and hears nothing has left.
    pub(crate) fn only_seated(&self) {
        let state = self.0.lock();
        let deaf = state.ports.iter().filter(|(_, queue)| queue.is_deaf());
        let deaf: Vec<Port> = deaf.map(|(port, _)| *port).collect();
        drop(state);
        for port in deaf {
            self.0.part_with(port);
        }
    }

    /// A new way to and from a server of the pool, of which this was heard already.
    pub(crate) fn way_by<I, O>(&self, input: I, output: O, said: Said) -> Wire<I, O> {
        Wire { input: Some(input), output, inbox: Inbox::carried(said) }
    }

    /// The way to and from a server, as it was.
    pub(crate) fn way(&self, from: Way) -> Option<Wire<Sender, Receiver>> {
        let taken = |number| contain::inherited(number);
        let input = match from.input {
            Some(input) => Some(Sender::from_owned_fd(taken(input)?).ok()?),
            None => None,
        };
        let output = Receiver::from_owned_fd(taken(from.output)?).ok()?;
        Some(Wire { input, output, inbox: Inbox::carried(from.said) })
    }
}

impl<I, O> Wire<I, O> {
    /// For the next program: what was heard and is not where it is to be.
    pub(crate) fn said(&self) -> Said {
        self.inbox.carry()
    }
}

impl Wire<Sender, Receiver> {
    /// For the next program.
    pub(crate) fn carry(&self, keep: &mut Vec<RawFd>) -> Way {
        let input = self.input.as_ref().map(AsRawFd::as_raw_fd);
        let output = self.output.as_raw_fd();
        keep.extend(input);
        keep.push(output);
        Way { input, output, said: self.inbox.carry() }
    }
}

impl Inbox {
    fn carry(&self) -> Said {
        let undelivered = self.undelivered.iter();
        Said {
            heard: Bytes(self.frames.waiting().into()),
            undelivered: undelivered.map(|(port, line)| (*port, Bytes(line.clone()))).collect(),
        }
    }

    fn carried(from: Said) -> Inbox {
        let undelivered = from.undelivered.into_iter().map(|(port, line)| (port, line.0)).collect();
        Inbox { frames: Frames::of(from.heard.0), undelivered }
    }
}

/// For the next program: a client's place, by both its halves or by one.
pub(crate) fn place(mouth: Option<&Mouth>, ear: &mut Ear) -> Place {
    let unsaid = mouth.map(|mouth| &mouth.unsaid);
    let told = unsaid.map(|unsaid| unsaid.told.iter().cloned().map(Bytes).collect());
    Place {
        port: ear.chair.port,
        unsaid: unsaid.and_then(|unsaid| unsaid.line.clone()).map(Bytes),
        told: told.unwrap_or_default(),
        to_client: waiting(&mut ear.parcels),
    }
}

impl Place {
    /// Whose it is.
    pub(crate) fn port(&self) -> Port {
        self.port
    }
}

impl Mouth {
    /// True if both are of one client.
    pub(crate) fn belongs_to(&self, ear: &Ear) -> bool {
        Arc::ptr_eq(&self.chair, &ear.chair)
    }
}

fn waiting(parcels: &mut Parcels) -> Vec<Bytes> {
    parcels.waiting().map(|line| Bytes(line.into())).collect()
}

#[cfg(test)]
mod tests;
