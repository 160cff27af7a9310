//! A process and its clients: who may come, who is here, and what is known of it.

use super::drive::Run;
use super::key::Key;
use super::seat::Over;
use super::verdict::{Terms, Verdict};
use super::{Asleep, BUSY, Handle, Server, View, Want};
use crate::mcp::connection::{Ear, Mouth, Opening};
use crate::mcp::{Company, Connection, Rules};
use crate::receipt::Receipt;
use crate::spec::Idle;
use crate::start::local::Leash;
use crate::start::talk::{Departure, Place as Found, Trace};
use contain::Member;
use serde_json::Map;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// After how much silence a process sleeps that can lose nothing by it.
const USUAL: Duration = Duration::from_secs(300);

/// For how long a task that a request has begun is waited for while no request is there.
const TASKS: Duration = Duration::from_secs(600);

/// What a wrapper ends with that was told to end its server.
pub(super) const TOLD: u8 = 125;

/// A process of the pool.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) server: Arc<Server>,
    pub(super) key: Key,
    pub(super) host: Option<Member>,
    pub(super) linger: Duration,
    pub(super) connection: Connection,
    pub(super) inner: Mutex<Inner>,
    /// Here while everything rests.
    pub(super) resting: Mutex<Option<Resting>>,
    /// How many have come for it.
    pub(super) visitors: AtomicUsize,
    /// Nobody has come for it yet.
    pub(super) spare: AtomicBool,
    /// Nobody can come any more; it stays in the pool's table until it is gone.
    pub(super) struck: AtomicBool,
    /// Its only client says nothing more, and it is to leave with that.
    pub(super) parted: watch::Sender<Option<Parting>>,
    /// It was told to end.
    pub(super) told: watch::Sender<bool>,
    /// It was greeted once.
    pub(super) ready: watch::Sender<bool>,
    /// Why it is over, once it is.
    pub(super) over: watch::Sender<Option<Over>>,
    /// How it ended, once it has.
    pub(super) gone: watch::Sender<Option<Departure>>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) terms: Terms,
    pub(super) verdict: Verdict,
    pub(super) state: &'static str,
    pub(super) leash: Option<Leash>,
    pub(super) trace: Option<Arc<Trace>>,
    pub(super) since: Instant,
    pub(super) let_go: bool,
    /// How its last run ended, and those before that left something.
    pub(super) past: Departure,
}

/// What is left of the task of a process while everything rests.
#[derive(Debug)]
pub(super) enum Resting {
    Asleep,
    Running(Box<Run>),
}

/// How the only client of a process parts with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parting {
    /// The process hears that, and has its time to leave in.
    Said,
    /// It does not even hear what was said before, and has had that time.
    Unheard,
}

/// A client's place at a process.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) hub: Arc<Hub>,
    pub(super) mouth: Mouth,
    pub(super) ear: Ear,
}

impl Hub {
    pub(super) fn new(want: &Want, key: Key, terms: Terms, verdict: Verdict) -> Hub {
        // A process that is one client's alone is not to be told apart from a server of its own.
        let alone = verdict != Verdict::Shared && !matches!(terms, Terms::Modern { .. });
        let company = if alone { Company::Kin } else { Company::Strangers };
        let rules = Rules { tools: want.server.spec.tools.clone(), capabilities: Map::new() };
        let connection = Connection::new(rules, company);
        match (&terms, alone) {
            (Terms::Modern { .. }, _) => connection.greeted_modern(!want.linger.is_zero()),
            (_, true) => connection.greeted_by_client(),
            (_, false) => {}
        }
        Hub {
            server: want.server.clone(),
            host: want.host.filter(|_| verdict != Verdict::Shared),
            linger: if alone { Duration::ZERO } else { want.linger },
            key,
            connection,
            inner: Mutex::new(Inner {
                terms,
                verdict,
                state: "starting",
                leash: None,
                trace: None,
                since: Instant::now(),
                let_go: false,
                past: Departure::default(),
            }),
            resting: Mutex::default(),
            visitors: AtomicUsize::new(0),
            spare: AtomicBool::new(false),
            struck: AtomicBool::new(false),
            parted: watch::Sender::new(None),
            told: watch::Sender::new(false),
            ready: watch::Sender::new(false),
            over: watch::Sender::new(None),
            gone: watch::Sender::new(None),
        }
    }

    /// One that waits for its client.
    pub(super) fn spare(want: &Want, key: Key) -> Hub {
        let hub = Hub::new(want, key, Terms::Unknown, Verdict::private("it waits for its client"));
        hub.spare.store(true, Ordering::Relaxed);
        hub
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing that is done under this lock can leave it half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn name(&self) -> &str {
        &self.server.name
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    pub(super) fn host(&self) -> Option<Member> {
        self.host
    }

    pub(super) fn sessions(&self) -> usize {
        self.connection.sitting()
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.inner().verdict.clone()
    }

    pub(super) fn is_modern(&self) -> bool {
        matches!(self.inner().terms, Terms::Modern { .. })
    }

    /// True if each of its clients is one request.
    pub(super) fn has_requests_only(&self) -> bool {
        self.is_modern() && !self.linger.is_zero()
    }

    pub(super) fn view(&self) -> View {
        let inner = self.inner();
        let Found { guardian, books } =
            inner.trace.as_ref().map(|trace| trace.place()).unwrap_or_default();
        let before = |time| SystemTime::now().checked_sub(time).unwrap_or(UNIX_EPOCH);
        let asleep = |last: &Receipt| Asleep {
            books: last.session.clone(),
            backend: last.backend.clone(),
            host: self.host,
            started: before(inner.since.elapsed()),
            quiet_since: before(self.connection.idle()),
        };
        let last = inner.past.receipts.last().filter(|_| inner.state == "asleep");
        View {
            server: self.server.name.clone(),
            books,
            guardian,
            verdict: inner.verdict.clone(),
            sessions: self.connection.sitting(),
            in_flight: self.connection.in_flight(),
            dropped: self.connection.dropped(),
            state: inner.state,
            hazard: self.connection.hazard(),
            asleep: last.map(asleep),
        }
    }

    /// True if the next client that wants this finds it ready.
    pub(super) fn is_spare_for(&self, key: &Key) -> bool {
        self.is_warm() && self.key == *key && self.is_open()
    }

    pub(super) fn is_open(&self) -> bool {
        !self.struck.load(Ordering::Relaxed) && !*self.told.borrow() && self.over.borrow().is_none()
    }

    /// A place for a client that may be here together with others.
    pub(super) fn admit(self: &Arc<Hub>, key: &Key, terms: &Terms) -> Option<Place> {
        let spec = &self.server.spec;
        let is_full = |most| self.sessions() >= most;
        if self.spare.load(Ordering::Relaxed)
            || self.key != *key
            || self.inner().terms != *terms
            || self.linger.is_zero() && self.is_private()
            || spec.max_sessions.is_some_and(|most| is_full(most.get()))
            || self.connection.in_flight() >= BUSY
            || self.verdict() == Verdict::Shared && self.connection.hazard().is_some()
            || self.is_used_up()
        {
            return None;
        }
        self.sit().ok()
    }

    pub(super) fn is_private(&self) -> bool {
        self.inner().verdict != Verdict::Shared && !self.is_modern()
    }

    /// A spare, for a client that has it alone.
    pub(super) fn take(
        self: &Arc<Hub>,
        key: &Key,
        terms: &Terms,
        verdict: &Verdict,
    ) -> Option<Place> {
        if self.key != *key || !self.spare.load(Ordering::Relaxed) {
            return None;
        }
        let place = self.sit().ok()?;
        self.spare.store(false, Ordering::Relaxed);
        let mut inner = self.inner();
        (inner.terms, inner.verdict) = (terms.clone(), verdict.clone());
        drop(inner);
        Some(place)
    }

    /// A place, if it is not over.
    pub(super) fn sit(self: &Arc<Hub>) -> Result<Place, Over> {
        let closed = || Over { why: "it has just ended".into(), code: TOLD };
        if !self.is_open() {
            return Err(closed());
        }
        let (mouth, ear) = self.connection.sit().map_err(|_| closed())?;
        self.visitors.fetch_add(1, Ordering::Relaxed);
        Ok(Place { hub: self.clone(), mouth, ear })
    }

    /// True if it is too old, or too large, for more clients.
    fn is_used_up(&self) -> bool {
        let recycle = self.server.spec.recycle;
        let age = self.inner().since.elapsed();
        let is_old = recycle.after_s.is_some_and(|most| age.as_secs() >= most);
        is_old || recycle.above_bytes.is_some_and(|most| self.resident() >= most)
    }

    fn resident(&self) -> u64 {
        let guardian = self.view().guardian;
        let tree = guardian.map(|guardian| contain::process::below(guardian.pid));
        let resident = |member: Member| contain::process::resident(member.pid).unwrap_or(0);
        tree.into_iter().flatten().map(resident).sum()
    }

    /// Waits until it can be spoken with; an error if it never will be.
    pub(super) async fn greeted(&self) -> Result<(), Over> {
        if self.verdict() != Verdict::Shared || self.is_modern() {
            return Ok(());
        }
        let (mut ready, mut over) = (self.ready.subscribe(), self.over.subscribe());
        tokio::select! {
            biased;
            // We hold the other ends.
            over = over.wait_for(Option::is_some) => {
                Err(over.ok().and_then(|over| over.clone()).unwrap_or_default())
            }
            _ = ready.wait_for(|ready| *ready) => Ok(()),
        }
    }

    /// Why it is over, if it is.
    pub(super) fn over(&self) -> Option<Over> {
        self.over.borrow().clone()
    }

    /// Tells it to end.
    pub(super) fn end(&self) {
        self.told.send_replace(true);
    }

    /// True if a client that says nothing more is the only one, and nobody else is waited for.
    pub(super) fn is_for_one(&self) -> bool {
        self.sessions() == 1 && self.linger.is_zero() && !self.is_warm() && self.is_open()
    }

    /// Waits until it has ended.
    pub(super) async fn gone(&self) -> Departure {
        let mut gone = self.gone.subscribe();
        // We hold the other end.
        let ended = gone.wait_for(Option::is_some).await;
        ended.ok().and_then(|gone| gone.clone()).unwrap_or_default()
    }

    /// Ends whatever runs and lets nothing run any more. Needs no runtime; cannot block or fail.
    pub(super) fn let_go(&self) {
        let mut inner = self.inner();
        inner.let_go = true;
        if let Some(leash) = inner.leash.take() {
            leash.let_go();
        }
    }

    pub(super) fn resting(&self) -> MutexGuard<'_, Option<Resting>> {
        // As above.
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves this where others find it until nothing has to rest any more.
    pub(super) async fn rest(&self, what: Resting, pool: &Handle) -> Option<Resting> {
        *self.resting() = Some(what);
        let rest = pool.upgrade().map(|pool| {
            pool.rested.notify_one();
            pool.rest.subscribe()
        });
        if let Some(mut rest) = rest {
            // A pool that is gone has nothing to rest for.
            let _gone = rest.wait_for(|rest| !*rest).await.map(|_| ());
        }
        self.resting().take()
    }

    /// Keeps what must not be forgotten of how it ended.
    pub(super) fn account(&self, gone: Departure) {
        let mut inner = self.inner();
        let mut past = std::mem::take(&mut inner.past).debts();
        past.add(gone);
        inner.past = past;
    }

    pub(super) fn enter(&self, state: &'static str) {
        self.inner().state = state;
    }

    /// Everybody who is here is told why, and nobody comes any more.
    pub(super) fn fail(&self, over: Over) {
        let why = over.why.clone();
        self.is_over(over);
        self.connection.fail(&why);
    }

    /// It left with its only client, which expects nothing more of it.
    pub(super) fn finish(&self, over: Over) {
        self.is_over(over);
        self.connection.finish();
    }

    /// To be said before anything else, so that who hears that it is over can know why.
    fn is_over(&self, over: Over) {
        self.over.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(over);
            first
        });
    }

    /// For how long something that was begun is waited for without a client.
    pub(super) fn task_patience(&self) -> Duration {
        if self.linger.is_zero() { Duration::ZERO } else { TASKS }
    }

    /// True if it waits for the next client that wants the same, and is fit for that.
    pub(super) fn is_warm(&self) -> bool {
        let shared = self.verdict() == Verdict::Shared && self.connection.hazard().is_none();
        let fit = shared && !self.is_modern() && !self.is_used_up();
        self.spare.load(Ordering::Relaxed) || self.server.spec.warm && fit
    }

    /// After how much silence it sleeps.
    pub(super) fn patience(&self) -> Option<Duration> {
        match self.server.spec.idle {
            Idle::After(time) => Some(time),
            Idle::Off => None,
            // What a legacy server keeps for one client would be lost.
            Idle::Usual => (!self.is_private()).then_some(USUAL),
        }
    }

    pub(super) fn opening(&self, again: bool) -> Opening {
        let inner = self.inner();
        match (&inner.terms, &inner.verdict) {
            (Terms::Legacy { version, capabilities }, Verdict::Shared) => {
                let (version, capabilities) = (version.clone(), capabilities.clone());
                Opening::Ours { version, capabilities, again }
            }
            (Terms::Modern { .. }, _) => Opening::Straight,
            _ if again => Opening::Again,
            _ => Opening::Straight,
        }
    }
}
