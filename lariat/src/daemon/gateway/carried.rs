//! What clients by HTTP have, handed from one program to the next that this process becomes.

use super::blend::{Blend, Out};
use super::many::{Between, Number, Place};
use super::modern::Call;
use super::seat::{Ear, From, Mouth};
use super::session::{Listening, Resting, Session};
use super::spring::{Source, Spring};
use super::streams::Streams;
use super::{Course, Gateway};
use crate::bytes::Bytes;
use crate::daemon::web::Busy;
use crate::pool::carried::{Hubs, Sitting};
use crate::pool::{self, Seat};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use tokio::sync::mpsc;

/// A legacy client's session.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) struct Carried {
    id: String,
    server: String,
    principal: String,
    version: String,
    /// How long nobody has used it.
    unused: Duration,
    streams: Streams,
    seat: AnySeat,
}

/// A client's seat.
#[derive(Debug, Serialize, Deserialize)]
struct AnySeat {
    unheard: Vec<Bytes>,
    at: At,
}

#[derive(Debug, Serialize, Deserialize)]
enum At {
    One(Box<Sitting>),
    All(Box<Everywhere>),
}

/// A seat at all servers.
#[derive(Debug, Serialize, Deserialize)]
struct Everywhere {
    blend: Blend,
    places: Vec<Option<Seated>>,
    untold: Vec<Bytes>,
}

/// A seat at one of all servers.
#[derive(Debug, Serialize, Deserialize)]
struct Seated {
    sitting: Sitting,
    unsaid: Vec<Bytes>,
}

/// Where a stream of events comes from.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) enum CarriedSource {
    /// This session's stream, after this event.
    Session { session: String, stream: u64, after: u64, primed: Option<u64> },
    /// A request of a modern client.
    Call(Box<CarriedCall>),
}

#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) struct CarriedCall {
    id: String,
    seat: AnySeat,
}

impl Carried {
    /// How many places in the pool it has.
    pub(in crate::daemon) fn places(&self) -> usize {
        self.seat.places()
    }
}

impl CarriedSource {
    /// The same.
    pub(in crate::daemon) fn places(&self) -> usize {
        match self {
            CarriedSource::Session { .. } => 0,
            CarriedSource::Call(call) => call.seat.places(),
        }
    }
}

impl AnySeat {
    fn places(&self) -> usize {
        match &self.at {
            At::One(sitting) => sitting.places(),
            At::All(all) => all.places.iter().flatten().map(|place| place.sitting.places()).sum(),
        }
    }
}

impl Gateway {
    /// Has its sessions rest, or go on.
    pub(in crate::daemon) fn call_to_rest(&self, rest: bool) {
        self.rest.call(rest);
        self.betweens.call(rest);
    }

    /// True if all of them rest.
    pub(in crate::daemon) fn rests(&self) -> bool {
        self.rest.is_complete() && self.betweens.is_complete()
    }

    /// Its sessions for the next program, while everything rests. `None` if one cannot be handed over.
    pub(in crate::daemon) fn carry(&self) -> Option<Vec<Carried>> {
        self.rest.look(|resting| self.carry_session(resting)).into_iter().collect()
    }

    fn carry_session(&self, Resting { session, ear }: &mut Resting) -> Option<Carried> {
        // One that was told to leave does, as soon as it goes on.
        self.sessions().get(&session.id).filter(|known| Arc::ptr_eq(known, session))?;
        // Whoever speaks has come to rest before.
        let mut mouth = session.mouth.try_lock().ok()?;
        Some(Carried {
            id: session.id.clone(),
            server: session.server.clone(),
            principal: (*session.principal).into(),
            version: session.version().to_owned(),
            unused: session.unused(),
            streams: session.streams().again()?,
            seat: self.carry_seat(&mut mouth, ear)?,
        })
    }

    fn carry_seat(&self, mouth: &mut Mouth, ear: &mut Ear) -> Option<AnySeat> {
        let at = match (mouth, &mut ear.from) {
            (Mouth::One(mouth), From::One(own)) => {
                let (sitting, lines) = carry_one(mouth, own)?;
                ear.unheard.extend(lines);
                At::One(Box::new(sitting))
            }
            (Mouth::All(number, _), From::All(lines)) => {
                ear.unheard.extend(std::iter::from_fn(|| lines.try_recv().ok()));
                self.carry_between(*number)?
            }
            _ => return None,
        };
        Some(AnySeat { unheard: written(&ear.unheard), at })
    }

    fn carry_between(&self, number: Number) -> Option<At> {
        let its = |between: &mut Between| (between.number == number).then(|| between.carry());
        self.betweens.look(its).into_iter().flatten().next()?
    }

    /// Where a stream of events comes from, for the next program.
    pub(in crate::daemon) fn carry_source(&self, source: &mut Source) -> Option<CarriedSource> {
        Some(match source {
            Source::Session(Listening { reading, primed, .. }) => CarriedSource::Session {
                session: reading.session.id.clone(),
                stream: reading.reader.stream,
                after: reading.session.streams().taken(&reading.reader)?,
                primed: *primed,
            },
            Source::Call(call) => {
                let Call { id, mouth, ear } = &mut **call;
                let seat = self.carry_seat(mouth, ear)?;
                CarriedSource::Call(Box::new(CarriedCall { id: id.clone(), seat }))
            }
        })
    }

    /// A session of the program before goes on. One whose server is not offered any more could not be
    /// reached, and ends.
    pub(in crate::daemon) fn take_over(self: &Arc<Self>, from: Carried, hubs: &mut Hubs) {
        let (mouth, ear) = self.sit_again(from.seat, hubs);
        if !from.server.is_empty() && !self.servers.contains_key(&from.server) {
            return;
        }
        let principal = from.principal.into();
        let session = Session::with(from.id, from.server, principal, mouth, from.streams);
        session.greeted(from.version);
        session.was_unused(from.unused);
        self.admit(Arc::new(session), ear);
    }

    /// A stream of events goes on, if it can.
    pub(in crate::daemon) fn source(&self, from: CarriedSource, hubs: &mut Hubs) -> Option<Source> {
        match from {
            CarriedSource::Session { session, stream, after, primed } => {
                let session = self.sessions().get(&session).cloned()?;
                let reading = session.attach(stream, Some(after))?;
                Some(Source::Session(Listening { reading, _usage: session.in_use(), primed }))
            }
            CarriedSource::Call(call) => {
                let CarriedCall { id, seat } = *call;
                let (mouth, ear) = self.sit_again(seat, hubs);
                Some(Source::Call(Box::new(Call { id, mouth, ear })))
            }
        }
    }

    fn sit_again(&self, from: AnySeat, hubs: &mut Hubs) -> (Mouth, Ear) {
        let (mouth, mut ear) = match from.at {
            At::One(sitting) => {
                let (mouth, ear) = self.pool.sit_again(hubs, *sitting).split();
                (Mouth::One(Box::new(mouth)), Ear::new(From::One(Box::new(ear))))
            }
            At::All(all) => {
                let Everywhere { blend, places, untold } = *all;
                let mut again = |seated: Seated| {
                    let mut place = Place::new(self.pool.sit_again(hubs, seated.sitting));
                    place.unsaid = read(seated.unsaid);
                    place
                };
                let places = places.into_iter().map(|place| place.map(&mut again)).collect();
                let (mut between, ends) = Between::new(blend, places);
                between.untold = read(untold);
                self.stand_between(between);
                ends.into()
            }
        };
        ear.unheard = read(from.unheard);
        (mouth, ear)
    }

    /// A way for events to a connection that has rested.
    pub(in crate::daemon) fn pour(
        &self,
        source: Source,
        spring: Arc<Spring>,
        busy: Busy,
    ) -> mpsc::Receiver<hyper::body::Bytes> {
        let (lines, receiver) = mpsc::channel(super::IN_FLIGHT);
        let course: Course = self.course(lines, spring, busy);
        tokio::spawn(source.flow(course));
        receiver
    }
}

impl Between {
    fn carry(&mut self) -> Option<At> {
        let mut places = Vec::new();
        let mut late = Vec::new();
        for server in 0..self.places.len() {
            let Some(Place { mouth, ear, unsaid }) = &mut self.places[server] else {
                places.push(None);
                continue;
            };
            let (sitting, lines) = carry_one(mouth, ear)?;
            places.push(Some(Seated { sitting, unsaid: written(unsaid) }));
            late.extend(lines.into_iter().map(|line| (server, line)));
        }
        for (server, line) in late {
            let Out { to_servers, to_client } = self.blend.server_says(server, &line);
            self.untold.extend(to_client);
            for (whom, line) in to_servers {
                if let Some(place) = self.places.get_mut(whom).and_then(Option::as_mut) {
                    place.unsaid.push_back(line.clone());
                }
                if let Some(seated) = places.get_mut(whom).and_then(Option::as_mut) {
                    seated.unsaid.push(Bytes(line));
                }
            }
        }
        // What can be written down can be read again.
        let blend = serde_json::from_slice(&serde_json::to_vec(&self.blend).ok()?).ok()?;
        let untold = written(&self.untold);
        Some(At::All(Box::new(Everywhere { blend, places, untold })))
    }
}

/// A seat at one server, and what it was told that is nowhere else.
fn carry_one(mouth: &mut pool::Mouth, ear: &mut pool::Ear) -> Option<(Sitting, Vec<Vec<u8>>)> {
    let mut lines = Vec::new();
    let mut sitting = Seat::carry(mouth, ear, &mut lines)?;
    if !Seat::carry_joining(mouth, &mut sitting) {
        return None;
    }
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Some((sitting, lines.map(<[u8]>::to_vec).collect()))
}

fn written(lines: &VecDeque<Vec<u8>>) -> Vec<Bytes> {
    lines.iter().map(|line| Bytes(line.clone())).collect()
}

fn read(lines: Vec<Bytes>) -> VecDeque<Vec<u8>> {
    lines.into_iter().map(|line| line.0).collect()
}

impl Spring {
    /// True if the source rests here and everything that it has said was taken. If not, this one is woken
    /// when it may be so.
    pub(in crate::daemon) fn is_still(&self, waker: &Waker) -> bool {
        let mut still = self.still();
        let is_still = still
            .source
            .as_ref()
            .is_some_and(|(_, lines)| lines.capacity() == lines.max_capacity());
        if !is_still {
            still.waker = Some(waker.clone());
        }
        is_still
    }

    /// The source.
    pub(in crate::daemon) fn take(&self) -> Option<Source> {
        self.still().source.take().map(|(source, _)| source)
    }
}
