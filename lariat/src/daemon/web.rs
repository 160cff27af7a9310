//! The page's own way in: TCP on this machine alone, open once somebody wants the page.
//!
//! Anybody on the machine can connect, so nothing is told to who shows no key, connections are few,
//! and one that says nothing does not stay.

#[cfg(target_os = "linux")]
mod carried;

use super::api::Problem;
use super::connections::{Connections, Guest, MOST};
use super::gateway::Gateway;
use super::handle::Desk;
use super::http::{self, Answer};
use super::keys::{Keys, LINK_LIFE};
use super::lookout::Lookout;
use super::page::{self, Page};
use super::terms::ACCEPT_AGAIN;
use super::visit::{Visit, Visits};
use super::{api, machine};
use crate::books::Books;
use hyper::body::Incoming;
use hyper::{Request, header};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Where the page is unless somebody says otherwise. Always the same, so that it can be remembered.
pub const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7457);

/// How long a connection may be without a request that is whole, or an answer that is on its way.
pub(super) const SILENCE: Duration = Duration::from_secs(10);

/// Who may see the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Who knows what is in this file. It is made if it is not there.
    Token(PathBuf),
    /// Everybody on this machine.
    Anyone,
}

/// A listener, and who may come in by it.
#[derive(Debug)]
pub struct Door {
    listener: std::net::TcpListener,
    address: SocketAddr,
    keys: Keys,
}

impl Door {
    /// Refuses addresses that other machines can reach: what is said there could be read on the way.
    pub fn new(listener: std::net::TcpListener, access: &Access) -> io::Result<Door> {
        let address = listener.local_addr()?;
        if !address.ip().is_loopback() {
            let what = format!("{} can be reached from other machines", address.ip());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        listener.set_nonblocking(true)?;
        Ok(Door { listener, address, keys: Keys::open(access)? })
    }

    /// Where it is, with the port that the kernel has chosen if nobody else has.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The page, if it is there.
#[derive(Debug)]
pub(super) struct Web {
    opened: Mutex<Option<Opened>>,
    connections: Arc<Connections>,
    /// Where connections rest.
    pub(super) visits: Arc<Visits>,
}

#[derive(Debug)]
pub(super) struct Opened {
    pub(super) page: Arc<Page>,
    /// Where it listens.
    pub(super) listener: machine::Number,
    /// Whoever was connected to the program before.
    pub(super) inherited: mpsc::UnboundedSender<Visit>,
    serving: JoinHandle<()>,
}

impl Web {
    pub(super) fn new() -> Web {
        Web {
            opened: Mutex::default(),
            connections: Arc::default(),
            visits: Arc::new(Visits::new()),
        }
    }

    pub(super) fn opened(&self) -> MutexGuard<'_, Option<Opened>> {
        // Nothing in here can be left half done by a panic.
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if nobody is connected, and nobody has a session who may come back.
    pub(super) fn is_quiet(&self) -> bool {
        let has_none = |opened: &Opened| opened.page.gateway.is_empty();
        self.connections.is_empty() && self.opened().as_ref().is_none_or(has_none)
    }

    /// Where it listens, if it does.
    #[cfg(target_os = "linux")]
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.opened().as_ref().map(|opened| opened.page.address)
    }

    /// True if somebody has a session of MCP here.
    #[cfg(target_os = "linux")]
    pub(super) fn has_clients(&self) -> bool {
        self.opened().as_ref().is_some_and(|opened| !opened.page.gateway.is_empty())
    }

    /// Serves the page by this door.
    pub(super) fn open(&self, desk: &Desk, door: Door) -> io::Result<()> {
        self.open_locked(&mut self.opened(), desk, door).map(|_page| ())
    }

    fn open_locked(
        &self,
        opened: &mut Option<Opened>,
        desk: &Desk,
        door: Door,
    ) -> io::Result<Arc<Page>> {
        let listener = TcpListener::from_std(door.listener)?;
        let books = Books::open(&desk.defaults.session.state_dir)?;
        let lookout = Arc::new(Lookout::new(books.clone(), desk.registry.clone()));
        let stopped = desk.stopped.subscribe();
        let changed = desk.registry.changed.clone();
        let (offer, pool) = (&desk.defaults.offer, desk.pool.clone());
        let (retired, called) = (desk.retired.subscribe(), self.visits.calls());
        let words = [stopped.clone(), retired.clone(), called.clone()];
        let gateway = Gateway::new(offer, pool, changed, words);
        gateway.warm(&page::principal());
        let page = Arc::new(Page {
            address: door.address,
            keys: door.keys,
            lookout: lookout.clone(),
            registry: desk.registry.clone(),
            books,
            gateway: Arc::new(gateway),
            stopped: stopped.clone(),
            called,
        });
        let (inherited, others) = mpsc::unbounded_channel();
        let number = machine::number(&listener);
        let reception = Reception {
            page: page.clone(),
            connections: self.connections.clone(),
            visits: self.visits.clone(),
        };
        let accepting = reception.accept(listener, others, retired);
        let serving = tokio::spawn(async move {
            tokio::join!(lookout.keep(stopped), accepting);
        });
        *opened = Some(Opened { page: page.clone(), listener: number, inherited, serving });
        Ok(page)
    }

    /// A link to the page that works once. The page is opened for it if it is not yet: where it
    /// usually is, or at a free port if somebody else is there.
    pub(super) fn link(&self, desk: &Desk) -> Result<api::Link, Problem> {
        let defect = |error: io::Error| {
            let detail = format!(
                "The page cannot be opened: {error}. `lariat daemon --http 127.0.0.1:0` says more."
            );
            Problem::new(500, "no-page", "No page", detail)
        };
        let mut opened = self.opened();
        let page = match &*opened {
            Some(opened) => opened.page.clone(),
            None => {
                let any = SocketAddr::new(ADDRESS.ip(), 0);
                let bound = std::net::TcpListener::bind(ADDRESS)
                    .or_else(|_| std::net::TcpListener::bind(any));
                let door = bound.and_then(|bound| Door::new(bound, &desk.defaults.access));
                let door = door.map_err(defect)?;
                self.open_locked(&mut opened, desk, door).map_err(defect)?
            }
        };
        let once = page.keys.link(std::time::Instant::now()).map_err(defect)?;
        let address = page.address;
        Ok(api::Link {
            url: format!("http://{address}/open?once={once}"),
            expires_s: LINK_LIFE.as_secs(),
            metrics: format!("http://{address}/metrics"),
            token_file: match &desk.defaults.access {
                Access::Token(path) => Some(path.display().to_string()),
                Access::Anyone => None,
            },
        })
    }

    /// Returns when all has been said. If it is dropped before, nothing more is.
    pub(super) async fn closed(&self) {
        let Some(opened) = self.opened().take() else { return };
        let mut serving = Abort(opened.serving);
        let _ended = (&mut serving.0).await;
    }
}

/// A task that ends when nobody waits for it any more.
pub(super) struct Abort(pub(super) JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Who lets in whoever comes.
struct Reception {
    page: Arc<Page>,
    connections: Arc<Connections>,
    visits: Arc<Visits>,
}

impl Reception {
    async fn accept(
        self,
        listener: TcpListener,
        mut others: mpsc::UnboundedReceiver<Visit>,
        mut retired: watch::Receiver<bool>,
    ) {
        let mut stopped = self.page.stopped.clone();
        let mut tasks = JoinSet::new();
        let mut listener = Some(listener);
        loop {
            let visit = tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => break,
                // The port is another daemon's now; who is connected stays.
                _ = retired.wait_for(|retired| *retired), if listener.is_some() => {
                    listener = None;
                    continue;
                }
                stream = accepted(listener.as_ref()) => {
                    // Answers are short, and somebody looks at them.
                    let _slower = stream.set_nodelay(true);
                    Visit::new(stream)
                }
                Some(visit) = others.recv() => visit,
                Some(_) = tasks.join_next() => continue,
            };
            let (page, visits) = (self.page.clone(), self.visits.clone());
            tasks.spawn(visit.serve(page, visits, self.connections.enter()));
        }
        drop(listener);
        while tasks.join_next().await.is_some() {}
    }
}

pub(super) async fn accepted(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // For want of descriptors mostly.
            Err(_) => sleep(ACCEPT_AGAIN).await,
        }
    }
}

/// Answers one request of somebody who is present.
pub(super) fn answer(
    page: Arc<Page>,
    presence: Arc<Presence>,
    request: Request<Incoming>,
) -> impl Future<Output = Answer> {
    // From the first moment on: while it is answered nobody is silent.
    let busy = presence.busy();
    async move {
        let known = page.knows(request.headers());
        if known && !presence.shows_key() {
            return too_many();
        }
        let answer = http::in_pieces(page.answer(busy, request).await, presence.busy());
        // Strangers are told one thing, and then make room.
        if known { answer } else { http::with(answer, header::CONNECTION, "close") }
    }
}

/// For somebody who may come in and finds no place.
pub(super) fn too_many() -> Answer {
    let detail = format!("There are {MOST} connections. Close some, or try again.");
    let busy = Problem::new(503, "busy", "Too many connections", detail);
    http::with(http::problem(&busy), header::CONNECTION, "close")
}

/// A connection's place, and whether something is going on there. The daemon is told when it is free
/// again.
#[derive(Debug)]
pub(super) struct Presence {
    guest: Option<Guest>,
    activity: Arc<Activity>,
    changed: Arc<Notify>,
}

impl Presence {
    pub(super) fn new(guest: Guest, changed: Arc<Notify>) -> Presence {
        Presence { guest: Some(guest), activity: Arc::new(Activity::new()), changed }
    }

    /// Something is going on, until this is dropped.
    pub(super) fn busy(&self) -> Busy {
        Busy::new(&self.activity)
    }

    /// See [`Guest::shows_key`].
    pub(super) fn shows_key(&self) -> bool {
        self.guest.as_ref().is_some_and(Guest::shows_key)
    }

    /// True if it has shown a key.
    pub(super) fn is_known(&self) -> bool {
        self.guest.as_ref().is_some_and(Guest::is_known)
    }

    /// Returns when somebody else needs the place, or nothing has been going on for too long.
    pub(super) async fn is_given_up(&self) {
        let leaves = async {
            match &self.guest {
                Some(guest) => guest.must_leave().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.activity.fades() => {}
            () = leaves => {}
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        drop(self.guest.take());
        self.changed.notify_one();
    }
}

/// Whether something is going on in a connection.
#[derive(Debug)]
pub(super) struct Activity {
    /// How much, and since when it is so.
    beats: watch::Sender<(usize, Instant)>,
}

impl Activity {
    pub(super) fn new() -> Activity {
        Activity { beats: watch::Sender::new((0, Instant::now())) }
    }

    /// Returns when nothing has been going on for too long.
    async fn fades(&self) {
        let mut beats = self.beats.subscribe();
        loop {
            let (count, since) = *beats.borrow_and_update();
            let changed = async {
                // The sender is here as long as this waits.
                let _told = beats.changed().await;
            };
            if count > 0 {
                changed.await;
            } else if timeout_at(since + SILENCE, changed).await {
                return;
            }
        }
    }
}

/// True if the time came first.
async fn timeout_at(deadline: Instant, change: impl Future<Output = ()>) -> bool {
    tokio::select! {
        () = sleep_until(deadline) => true,
        () = change => false,
    }
}

/// Something that is going on, until it is dropped.
#[derive(Debug)]
pub(super) struct Busy(Arc<Activity>);

impl Busy {
    pub(super) fn new(activity: &Arc<Activity>) -> Busy {
        activity
            .beats
            .send_modify(|(count, since)| (*count, *since) = (*count + 1, Instant::now()));
        Busy(activity.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.beats.send_modify(|(count, since)| (*count, *since) = (*count - 1, Instant::now()));
    }
}

/// Sends, unless the other end does not read for as long as it may say nothing.
pub(super) async fn send<T>(lines: &tokio::sync::mpsc::Sender<T>, line: T) -> bool {
    matches!(timeout(SILENCE, lines.send(line)).await, Ok(Ok(())))
}
