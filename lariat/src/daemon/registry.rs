//! Which sessions there are. Each is kept by one task, which alone owns its servers.
//!
//! A session is in the registry before its first process is started, and leaves it when the last one
//! has ended. Requests hold handles; whatever becomes of a request, the task sees the session's end:
//! the owner's, the connection's, a DELETE or the daemon's own.

#[cfg(target_os = "linux")]
pub(super) mod carried;

use super::api::{Closed, Phase, Problem, Server};
use super::lease::Lease;
use super::lease::carried::Kept;
use super::{Limits, api};
use crate::moment;
use crate::session::{Change, Config, Error, Event, Manager, Session, Survivors};
use crate::snapshot::{self, Snapshot};
use crate::spec::Servers;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// A reader of events may be this many lines behind.
const EVENTS: usize = 512;

/// All sessions of one daemon.
#[derive(Debug)]
pub(super) struct Registry {
    limits: Limits,
    table: Mutex<Table>,
    /// What happens in all of them.
    events: broadcast::Sender<Event>,
    /// Told when a session or a connection has gone.
    pub(super) changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Table {
    /// In the order in which they were opened.
    entries: Vec<Arc<Entry>>,
    /// No more are admitted.
    closing: bool,
}

/// A session that is there.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) session: Session,
    owner: api::Owner,
    /// What it hangs on, for the program that this process becomes.
    #[cfg_attr(windows, expect(dead_code, reason = "only on Linux a daemon becomes the next"))]
    lease: Kept,
    /// How many servers were admitted.
    servers: AtomicUsize,
    /// Why it is to end, once it is.
    end: watch::Sender<Option<Arc<str>>>,
    orders: mpsc::UnboundedSender<Order>,
    /// How many of them are not done yet.
    ordered: AtomicUsize,
    /// How it ended, once it has.
    closed: watch::Receiver<Option<Arc<Closed>>>,
}

/// A refresh, and who waits for it.
#[derive(Debug)]
struct Order {
    servers: Servers,
    answer: oneshot::Sender<Result<Change, Error>>,
}

impl Registry {
    pub(super) fn new(limits: Limits) -> Registry {
        Registry {
            limits,
            table: Mutex::default(),
            events: broadcast::Sender::new(EVENTS),
            changed: Arc::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing in here can be left half done by a panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session, unless there are too many. Nothing is awaited, so that a request that is
    /// dropped finds the session either registered or never begun.
    pub(super) fn open(
        self: &Arc<Registry>,
        config: Config,
        lease: Lease,
    ) -> Result<Arc<Entry>, Problem> {
        let mut table = self.table();
        table.admit(&self.limits, None, config.servers.len())?;
        let servers = config.servers.len();
        let events = Some(self.events.clone());
        let on_behalf = lease.member;
        let manager = Manager::open(Config { events, on_behalf, ..config })?;
        Ok(self.enter(&mut table, manager, servers, lease))
    }

    fn enter(
        self: &Arc<Registry>,
        table: &mut Table,
        manager: Manager,
        servers: usize,
        lease: Lease,
    ) -> Arc<Entry> {
        let (orders, ordered) = mpsc::unbounded_channel();
        let (closing, closed) = watch::channel(None);
        let entry = Arc::new(Entry {
            session: manager.session().clone(),
            owner: lease.owner.clone(),
            lease: lease.carry(),
            servers: AtomicUsize::new(servers),
            end: watch::Sender::new(None),
            orders,
            ordered: AtomicUsize::new(0),
            closed,
        });
        table.entries.push(entry.clone());
        let keeper = Keeper { registry: self.clone(), entry: entry.clone() };
        tokio::spawn(keeper.keep(manager, lease, ordered, closing));
        entry
    }

    /// Replaces the servers of a session, unless there would be too many.
    pub(super) async fn refresh(&self, entry: &Entry, servers: Servers) -> Result<Change, Problem> {
        let (answer, answered) = oneshot::channel();
        {
            let table = self.table();
            let wanted = servers.len();
            table.admit(&self.limits, Some(entry), wanted)?;
            let order = Order { servers, answer };
            entry.orders.send(order).map_err(|_| Problem::closed())?;
            entry.ordered.fetch_add(1, Ordering::Relaxed);
            // From here on the order is carried out, whoever waits for it.
            entry.servers.store(wanted, Ordering::Relaxed);
        }
        Ok(answered.await.map_err(|_| Problem::closed())??)
    }

    /// Refuses if this session, or all of them together, have as many processes as they may.
    pub(super) fn check_processes(&self, entry: Option<&Entry>) -> Result<(), Problem> {
        let most = self.limits.processes_per_session;
        if let Some(entry) = entry {
            let processes = entry.session.processes();
            if processes >= most {
                return Err(Problem::limit(format!(
                    "The session has {processes} processes, and may have {most}. Close it, or start \
                     the daemon with a higher --max-processes-per-session."
                )));
            }
        }
        let most = self.limits.processes;
        // The kernel has the number of all threads of the machine at hand, which is mostly enough.
        if contain::process::threads().is_some_and(|threads| threads < most) {
            return Ok(());
        }
        let processes: usize = self.all().iter().map(|entry| entry.session.processes()).sum();
        if processes < most {
            return Ok(());
        }
        Err(Problem::limit(format!(
            "All sessions together have {processes} processes, and may have {most}. Close a session, \
             or start the daemon with a higher --max-processes."
        )))
    }

    /// The session of this name.
    pub(super) fn find(&self, id: &str) -> Result<Arc<Entry>, Problem> {
        let found = self.table().entries.iter().find(|entry| entry.id() == id).cloned();
        found.ok_or_else(|| Problem::no_session(id))
    }

    /// All of them, in the order in which they were opened.
    pub(super) fn all(&self) -> Vec<Arc<Entry>> {
        self.table().entries.clone()
    }

    /// True if there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.table().entries.is_empty()
    }

    /// The processes of all of them.
    pub(super) async fn snapshot(&self) -> Snapshot {
        let mut looks = JoinSet::new();
        for (at, entry) in self.all().into_iter().enumerate() {
            looks.spawn(async move { (at, entry.snapshot().await) });
        }
        let mut sessions = looks.join_all().await;
        sessions.sort_by_key(|(at, _)| *at);
        Snapshot { sessions: sessions.into_iter().map(|(_, session)| session).collect() }
    }

    /// What happens from now on.
    pub(super) fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Ends all sessions, and admits no more. Returns how, when they have ended.
    pub(super) async fn close(&self) -> Vec<Arc<Closed>> {
        self.table().closing = true;
        let entries = self.all();
        for entry in &entries {
            entry.end("the daemon is ending");
        }
        let mut ends = Vec::new();
        for entry in entries {
            ends.extend(entry.closed().await);
        }
        ends
    }

    fn strike(&self, entry: &Arc<Entry>) {
        self.table().entries.retain(|other| !Arc::ptr_eq(other, entry));
        self.changed.notify_one();
    }
}

impl Table {
    /// Whether a session may have so many servers: a new one, or instead of those it has.
    fn admit(
        &self,
        limits: &Limits,
        instead: Option<&Entry>,
        wanted: usize,
    ) -> Result<(), Problem> {
        if self.closing {
            let detail = "The daemon is ending. Try again: another one will be started.";
            return Err(Problem::new(503, "ending", "Daemon ending", detail));
        }
        let Limits { sessions, servers, servers_per_session, .. } = *limits;
        if wanted > servers_per_session {
            return Err(Problem::limit(format!(
                "A session may have {servers_per_session} servers, and this one would have \
                 {wanted}. Spread them over more sessions, or start the daemon with a higher \
                 --max-servers-per-session."
            )));
        }
        if instead.is_none() && self.entries.len() >= sessions {
            return Err(Problem::limit(format!(
                "There are {sessions} sessions, as many as there may be. Close one, or start the \
                 daemon with a higher --max-sessions."
            )));
        }
        let held = |entry: &Entry| entry.servers.load(Ordering::Relaxed);
        let others: usize = self.entries.iter().map(|entry| held(entry)).sum();
        let others = others - instead.map_or(0, held).min(others);
        if others + wanted > servers {
            return Err(Problem::limit(format!(
                "All sessions together may have {servers} servers; {others} are there, and {wanted} \
                 more would be too many. Close a session, or start the daemon with a higher \
                 --max-servers."
            )));
        }
        Ok(())
    }
}

impl Entry {
    fn id(&self) -> &str {
        self.session.id().as_str()
    }

    /// Tells it to end, if nothing has yet.
    pub(super) fn end(&self, why: &str) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert_with(|| why.into());
            first
        });
    }

    /// Returns how it ended, when it has; nothing if that cannot be known.
    pub(super) async fn closed(&self) -> Option<Arc<Closed>> {
        let mut closed = self.closed.clone();
        closed.wait_for(Option::is_some).await.ok()?.clone()
    }

    /// True once it has been told to end.
    pub(super) fn is_ending(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// How it is now.
    pub(super) fn view(&self) -> api::Session {
        let states = self.session.states();
        api::Session {
            id: self.id().into(),
            name: self.session.name().map(str::to_owned),
            state: if self.is_ending() { Phase::Ending } else { Phase::Open },
            owner: self.owner.clone(),
            servers: states.iter().map(|(name, state)| (name.clone(), Server::of(state))).collect(),
            receipts: None,
            unaccounted: Vec::new(),
        }
    }

    async fn snapshot(&self) -> snapshot::Session {
        let api::Owner { pid, command, .. } = self.owner.clone();
        snapshot::Session {
            id: self.id().into(),
            name: self.session.name().map(str::to_owned),
            owner: snapshot::Owner { pid, command },
            servers: self.session.snapshot().await,
        }
    }
}

/// Keeps one session until its end.
struct Keeper {
    registry: Arc<Registry>,
    entry: Arc<Entry>,
}

impl Keeper {
    async fn keep(
        self,
        manager: Manager,
        mut lease: Lease,
        mut orders: mpsc::UnboundedReceiver<Order>,
        closing: watch::Sender<Option<Arc<Closed>>>,
    ) {
        let mut told = self.entry.end.subscribe();
        let ended = async {
            tokio::select! {
                // It is told by the entry, which this task holds: the sender is there.
                why = told.wait_for(Option::is_some) => {
                    why.ok().and_then(|why| why.as_deref().map(str::to_owned)).unwrap_or_default()
                }
                why = lease.ended() => why,
            }
        };
        tokio::pin!(ended);
        let why = loop {
            // A refresh that is under way does not keep the session from ending.
            tokio::select! {
                why = &mut ended => break why,
                () = self.obey(&manager, &mut orders) => {}
            }
        };
        // Orders that still wait are answered by being dropped.
        drop(orders);
        // A lease that ended tells it as well as a request does.
        self.entry.end(&why);
        // Nobody may be listening.
        let _unheard = self.registry.events.send(Event {
            time: moment::rfc3339(SystemTime::now()),
            session: self.entry.session.id().clone(),
            server: None,
            event: "ending",
            why: Some(why.into()),
            receipt: None,
        });
        let ended = manager.close().await.unwrap_or_else(|Survivors(ended)| ended);
        self.registry.strike(&self.entry);
        closing.send_replace(Some(Arc::new(Closed::of(ended))));
    }

    /// Waits for an order, and does it.
    async fn obey(&self, manager: &Manager, orders: &mut mpsc::UnboundedReceiver<Order>) {
        // Without more orders, the end is what is left to wait for.
        let Some(Order { servers, answer }) = orders.recv().await else {
            return std::future::pending().await;
        };
        let change = manager.refresh(servers).await;
        let servers = self.entry.session.states().len();
        self.entry.servers.store(servers, Ordering::Relaxed);
        self.entry.ordered.fetch_sub(1, Ordering::Relaxed);
        // Who ordered it may have left.
        let _unread = answer.send(change);
    }
}

impl Drop for Keeper {
    /// Whatever happened, the session is not there any more: its servers end with their manager.
    fn drop(&mut self) {
        self.registry.strike(&self.entry);
    }
}

#[cfg(test)]
mod tests;
