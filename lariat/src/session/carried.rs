//! A session, handed from one program to the next that this process becomes.
//!
//! Everything [rests](super::rest) when it is written down. The next program makes the same session of it,
//! with the same name and the same processes; what has a place at one of its servers sits down again before
//! anything goes on.

use super::rest::{Course, Own, Rested, Resting, Shared};
use super::server::{Begin, Driver, View};
use super::shared::{Bridge, Ends};
use super::state::{Error, Ready, State};
use super::{Config, House, Manager, Session, Slot};
use crate::bytes::Bytes;
use crate::id::SessionId;
use crate::mcp::connection::{Ear, Mouth, carried as conversation};
use crate::mcp::{Connection, Frames, Hello};
use crate::pool::Seat;
use crate::pool::carried::{Hubs, Sitting};
use crate::receipt::Receipt;
use crate::spec::ServerSpec;
use crate::start::talk::{self, Departure, Talk};
use contain::Member;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// A whole session.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Carried {
    id: SessionId,
    name: Option<String>,
    on_behalf: Option<(i32, u64)>,
    servers: Vec<Server>,
}

/// One of its servers.
#[derive(Debug, Serialize, Deserialize)]
struct Server {
    name: String,
    spec: ServerSpec,
    crashes: u32,
    debts: Left,
    /// How long ago its last run began, and how long it has been what it is.
    began: Duration,
    since: Duration,
    kept: Kept,
}

/// How a server left.
#[derive(Debug, Serialize, Deserialize)]
struct Left(Vec<Receipt>, bool);

/// What there is of a server.
#[derive(Debug, Serialize, Deserialize)]
enum Kept {
    Own {
        ready: Introduced,
        talk: Box<talk::Carried>,
        connection: Box<conversation::Carried>,
        way: conversation::Way,
        /// Its tools are others than those that are known.
        stale: bool,
    },
    Shared {
        ready: Introduced,
        sitting: Box<Sitting>,
        /// What the session has said that is not a whole line yet.
        heard: Bytes,
        /// What it is told and has not taken.
        told: Bytes,
        connection: Box<conversation::Carried>,
        said: conversation::Said,
    },
    Pausing {
        attempt: u32,
        after: Duration,
        why: String,
        /// How much of the pause is left.
        rest: Duration,
        gone: Left,
    },
    Failed {
        why: String,
        gone: Left,
    },
}

/// How a server that can be called introduced itself.
#[derive(Debug, Serialize, Deserialize)]
struct Introduced {
    pid: i32,
    backend: String,
    name: Option<String>,
    version: Option<String>,
    protocol: String,
    modern: bool,
    tools: Vec<Box<RawValue>>,
}

impl Carried {
    /// How many places it has in the pool.
    pub(crate) fn places(&self) -> usize {
        let places = |server: &Server| match &server.kept {
            Kept::Shared { sitting, .. } => sitting.places(),
            _ => 0,
        };
        self.servers.iter().map(places).sum()
    }
}

impl Session {
    /// True if no server is being started or ended.
    pub(crate) fn is_settled(&self) -> bool {
        let is_settled = |view: &Arc<View>| {
            matches!(
                view.state(),
                State::Ready(_) | State::Failed { .. } | State::Restarting { .. }
            )
        };
        self.all().iter().all(is_settled)
    }

    /// True if each server stays as it is.
    pub(crate) fn rests(&self) -> bool {
        self.all().iter().all(|view| view.resting().is_some())
    }

    /// For the next program, while everything rests. `None` if something cannot be handed over.
    pub(crate) fn carry(&self, keep: &mut Vec<RawFd>) -> Option<Carried> {
        let house = self.house();
        let servers = self.all().iter().map(|view| view.carry(keep)).collect::<Option<_>>()?;
        Some(Carried {
            id: house.id().clone(),
            name: house.name.clone(),
            on_behalf: house.household.on_behalf.map(|one| (one.pid, one.start)),
            servers,
        })
    }

    /// A place at a server, once it is ready, for a client that is served line by line.
    pub(crate) async fn sit(&self, server: &str) -> Result<(Mouth, Ear), Error> {
        let view = self.view(server)?;
        let connection = self.ready(&view).await?;
        connection.sit().map_err(|e| self.explain(&view, e))
    }

    /// The same place as in the program before. `None` if there is none.
    pub(crate) fn sit_again(
        &self,
        server: &str,
        place: conversation::Place,
    ) -> Option<(Mouth, Ear)> {
        self.view(server).ok()?.connection()?.sit_again(place)
    }

    /// Whoever had a place and has not sat down again has left.
    pub(crate) fn only_seated(&self) {
        for connection in self.all().iter().filter_map(|view| view.connection()) {
            connection.only_seated();
        }
    }
}

impl View {
    fn carry(&self, keep: &mut Vec<RawFd>) -> Option<Server> {
        let mut rested = self.resting();
        let Rested { course, what } = rested.as_mut()?;
        let kept = match (what, self.state()) {
            (Resting::Running(own), State::Ready(ready)) => {
                let Own { talk, connection, wire, listed, .. } = &**own;
                Kept::Own {
                    ready: Introduced::of(&ready),
                    talk: Box::new(talk.carry(keep)?),
                    connection: Box::new(connection.carry(keep)?),
                    way: wire.carry(keep),
                    stale: *connection.tools_changed().borrow() != *listed,
                }
            }
            (Resting::Shared(shared), State::Ready(ready)) => {
                let Shared { bridge, connection, wire, .. } = &mut **shared;
                let Bridge { mouth, ear, frames, lines, written, .. } = bridge;
                let mut sitting = Seat::carry(mouth, ear, lines)?;
                if !Seat::carry_joining(mouth, &mut sitting) {
                    return None;
                }
                Kept::Shared {
                    ready: Introduced::of(&ready),
                    sitting: Box::new(sitting),
                    heard: Bytes(frames.waiting().into()),
                    told: Bytes(lines[*written..].into()),
                    connection: Box::new(connection.carry(keep)?),
                    said: wire.said(),
                }
            }
            (Resting::Pausing { until, gone }, State::Restarting { attempt, after, why }) => {
                let rest = until.saturating_duration_since(Instant::now());
                Kept::Pausing { attempt, after, why: why[..].into(), rest, gone: Left::of(gone) }
            }
            (Resting::Failed { gone }, State::Failed { why }) => {
                Kept::Failed { why: why[..].into(), gone: Left::of(gone) }
            }
            // It is about to be something else.
            _ => return None,
        };
        Some(Server {
            name: self.name.clone(),
            spec: (*self.spec()).clone(),
            crashes: course.crashes,
            debts: Left::of(&course.debts),
            began: course.began.elapsed(),
            since: self.place().2.elapsed(),
            kept,
        })
    }
}

impl Manager {
    /// A session of the program before. Nothing goes on before this task waits for something: by then, who
    /// has a place in it is to sit again.
    pub(crate) fn carried(
        config: Config,
        from: Carried,
        hubs: &mut Hubs,
    ) -> Result<Manager, Error> {
        let on_behalf = from.on_behalf.map(|(pid, start)| Member { pid, start });
        let config = Config { name: from.name, on_behalf, ..config };
        let manager = Manager::over(House::new(config, from.id)?);
        for server in from.servers {
            manager.add_again(server, hubs);
        }
        Ok(manager)
    }

    fn add_again(&self, from: Server, hubs: &mut Hubs) {
        let house = self.session().house();
        let view = View::new(&from.name, Arc::new(from.spec));
        let course =
            Course { crashes: from.crashes, debts: from.debts.into(), began: ago(from.began) };
        let resting = view.again(house, from.kept, hubs).unwrap_or_else(|| {
            // Its descriptors were not there; what it held has ended, or ends now.
            view.show(State::Failed { why: "it was lost on the way".into() });
            Resting::Failed { gone: Departure { unaccounted: true, ..Departure::default() } }
        });
        view.tie_again(&resting, ago(from.since));
        let view = Arc::new(view);
        let (orders, inbox) = mpsc::unbounded_channel();
        self.session().show(&view);
        self.slots().insert(from.name, Slot { orders, view: view.clone(), ending: false });
        let driver = Driver { view, house: house.clone(), orders: inbox, course };
        tokio::spawn(driver.drive(Begin::At(resting)));
    }
}

impl View {
    /// How it was. `None` if that is not there any more.
    fn again(&self, house: &House, kept: Kept, hubs: &mut Hubs) -> Option<Resting> {
        let (state, resting) = match kept {
            Kept::Own { ready, talk, connection, way, stale } => {
                let talk = Talk::carried(&house.household, *talk).ok()?;
                let connection = Connection::carried(*connection);
                let life = connection.only_run();
                let wire = connection.way(way)?;
                // The next has counted nothing yet.
                let listed = if stale { u64::MAX } else { 0 };
                let own = Own { talk, connection, life, wire, listed };
                (ready.state(), Resting::Running(Box::new(own)))
            }
            Kept::Shared { ready, sitting, heard, told, connection, said } => {
                let seat = house.pool.as_ref()?.sit_again(hubs, *sitting);
                let Ends { near: (writer, reader), far } = Ends::new();
                let mut bridge = Bridge::new(seat, far);
                (bridge.frames, bridge.lines) = (Frames::of(heard.0), told.0);
                let connection = Connection::carried(*connection);
                let life = connection.only_run();
                let wire = connection.way_by(writer, reader, said);
                let shared = Shared { bridge, connection, life, wire };
                (ready.state(), Resting::Shared(Box::new(shared)))
            }
            Kept::Pausing { attempt, after, why, rest, gone } => {
                let until = Instant::now() + rest;
                let state = State::Restarting { attempt, after, why: why.into() };
                (state, Resting::Pausing { until, gone: gone.into() })
            }
            Kept::Failed { why, gone } => {
                (State::Failed { why: why.into() }, Resting::Failed { gone: gone.into() })
            }
        };
        self.show(state);
        Some(resting)
    }
}

impl Introduced {
    fn of(ready: &Ready) -> Introduced {
        let Ready { pid, backend, hello, tools } = ready.clone();
        let Hello { name, version, protocol, era } = hello;
        Introduced { pid, backend, name, version, protocol, modern: era == "modern", tools }
    }

    fn state(self) -> State {
        let Introduced { pid, backend, name, version, protocol, modern, tools } = self;
        let era = if modern { "modern" } else { "legacy" };
        let hello = Hello { name, version, protocol, era };
        State::Ready(Arc::new(Ready { pid, backend, hello, tools }))
    }
}

impl Left {
    fn of(gone: &Departure) -> Left {
        Left(gone.receipts.clone(), gone.unaccounted)
    }
}

impl From<Left> for Departure {
    fn from(Left(receipts, unaccounted): Left) -> Departure {
        Departure { receipts, unaccounted }
    }
}

fn ago(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_sub(time).unwrap_or(now)
}
