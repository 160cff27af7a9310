//! A conversation with a server that lasts: our own requests, and clients that are attached.
//!
//! [`Connection::open`] gives a handle and a future. The future does all reading and writing at the
//! server's side and is the connection's life: when it ends or is dropped, whatever waits here fails
//! with [`Error::Closed`]. Reading never waits for the server to read, so a server that is stuck
//! writing can always be heard; it does wait for an attached client that does not read. There are no
//! timeouts in here: a caller that has waited long enough drops what it waits for, which cancels it.

use super::envelope::{self, Items, Line};
use super::frame::Frames;
use super::mux::{Mux, Port, Routed};
use super::queue::{self, Parcels, Queue, Room};
use super::reply::{INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Unsent, error};
use super::{LEGACY, MODERN, PAGES};
use crate::books::Pulse;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;

mod error;

pub use error::{Ended, Error};

/// How long a client that says nothing more is kept for what it has asked.
const LAST_ANSWERS: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 30_000 });

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
    state: Mutex<State>,
    queue: Queue,
    tools_changed: watch::Sender<u64>,
    /// The server has said something.
    heard: Notify,
    life: watch::Sender<Life>,
}

#[derive(Debug)]
struct State {
    open: bool,
    mux: Mux,
    /// Our own requests.
    waiting: BTreeMap<u64, oneshot::Sender<Vec<u8>>>,
    /// The way to each attached client.
    ports: BTreeMap<Port, Queue>,
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
        let (queue, parcels) = Queue::new();
        let state = State {
            open: true,
            mux: Mux::new(rules.tools),
            waiting: BTreeMap::new(),
            ports: BTreeMap::new(),
            last: Instant::now(),
            pulse: None,
        };
        let shared = Arc::new(Shared {
            capabilities: rules.capabilities,
            state: Mutex::new(state),
            queue,
            tools_changed: watch::Sender::new(0),
            heard: Notify::new(),
            life: watch::Sender::new(Life::Open),
        });
        // Made here and not in the future, so that it also counts if that is never polled.
        let driver = Driver(Arc::clone(&shared));
        (Connection(shared), async move { driver.run(input, output, parcels).await })
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

    /// Speaks with one more client, a message a line, until it closes or the connection ends. Its
    /// side is then shut down. What it still waited for is cancelled. An error if it was not the
    /// client that ended it, or if that said a line that is too long.
    pub async fn attach(
        &self,
        reader: impl AsyncRead + Send + Unpin,
        mut writer: impl AsyncWrite + Send + Unpin,
    ) -> Result<(), Error> {
        let mut life = self.0.life.subscribe();
        let (seat, parcels) = Seat::take(&self.0)?;
        let outcome = {
            let mut writing = pin!(queue::write(&mut writer, parcels));
            let (outcome, listens) = tokio::select! {
                outcome = seat.serve(reader) => (outcome, true),
                _ = &mut writing => (Ok(()), false),
                _ = life.wait_for(|life| *life != Life::Open) => (Err(Error::Closed), true),
            };
            drop(seat);
            if listens {
                // What was said to it is still its own.
                tokio::select! {
                    _ = writing => {}
                    _ = life.wait_for(|life| *life == Life::Cut) => {}
                }
            }
            outcome
        };
        let _gone_already = writer.shutdown().await;
        outcome
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

    async fn read(&self, mut output: impl AsyncRead + Unpin) -> Ended {
        let mut frames = Frames::default();
        loop {
            while let Some(line) = frames.next() {
                self.server_says(line).await;
            }
            let Ok(room) = frames.room() else { return Ended::TooLong };
            // A stream that cannot be read has ended too.
            if output.read_buf(room).await.unwrap_or(0) == 0 {
                break;
            }
        }
        if let Some(line) = frames.rest() {
            self.server_says(line).await;
        }
        Ended::Output
    }

    async fn server_says(&self, line: Vec<u8>) {
        if line.is_empty() {
            return;
        }
        let (tools_changed, deliveries) = {
            let mut state = self.lock();
            state.last = Instant::now();
            let Routed { to_server, to_ports, to_us, tools_changed } = state.mux.server_says(line);
            for (id, line) in to_us {
                let waiting = state.waiting.remove(&id);
                // Somebody who has just stopped waiting does not want it.
                let _unwanted = waiting.map(|waiting| waiting.send(line));
            }
            self.squeeze(&mut state, to_server);
            let way = |(port, line)| Some((state.ports.get(&port)?.clone(), line));
            (tools_changed, to_ports.into_iter().filter_map(way).collect::<Vec<_>>())
        };
        if tools_changed {
            self.tools_changed.send_modify(|count| *count += 1);
        }
        for (queue, line) in deliveries {
            deliver(&queue, line).await;
        }
        self.heard.notify_waiters();
    }

    fn close(&self, life: Life) {
        let (waiting, ports) = {
            let mut state = self.lock();
            if !state.open {
                return;
            }
            state.open = false;
            state.mux.end();
            state.pulse = None;
            (std::mem::take(&mut state.waiting), std::mem::take(&mut state.ports))
        };
        self.life.send_replace(life);
        self.queue.close();
        ports.values().for_each(Queue::close);
        drop(waiting);
    }
}

/// Waits for room and queues a line for a client; one that has left does not need it.
async fn deliver(queue: &Queue, line: Vec<u8>) {
    if let Ok(room) = queue.room(line.len()).await {
        let _left = queue.push(room, line);
    }
}

/// The life of a connection.
struct Driver(Arc<Shared>);

impl Driver {
    async fn run(
        self,
        mut input: impl AsyncWrite + Unpin,
        output: impl AsyncRead + Unpin,
        parcels: Parcels,
    ) -> Ended {
        let mut reading = pin!(self.0.read(output));
        let ended = tokio::select! {
            ended = &mut reading => ended,
            // It does not listen any more, but may have said something before.
            _ = queue::write(&mut input, parcels) => tokio::select! {
                biased;
                ended = &mut reading => ended,
                () = tokio::task::yield_now() => Ended::Input,
            },
        };
        self.0.close(Life::Over);
        ended
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.close(Life::Cut);
    }
}

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
    ) -> Result<(Waiting<'a>, oneshot::Receiver<Vec<u8>>), Error> {
        let mut state = shared.lock();
        if !state.open {
            return Err(Error::Closed);
        }
        let (id, line) = state.mux.ask(method, params).map_err(|unsent| match unsent {
            Unsent::TooBusy => Error::TooBusy,
            Unsent::NotAllowed(tool) => Error::NotAllowed(tool),
            Unsent::Unreadable => unreadable(),
        })?;
        let (sender, answer) = oneshot::channel();
        state.waiting.insert(id, sender);
        state.last = Instant::now();
        state.beat();
        // Under the lock, so that no cancellation can overtake it. One that could not be queued is
        // forgotten when the connection closes, which is what is happening.
        let _closing = shared.queue.push(room, line);
        Ok((Waiting { shared, id }, answer))
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

/// The place of an attached client.
struct Seat<'a> {
    shared: &'a Shared,
    port: Port,
    queue: Queue,
}

impl<'a> Seat<'a> {
    fn take(shared: &'a Shared) -> Result<(Seat<'a>, Parcels), Error> {
        let (queue, parcels) = Queue::new();
        let mut state = shared.lock();
        if !state.open {
            return Err(Error::Closed);
        }
        let port = state.mux.arrive();
        state.ports.insert(port, queue.clone());
        drop(state);
        Ok((Seat { shared, port, queue }, parcels))
    }

    /// Listens, and then waits for what the client has asked: one that has said all it will (a script
    /// at the end of a pipe) is not one that has left. It may be, so patience has an end.
    async fn serve(&self, reader: impl AsyncRead + Unpin) -> Result<(), Error> {
        self.listen(reader).await?;
        let answered = timeout(LAST_ANSWERS, async {
            loop {
                let heard = self.shared.heard.notified();
                if !self.shared.lock().mux.waits(self.port) {
                    return;
                }
                heard.await;
            }
        });
        // What is not answered by now is cancelled when the seat is left.
        let _cancelled = answered.await;
        Ok(())
    }

    async fn listen(&self, mut reader: impl AsyncRead + Unpin) -> Result<(), Error> {
        let mut frames = Frames::default();
        loop {
            while let Some(line) = frames.next() {
                self.say(line).await?;
            }
            let Ok(room) = frames.room() else {
                let message = "this line is too long";
                deliver(&self.queue, error("null", INVALID_REQUEST, message)).await;
                return Err(Error::Refused {
                    code: INVALID_REQUEST,
                    message: message.into(),
                    data: None,
                });
            };
            if reader.read_buf(room).await.unwrap_or(0) == 0 {
                break;
            }
        }
        match frames.rest() {
            Some(line) => self.say(line).await,
            None => Ok(()),
        }
    }

    async fn say(&self, line: Vec<u8>) -> Result<(), Error> {
        if line.is_empty() {
            return Ok(());
        }
        let room = self.shared.queue.room(line.len()).await.map_err(|_| Error::Closed)?;
        let to_port = {
            let mut state = self.shared.lock();
            state.last = Instant::now();
            let Routed { to_server, to_ports, .. } = state.mux.port_says(self.port, line);
            state.beat();
            // A line becomes one line at most.
            if let Some(line) = to_server.into_iter().next() {
                let _closing = self.shared.queue.push(room, line);
            }
            to_ports
        };
        for (_, line) in to_port {
            deliver(&self.queue, line).await;
        }
        Ok(())
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ports.remove(&self.port);
        let routed = state.mux.depart(self.port);
        self.shared.squeeze(&mut state, routed.to_server);
        drop(state);
        // Wakes whoever waits to tell it something.
        self.queue.close();
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
mod tests;
