//! Several clients on one server: who gets what. Pure.
//!
//! To the server we are one client, so requests get ids of our own making, and answers, progress and
//! subscriptions get back the exact token that the client chose. What cannot be attributed is never
//! guessed; it is dropped and counted.
//!
//! How much the clients may know of each other depends on their [`Company`]. Among kin, the clients
//! of one session, keeping them apart is a matter of right answers and not of secrets: what concerns
//! nobody in particular goes to all. Strangers must not notice each other, whatever the server says.
//!
//! Nothing in here grows without end. Requests in flight beyond [`MOST`] are refused; beyond
//! [`REMEMBERED`] the oldest late answer is forgotten, and is then counted as one that nobody asked
//! for; subscriptions beyond their bound are refused; of tasks and elicitations the oldest are
//! forgotten.

mod down;
mod kept;
mod levels;
mod subscriptions;
mod tasks;
mod up;

use super::envelope::{self, Line, Members, Token};
use super::reply::{INTERNAL_ERROR, NO_SERVER, Unsent, error};
#[cfg(all(target_os = "linux", feature = "cli"))]
pub(crate) use kept::hazard;
use levels::{Change, Levels};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use subscriptions::Subscriptions;
use tasks::{Elicitations, Tasks};

/// Requests in flight, in both directions together.
const MOST: usize = 10_000;

/// Ids whose answer may come late.
const REMEMBERED: usize = 1_000;

/// A longer handshake is not kept, and then there is no sleep either.
const LONGEST_HANDSHAKE: usize = 64 << 10;

/// A client of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Port(u32);

impl Port {
    /// Our own client. It is always there and is never asked anything.
    pub(super) const OURS: Port = Port(0);
}

/// What the clients are to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Company {
    /// Clients of one session.
    Kin,
    /// Clients that know nothing of each other.
    Strangers,
}

/// What is to be sent. Lines are without their end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Routed {
    pub(super) to_server: Vec<Vec<u8>>,
    pub(super) to_ports: Vec<(Port, Vec<u8>)>,
    /// Answers to our own requests, by the id that [`Mux::ask`] gave.
    pub(super) to_us: Vec<(u64, Vec<u8>)>,
    /// The server says that its tools are others now.
    pub(super) tools_changed: bool,
}

/// What a fresh process is told in the name of a client that shook hands with the one before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Again {
    /// Under which the answer comes to us.
    pub(super) id: u64,
    pub(super) initialize: Vec<u8>,
    /// To be said after the answer, if the client had said it.
    pub(super) initialized: Option<Vec<u8>>,
}

/// A client's request that the server has not answered.
#[derive(Debug, Serialize, Deserialize)]
struct Pending {
    port: Port,
    /// The client's own id, as it wrote it.
    id: Token,
    /// The client's own progress token, as it wrote it.
    token: Option<Token>,
    kind: Kind,
}

#[derive(Debug, Serialize, Deserialize)]
enum Kind {
    Plain,
    Initialize,
    Listen,
    ToolsList,
    /// Its answer is only the beginning.
    Task,
    TasksList,
    /// Asks about this task; and if so, for its outcome.
    AboutTask(Arc<str>, bool),
    SetLevel(Change),
    Subscribe(Box<str>),
    /// Ours, and nobody waits for the answer.
    Aside,
}

/// A request that is over for its client.
#[derive(Debug, Serialize, Deserialize)]
struct Late {
    port: Port,
    /// A listen that the server has ended may still be answered, and then its client, which knew it
    /// by this id, wants to know. Any other late answer is swallowed.
    listen: Option<Token>,
}

/// A server's request that a client has not answered.
#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    port: Port,
    /// The server's own id, as it wrote it.
    id: Token,
}

/// What the handshake has led to.
#[derive(Debug, Serialize, Deserialize)]
enum Greeting {
    NotYet,
    /// With the `InitializeResult`, as the server wrote it.
    Legacy(Box<str>),
    Modern,
    /// The client shakes hands itself.
    ByClient(Handshake),
}

/// A client's own handshake, as far as it got.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Handshake {
    #[serde(with = "kept::line")]
    initialize: Option<Vec<u8>>,
    result: Option<Box<str>>,
    #[serde(with = "kept::line")]
    initialized: Option<Vec<u8>>,
}

/// An attached client.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Client {
    /// What it waits for: its own id, and ours.
    open: BTreeSet<(Token, u64)>,
    /// What it was asked.
    asked: BTreeSet<u64>,
    /// How many of its requests are over and may still be answered.
    late: usize,
    /// It was told what the server is.
    is_greeted: bool,
}

/// The state of all conversations with one server. Written down and read again it is the same.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Mux {
    tools: Vec<String>,
    company: Company,
    greeting: Greeting,
    /// The protocol revision in force, if there was a handshake.
    version: Option<Box<str>>,
    /// Attached clients; ours is not among them.
    ports: BTreeMap<Port, Client>,
    last_port: u32,
    last_id: u64,
    pending: HashMap<u64, Pending>,
    asked: HashMap<u64, Asked>,
    /// The same by the server's own id.
    asked_as: BTreeSet<(Token, u64)>,
    over: BTreeMap<u64, Late>,
    /// Somebody has been here who is not any more.
    had_others: bool,
    /// Each client is one request.
    requests_only: bool,
    /// Requests that asked for log messages, for as long as some may come.
    logged: BTreeMap<u64, Port>,
    levels: Levels,
    subscriptions: Subscriptions,
    tasks: Tasks,
    elicitations: Elicitations,
    dropped: u64,
    #[serde(with = "kept::hazards")]
    hazards: Vec<&'static str>,
    hazards_taken: usize,
}

impl Mux {
    /// `tools` are patterns, as in [`crate::spec::ServerSpec::tools`].
    pub(super) fn new(tools: Vec<String>, company: Company) -> Mux {
        Mux {
            tools,
            company,
            greeting: Greeting::NotYet,
            version: None,
            ports: BTreeMap::new(),
            last_port: 0,
            last_id: 0,
            pending: HashMap::new(),
            asked: HashMap::new(),
            asked_as: BTreeSet::new(),
            over: BTreeMap::new(),
            had_others: false,
            requests_only: false,
            logged: BTreeMap::new(),
            levels: Levels::default(),
            subscriptions: Subscriptions::default(),
            tasks: Tasks::default(),
            elicitations: Elicitations::default(),
            dropped: 0,
            hazards: Vec::new(),
            hazards_taken: 0,
        }
    }

    /// Our own handshake has led to this `InitializeResult`.
    pub(super) fn greeted(&mut self, result: &RawValue) {
        self.version = version(result);
        self.greeting = Greeting::Legacy(result.get().into());
    }

    /// The server knows no handshake.
    pub(super) fn greeted_modern(&mut self) {
        self.requests_only = true;
        self.greeting = Greeting::Modern;
    }

    /// Each client is one request.
    pub(super) fn requests_only(&mut self, requests_only: bool) {
        self.requests_only = requests_only;
    }

    /// There is one client only, and it shakes hands itself: what it and the server say goes through.
    pub(super) fn greeted_by_client(&mut self) {
        self.greeting = Greeting::ByClient(Handshake::default());
    }

    pub(super) fn is_modern(&self) -> bool {
        matches!(self.greeting, Greeting::Modern)
    }

    /// True while there are strangers, or could be: what is for nobody in particular is for nobody.
    fn is_shared(&self) -> bool {
        let is_private = matches!(self.greeting, Greeting::ByClient(_)) && self.ports.len() <= 1;
        self.company == Company::Strangers && !is_private
    }

    /// What to say to a fresh process in the name of a client that shook hands with the one before.
    pub(super) fn greeting_again(&mut self) -> Option<Again> {
        let Greeting::ByClient(Handshake { initialize, result: Some(_), initialized }) =
            &self.greeting
        else {
            return None;
        };
        let (line, initialized) = (initialize.clone()?, initialized.clone());
        let Line::One(envelope) = envelope::read(&line) else { return None };
        let (id, edits) = self.admit(Port::OURS, &line, &envelope).ok()?;
        Some(Again { id, initialize: edits.apply(line), initialized })
    }

    /// True if this answer to `initialize` says what the one says that the clients know.
    pub(super) fn is_same_greeting(&self, answer: &[u8]) -> bool {
        let known = match &self.greeting {
            Greeting::Legacy(result) => Some(result),
            Greeting::ByClient(handshake) => handshake.result.as_ref(),
            Greeting::NotYet | Greeting::Modern => None,
        };
        let Line::One(envelope) = envelope::read(answer) else { return false };
        let value = |text: &str| serde_json::from_str::<Value>(text).ok();
        known.zip(envelope.result).is_some_and(|(known, result)| {
            **known == *result.get()
                || value(known).zip(value(result.get())).is_some_and(|(a, b)| a == b)
        })
    }

    /// What a fresh process has to be told, once it was greeted, to be as the one before. Nobody
    /// waits for the answers.
    pub(super) fn replay(&mut self) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        if let Some(level) = self.levels.most() {
            lines.push(self.aside("logging/setLevel", &json!({ "level": level.word() })));
        }
        self.levels.told(self.last_id);
        let uris: Vec<Value> = self.subscriptions.uris().map(|uri| json!({ "uri": uri })).collect();
        lines.extend(uris.iter().map(|uri| self.aside("resources/subscribe", uri)));
        lines
    }

    /// True if the server could be replaced by a fresh one and nobody would notice.
    pub(super) fn may_sleep(&self) -> bool {
        let is_repeatable = match &self.greeting {
            Greeting::ByClient(handshake) => handshake.initialize.is_some(),
            _ => true,
        };
        self.is_quiet() && self.tasks.are_done() && is_repeatable
    }

    /// Requests without an answer, in both directions.
    pub(super) fn in_flight(&self) -> usize {
        self.pending.len() + self.asked.len()
    }

    /// Requests of this client without an answer.
    pub(super) fn in_flight_of(&self, port: Port) -> usize {
        self.ports.get(&port).map_or(0, |client| client.open.len())
    }

    /// True if this client waits for an answer.
    pub(super) fn waits(&self, port: Port) -> bool {
        self.in_flight_of(port) > 0
    }

    /// True if nobody waits for anybody.
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight() == 0
    }

    /// Lines that made no sense to anybody.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Counts what could not be delivered.
    pub(super) fn drop_one(&mut self) {
        self.dropped += 1;
    }

    /// What the server has said that could have been meant for several: each kind once.
    pub(super) fn hazards(&self) -> &[&'static str] {
        &self.hazards
    }

    /// The next of them that was not taken yet.
    pub(super) fn take_hazard(&mut self) -> Option<&'static str> {
        let hazard = self.hazards.get(self.hazards_taken).copied()?;
        self.hazards_taken += 1;
        Some(hazard)
    }

    fn note_hazard(&mut self, hazard: &'static str) {
        if !self.hazards.contains(&hazard) {
            self.hazards.push(hazard);
        }
    }

    /// The same once more. `None` if it could not be written down.
    #[cfg(all(target_os = "linux", feature = "cli"))]
    pub(super) fn again(&self) -> Option<Mux> {
        serde_json::from_slice(&serde_json::to_vec(self).ok()?).ok()
    }

    /// One more client.
    pub(super) fn arrive(&mut self) -> Port {
        self.last_port += 1;
        let port = Port(self.last_port);
        self.ports.insert(port, Client::default());
        port
    }

    /// A client is gone, and wants no answer any more and gives none.
    pub(super) fn depart(&mut self, port: Port) -> Routed {
        let mut out = Routed::default();
        let Some(client) = self.ports.get(&port) else { return out };
        self.had_others = true;
        let mut gone: Vec<u64> = client.open.iter().map(|(_, own)| *own).collect();
        gone.sort_unstable();
        // Before its requests are cancelled: one of them may be to subscribe, and whether the server
        // has heeded that is not known.
        let uris = self.subscriptions.depart(port);
        for own in gone {
            out.to_server.extend(self.cancel(own));
        }
        let asked = self.ports.remove(&port).map(|client| client.asked).unwrap_or_default();
        for own in asked {
            if let Some(asked) = self.unask(own) {
                let message = "the client that was asked left";
                out.to_server.push(error(&asked.id.to_string(), INTERNAL_ERROR, message));
            }
        }
        self.levels.depart(port);
        for uri in uris {
            out.to_server.push(self.aside("resources/unsubscribe", &json!({ "uri": uri })));
        }
        // One that is no more than a request comes back for its task as another.
        self.tasks.depart(port, self.requests_only);
        out
    }

    /// Everything ends; nobody waits any more.
    pub(super) fn end(&mut self) {
        self.ports.clear();
        self.pending.clear();
        self.forget_server();
    }

    /// The server is gone, for good or to be replaced by a fresh one. Who waits is told so; what else
    /// the clients have asked for still holds, for [`Mux::replay`]. Also right where nobody waits: what
    /// the server had begun and not answered is not to be reckoned with any more.
    pub(super) fn server_left(&mut self, why: &str) -> Routed {
        let mut out = Routed::default();
        let mut waiting: Vec<u64> = self.pending.keys().copied().collect();
        waiting.sort_unstable();
        for own in waiting {
            let Some(pending) = self.close(own) else { continue };
            // The server needs to be told nothing any more.
            self.abandoned(own, &pending);
            let answer = error(&pending.id.to_string(), NO_SERVER, why);
            match (pending.port, &pending.kind) {
                (Port::OURS, Kind::Aside) => {}
                (Port::OURS, _) => out.to_us.push((own, answer)),
                (port, _) => out.to_ports.push((port, answer)),
            }
        }
        self.forget_server();
        out
    }

    /// Nothing more comes from the server that is answered, or late, or goes on.
    fn forget_server(&mut self) {
        self.had_others = false;
        self.asked.clear();
        self.asked_as.clear();
        self.over.clear();
        self.logged.clear();
        for client in self.ports.values_mut() {
            client.asked.clear();
            client.late = 0;
        }
        self.levels.forget();
        self.tasks = Tasks::default();
        self.elicitations = Elicitations::default();
    }

    /// A request of our own: its id and its line.
    pub(super) fn ask(
        &mut self,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<(u64, Vec<u8>), Unsent> {
        let params = params.map_or(String::new(), |params| format!(",\"params\":{}", params.get()));
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":{}{params}}}", json!(method));
        let mut line = line.into_bytes();
        // Between tokens a line break is as good as a space, and inside strings there is none.
        line.iter_mut().filter(|b| matches!(b, b'\n' | b'\r')).for_each(|b| *b = b' ');
        let Line::One(envelope) = envelope::read(&line) else { return Err(Unsent::Unreadable) };
        let (id, edits) = self.admit(Port::OURS, &line, &envelope)?;
        Ok((id, edits.apply(line)))
    }

    /// A request of our own whose answer changes nothing.
    fn aside(&mut self, method: &str, params: &Value) -> Vec<u8> {
        let own = self.enter(Port::OURS, Token::Number(0), None, Kind::Aside);
        json!({ "jsonrpc": "2.0", "id": own, "method": method, "params": params })
            .to_string()
            .into_bytes()
    }

    /// Forgets a request. The line tells the server so.
    pub(super) fn cancel(&mut self, own: u64) -> Option<Vec<u8>> {
        let pending = self.close(own)?;
        self.abandoned(own, &pending);
        self.remember(own, Late { port: pending.port, listen: None });
        // The one request that must not be cancelled.
        (!matches!(pending.kind, Kind::Initialize)).then(|| {
            let params = json!({ "requestId": own, "reason": "nobody waits for it any more" });
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params })
                .to_string()
                .into_bytes()
        })
    }

    /// Enters a request under a new id.
    fn enter(&mut self, port: Port, id: Token, token: Option<Token>, kind: Kind) -> u64 {
        self.last_id += 1;
        let own = self.last_id;
        if let Some(client) = self.ports.get_mut(&port) {
            client.open.insert((id.clone(), own));
        }
        self.pending.insert(own, Pending { port, id, token, kind });
        own
    }

    /// Strikes a request out. Whether it was answered is for the caller to say.
    fn close(&mut self, own: u64) -> Option<Pending> {
        let pending = self.pending.remove(&own)?;
        if let Some(client) = self.ports.get_mut(&pending.port) {
            // Sorted by what the set holds, so the pair is made once more.
            client.open.remove(&(pending.id.clone(), own));
        }
        Some(pending)
    }

    /// The answer to this request will not be heard. True if the server is to be told that nobody
    /// wants to know of its resource any more.
    fn abandoned(&mut self, own: u64, pending: &Pending) -> bool {
        match &pending.kind {
            Kind::SetLevel(_) => self.levels.abandoned(),
            Kind::Subscribe(uri) => {
                return self.subscriptions.abandoned(pending.port, uri, own);
            }
            _ => {}
        }
        false
    }

    /// Strikes out a server's request.
    fn unask(&mut self, own: u64) -> Option<Asked> {
        let asked = self.asked.remove(&own)?;
        self.asked_as.remove(&(asked.id.clone(), own));
        if let Some(client) = self.ports.get_mut(&asked.port) {
            client.asked.remove(&own);
        }
        Some(asked)
    }

    fn remember(&mut self, own: u64, late: Late) {
        if let Some(client) = self.ports.get_mut(&late.port) {
            client.late += 1;
        }
        self.over.insert(own, late);
        if self.over.len() > REMEMBERED
            && let Some(oldest) = self.over.keys().next().copied()
        {
            self.forget(oldest);
        }
    }

    /// A late answer has come, or will not be waited for any longer.
    fn forget(&mut self, own: u64) -> Option<Late> {
        let late = self.over.remove(&own)?;
        self.logged.remove(&own);
        if let Some(client) = self.ports.get_mut(&late.port) {
            client.late -= 1;
        }
        Some(late)
    }

    /// The only client, if whatever the server says can only be for it: what one that has left had begun
    /// may be spoken of for as long as the server lives.
    fn alone(&self) -> Option<Port> {
        let mut ports = self.ports.keys();
        match (ports.next(), ports.next()) {
            (Some(port), None) if !self.is_shared() || !self.had_others => Some(*port),
            _ => None,
        }
    }
}

/// The revision that an `InitializeResult` speaks of.
fn version(result: &RawValue) -> Option<Box<str>> {
    Members::of(Some(result))?.protocol_version.and_then(envelope::text).map(|text| (*text).into())
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod model;
#[cfg(test)]
mod table;
#[cfg(test)]
mod tests;
