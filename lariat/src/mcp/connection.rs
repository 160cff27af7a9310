//! A conversation with a server that lasts: our own requests, and clients that are attached.
//!
//! [`Connection::open`] gives a handle and a future. The future does all reading and writing at the
//! server's side and is the connection's life: when it ends or is dropped, whatever waits here fails
//! with [`Error::Closed`]. A conversation of the pool outlives its servers instead, and has one run
//! after the other.
//!
//! Reading never waits for the server to read, so a server that is stuck writing can always be heard.
//! It does wait for a client of the same session that does not read; strangers do not wait for each
//! other. A caller that has waited long enough drops what it waits for, which cancels it.

use super::envelope::{self, Items, Line};
use super::mux::{Company, Mux, Port};
use super::queue::{Parcels, Queue, Room};
use super::reply::{INVALID_PARAMS, METHOD_NOT_FOUND, Unsent};
use super::{LEGACY, MODERN, PAGES};
use crate::books::Pulse;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, oneshot, watch};

#[cfg(all(target_os = "linux", feature = "cli"))]
pub(crate) mod carried;
mod error;
mod parking;
mod run;
mod seat;

pub use error::{Ended, Error};
use parking::Parking;
pub(crate) use run::{OnlyRun, Opening, Wire, take_in};
pub(crate) use seat::{Ear, LAST_ANSWERS, Mouth};

/// What holds for everybody who speaks with a server.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The tools that may be seen and called: names, `prefix*`, or `*` for all.
    pub tools: Vec<String>,
    /// What we tell the server that its client can do.
    pub capabilities: Map<String, Value>,
}

/// What a server says it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Its name, if it gave one.
    pub name: Option<String>,
    /// Its version, if it gave one.
    pub version: Option<String>,
    /// The protocol revision in force.
    pub protocol: String,
    /// `legacy` or `modern`.
    pub era: &'static str,
}

/// A handle to a conversation. Holding one keeps nothing alive.
#[derive(Debug, Clone)]
pub struct Connection(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    capabilities: Map<String, Value>,
    company: Company,
    state: Mutex<State>,
    queue: Queue,
    /// The queue's far end, which is a run's as long as there is one.
    parcels: tokio::sync::Mutex<Parcels>,
    /// Something waits for a server that is not there.
    wanted: Notify,
    /// A client has come or gone.
    company_changed: Notify,
    tools_changed: watch::Sender<u64>,
    /// The server has said something.
    heard: Notify,
    life: watch::Sender<Life>,
}

#[derive(Debug)]
struct State {
    open: bool,
    /// There is no server now; what is said waits for the next.
    asleep: bool,
    /// Something waits for it.
    wanted: bool,
    /// Nothing more will be said to it.
    parting: bool,
    mux: Mux,
    /// Our own requests.
    waiting: BTreeMap<u64, oneshot::Sender<Vec<u8>>>,
    /// The way to each attached client.
    ports: BTreeMap<Port, Queue>,
    /// Requests of theirs that wait for others of theirs.
    parking: Parking,
    last: Instant,
    /// Where others see whether anybody waits.
    pulse: Option<Pulse>,
}

impl State {
    /// To be said after whatever may have changed who waits.
    fn beat(&self) {
        if let Some(pulse) = &self.pulse {
            pulse.beat(!self.mux.is_quiet(), self.last);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    /// What was said before still reaches the clients.
    Over,
    /// The future was dropped: everything ends at once.
    Cut,
}

impl Connection {
    /// Begins a conversation over a server's stdin and stdout. The future drives it and ends when
    /// either stream does. Dropping it closes both.
    pub fn open(
        input: impl AsyncWrite + Send + Unpin + 'static,
        output: impl AsyncRead + Send + Unpin + 'static,
        rules: Rules,
    ) -> (Connection, impl Future<Output = Ended> + Send + 'static) {
        let connection = Connection::new(rules, Company::Kin);
        // Made here and not in the future, so that it also counts if that is never polled.
        let run = connection.only_run();
        let mut wire = Wire::new(input, output);
        (connection, async move {
            let ended = run.go_on(&mut wire).await;
            run.end(wire);
            ended
        })
    }

    /// A conversation with a server that comes and goes: see [`Connection::run`]. It is not there
    /// yet.
    pub(crate) fn new(rules: Rules, company: Company) -> Connection {
        let (queue, parcels) = Queue::new();
        let state = State {
            open: true,
            asleep: true,
            wanted: false,
            parting: false,
            mux: Mux::new(rules.tools, company),
            waiting: BTreeMap::new(),
            ports: BTreeMap::new(),
            parking: Parking::default(),
            last: Instant::now(),
            pulse: None,
        };
        Connection(Arc::new(Shared {
            capabilities: rules.capabilities,
            company,
            state: Mutex::new(state),
            queue,
            parcels: tokio::sync::Mutex::new(parcels),
            wanted: Notify::new(),
            company_changed: Notify::new(),
            tools_changed: watch::Sender::new(0),
            heard: Notify::new(),
            life: watch::Sender::new(Life::Open),
        }))
    }

    /// Shakes hands. `initialize` first: every legacy server knows it, and a modern one refuses it
    /// without harm, whereas some legacy servers leave when their first message is another.
    pub async fn greet(&self) -> Result<Hello, Error> {
        let hello = json!({
            "protocolVersion": LEGACY, "capabilities": self.0.capabilities, "clientInfo": us(),
        });
        let refused = match self.ask("initialize", Some(raw(&hello)?)).await {
            Ok(result) => return self.shake(&result).await,
            Err(error @ Error::Refused { .. }) => error,
            Err(other) => return Err(other),
        };
        let params = self.modern(None)?;
        let answer = match self.ask("server/discover", Some(params)).await {
            // It is a legacy server after all, and the first refusal is the one that says why.
            Err(Error::Refused { code: METHOD_NOT_FOUND, .. }) => return Err(refused),
            answer => answer?,
        };
        let answer: Value = serde_json::from_str(answer.get())
            .map_err(|_| Error::Garbled("server/discover".into()))?;
        let info = &answer["_meta"]["io.modelcontextprotocol/serverInfo"];
        let info = if info.is_object() { info } else { &answer["serverInfo"] };
        self.0.lock().mux.greeted_modern();
        Ok(named(info, MODERN.into(), "modern"))
    }

    async fn shake(&self, result: &RawValue) -> Result<Hello, Error> {
        let garbled = || Error::Garbled("initialize".into());
        let answer: Value = serde_json::from_str(result.get()).map_err(|_| garbled())?;
        let protocol = answer["protocolVersion"].as_str().ok_or_else(garbled)?.to_string();
        let line = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string();
        let room = self.0.queue.room(line.len()).await.map_err(|_| Error::Closed)?;
        self.0.queue.push(room, line.into_bytes()).map_err(|_| Error::Closed)?;
        // Only now: nobody may ask before the server knows that the handshake is complete.
        self.0.lock().mux.greeted(result);
        Ok(named(&answer["serverInfo"], protocol, "legacy"))
    }

    /// All tools that may be seen. A server that knows no tools has none.
    pub async fn tools(&self) -> Result<Vec<Box<RawValue>>, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Page<'a> {
            #[serde(borrow, default)]
            tools: Items<'a>,
            next_cursor: Option<String>,
        }
        let mut tools = Vec::new();
        let mut params = None;
        for page in 0..PAGES {
            let answer = match self.request("tools/list", params).await {
                // Servers differ in how they say that they do not know a method.
                Err(Error::Refused { code: METHOD_NOT_FOUND | INVALID_PARAMS, .. })
                    if page == 0 =>
                {
                    break;
                }
                answer => answer?,
            };
            let page: Page<'_> = serde_json::from_str(answer.get())
                .map_err(|_| Error::Garbled("tools/list".into()))?;
            tools.extend(page.tools.0.into_iter().map(ToOwned::to_owned));
            let Some(cursor) = page.next_cursor else { break };
            params = Some(raw(&json!({ "cursor": cursor }))?);
        }
        Ok(tools)
    }

    /// Asks the server and waits for its result. Dropping the future cancels the request.
    pub async fn request(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
    ) -> Result<Box<RawValue>, Error> {
        let modern = self.0.lock().mux.is_modern();
        let params = if modern { Some(self.modern(params.as_deref())?) } else { params };
        self.ask(method, params).await
    }

    /// Shows from here on, while the conversation lasts, whether anybody waits.
    pub(crate) fn show(&self, pulse: Option<Pulse>) {
        let mut state = self.0.lock();
        state.pulse = pulse.filter(|_| state.open);
        state.beat();
    }

    /// Counts how often the server said that its tools are others now.
    pub fn tools_changed(&self) -> watch::Receiver<u64> {
        self.0.tools_changed.subscribe()
    }

    /// For how long nothing has been said and nothing was in flight.
    pub fn idle(&self) -> Duration {
        let state = self.0.lock();
        if state.mux.is_quiet() { state.last.elapsed() } else { Duration::ZERO }
    }

    /// Requests without an answer, in both directions.
    pub fn in_flight(&self) -> usize {
        self.0.lock().mux.in_flight()
    }

    /// Lines that made no sense to anybody, such as what a server prints to its stdout.
    pub fn dropped(&self) -> u64 {
        self.0.lock().mux.dropped()
    }

    async fn ask(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
    ) -> Result<Box<RawValue>, Error> {
        let length = method.len() + params.as_ref().map_or(0, |params| params.get().len());
        let room = self.0.queue.room(length).await.map_err(|_| Error::Closed)?;
        let (waiting, answer) = Waiting::begin(&self.0, room, method, params.as_deref())?;
        drop(params);
        let line = answer.await.map_err(|_| Error::Closed)?;
        drop(waiting);
        result(&line).unwrap_or_else(|| Err(Error::Garbled(method.into())))
    }

    /// The params of a modern request: with what each of them has to say about us.
    fn modern(&self, params: Option<&RawValue>) -> Result<Box<RawValue>, Error> {
        fn members(object: Option<&RawValue>) -> Result<BTreeMap<String, Box<RawValue>>, Error> {
            let members = object.map(|object| serde_json::from_str(object.get()));
            members.unwrap_or_else(|| Ok(BTreeMap::new())).map_err(|_| unreadable())
        }
        let mut params = members(params)?;
        let mut meta = members(params.get("_meta").map(|meta| &**meta))?;
        for (key, value) in [
            ("protocolVersion", json!(MODERN)),
            ("clientCapabilities", json!(self.0.capabilities)),
            ("clientInfo", us()),
        ] {
            meta.entry(format!("io.modelcontextprotocol/{key}")).or_insert(raw(&value)?);
        }
        params.insert("_meta".into(), raw(&meta)?);
        raw(&params)
    }
}

impl Shared {
    /// Nothing under this lock can leave it half done, so one that panicked did no harm.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what the server gets without having waited for room, if anything.
    fn squeeze(&self, state: &mut State, lines: impl IntoIterator<Item = Vec<u8>>) {
        for line in lines {
            if state.open && !self.queue.squeeze(line) {
                state.mux.drop_one();
            }
        }
        state.beat();
    }
}

/// The line with the answer to a request of ours, once it comes.
type Answer = oneshot::Receiver<Vec<u8>>;

/// A request of ours whose answer is awaited. Dropped early, it cancels.
struct Waiting<'a> {
    shared: &'a Shared,
    id: u64,
}

impl<'a> Waiting<'a> {
    fn begin(
        shared: &'a Shared,
        room: Room,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<(Waiting<'a>, Answer), Error> {
        let mut state = shared.lock();
        let (id, line) = state.ask(method, params)?;
        let answer = state.wait(id);
        // Under the lock, so that no cancellation can overtake it. One that could not be queued is
        // forgotten when the connection closes, which is what is happening.
        let _closing = shared.queue.push(room, line);
        Ok((Waiting { shared, id }, answer))
    }

    /// The same for a line that does not go by the queue.
    fn ask(
        shared: &'a Shared,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<(Waiting<'a>, Vec<u8>, Answer), Error> {
        let mut state = shared.lock();
        let (id, line) = state.ask(method, params)?;
        let answer = state.wait(id);
        Ok((Waiting { shared, id }, line, answer))
    }

    /// The same for a request that is made already.
    fn of(shared: &'a Shared, id: u64) -> (Waiting<'a>, Answer) {
        let answer = shared.lock().wait(id);
        (Waiting { shared, id }, answer)
    }
}

impl State {
    fn ask(&mut self, method: &str, params: Option<&RawValue>) -> Result<(u64, Vec<u8>), Error> {
        if !self.open {
            return Err(Error::Closed);
        }
        self.mux.ask(method, params).map_err(|unsent| match unsent {
            Unsent::TooBusy => Error::TooBusy,
            Unsent::NotAllowed(tool) => Error::NotAllowed(tool),
            Unsent::Unreadable => unreadable(),
        })
    }

    fn wait(&mut self, id: u64) -> Answer {
        let (sender, answer) = oneshot::channel();
        self.waiting.insert(id, sender);
        self.last = Instant::now();
        self.beat();
        answer
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if state.waiting.remove(&self.id).is_some() {
            let line = state.mux.cancel(self.id);
            self.shared.squeeze(&mut state, line);
        }
    }
}

/// What an answer says, if it says anything.
fn result(line: &[u8]) -> Option<Result<Box<RawValue>, Error>> {
    #[derive(Default, Deserialize)]
    struct Refusal {
        #[serde(default)]
        code: Value,
        #[serde(default)]
        message: Value,
        data: Option<Box<RawValue>>,
    }
    let Line::One(envelope) = envelope::read(line) else { return None };
    // Some servers say that there is no error.
    if let Some(error) = envelope.error.filter(|error| error.get() != "null") {
        let refusal = serde_json::from_str(error.get()).unwrap_or_default();
        let Refusal { code, message, data } = refusal;
        let message = message.as_str().unwrap_or("no message").to_string();
        return Some(Err(Error::Refused { code: code.as_i64().unwrap_or(0), message, data }));
    }
    envelope.result.map(|result| Ok(result.to_owned()))
}

fn unreadable() -> Error {
    let message = "the params are no object, or a key occurs twice in them".into();
    Error::Refused { code: INVALID_PARAMS, message, data: None }
}

fn raw(value: &impl Serialize) -> Result<Box<RawValue>, Error> {
    to_raw_value(value).map_err(|_| unreadable())
}

fn us() -> Value {
    json!({ "name": "lariat", "version": env!("CARGO_PKG_VERSION") })
}

fn named(info: &Value, protocol: String, era: &'static str) -> Hello {
    let text = |key: &str| info[key].as_str().map(str::to_string);
    Hello { name: text("name"), version: text("version"), protocol, era }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod size;
#[cfg(test)]
mod tests;
