//! A pool, handed from one program to the next that this process becomes.
//!
//! First everything [rests](Pool::rest): each process's task leaves what it holds where it can be found,
//! and nothing is read, written or decided any more. Then all of it is written down, with the numbers of
//! the descriptors; the next program reads it and goes on. If there is no next program after all, the tasks
//! take back what they left.

use super::drive::{Begin, Run, drive};
use super::hub::{Hub, Inner as HubInner, Place, Resting};
use super::key::Key;
use super::seat::{Ear, Listening, Mouth, Over, Seat};
use super::verdict::{Terms, Verdict};
use super::{Config, Environment, Pool, Server, Table, Want};
use crate::bytes::Bytes;
use crate::id::SessionId;
use crate::mcp::connection::carried as conversation;
use crate::mcp::{Connection, Port, hazard};
use crate::receipt::Receipt;
use crate::spec::{ServerSpec, Share};
use crate::start::talk::{self, Departure, Talk};
use contain::Member;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch;

/// A whole pool.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Carried {
    id: SessionId,
    hubs: Vec<Process>,
    unfit: Vec<(Same, bool, String)>,
    /// Holders that have been let go of and have not left yet.
    leaving: Vec<i32>,
}

/// What clients must want alike.
#[derive(Debug, Serialize, Deserialize)]
struct Same {
    server: Wanted,
    principal: String,
    share: Share,
    program: super::key::Program,
}

/// A server, as those who want it say.
#[derive(Debug, Serialize, Deserialize)]
struct Wanted {
    name: String,
    spec: ServerSpec,
    environment: Option<(Vec<(Bytes, Bytes)>, u32)>,
}

/// A process, or one that sleeps.
#[derive(Debug, Serialize, Deserialize)]
struct Process {
    key: Same,
    host: Option<(i32, u64)>,
    linger: Duration,
    terms: Terms,
    verdict: Verdict,
    age: Duration,
    visitors: usize,
    spare: bool,
    ready: bool,
    past: (Vec<Receipt>, bool),
    connection: conversation::Carried,
    run: Option<Running>,
}

/// A process that runs.
#[derive(Debug, Serialize, Deserialize)]
struct Running {
    talk: talk::Carried,
    way: conversation::Way,
    unused: Option<Duration>,
}

/// A client's seat.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sitting {
    server: Wanted,
    principal: String,
    share: Share,
    host: Option<(i32, u64)>,
    linger: Duration,
    /// What is to be said first of all.
    unsaid: Option<Bytes>,
    /// Where it is, by the process's place in the list.
    place: Option<(usize, conversation::Place)>,
    /// Where it is about to be.
    joining: Option<(usize, conversation::Place)>,
    /// Where it was, and still hears what was said there.
    before: Option<(usize, conversation::Place)>,
}

/// The processes of a pool that was carried, before they are driven.
#[derive(Debug)]
pub(crate) struct Hubs {
    hubs: Vec<(Arc<Hub>, Option<Running>)>,
    /// Who sits where.
    seated: Vec<Vec<Port>>,
}

impl Pool {
    /// Has everything stay as it is, or go on.
    pub(crate) fn rest(&self, rest: bool) {
        self.0.rest.send_replace(rest);
    }

    /// True if there is no process whose task is in the middle of something.
    pub(crate) fn rests(&self) -> bool {
        self.0.table().hubs.iter().all(|hub| hub.resting().is_some())
    }

    /// True if no process is being started or ended.
    pub(crate) fn is_settled(&self) -> bool {
        let table = self.0.table();
        !table.closing && table.hubs.iter().all(|hub| hub.is_settled())
    }

    /// Waits until one more rests.
    pub(crate) async fn rested(&self) {
        self.0.rested.notified().await;
    }

    /// How many seats its processes have.
    pub(crate) fn seats(&self) -> usize {
        self.0.table().hubs.iter().map(|hub| hub.sessions()).sum()
    }

    /// For the next program, while it rests. `None` if something cannot be handed over.
    pub(crate) fn carry(&self, keep: &mut Vec<RawFd>) -> Option<Carried> {
        let table = self.0.table();
        let hubs = table.hubs.iter().map(|hub| hub.carry(keep)).collect::<Option<Vec<_>>>()?;
        let unfit = table.unfit.iter();
        Some(Carried {
            id: self.0.id.clone(),
            hubs,
            unfit: unfit.map(|(key, era, why)| (key.carry(), *era, (*why).to_owned())).collect(),
            leaving: crate::start::local::leaving(),
        })
    }

    /// The same from the program before. Nothing goes on before its clients sit again.
    pub(crate) fn carried(config: Config, from: Carried) -> io::Result<(Pool, Hubs)> {
        let pool = Pool::with_id(config, from.id)?;
        for pid in from.leaving {
            // To be reaped when they have left.
            drop(crate::start::local::Holder::inherited(Some(pid)));
        }
        let hubs: Vec<_> = from.hubs.into_iter().map(Hub::carried).collect();
        let unfit = |(key, era, why): (Same, bool, String)| {
            let key = Key::carried(key);
            (key, era, hazard(&why))
        };
        *pool.0.table() = Table {
            hubs: hubs.iter().map(|(hub, _)| hub.clone()).collect(),
            unfit: from.unfit.into_iter().map(unfit).collect(),
            ..Table::default()
        };
        pool.0.hubs.send_replace(hubs.len());
        pool.0.started.store(true, Ordering::Relaxed);
        let seated = vec![Vec::new(); hubs.len()];
        Ok((pool, Hubs { hubs, seated }))
    }

    /// A client's seat, as it was.
    pub(crate) fn sit_again(&self, hubs: &mut Hubs, from: Sitting) -> Seat {
        let mut sit = |at: Option<(usize, conversation::Place)>| {
            let (at, place) = at?;
            let (hub, port) = (hubs.hubs.get(at)?.0.clone(), place.port());
            let (mouth, ear) = hub.connection.sit_again(place)?;
            hubs.seated[at].push(port);
            Some(Place { hub, mouth, ear })
        };
        let (place, joining) = (sit(from.place), sit(from.joining));
        let before = sit(from.before).map(|place| (place.hub, place.ear));
        let listen = |(hub, ear)| Listening { pool: self.clone(), hub, ear: Some(ear) };
        let (place, listening) = match place {
            Some(Place { hub, mouth, ear }) => (Some((hub.clone(), mouth)), Some((hub, ear))),
            None => (None, before),
        };
        let (turns, taken) = unbounded_channel();
        let want = Want {
            server: Arc::new(from.server.into()),
            principal: from.principal.into(),
            share: from.share,
            host: from.host.map(|(pid, start)| Member { pid, start }),
            linger: from.linger,
        };
        let unsaid = from.unsaid.map(|line| line.0);
        Seat {
            mouth: Mouth { pool: self.clone(), want, unsaid, joining, place, turns },
            ear: Ear { turns: Some(taken), listening: listening.map(listen), over: None },
        }
    }

    /// Goes on with everything: its clients sit again.
    pub(crate) fn go_on(&self, Hubs { hubs, seated }: Hubs) {
        for ((hub, running), seated) in hubs.into_iter().zip(seated) {
            hub.connection.only(&seated);
            let household = Arc::new(self.0.household(&hub));
            let begin = match running {
                None => Some(Begin::Asleep),
                Some(Running { talk, way, unused }) => {
                    let talk = Talk::carried(&household, talk).ok();
                    let run = talk.zip(hub.connection.way(way)).map(|(talk, wire)| {
                        let mut inner = hub.inner();
                        (inner.leash, inner.trace) = (Some(talk.leash()), Some(talk.trace()));
                        let now = Instant::now();
                        let since = unused.map(|time| now.checked_sub(time).unwrap_or(now));
                        Run { talk, wire, empty_since: since }
                    });
                    run.map(|run| Begin::Running(Box::new(run)))
                }
            };
            match begin {
                Some(begin) => {
                    let pool = Arc::downgrade(&self.0);
                    tokio::spawn(drive(hub, household, pool, begin));
                }
                // Its descriptors were not there; what it held has ended, or ends now.
                None => {
                    hub.fail(Over { why: "it was lost on the way".into(), code: super::hub::TOLD });
                    let unaccounted = Departure { unaccounted: true, ..Departure::default() };
                    hub.gone.send_replace(Some(unaccounted));
                    self.0.forget(&hub);
                }
            }
        }
    }
}

impl Seat {
    /// For the next program, of the same pool, while everything rests. `lines` are added to that it was
    /// told and that are nowhere else. `None` if it cannot be handed over.
    pub(crate) fn carry(mouth: &Mouth, ear: &mut Ear, lines: &mut Vec<u8>) -> Option<Sitting> {
        ear.settle(lines);
        if ear.over().is_some() {
            return None;
        }
        let table = mouth.pool.0.table();
        let at = |hub: &Arc<Hub>| table.hubs.iter().position(|other| Arc::ptr_eq(other, hub));
        let mut sitting = Sitting {
            server: Wanted::of(&mouth.want.server),
            principal: (*mouth.want.principal).into(),
            share: mouth.want.share,
            host: mouth.want.host.map(|host| (host.pid, host.start)),
            linger: mouth.want.linger,
            unsaid: mouth.unsaid.clone().map(Bytes),
            place: None,
            joining: None,
            before: None,
        };
        match (&mouth.place, ear.heard_at()) {
            (Some((hub, mouth)), Some((there, ear))) => {
                if !Arc::ptr_eq(hub, there) || !mouth.belongs_to(ear) {
                    return None;
                }
                sitting.place = Some((at(hub)?, conversation::place(Some(mouth), ear)));
            }
            (Some(_), None) => return None,
            (None, Some((there, ear))) => {
                sitting.before = Some((at(there)?, conversation::place(None, ear)));
            }
            (None, None) => {}
        }
        Some(sitting)
    }

    /// The rest of it: where it is about to be.
    pub(crate) fn carry_joining(mouth: &mut Mouth, sitting: &mut Sitting) -> bool {
        let Some(Place { hub, mouth: half, ear }) = &mut mouth.joining else { return true };
        let table = mouth.pool.0.table();
        let at = table.hubs.iter().position(|other| Arc::ptr_eq(other, hub));
        sitting.joining = at.map(|at| (at, conversation::place(Some(half), ear)));
        sitting.joining.is_some()
    }
}

impl Sitting {
    /// How many places it has.
    pub(crate) fn places(&self) -> usize {
        [&self.place, &self.joining, &self.before].iter().filter(|place| place.is_some()).count()
    }
}

impl Hub {
    /// True if it is neither being started nor ended.
    fn is_settled(&self) -> bool {
        matches!(self.inner().state, "ready" | "asleep") && self.is_open()
    }

    fn carry(&self, keep: &mut Vec<RawFd>) -> Option<Process> {
        let resting = self.resting();
        let run = match resting.as_ref()? {
            Resting::Asleep => None,
            Resting::Running(run) => Some(Running {
                talk: run.talk.carry(keep)?,
                way: run.wire.carry(keep),
                unused: run.empty_since.map(|since| since.elapsed()),
            }),
        };
        if !self.is_settled() {
            return None;
        }
        let inner = self.inner();
        Some(Process {
            key: self.key.carry(),
            host: self.host.map(|host| (host.pid, host.start)),
            linger: self.linger,
            terms: inner.terms.clone(),
            verdict: inner.verdict.clone(),
            age: inner.since.elapsed(),
            visitors: self.visitors.load(Ordering::Relaxed),
            spare: self.spare.load(Ordering::Relaxed),
            ready: *self.ready.borrow(),
            past: (inner.past.receipts.clone(), inner.past.unaccounted),
            connection: self.connection.carry(keep)?,
            run,
        })
    }

    fn carried(from: Process) -> (Arc<Hub>, Option<Running>) {
        let (key, now) = (Key::carried(from.key), Instant::now());
        let (receipts, unaccounted) = from.past;
        let hub = Hub {
            server: key.server().clone(),
            host: from.host.map(|(pid, start)| Member { pid, start }),
            linger: from.linger,
            key,
            connection: Connection::carried(from.connection),
            inner: Mutex::new(HubInner {
                terms: from.terms,
                verdict: from.verdict,
                state: if from.run.is_some() { "ready" } else { "asleep" },
                leash: None,
                trace: None,
                since: now.checked_sub(from.age).unwrap_or(now),
                let_go: false,
                past: Departure { receipts, unaccounted },
            }),
            resting: Mutex::default(),
            visitors: AtomicUsize::new(from.visitors),
            spare: AtomicBool::new(from.spare),
            struck: AtomicBool::new(false),
            parted: watch::Sender::new(None),
            told: watch::Sender::new(false),
            ready: watch::Sender::new(from.ready),
            over: watch::Sender::new(None),
            gone: watch::Sender::new(None),
        };
        (Arc::new(hub), from.run)
    }
}

impl Key {
    fn carry(&self) -> Same {
        let (principal, share, program) = self.rest();
        let server = Wanted::of(self.server());
        Same { server, principal: principal.into(), share, program: program.clone() }
    }

    fn carried(from: Same) -> Key {
        Key::again(Arc::new(from.server.into()), from.principal.into(), from.share, from.program)
    }
}

impl Wanted {
    fn of(server: &Server) -> Wanted {
        let bytes = |word: &OsString| Bytes(word.clone().into_vec());
        let environment = server.environment.as_ref().map(|around| {
            let variables = around.variables.iter();
            (variables.map(|(name, value)| (bytes(name), bytes(value))).collect(), around.umask)
        });
        Wanted { name: server.name.clone(), spec: server.spec.clone(), environment }
    }
}

impl From<Wanted> for Server {
    fn from(from: Wanted) -> Server {
        let word = |bytes: Bytes| OsString::from_vec(bytes.0);
        let environment = from.environment.map(|(variables, umask)| {
            let variables = variables.into_iter();
            let variables = variables.map(|(name, value)| (word(name), word(value))).collect();
            Environment { variables, umask }
        });
        Server { name: from.name, spec: from.spec, environment }
    }
}
