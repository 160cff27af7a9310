//! The daemon: sessions for whoever can speak HTTP, on a socket that is one user's alone.
//!
//! [`run`] takes its socket and its ending from outside. A session ends with its owner: a process, or
//! the connection by which it was opened; there is no session without one. [`client`] is the same API
//! from the other end, [`api`] what goes between them.
//!
//! ```text
//! line, visit < flow < http       a connection by the socket, by TCP; requests on it; HTTP itself
//! routes, api < handle            which requests there are, and what each does (desk, telling, attached)
//! registry, lease, limits         sessions, what they hang on, how many there may be
//! terms                           what they have in common, how patient a daemon is, how it ends
//! gateway, config                 MCP by HTTP, and the file that says which servers
//! joining                         `run --share`
//! page, web, keys, connections    the browser's way in
//! outside, oauth                  other machines
//! lookout, picture, ledger,       what is seen, shown and counted;
//! metrics, machine, clerk         what this machine is, and what is written down
//! rest, handover, */carried       standing still, and becoming the next program
//! words                           what a process is told that joins, or that stands for a daemon
//! ```

pub mod api;
mod attached;
mod base64;
mod clerk;
pub mod client;
pub mod config;
mod connections;
mod desk;
mod flow;
mod gateway;
mod handle;
pub mod handover;
mod http;
pub mod joining;
mod keys;
mod lease;
mod ledger;
mod limits;
mod line;
mod lookout;
mod machine;
mod metrics;
mod oauth;
mod outside;
mod page;
mod picture;
mod registry;
mod rest;
mod routes;
mod telling;
mod terms;
mod visit;
mod web;
mod words;

pub use limits::Limits;
pub use oauth::Issuer;
use outside::Outside;
pub use outside::{Gate, Secured};
pub use terms::{Defaults, Farewell};
pub use web::{ADDRESS, Access, Door};

use crate::pool::Pool;
use crate::session::Config;
use api::Problem;
use contain::Member;
use desk::Desk;
use handover::{Estate, Inheritance};
use http::Places;
use hyper::body::Bytes;
use lease::Line;
use line::{Resting, Speaking};
use registry::Registry;
use rest::Rest;
use std::io;
use std::os::fd::RawFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use terms::{ACCEPT_AGAIN, CONNECTIONS, FIRST_REQUEST, LAST_ANSWER, REFUSALS, reached};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use web::Web;

/// How many hosts may have joined the pool. Each needs three descriptors.
const SEATS: usize = 16_384;

/// By what a daemon is known as the one that has its name, and what the one before has left to it.
#[derive(Debug)]
pub struct Name {
    /// The descriptor of the lock, which the next is to have as well.
    pub lock: RawFd,
    /// From the program that this process was before.
    pub inheritance: Option<Inheritance>,
}

/// Ways in beside the socket.
#[derive(Debug, Default)]
pub struct Doors {
    /// To the page, for this machine.
    pub page: Option<Door>,
    /// To the servers that are offered, for other machines.
    pub gate: Option<Gate>,
}

/// Serves, by these doors too, until `shutdown` is there or nobody has wanted anything for long
/// enough. All sessions have ended when it returns. If it is dropped, they end by their guardians.
/// Once `retired` is there, another daemon has the name: whoever is connected is served to the end,
/// and nobody else.
pub async fn run(
    listener: UnixListener,
    name: Name,
    doors: Doors,
    defaults: Defaults,
    shutdown: impl Future<Output = ()>,
    retired: impl Future<Output = ()>,
) -> io::Result<Farewell> {
    let idle = defaults.idle;
    let (pool, inherited) = match name.inheritance {
        None => (Pool::new(defaults.pool())?, None),
        Some(Inheritance { pool, heirs, kept, .. }) => {
            let (pool, hubs) = Pool::carried(defaults.pool(), pool)?;
            (pool, Some((hubs, heirs, kept)))
        }
    };
    let (asking, mut asked) = mpsc::channel(1);
    let defaults =
        Defaults { session: Config { pool: Some(pool.clone()), ..defaults.session }, ..defaults };
    let desk = Arc::new(Desk {
        registry: Arc::new(Registry::new(defaults.limits)),
        defaults,
        stopped: watch::Sender::new(false),
        retired: watch::Sender::new(false),
        web: Web::new(),
        pool: pool.clone(),
        rest: Rest::new(),
        lines: Rest::new(),
        attached: Rest::new(),
        asking,
    });
    if let Some(door) = doors.page {
        desk.web.open(&desk, door)?;
    }
    let outside = doors.gate.map(|gate| Outside::open(&desk, gate)).transpose()?;
    let room = Room::new();
    let (over, minutes) = (Arc::new(Notify::new()), desk.defaults.session.state_dir.clone());
    let clerk = {
        let (pool, over) = (pool.clone(), over.clone());
        tokio::spawn(async move { clerk::keep(pool, &minutes, &over).await })
    };
    let mut connections = JoinSet::new();
    if let Some((hubs, heirs, kept)) = inherited {
        handover::settle(&desk, &room, &mut connections, hubs, heirs);
        // Whoever is not there any more sees that, and whoever was held by them ends.
        drop(kept);
    }
    let (mut shutdown, mut retired) = (pin!(shutdown), pin!(retired));
    let mut listener = Some(listener);
    let mut quiet_since = None;
    let mut size = pool.size();
    let was_idle = loop {
        let is_quiet =
            desk.registry.is_empty() && connections.is_empty() && room.connections.are_free();
        // What is kept for the next to come need not be where nobody comes any more.
        let is_unused = pool.is_empty() || listener.is_none();
        let is_quiet = is_quiet && desk.web.is_quiet() && is_unused;
        let is_quiet = is_quiet && outside.as_ref().is_none_or(Outside::is_quiet);
        quiet_since = is_quiet.then(|| quiet_since.unwrap_or_else(Instant::now));
        let idle = if listener.is_some() { idle } else { Some(Duration::ZERO) };
        let enough = idle.zip(quiet_since).and_then(|(idle, since)| since.checked_add(idle));
        let stream = tokio::select! {
            // In this order, so that a connection that is there just in time is served.
            biased;
            () = &mut shutdown => break false,
            stream = accepted(listener.as_ref()) => stream,
            () = &mut retired, if listener.is_some() => {
                desk.retired.send_replace(true);
                for stream in waiting(listener.take()) {
                    connections.spawn(connection(desk.clone(), stream, room.clone()));
                }
                continue;
            }
            Some(asked) = asked.recv(), if listener.is_some() => {
                if let Some(listener) = &listener {
                    let (lock, outside) = (name.lock, outside.as_ref());
                    let estate = Estate { desk: &desk, listener, lock, outside };
                    handover::hand_over(estate, asked).await;
                }
                continue;
            }
            Some(_) = connections.join_next() => continue,
            () = desk.registry.changed.notified() => continue,
            _ = size.changed() => continue,
            () = reached(enough) => break true,
        };
        connections.spawn(connection(desk.clone(), stream, room.clone()));
    };
    drop(listener);
    // Sessions first: they leave the pool by themselves.
    let ends = desk.registry.close().await;
    let ended = pool.close().await;
    desk.stopped.send_replace(true);
    // What cannot be written in time has nobody who reads it.
    let _in_time = timeout(LAST_ANSWER, async {
        while connections.join_next().await.is_some() {}
        desk.web.closed().await;
        if let Some(outside) = outside {
            outside.closed().await;
        }
    })
    .await;
    connections.shutdown().await;
    over.notify_one();
    let _in_time = timeout(LAST_ANSWER, clerk).await;
    Ok(Farewell::new(was_idle, &ends, &ended))
}

/// The next connection, if there can be one.
async fn accepted(listener: Option<&UnixListener>) -> UnixStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // For want of descriptors mostly.
            Err(_) => sleep(ACCEPT_AGAIN).await,
        }
    }
}

/// Whoever has come and was not accepted yet.
fn waiting(listener: Option<UnixListener>) -> Vec<UnixStream> {
    let listener = listener.and_then(|listener| listener.into_std().ok());
    let next = || listener.as_ref().and_then(|listener| listener.accept().ok());
    let ready = |(stream, _): (std::os::unix::net::UnixStream, _)| {
        stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream)).ok()
    };
    std::iter::from_fn(next).filter_map(ready).collect()
}

/// How many of each kind there may be.
#[derive(Clone)]
struct Room {
    connections: Places,
    refusals: Places,
    seats: Places,
}

impl Room {
    fn new() -> Room {
        let [connections, refusals, seats] = [CONNECTIONS, REFUSALS, SEATS].map(Places::new);
        Room { connections, refusals, seats }
    }
}

/// Serves one connection, or says why not.
async fn connection(desk: Arc<Desk>, stream: UnixStream, room: Room) {
    let Ok(peer) = stream.peer_cred() else { return };
    let own = rustix::process::geteuid().as_raw();
    let place = room.connections.free.try_acquire_owned().ok().filter(|_| peer.uid() == own);
    let _refusal = match &place {
        Some(_) => None,
        None => match room.refusals.free.try_acquire_owned() {
            Ok(refusal) => Some(refusal),
            Err(_) => return,
        },
    };
    if peer.uid() != own {
        let detail = format!(
            "This daemon serves the user {own} alone, and you are {}. Start one of your own: \
             lariat daemon.",
            peer.uid()
        );
        let problem = Problem::new(403, "foreign", "Another user's daemon", detail);
        return http::refuse(stream, &problem, FIRST_REQUEST).await;
    }
    let (stream, first) = first_word(&desk, stream).await;
    match place {
        _ if first == Some(handover::ASK) => {
            drop(place);
            if let Ok(Ok(asked)) = timeout(FIRST_REQUEST, handover::heard(stream)).await {
                // There is nobody to be told while another is handed everything.
                let _busy = desk.asking.try_send(asked);
            }
        }
        _ if first == Some(joining::KNOCK) => {
            drop(place);
            let seat = room.seats.free.try_acquire_owned().ok();
            joining::serve(&desk, stream, seat).await;
        }
        Some(permit) => {
            let changed = desk.registry.changed.clone();
            let line = Arc::new(Line::new(peer.pid().and_then(Member::of), permit, changed));
            let (unread, heard) = (Bytes::new(), false);
            line::serve(&desk, Speaking { stream, line, unread, heard }).await;
        }
        None => {
            http::refuse(stream, &terms::busy(), FIRST_REQUEST).await;
        }
    }
}

/// What whoever has come begins with. It rests as long as that is nothing.
async fn first_word(desk: &Desk, mut stream: UnixStream) -> (UnixStream, Option<u8>) {
    let _counted = desk.lines.come();
    let mut stopped = desk.stopped.subscribe();
    loop {
        let first = timeout(FIRST_REQUEST, joining::first_byte(&stream));
        let first = tokio::select! {
            biased;
            first = first => Some(first.ok().and_then(Result::ok).flatten()),
            // Whoever has asked by now is told.
            _ = stopped.wait_for(|stopped| *stopped) => Some(None),
            () = desk.lines.called() => None,
        };
        if let Some(first) = first {
            return (stream, first);
        }
        match desk.lines.lie_down(Resting::Fresh(stream)).await {
            Resting::Fresh(up) => stream = up,
            // Nobody else takes it.
            Resting::Speaking(Speaking { stream, .. }) => return (stream, None),
            Resting::Telling(telling) => return (telling.stream, None),
        }
    }
}
