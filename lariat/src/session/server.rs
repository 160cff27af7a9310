//! One server of a session: started, watched, started again, ended.
//!
//! Each has a task that is the only one to decide what becomes of it. Orders come by channel, so
//! whoever gives one and then loses patience leaves a server in the middle of nothing: the task goes
//! on. What others may see of it is its [`View`].

use super::House;
use super::shared::Membership;
use super::state::{Ready, State};
use crate::id::SessionId;
use crate::mcp::connection::{Ended, Error as ConnectionError};
use crate::mcp::{Connection, Rules};
use crate::pool::Pool;
use crate::spec::{Restart, ServerSpec, Share};
use crate::start::local::{Leash, Theirs};
use crate::start::talk::{self, Gone, Heard, Place, Started, Talk, Trace};
use contain::Member;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

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
    Replace(Arc<ServerSpec>, oneshot::Sender<Gone>),
    /// End what runs. Answered when it is gone.
    End(oneshot::Sender<Gone>),
}

/// What others may see and use of a server.
#[derive(Debug)]
pub(super) struct View {
    pub(super) name: String,
    state: watch::Sender<State>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    spec: Arc<ServerSpec>,
    connection: Option<Connection>,
    leash: Option<Leash>,
    /// Nothing may run any more.
    let_go: bool,
    /// What ran last was told to end.
    told: bool,
    trace: Option<Arc<Trace>>,
    since: Instant,
    /// How it ended, once it has for good.
    gone: Option<Gone>,
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
        let (state, _) = watch::channel(State::Starting);
        View { name: name.into(), state, inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
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
    pub(super) fn gone(&self) -> Option<Gone> {
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

    fn enter(&self, house: &House, state: State) {
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
}

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

/// The conversation's task. It ends with whoever holds this.
pub(super) struct Conversation(JoinHandle<()>);

impl Conversation {
    pub(super) fn of(driving: impl Future<Output = Ended> + Send + 'static) -> Conversation {
        Conversation(tokio::spawn(async move {
            let _ended = driving.await;
        }))
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why a run is over.
enum Stop {
    /// Somebody said so; without an order the manager is gone.
    Told(Option<Order>),
    /// It left, or never came to be.
    Left { why: Arc<str>, was_ready: bool },
}

/// Somebody who waits for a replacement, with what was ended for it.
type Waiting = Option<(oneshot::Sender<Gone>, Gone)>;

impl Driver {
    pub(super) async fn drive(mut self) {
        let _ends = EndsWithTask(self.view.clone());
        let mut waiting: Waiting = None;
        let (mut crashes, mut debts) = (0, Gone::default());
        loop {
            self.view.enter(&self.house, State::Starting);
            let began = Instant::now();
            let (stop, gone) = self.run(&mut waiting).await;
            if began.elapsed() >= STAYED {
                crashes = 0;
            }
            let order = match stop {
                Stop::Told(order) => order,
                Stop::Left { why, was_ready } => {
                    crashes += 1;
                    let again = self.view.spec().restart == Restart::Always;
                    if again && (was_ready || crashes > 1) && crashes < MOST_CRASHES {
                        let after = FIRST_PAUSE * (1 << (crashes - 1));
                        let state = State::Restarting { attempt: crashes, after, why };
                        self.view.enter(&self.house, state);
                        tokio::select! {
                            biased;
                            order = self.orders.recv() => order,
                            () = sleep(after) => {
                                debts.add(gone.debts());
                                continue;
                            }
                        }
                    } else {
                        let why = match crashes {
                            MOST_CRASHES.. => {
                                format!("it left {crashes} times in a row: {why}").into()
                            }
                            _ => why,
                        };
                        self.view.enter(&self.house, State::Failed { why });
                        answer(&mut waiting);
                        self.orders.recv().await
                    }
                }
            };
            answer(&mut waiting);
            match order {
                Some(Order::Replace(spec, reply)) => {
                    self.view.inner().spec = spec;
                    waiting = Some((reply, gone.clone()));
                    debts.add(gone.debts());
                    crashes = 0;
                }
                Some(Order::End(reply)) => {
                    self.view.let_go();
                    // Nobody may be waiting any more.
                    let _impatient = reply.send(self.over(gone, debts));
                    return;
                }
                None => {
                    self.over(gone, debts);
                    return;
                }
            }
        }
    }

    /// It has ended for good.
    fn over(&self, mut gone: Gone, debts: Gone) -> Gone {
        let last = gone.receipts.last().cloned().map(Arc::new);
        gone.add(debts);
        self.view.inner().gone = Some(gone.clone());
        self.view.enter(&self.house, State::Ended(last));
        gone
    }

    /// Starts it, and stays with it until it is gone.
    async fn run(&mut self, waiting: &mut Waiting) -> (Stop, Gone) {
        let failed = |why: String| Stop::Left { why: why.into(), was_ready: false };
        let spec = self.view.spec();
        if let (Some(pool), true) = (self.house.pool.clone(), spec.share != Share::Never) {
            return (self.run_shared(&pool, &spec, waiting).await, Gone::default());
        }
        let (mut talk, theirs, streams) = match Talk::new(&self.house.household, &self.view.name) {
            Ok(made) => made,
            Err(e) => return (failed(format!("its streams cannot be made: {e}")), Gone::default()),
        };
        if !self.view.tie(talk.leash(), talk.trace()) {
            return (Stop::Told(None), Gone::default());
        }
        let rules = Rules { tools: spec.tools.clone(), capabilities: spec.capabilities.clone() };
        let pulse = streams.pulse;
        let (connection, driving) = Connection::open(streams.stdin, streams.stdout, rules);
        let mut conversation = Conversation::of(driving);
        // Waiting for others is not the server's own time.
        let turn = tokio::select! {
            biased;
            order = self.orders.recv() => return (Stop::Told(order), Gone::default()),
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
        let stop = match stop {
            Err(stop) => stop,
            Ok(ready) => {
                connection.show(pulse);
                {
                    let mut inner = self.view.inner();
                    inner.connection = (!inner.let_go).then(|| connection.clone());
                }
                self.view.enter(&self.house, State::Ready(Arc::new(ready)));
                answer(waiting);
                self.attend(&mut talk, &mut conversation, &connection).await
            }
        };
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

    /// Joins it, and stays until it is left. How it ends is the pool's to say.
    async fn run_shared(
        &mut self,
        pool: &Pool,
        spec: &Arc<ServerSpec>,
        waiting: &mut Waiting,
    ) -> Stop {
        let (mut membership, connection, mut conversation) =
            Membership::new(pool, &self.house, &self.view, spec);
        let begun = tokio::select! {
            biased;
            order = self.orders.recv() => Err(Stop::Told(order)),
            ready = timeout(spec.startup_timeout, membership.begin(&connection)) => {
                let late = || Err(format!("it was not ready after {} ms", spec.startup_timeout.as_millis()));
                let ready = ready.unwrap_or_else(|_| late());
                ready.map_err(|why| Stop::Left { why: why.into(), was_ready: false })
            }
        };
        let stop = match begun {
            Err(stop) => stop,
            Ok(ready) => {
                {
                    let mut inner = self.view.inner();
                    inner.connection = (!inner.let_go).then(|| connection.clone());
                    (inner.told, inner.since) = (false, Instant::now());
                }
                self.view.enter(&self.house, State::Ready(Arc::new(ready)));
                answer(waiting);
                tokio::select! {
                    biased;
                    order = self.orders.recv() => Stop::Told(order),
                    _ended = &mut conversation.0 => {
                        Stop::Left { why: membership.why().await.into(), was_ready: true }
                    }
                }
            }
        };
        if matches!(stop, Stop::Told(_)) {
            self.view.inner().told = true;
            self.view.enter(&self.house, State::Ending);
        }
        self.view.inner().connection = None;
        stop
    }

    /// Waits, while it is ready, until it is not to be or cannot be.
    async fn attend(
        &mut self,
        talk: &mut Talk,
        conversation: &mut Conversation,
        connection: &Connection,
    ) -> Stop {
        let mut changes = connection.tools_changed();
        loop {
            let listing = async {
                // Without the connection the conversation is over, which others see.
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
                connection.tools().await
            };
            tokio::select! {
                biased;
                order = self.orders.recv() => return Stop::Told(order),
                heard = talk.next() => match heard {
                    Heard::Left(why) => return Stop::Left { why: why.into(), was_ready: true },
                    Heard::Started | Heard::News => {}
                },
                _ended = &mut conversation.0 => {
                    let why = talk.why_left().await.into();
                    return Stop::Left { why, was_ready: true };
                }
                tools = listing => if let (Ok(tools), State::Ready(ready)) = (tools, self.view.state()) {
                    let ready = Ready { tools, ..(*ready).clone() };
                    self.view.state.send_replace(State::Ready(Arc::new(ready)));
                    self.house.tell(Some(&self.view.name), "tools-changed", None, None);
                },
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
fn answer(waiting: &mut Waiting) {
    if let Some((reply, gone)) = waiting.take() {
        // Nobody may be waiting any more.
        let _impatient = reply.send(gone);
    }
}
