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
mod connections;
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
mod terms;
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

pub use limits::Limits;
pub use pipe::Pipe;
pub use terms::{Defaults, Farewell};
pub use web::{ADDRESS, Access, Door};

use crate::pool::Pool;
use crate::session::Config;
use desk::Desk;
use http::Places;
use lease::Line;
use registry::Registry;
use std::io;
use std::os::windows::io::AsHandle;
use std::pin::pin;
use std::sync::Arc;
use terms::{CONNECTIONS, FIRST_REQUEST, LAST_ANSWER, REFUSALS, reached};
use tokio::net::windows::named_pipe::NamedPipeServer;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use web::Web;

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
    Ok(Farewell::new(was_idle, &ends, &ended))
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
        return http::refuse(stream, &terms::busy(), FIRST_REQUEST).await;
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
