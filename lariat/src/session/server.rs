//! One server of a session: started, watched, started again, ended.
//!
//! Each has a task that is the only one to decide what becomes of it. Orders come by channel, so
//! whoever gives one and then loses patience leaves a server in the middle of nothing: the task goes
//! on. What others may see of it is its [`View`].

use super::House;
use super::rest::{Conversation, Course, Own, Rested, Resting};
use super::state::{Ready, State};
use crate::id::SessionId;
use crate::mcp::connection::{Error as ConnectionError, Wire};
use crate::mcp::{Company, Connection, Rules};
use crate::spec::{Restart, ServerSpec, Share};
use crate::start::local::{Leash, Receiver, Sender, Theirs};
use crate::start::talk::{self, Departure, Heard, Place, Started, Talk, Trace};
use contain::Member;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep_until, timeout};

/// The pause before a server that left is started again; each time it leaves it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// A server that leaves this often in a row is given up.
const MOST_CRASHES: u32 = 5;

/// One that stayed this long is not in a row any more.
const STAYED: Duration = Duration::from_secs(60);

/// What a server is told.
#[derive(Debug)]
pub(super) enum Order {
    /// End what runs and run this instead. Answered when that is ready or has failed.
    Replace(Arc<ServerSpec>, oneshot::Sender<Departure>),
    /// End what runs. Answered when it is gone.
    End(oneshot::Sender<Departure>),
}

/// What others may see and use of a server.
#[derive(Debug)]
pub(super) struct View {
    pub(super) name: String,
    state: watch::Sender<State>,
    inner: Mutex<Inner>,
    /// What its task has left here while everything rests.
    resting: Mutex<Option<Rested>>,
}

#[derive(Debug)]
pub(super) struct Inner {
    spec: Arc<ServerSpec>,
    pub(super) connection: Option<Connection>,
    leash: Option<Leash>,
    /// Nothing may run any more.
    pub(super) let_go: bool,
    /// What ran last was told to end.
    pub(super) told: bool,
    trace: Option<Arc<Trace>>,
    pub(super) since: Instant,
    /// How it ended, once it has for good.
    gone: Option<Departure>,
}

impl View {
    pub(super) fn new(name: &str, spec: Arc<ServerSpec>) -> View {
        let inner = Inner {
            spec,
            connection: None,
            leash: None,
            let_go: false,
            told: false,
            trace: None,
            since: Instant::now(),
            gone: None,
        };
        let state = watch::Sender::new(State::Starting);
        View { name: name.into(), state, inner: Mutex::new(inner), resting: Mutex::default() }
    }

    pub(super) fn resting(&self) -> MutexGuard<'_, Option<Rested>> {
        // Nothing that is done under this lock can leave it half done.
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing that is done under this lock can leave it half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    pub(super) fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Waits until it is ready or has failed.
    pub(super) async fn settled(&self) {
        self.wait_for(State::is_settled).await;
    }

    /// Waits until nothing of it is left.
    pub(super) async fn ended(&self) {
        self.wait_for(|state| matches!(state, State::Ended(_))).await;
    }

    async fn wait_for(&self, reached: impl FnMut(&State) -> bool) {
        let mut states = self.watch();
        // We have the other end ourselves.
        let _never_gone = states.wait_for(reached).await;
    }

    pub(super) fn spec(&self) -> Arc<ServerSpec> {
        self.inner().spec.clone()
    }

    pub(super) fn connection(&self) -> Option<Connection> {
        self.inner().connection.clone()
    }

    /// True if what ran last was told to end, and did not leave by itself.
    pub(super) fn was_told(&self) -> bool {
        let inner = self.inner();
        inner.told || inner.let_go
    }

    /// Whose descendants its processes are, its name in the books, and since when.
    pub(super) fn place(&self) -> (Option<Member>, Option<SessionId>, Instant) {
        let inner = self.inner();
        let place = inner.trace.as_ref().map(|trace| trace.place());
        let Place { guardian, books } = place.unwrap_or_default();
        (guardian, books, inner.since)
    }

    /// How it ended, if it has for good.
    pub(super) fn gone(&self) -> Option<Departure> {
        self.inner().gone.clone()
    }

    /// Ends whatever runs and lets nothing run any more. Needs no runtime; cannot block or fail.
    pub(super) fn let_go(&self) {
        let mut inner = self.inner();
        inner.let_go = true;
        inner.connection = None;
        if let Some(leash) = inner.leash.take() {
            leash.let_go();
        }
    }

    /// Takes over the state that the program before this one had. Nothing has changed, so nobody is told.
    #[cfg(all(target_os = "linux", feature = "cli"))]
    pub(super) fn show(&self, state: State) {
        self.state.send_replace(state);
    }

    /// Puts what went on meanwhile on the leash.
    #[cfg(all(target_os = "linux", feature = "cli"))]
    pub(super) fn tie_again(&self, resting: &Resting, since: Instant) {
        let mut inner = self.inner();
        inner.since = since;
        match resting {
            Resting::Running(own) => {
                inner.connection = Some(own.connection.clone());
                (inner.leash, inner.trace) = (Some(own.talk.leash()), Some(own.talk.trace()));
            }
            Resting::Shared(shared) => inner.connection = Some(shared.connection.clone()),
            Resting::Pausing { .. } | Resting::Failed { .. } => {}
        }
    }

    /// Puts a new run on the leash. False if it is not to run at all.
    fn tie(&self, leash: Leash, trace: Arc<Trace>) -> bool {
        let mut inner = self.inner();
        if inner.let_go {
            return false;
        }
        inner.leash = Some(leash);
        (inner.told, inner.since) = (false, Instant::now());
        inner.trace = Some(trace);
        true
    }

    pub(super) fn enter(&self, house: &House, state: State) {
        let why = match &state {
            State::Restarting { why, .. } | State::Failed { why } => Some(why.clone()),
            _ => None,
        };
        // The end of a run is told with its receipt. Told first: who sees a state has been told of it.
        if !matches!(state, State::Ended(_)) {
            house.tell(Some(&self.name), state.word(), why, None);
        }
        self.state.send_replace(state);
    }
}

/// The task of one server.
pub(super) struct Driver {
    pub(super) view: Arc<View>,
    pub(super) house: Arc<House>,
    pub(super) orders: mpsc::UnboundedReceiver<Order>,
    pub(super) course: Course,
}

/// The conversation with a server of the session's own.
type Spoken = Conversation<Sender, Receiver>;

/// Whoever drops the task, a runtime that ends included, ends the server.
struct EndsWithTask(Arc<View>);

impl Drop for EndsWithTask {
    fn drop(&mut self) {
        self.0.let_go();
        // Nobody will say how it ended, but whoever waits for that must not wait for ever.
        self.0.state.send_if_modified(|state| {
            let open = !matches!(state, State::Ended(_));
            if open {
                *state = State::Ended(None);
            }
            open
        });
    }
}

/// Why a run is over.
pub(super) enum Stop {
    /// Somebody said so; without an order the manager is gone.
    Told(Option<Order>),
    /// It left, or never came to be.
    Left { why: Arc<str>, was_ready: bool },
}

/// Somebody who waits for a replacement, with what was ended for it.
pub(super) type Waiting = Option<(oneshot::Sender<Departure>, Departure)>;

/// From where on a server is driven.
pub(super) enum Begin {
    /// There is none yet.
    New,
    /// It runs, or has left.
    At(Resting),
}

impl Driver {
    pub(super) async fn drive(mut self, from: Begin) {
        let _ends = EndsWithTask(self.view.clone());
        let mut waiting: Waiting = None;
        let mut from = Some(from);
        loop {
            let (order, gone) = match from.take().unwrap_or(Begin::New) {
                Begin::At(Resting::Pausing { until, gone }) => match self.pause(until, &gone).await
                {
                    Some(order) => (order, gone),
                    None => {
                        self.course.debts.add(gone.debts());
                        continue;
                    }
                },
                Begin::At(Resting::Failed { gone }) => (self.next_order(&gone).await, gone),
                begin => {
                    let (stop, gone) = match begin {
                        Begin::At(Resting::Running(own)) => {
                            self.stay(
                                own.talk,
                                own.connection,
                                Conversation::of(own.life, own.wire),
                                own.listed,
                            )
                            .await
                        }
                        Begin::At(Resting::Shared(shared)) => {
                            (self.stay_shared(*shared).await, Departure::default())
                        }
                        _ => {
                            self.view.enter(&self.house, State::Starting);
                            self.course.began = Instant::now();
                            self.run(&mut waiting).await
                        }
                    };
                    if self.course.began.elapsed() >= STAYED {
                        self.course.crashes = 0;
                    }
                    match stop {
                        Stop::Told(order) => (order, gone),
                        Stop::Left { why, was_ready } => {
                            let next = self.left(why, was_ready, gone);
                            if matches!(next, Resting::Failed { .. }) {
                                answer(&mut waiting);
                            }
                            from = Some(Begin::At(next));
                            continue;
                        }
                    }
                }
            };
            answer(&mut waiting);
            match order {
                Some(Order::Replace(spec, reply)) => {
                    self.view.inner().spec = spec;
                    waiting = Some((reply, gone.clone()));
                    self.course.debts.add(gone.debts());
                    self.course.crashes = 0;
                }
                Some(Order::End(reply)) => {
                    self.view.let_go();
                    // Nobody may be waiting any more.
                    let _impatient = reply.send(self.over(gone));
                    return;
                }
                None => {
                    self.over(gone);
                    return;
                }
            }
        }
    }

    /// It left: what now.
    fn left(&mut self, why: Arc<str>, was_ready: bool, gone: Departure) -> Resting {
        self.course.crashes += 1;
        let crashes = self.course.crashes;
        let again = self.view.spec().restart == Restart::Always;
        if again && (was_ready || crashes > 1) && crashes < MOST_CRASHES {
            let after = FIRST_PAUSE * (1 << (crashes - 1));
            let state = State::Restarting { attempt: crashes, after, why };
            self.view.enter(&self.house, state);
            return Resting::Pausing { until: Instant::now() + after, gone };
        }
        let why = match crashes {
            MOST_CRASHES.. => format!("it left {crashes} times in a row: {why}").into(),
            _ => why,
        };
        self.view.enter(&self.house, State::Failed { why });
        Resting::Failed { gone }
    }

    /// Waits before it is started again; or until it is told something else.
    async fn pause(&mut self, until: Instant, gone: &Departure) -> Option<Option<Order>> {
        loop {
            tokio::select! {
                biased;
                order = self.orders.recv() => return Some(order),
                () = sleep_until(until.into()) => return None,
                () = self.house.called_to_rest() => {}
            }
            self.rest(Resting::Pausing { until, gone: gone.clone() }).await;
        }
    }

    /// Waits, without a server, until it is told something.
    async fn next_order(&mut self, gone: &Departure) -> Option<Order> {
        loop {
            tokio::select! {
                biased;
                order = self.orders.recv() => return order,
                () = self.house.called_to_rest() => {}
            }
            self.rest(Resting::Failed { gone: gone.clone() }).await;
        }
    }

    /// Stays as it is while everything does.
    pub(super) async fn rest(&self, what: Resting) -> Option<Resting> {
        self.view.rest(&self.house, Rested { course: self.course.clone(), what }).await
    }

    /// It has ended for good.
    fn over(&self, mut gone: Departure) -> Departure {
        let last = gone.receipts.last().cloned().map(Arc::new);
        gone.add(self.course.debts.clone());
        self.view.inner().gone = Some(gone.clone());
        self.view.enter(&self.house, State::Ended(last));
        gone
    }

    /// Starts it, and stays with it until it is gone.
    async fn run(&mut self, waiting: &mut Waiting) -> (Stop, Departure) {
        let failed = |why: String| Stop::Left { why: why.into(), was_ready: false };
        let spec = self.view.spec();
        if let (Some(pool), true) = (self.house.pool.clone(), spec.share != Share::Never) {
            return (self.run_shared(&pool, &spec, waiting).await, Departure::default());
        }
        let (mut talk, theirs, streams) = match Talk::new(&self.house.household, &self.view.name) {
            Ok(made) => made,
            Err(e) => {
                return (failed(format!("its streams cannot be made: {e}")), Departure::default());
            }
        };
        if !self.view.tie(talk.leash(), talk.trace()) {
            return (Stop::Told(None), Departure::default());
        }
        let rules = Rules { tools: spec.tools.clone(), capabilities: spec.capabilities.clone() };
        let pulse = streams.pulse;
        let connection = Connection::new(rules, Company::Kin);
        let wire = Wire::new(streams.stdin, streams.stdout);
        let conversation = Conversation::of(connection.only_run(), wire);
        // Waiting for others is not the server's own time.
        let turn = tokio::select! {
            biased;
            order = self.orders.recv() => return (Stop::Told(order), Departure::default()),
            turn = talk::turn() => turn,
        };
        let stop = tokio::select! {
            biased;
            order = self.orders.recv() => Err(Stop::Told(order)),
            ready = timeout(spec.startup_timeout, begin(&mut talk, turn, theirs, &spec, &connection)) => match ready {
                Ok(ready) => ready.map_err(failed),
                Err(_) => {
                    let after = spec.startup_timeout.as_millis();
                    Err(failed(format!("it was not ready after {after} ms{}", talk.so_far())))
                }
            },
        };
        match stop {
            Err(stop) => self.end(stop, talk, conversation).await,
            Ok(ready) => {
                connection.show(pulse);
                {
                    let mut inner = self.view.inner();
                    inner.connection = (!inner.let_go).then(|| connection.clone());
                }
                self.view.enter(&self.house, State::Ready(Arc::new(ready)));
                answer(waiting);
                self.stay(talk, connection, conversation, 0).await
            }
        }
    }

    /// Stays with one that is ready until it is gone.
    async fn stay(
        &mut self,
        mut talk: Talk,
        connection: Connection,
        mut conversation: Spoken,
        mut listed: u64,
    ) -> (Stop, Departure) {
        loop {
            let stop = self.attend(&mut talk, &mut conversation, &connection, &mut listed).await;
            if let Some(stop) = stop {
                return self.end(stop, talk, conversation).await;
            }
            // One that has just ended is seen above.
            let Some((life, wire)) = conversation.halt().await else { continue };
            let own = Own { talk, connection: connection.clone(), life, wire, listed };
            match self.rest(Resting::Running(Box::new(own))).await {
                Some(Resting::Running(own)) => {
                    talk = own.talk;
                    conversation = Conversation::of(own.life, own.wire);
                }
                // Nobody else takes it.
                _ => {
                    return (
                        Stop::Told(None),
                        Departure { unaccounted: true, ..Departure::default() },
                    );
                }
            }
        }
    }

    /// Ends what runs, and says how it went.
    async fn end(&self, stop: Stop, mut talk: Talk, conversation: Spoken) -> (Stop, Departure) {
        if matches!(stop, Stop::Told(_)) {
            // First of all, so that what is in flight knows why it fails.
            self.view.inner().told = true;
            self.view.enter(&self.house, State::Ending);
        }
        self.view.inner().connection = None;
        // Fails what is in flight and closes the server's stdin.
        drop(conversation);
        let gone = talk.end().await;
        {
            let mut inner = self.view.inner();
            inner.leash = None;
            inner.trace.iter().for_each(|trace| trace.over());
        }
        if let Some(receipt) = gone.receipts.last() {
            let receipt = Some(Arc::new(receipt.clone()));
            self.house.tell(Some(&self.view.name), "ended", None, receipt);
        }
        (stop, gone)
    }

    /// Stays with a server that is ready until it leaves or is told to end; `None` if everything is to rest.
    async fn attend(
        &mut self,
        talk: &mut Talk,
        conversation: &mut Spoken,
        connection: &Connection,
        listed: &mut u64,
    ) -> Option<Stop> {
        loop {
            let known = *listed;
            let listing = async {
                let mut changes = connection.tools_changed();
                // Without the connection the conversation is over, which others see.
                let Ok(count) = changes.wait_for(|count| *count != known).await.map(|count| *count)
                else {
                    return std::future::pending().await;
                };
                (count, connection.tools().await)
            };
            tokio::select! {
                biased;
                order = self.orders.recv() => return Some(Stop::Told(order)),
                heard = talk.next() => match heard {
                    Heard::Left(why) => {
                        return Some(Stop::Left { why: why.into(), was_ready: true });
                    }
                    Heard::Started | Heard::News => {}
                },
                () = conversation.ended() => {
                    let why = talk.why_left().await.into();
                    return Some(Stop::Left { why, was_ready: true });
                }
                (count, tools) = listing => {
                    *listed = count;
                    if let (Ok(tools), State::Ready(ready)) = (tools, self.view.state()) {
                        let ready = Ready { tools, ..(*ready).clone() };
                        self.view.state.send_replace(State::Ready(Arc::new(ready)));
                        self.house.tell(Some(&self.view.name), "tools-changed", None, None);
                    }
                },
                () = self.house.called_to_rest() => return None,
            }
        }
    }
}

/// From nothing to the end of the handshake. Gives a sentence if it does not come to that.
async fn begin(
    talk: &mut Talk,
    turn: talk::Turn,
    theirs: Theirs,
    spec: &ServerSpec,
    connection: &Connection,
) -> Result<Ready, String> {
    let Started { pid, backend, .. } = talk.begin(turn, theirs, spec, None).await?;
    let greeted = async {
        let hello = connection.greet().await?;
        Ok((hello, connection.tools().await?))
    };
    let mut greeted = std::pin::pin!(greeted);
    let greeting: Result<_, ConnectionError> = loop {
        tokio::select! {
            biased;
            greeting = &mut greeted => break greeting,
            heard = talk.next() => if let Heard::Left(why) = heard {
                return Err(why);
            },
        }
    };
    match greeting {
        Ok((hello, tools)) => Ok(Ready { pid, backend, hello, tools }),
        Err(ConnectionError::Closed) => Err(talk.why_left().await),
        Err(e) => Err(e.to_string()),
    }
}

/// Tells whoever waits for a replacement that it is what it will be.
pub(super) fn answer(waiting: &mut Waiting) {
    if let Some((reply, gone)) = waiting.take() {
        // Nobody may be waiting any more.
        let _impatient = reply.send(gone);
    }
}
