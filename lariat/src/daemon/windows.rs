//! The daemon on Windows: the same API on a named pipe that is one user's alone.
//!
//! [`run`] takes its pipe and its ending from outside. A session ends with its owner: a process, or
//! the connection by which it was opened; there is no session without one. [`client`] is the same API
//! from the other end, [`api`] what goes between them. Other machines cannot come in, and nothing is
//! handed to the next program yet.

pub mod api;
#[cfg_attr(not(test), expect(dead_code, reason = "part of it is for clients from other machines"))]
mod base64;
pub mod client;
pub mod config;
mod crowd;
#[expect(dead_code, reason = "part of it is for handing everything over")]
mod gateway;
mod handle;
mod http;
mod keys;
mod lease;
mod ledger;
mod limits;
mod lookout;
mod metrics;
mod page;
mod picture;
mod registry;
#[expect(dead_code, reason = "nothing is called to rest here")]
mod rest;
mod routes;
#[expect(dead_code, reason = "part of it is for handing everything over")]
mod web;

#[path = "windows/desk.rs"]
mod desk;
#[path = "windows/machine.rs"]
mod machine;
#[path = "windows/pipe.rs"]
mod pipe;
#[path = "windows/visit.rs"]
mod visit;

pub use limits::{Farewell, Limits};
pub use pipe::Pipe;
pub use web::{ADDRESS, Access, Door};

use crate::pool::{self, Pool};
use crate::session::Config;
use api::Problem;
use desk::Desk;
use http::Places;
use lease::Line;
use registry::Registry;
use std::io;
use std::os::windows::io::AsHandle;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::windows::named_pipe::NamedPipeServer;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use web::Web;

/// How many connections there may be.
const CONNECTIONS: usize = 1024;

/// How many more may be told that there are too many.
const REFUSALS: usize = 64;

/// How long a new connection may say nothing. Later it may: it can be what a session hangs on.
const FIRST_REQUEST: Duration = Duration::from_secs(10);

/// How long connections may take to write their last answers.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// How long to wait if a connection by TCP cannot be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What all sessions of a daemon have in common.
#[derive(Debug, Clone)]
pub struct Defaults {
    /// What a session is without a name and servers of its own.
    pub session: Config,
    /// How much there may be of everything.
    pub limits: Limits,
    /// End after so long without a session and a connection; `None` for never.
    pub idle: Option<Duration>,
    /// Who may see the page.
    pub access: Access,
    /// Which servers can be reached by HTTP.
    pub offer: config::Config,
}

impl Defaults {
    /// The same for the servers that sessions have together.
    fn pool(&self) -> pool::Config {
        let Config { state_dir, holder, ladder, backend, docker, max_containers, .. } =
            self.session.clone();
        pool::Config { state_dir, holder, ladder, backend, docker, max_containers }
    }
}

/// Serves, by the door to the page too, until `shutdown` is there or nobody has wanted anything for long enough. All sessions have
/// ended when it returns. If it is dropped, or the process is ended, they end with their jobs.
pub async fn run(
    mut pipe: Pipe,
    page: Option<Door>,
    defaults: Defaults,
    shutdown: impl Future<Output = ()>,
) -> io::Result<Farewell> {
    let idle = defaults.idle;
    let pool = Pool::new(defaults.pool())?;
    let defaults =
        Defaults { session: Config { pool: Some(pool.clone()), ..defaults.session }, ..defaults };
    let desk = Arc::new(Desk {
        registry: Arc::new(Registry::new(defaults.limits)),
        defaults,
        stopped: watch::Sender::new(false),
        retired: watch::Sender::new(false),
        web: Web::new(),
        pool: pool.clone(),
    });
    if let Some(door) = page {
        desk.web.open(&desk, door)?;
    }
    let room = Room { connections: Places::new(CONNECTIONS), refusals: Places::new(REFUSALS) };
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    let mut quiet_since = None;
    let mut size = pool.size();
    let was_idle = loop {
        let is_quiet = desk.registry.is_empty()
            && connections.is_empty()
            && room.connections.are_free()
            && desk.web.is_quiet()
            && pool.is_empty();
        quiet_since = is_quiet.then(|| quiet_since.unwrap_or_else(Instant::now));
        let enough = idle.zip(quiet_since).and_then(|(idle, since)| since.checked_add(idle));
        let stream = tokio::select! {
            // In this order, so that a connection that is there just in time is served.
            biased;
            () = &mut shutdown => break false,
            stream = pipe.accepted() => stream,
            Some(_) = connections.join_next() => continue,
            () = desk.registry.changed.notified() => continue,
            _ = size.changed() => continue,
            () = reached(enough) => break true,
        };
        connections.spawn(connection(desk.clone(), stream, room.clone()));
    };
    drop(pipe);
    // Sessions first: they leave the pool by themselves.
    let ends = desk.registry.close().await;
    let ended = pool.close().await;
    desk.stopped.send_replace(true);
    // What cannot be written in time has nobody who reads it.
    let _in_time = timeout(LAST_ANSWER, async {
        while connections.join_next().await.is_some() {}
        desk.web.closed().await;
    })
    .await;
    connections.shutdown().await;
    let of_sessions = ends.iter().flat_map(|end| &end.survivors);
    let of_pool = ended.receipts.iter().flat_map(|receipt| &receipt.survivors);
    let survivors = of_sessions.chain(of_pool).cloned().collect();
    Ok(Farewell { was_idle, sessions: ends.len(), survivors })
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// How many of each kind there may be.
#[derive(Clone)]
struct Room {
    connections: Places,
    refusals: Places,
}

/// Serves one connection, or says why not. Whoever comes is the same user: the pipe lets in no other.
async fn connection(desk: Arc<Desk>, stream: NamedPipeServer, room: Room) {
    let Ok(permit) = room.connections.free.try_acquire_owned() else {
        let Ok(_refusal) = room.refusals.free.try_acquire_owned() else { return };
        let detail = format!("There are {CONNECTIONS} connections. Close some, or try again.");
        let problem = Problem::new(503, "busy", "Too many connections", detail);
        return http::refuse(stream, &problem, FIRST_REQUEST).await;
    };
    let peer = contain::pipe::client(stream.as_handle()).ok().map(|client| client.member());
    let line = Arc::new(Line::new(peer, permit, desk.registry.changed.clone()));
    let first = Arc::new(Notify::new());
    let stopped = desk.stopped.subscribe();
    let heard = first.clone();
    let answer = move |request| {
        heard.notify_one();
        let (desk, line) = (desk.clone(), line.clone());
        async move { desk.answer(&line, request).await }
    };
    let silent = async {
        if timeout(FIRST_REQUEST, first.notified()).await.is_err() {
            return;
        }
        std::future::pending().await
    };
    http::converse(stream, answer, silent, stopped).await;
}
