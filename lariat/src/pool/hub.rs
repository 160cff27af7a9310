//! A process and its clients: started, asleep, started again, ended.
//!
//! Each has a task that is the only one to decide what becomes of it. A client that leaves is one
//! less; when nobody is left it ends. A process that nobody has needed for a while sleeps: it is
//! ended, and another takes its place when somebody speaks. One that leaves by itself takes its
//! clients with it, each of which sees what it would see of a server of its own.

use super::key::Key;
use super::seat::Over;
use super::verdict::{Terms, Verdict};
use super::{BUSY, Handle, Server, View, Want};
use crate::mcp::connection::{Ear, Error, Mouth, Opening};
use crate::mcp::{Company, Connection, Rules};
use crate::spec::Idle;
use crate::start::local::Leash;
use crate::start::talk::{self, Gone, Heard, Household, Place as Found, Talk, Trace};
use contain::Member;
use serde_json::Map;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep_until, timeout};

/// After how much silence a process sleeps that can lose nothing by it.
const USUAL: Duration = Duration::from_secs(300);

/// How soon to look again at one that could not sleep.
const LOOK: Duration = Duration::from_secs(5);

/// For how long a task that a request has begun is waited for while no request is there.
const TASKS: Duration = Duration::from_secs(600);

/// What a wrapper ends with that was told to end its server.
const TOLD: u8 = 125;

/// A process of the pool.
#[derive(Debug)]
pub(super) struct Hub {
    server: Arc<Server>,
    key: Key,
    host: Option<Member>,
    linger: Duration,
    connection: Connection,
    inner: Mutex<Inner>,
    /// Nobody has come for it yet.
    spare: AtomicBool,
    /// It was told to end.
    told: watch::Sender<bool>,
    /// It was greeted once.
    ready: watch::Sender<bool>,
    /// Why it is over, once it is.
    over: watch::Sender<Option<Over>>,
    /// How it ended, once it has.
    gone: watch::Sender<Option<Gone>>,
}

#[derive(Debug)]
struct Inner {
    terms: Terms,
    verdict: Verdict,
    state: &'static str,
    leash: Option<Leash>,
    trace: Option<Arc<Trace>>,
    since: Instant,
    let_go: bool,
}

/// A client's place at a process.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) hub: Arc<Hub>,
    pub(super) mouth: Mouth,
    pub(super) ear: Ear,
}

/// Why a run is over.
enum Stop {
    /// Nobody needs it now.
    Slept,
    /// Nobody uses it.
    Unused,
    /// Somebody said so.
    Told,
    /// It left, or never came to be.
    Left(Over),
}

impl Hub {
    pub(super) fn new(want: &Want, key: Key, terms: Terms, verdict: Verdict) -> Hub {
        // A process that is one client's alone is not to be told apart from a server of its own.
        let alone = verdict != Verdict::Shared && !matches!(terms, Terms::Modern);
        let company = if alone { Company::Kin } else { Company::Strangers };
        let rules = Rules { tools: want.server.spec.tools.clone(), capabilities: Map::new() };
        let connection = Connection::new(rules, company);
        match (&terms, alone) {
            (Terms::Modern, _) => connection.greeted_modern(!want.linger.is_zero()),
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
            }),
            spare: AtomicBool::new(false),
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

    fn inner(&self) -> MutexGuard<'_, Inner> {
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
        matches!(self.inner().terms, Terms::Modern)
    }

    /// True if each of its clients is one request.
    pub(super) fn has_requests_only(&self) -> bool {
        self.is_modern() && !self.linger.is_zero()
    }

    pub(super) fn view(&self) -> View {
        let inner = self.inner();
        let Found { guardian, books } =
            inner.trace.as_ref().map(|trace| trace.place()).unwrap_or_default();
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
        }
    }

    /// True if the next client that wants this finds it ready.
    pub(super) fn is_spare_for(&self, key: &Key) -> bool {
        self.is_warm() && self.key == *key && self.is_open()
    }

    fn is_open(&self) -> bool {
        !*self.told.borrow() && self.over.borrow().is_none()
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

    fn is_private(&self) -> bool {
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

    /// Waits until it has ended.
    pub(super) async fn gone(&self) -> Gone {
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

    fn enter(&self, state: &'static str) {
        self.inner().state = state;
    }

    /// Everybody who is here is told why, and nobody comes any more.
    fn fail(&self, over: Over) {
        let why = over.why.clone();
        // First of all, so that who hears that it is over can know why.
        self.over.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(over);
            first
        });
        self.connection.fail(&why);
    }

    /// For how long something that was begun is waited for without a client.
    fn task_patience(&self) -> Duration {
        if self.linger.is_zero() { Duration::ZERO } else { TASKS }
    }

    /// True if it waits for the next client that wants the same, and is fit for that.
    pub(super) fn is_warm(&self) -> bool {
        let shared = self.verdict() == Verdict::Shared && self.connection.hazard().is_none();
        let fit = shared && !self.is_modern() && !self.is_used_up();
        self.spare.load(Ordering::Relaxed) || self.server.spec.warm && fit
    }

    /// After how much silence it sleeps.
    fn patience(&self) -> Option<Duration> {
        match self.server.spec.idle {
            Idle::After(time) => Some(time),
            Idle::Off => None,
            // What a legacy server keeps for one client would be lost.
            Idle::Usual => (!self.is_private()).then_some(USUAL),
        }
    }

    fn opening(&self, again: bool) -> Opening {
        let inner = self.inner();
        match (&inner.terms, &inner.verdict) {
            (Terms::Legacy { version, capabilities }, Verdict::Shared) => {
                let (version, capabilities) = (version.clone(), capabilities.clone());
                Opening::Ours { version, capabilities, again }
            }
            (Terms::Modern, _) => Opening::Straight,
            _ if again => Opening::Again,
            _ => Opening::Straight,
        }
    }
}

/// Whoever drops the task, a runtime that ends included, ends the process.
struct EndsWithTask(Arc<Hub>);

impl Drop for EndsWithTask {
    fn drop(&mut self) {
        self.0.let_go();
        self.0.fail(Over { why: "the pool has ended".into(), code: TOLD });
        // Nobody will say how it ended, but whoever waits for that must not wait for ever.
        self.0.gone.send_if_modified(|gone| {
            let first = gone.is_none();
            gone.get_or_insert(Gone { unaccounted: true, ..Gone::default() });
            first
        });
    }
}

/// Drives one process to its end.
pub(super) async fn drive(hub: Arc<Hub>, household: Arc<Household>, pool: Handle) {
    let _ends = EndsWithTask(hub.clone());
    let mut past = Gone::default();
    let mut again = false;
    loop {
        let (stop, gone) = run(&hub, &household, &pool, again).await;
        past = std::mem::take(&mut past).debts();
        past.add(gone);
        if !matches!(stop, Stop::Slept) {
            break;
        }
        hub.enter("asleep");
        tell(&pool, &hub, "asleep");
        again = true;
        if !wakes(&hub, &pool).await {
            break;
        }
        hub.enter("starting");
        tell(&pool, &hub, "awake");
    }
    if let Some(pool) = pool.upgrade() {
        pool.strike(&hub);
    }
    hub.fail(Over { why: "it was ended".into(), code: TOLD });
    hub.gone.send_replace(Some(past));
}

fn tell(pool: &Handle, hub: &Hub, event: &'static str) {
    if let Some(pool) = pool.upgrade() {
        pool.tell(hub, event, hub.verdict().to_string());
    }
}

async fn is_told(told: &mut watch::Receiver<bool>) {
    // The hub has the other end.
    let _told = told.wait_for(|told| *told).await.map(|_| ());
}

/// Waits, while it sleeps, until somebody needs it. False if nobody will.
async fn wakes(hub: &Arc<Hub>, pool: &Handle) -> bool {
    let mut told = hub.told.subscribe();
    loop {
        if hub.sessions() == 0 && pool.upgrade().is_none_or(|pool| pool.strike_unused(hub)) {
            return false;
        }
        tokio::select! {
            biased;
            () = is_told(&mut told) => return false,
            () = hub.connection.wanted() => return true,
            () = hub.connection.company_changed() => {}
        }
    }
}

/// Starts it, and stays with it until it is gone.
async fn run(
    hub: &Arc<Hub>,
    household: &Arc<Household>,
    pool: &Handle,
    again: bool,
) -> (Stop, Gone) {
    let fail = |why: String, code| {
        let over = Over { why, code };
        if let Some(pool) = pool.upgrade() {
            pool.strike(hub);
            pool.started(&hub.key, Some((&over.why, over.code)));
        }
        hub.fail(over.clone());
        Stop::Left(over)
    };
    let (mut talk, theirs, streams) = match Talk::new(household, hub.name()) {
        Ok(made) => made,
        Err(e) => return (fail(format!("its streams cannot be made: {e}"), 125), Gone::default()),
    };
    {
        let mut inner = hub.inner();
        if inner.let_go {
            return (Stop::Told, Gone::default());
        }
        inner.leash = Some(talk.leash());
        (inner.trace, inner.since) = (Some(talk.trace()), Instant::now());
    }
    let mut told = hub.told.subscribe();
    let (stdin, stdout, pulse) = (streams.stdin, streams.stdout, streams.pulse);
    let (opened, greeted) = oneshot::channel();
    let running = hub.connection.run(stdin, stdout, hub.opening(again), opened);
    let mut running = Box::pin(running);
    let spec = &hub.server.spec;
    let started = async {
        // Waiting for others is not the server's own time.
        let turn = talk::turn().await;
        let begun = timeout(spec.startup_timeout, async {
            talk.begin(turn, theirs, spec, hub.server.environment.as_ref()).await?;
            greet(hub, &mut talk, running.as_mut(), greeted).await
        });
        match begun.await {
            Ok(begun) => begun,
            Err(_) => {
                let after = spec.startup_timeout.as_millis();
                Err(format!("it was not ready after {after} ms{}", talk.so_far()))
            }
        }
    };
    let started = tokio::select! {
        biased;
        () = is_told(&mut told) => Err(Stop::Told),
        started = started => Ok(started),
        () = is_unused(hub, pool) => Err(Stop::Unused),
    };
    let stop = match started {
        Err(stop) => stop,
        Ok(Err(why)) => {
            let Over { why, code } = left(hub, &talk, why);
            fail(why, code)
        }
        Ok(Ok(())) => {
            hub.connection.show(pulse);
            hub.enter("ready");
            hub.ready.send_replace(true);
            if let Some(pool) = pool.upgrade() {
                pool.started(&hub.key, None);
            }
            attend(hub, pool, &mut talk, running.as_mut()).await
        }
    };
    match &stop {
        Stop::Slept => {}
        Stop::Unused => hub.enter("ending"),
        Stop::Told => {
            hub.enter("ending");
            hub.fail(Over { why: "its server was told to end".into(), code: TOLD });
        }
        Stop::Left(over) => {
            hub.enter("ending");
            if let Some(pool) = pool.upgrade() {
                pool.strike(hub);
            }
            hub.fail(over.clone());
        }
    }
    // Closes the server's stdin.
    drop(running);
    let gone = talk.end().await;
    let mut inner = hub.inner();
    inner.leash = None;
    inner.trace = None;
    drop(inner);
    (stop, gone)
}

/// How a server left, as those may know who had it together.
fn left(hub: &Hub, talk: &Talk, why: String) -> Over {
    let why = match hub.verdict() {
        Verdict::Shared => talk.plainly(why),
        Verdict::Private { .. } => why,
    };
    // Without a code of its own, whoever held it was killed, or it never came to be.
    Over { why, code: talk.code().unwrap_or(TOLD) }
}

/// Waits until nobody wants it any more that is being started.
async fn is_unused(hub: &Arc<Hub>, pool: &Handle) {
    loop {
        if hub.sessions() == 0
            && !hub.is_warm()
            && hub.linger.is_zero()
            && pool.upgrade().is_none_or(|pool| pool.strike_unused(hub))
        {
            return;
        }
        hub.connection.company_changed().await;
    }
}

/// Waits for the handshake, if there is one.
async fn greet(
    hub: &Hub,
    talk: &mut Talk,
    mut running: std::pin::Pin<&mut impl Future>,
    mut greeted: oneshot::Receiver<Result<(), Error>>,
) -> Result<(), String> {
    loop {
        tokio::select! {
            biased;
            greeted = &mut greeted => return match greeted {
                Ok(Err(Error::Closed)) | Err(_) => Err(talk.why_left().await),
                Ok(greeted) => greeted.map_err(|e| e.to_string()),
            },
            _ended = running.as_mut() => return Err(talk.why_left().await),
            heard = talk.next() => if let Heard::Left(why) = heard {
                // What it said before it left is still heard, below.
                if hub.is_private() {
                    return Ok(());
                }
                return Err(why);
            },
        }
    }
}

/// Waits, while it is there, until it is not to be or cannot be.
async fn attend(
    hub: &Arc<Hub>,
    pool: &Handle,
    talk: &mut Talk,
    mut running: std::pin::Pin<&mut impl Future>,
) -> Stop {
    let mut told = hub.told.subscribe();
    let mut empty_since = None;
    let mut known_hazard = false;
    loop {
        if let (Some(why), false, Some(pool)) =
            (hub.connection.hazard(), known_hazard, pool.upgrade())
        {
            known_hazard = true;
            if pool.unfit(&hub.key, hub.is_modern(), why) {
                pool.tell(hub, "unshared", why.into());
            }
        }
        let now = Instant::now();
        let wait = if hub.sessions() == 0 {
            let since = *empty_since.get_or_insert(now);
            let is_busy = !hub.connection.may_sleep() && since.elapsed() < hub.task_patience();
            let keeps = pool.upgrade().is_some_and(|pool| pool.keeps_warm(hub));
            match (since + hub.linger).checked_duration_since(now) {
                _ if keeps => None,
                Some(rest) if !rest.is_zero() => Some(rest),
                // Somebody may come back for what it has begun.
                _ if is_busy => Some(LOOK),
                _ if pool.upgrade().is_none_or(|pool| pool.strike_unused(hub)) => {
                    return Stop::Unused;
                }
                _ => Some(LOOK),
            }
        } else {
            empty_since = None;
            match hub.patience() {
                None => None,
                Some(patience) => {
                    let idle = hub.connection.idle();
                    if idle < patience {
                        Some((patience - idle).max(Duration::from_millis(1)))
                    } else if hub.connection.fall_asleep() {
                        return Stop::Slept;
                    } else {
                        Some(LOOK)
                    }
                }
            }
        };
        let timer = async {
            match wait {
                Some(wait) => sleep_until((now + wait).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = is_told(&mut told) => return Stop::Told,
            _ended = running.as_mut() => {
                let why = talk.why_left().await;
                return Stop::Left(left(hub, talk, why));
            }
            heard = talk.next() => if let Heard::Left(why) = heard {
                // What it said before it left is still to be heard, while its output is open.
                let _rest = timeout(Duration::from_millis(500), running.as_mut()).await;
                return Stop::Left(left(hub, talk, why));
            },
            () = hub.connection.company_changed() => {}
            () = timer => {}
        }
    }
}
