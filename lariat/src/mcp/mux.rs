//! Several clients of one session on one server: who gets what. Pure.
//!
//! To the server we are one client, so requests get ids of our own making, and answers, progress and
//! subscriptions get back the exact token that the client chose. All ports belong to the same
//! session: keeping them apart is a matter of right answers and not of secrets. What cannot be
//! attributed is never guessed; it is dropped and counted.

use super::MODERN;
use super::envelope::{self, Edits, Envelope, Items, Line, Members, Shape, is_token, own};
use super::reply::{
    INTERNAL_ERROR, INVALID_REQUEST, LONGEST_TOKEN, METHOD_NOT_FOUND, PARSE_ERROR,
    UNSUPPORTED_VERSION, Unsent, answer, error,
};
use crate::spec;
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};

/// Requests in flight, in both directions together.
const MOST: usize = 10_000;

/// Ids whose answer may come late, and progress tokens that outlive their answer.
const REMEMBERED: usize = 1_000;

/// How the clients of one server stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Company {
    /// They are of one session.
    Kin,
    /// They must not know of each other.
    Strangers,
}

/// A client of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Port(u32);

impl Port {
    /// Our own client. It is always there and is never asked anything.
    pub(super) const OURS: Port = Port(0);
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

/// A client's request that the server has not answered.
#[derive(Debug)]
struct Pending {
    port: Port,
    /// The client's own id, as it wrote it.
    id: Box<str>,
    /// The client's own progress token, as it wrote it.
    token: Option<Box<str>>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Initialize,
    Listen,
    ToolsList,
    /// Its answer is only the beginning: progress goes on under the same token.
    Task,
}

/// A server's request that a client has not answered.
#[derive(Debug)]
struct Asked {
    port: Port,
    /// The server's own id, as it wrote it.
    id: Box<str>,
}

/// What our own handshake has led to.
#[derive(Debug)]
enum Greeting {
    NotYet,
    /// With the `InitializeResult`, as the server wrote it.
    Legacy(Box<str>),
    Modern,
}

/// The state of all conversations with one server.
#[derive(Debug)]
pub(super) struct Mux {
    tools: Vec<String>,
    greeting: Greeting,
    /// Attached clients; ours is not among them.
    ports: BTreeSet<Port>,
    last_port: u32,
    last_id: u64,
    pending: BTreeMap<u64, Pending>,
    asked: BTreeMap<u64, Asked>,
    /// Requests that are over for their client. A listen that the server has ended may still be
    /// answered, and then its client wants to know; any other late answer is swallowed.
    over: BTreeMap<u64, Option<Pending>>,
    /// Requests that were answered with a task, for their progress.
    tasks: BTreeMap<u64, Pending>,
    dropped: u64,
}

impl Mux {
    /// `tools` are patterns, as in [`spec::ServerSpec::tools`].
    pub(super) fn new(tools: Vec<String>, _company: Company) -> Mux {
        Mux {
            tools,
            greeting: Greeting::NotYet,
            ports: BTreeSet::new(),
            last_port: 0,
            last_id: 0,
            pending: BTreeMap::new(),
            asked: BTreeMap::new(),
            over: BTreeMap::new(),
            tasks: BTreeMap::new(),
            dropped: 0,
        }
    }

    /// Our own handshake has led to this `InitializeResult`.
    pub(super) fn greeted(&mut self, result: &RawValue) {
        self.greeting = Greeting::Legacy(result.get().into());
    }

    /// The server knows no handshake.
    pub(super) fn greeted_modern(&mut self) {
        self.greeting = Greeting::Modern;
    }

    pub(super) fn is_modern(&self) -> bool {
        matches!(self.greeting, Greeting::Modern)
    }

    /// Requests without an answer, in both directions.
    pub(super) fn in_flight(&self) -> usize {
        self.pending.len() + self.asked.len()
    }

    /// True if this client waits for an answer.
    pub(super) fn waits(&self, port: Port) -> bool {
        self.pending.values().any(|pending| pending.port == port)
    }

    /// True if nobody waits for anybody.
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight() == 0
    }

    pub(super) fn may_sleep(&self) -> bool {
        self.is_quiet() && self.tasks.is_empty()
    }

    pub(super) fn in_flight_of(&self, port: Port) -> usize {
        self.pending.values().filter(|pending| pending.port == port).count()
    }

    pub(super) fn greeted_by_client(&mut self) {}

    pub(super) fn hazard(&self) -> Option<&'static str> {
        None
    }

    pub(super) fn greeting_again(&mut self) -> Option<(u64, Vec<u8>, Option<Vec<u8>>)> {
        None
    }

    pub(super) fn replay(&mut self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    pub(super) fn server_left(&mut self, _why: &str) -> Routed {
        Routed::default()
    }

    /// Lines that made no sense to anybody.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Counts what could not be delivered.
    pub(super) fn drop_one(&mut self) {
        self.dropped += 1;
    }

    /// One more client.
    pub(super) fn arrive(&mut self) -> Port {
        self.last_port += 1;
        let port = Port(self.last_port);
        self.ports.insert(port);
        port
    }

    /// A client is gone, and wants no answer any more and gives none.
    pub(super) fn depart(&mut self, port: Port) -> Routed {
        let mut out = Routed::default();
        self.ports.remove(&port);
        let its = |(id, pending): (&u64, &Pending)| (pending.port == port).then_some(*id);
        let gone: Vec<u64> = self.pending.iter().filter_map(its).collect();
        for id in gone {
            out.to_server.extend(self.cancel(id));
        }
        let (its, others) =
            std::mem::take(&mut self.asked).into_iter().partition(|(_, asked)| asked.port == port);
        self.asked = others;
        for asked in BTreeMap::<u64, Asked>::into_values(its) {
            out.to_server.push(error(&asked.id, INTERNAL_ERROR, "the client that was asked left"));
        }
        self.tasks.retain(|_, task| task.port != port);
        for late in self.over.values_mut() {
            late.take_if(|pending| pending.port == port);
        }
        out
    }

    /// Everything ends; nobody waits any more.
    pub(super) fn end(&mut self) {
        self.ports.clear();
        self.pending.clear();
        self.asked.clear();
        self.over.clear();
        self.tasks.clear();
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

    /// Forgets a request. The line tells the server so.
    pub(super) fn cancel(&mut self, id: u64) -> Option<Vec<u8>> {
        let pending = self.pending.remove(&id)?;
        self.remember(id, None);
        // The one request that must not be cancelled.
        (pending.kind != Kind::Initialize).then(|| {
            let params = json!({ "requestId": id, "reason": "nobody waits for it any more" });
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params })
                .to_string()
                .into_bytes()
        })
    }

    /// A line of an attached client.
    pub(super) fn port_says(&mut self, port: Port, line: Vec<u8>) -> Routed {
        let mut out = Routed::default();
        if !self.ports.contains(&port) {
            return out;
        }
        let refuse = |code, message: &str| vec![(port, error("null", code, message))];
        let envelope = match envelope::read(&line) {
            Line::One(envelope) => envelope,
            Line::Many(_) => {
                out.to_ports = refuse(INVALID_REQUEST, "batches are not supported");
                return out;
            }
            Line::Odd => {
                out.to_ports = refuse(INVALID_REQUEST, "this is not a JSON-RPC message");
                return out;
            }
            Line::Noise => {
                out.to_ports = refuse(PARSE_ERROR, "this is not JSON");
                return out;
            }
        };
        let method = envelope.method.as_deref().unwrap_or_default();
        match (envelope.shape(), method, envelope.id) {
            (Shape::Request, "ping", Some(id)) => {
                out.to_ports.push((port, answer(id.get(), "{}")));
            }
            (Shape::Request, "initialize", Some(id)) => {
                out.to_ports.push((port, self.welcome(id)));
            }
            (Shape::Request, _, Some(id)) => match self.admit(port, &line, &envelope) {
                Ok((_, edits)) => out.to_server.push(edits.apply(line)),
                Err(unsent) => out.to_ports.push((port, unsent.answer(id))),
            },
            (Shape::Notification, "notifications/initialized", _) => {}
            (Shape::Notification, "notifications/cancelled", _) => {
                match self.cancelled_by_port(port, &line, &envelope) {
                    Some(edits) => out.to_server.push(edits.apply(line)),
                    None => self.drop_one(),
                }
            }
            (Shape::Notification, ..) => out.to_server.push(line),
            (Shape::Response, _, Some(id)) => {
                let asked = own(id)
                    .filter(|own| self.asked.get(own).is_some_and(|asked| asked.port == port));
                match asked.and_then(|own| self.asked.remove(&own)) {
                    Some(asked) => {
                        let mut edits = Edits::default();
                        edits.put(&line, id, asked.id);
                        out.to_server.push(edits.apply(line));
                    }
                    None => self.drop_one(),
                }
            }
            _ => out.to_ports = refuse(INVALID_REQUEST, "this is not a JSON-RPC message"),
        }
        out
    }

    /// A line of the server. What in it is no text is replaced, as most clients do: whoever waits for
    /// the answer must not wait for ever.
    pub(super) fn server_says(&mut self, line: Vec<u8>) -> Routed {
        let mut out = Routed::default();
        let line = String::from_utf8(line)
            .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
            .into_bytes();
        match envelope::read(&line) {
            // 2025-03-26 allows batches. Each message finds its own way.
            Line::Many(Items(parts)) if !parts.is_empty() => {
                for part in parts.iter().map(|part| part.get().as_bytes().to_vec()) {
                    self.server_says_one(part, &mut out);
                }
            }
            _ => self.server_says_one(line, &mut out),
        }
        out
    }

    fn server_says_one(&mut self, line: Vec<u8>, out: &mut Routed) {
        let Line::One(envelope) = envelope::read(&line) else { return self.drop_one() };
        match (envelope.shape(), envelope.id) {
            (Shape::Request, Some(id)) if envelope.method.as_deref() == Some("ping") => {
                out.to_server.push(answer(id.get(), "{}"));
            }
            (Shape::Request, Some(id)) => match self.question(id) {
                Ok((port, own)) => {
                    let mut edits = Edits::default();
                    edits.put(&line, id, own.to_string());
                    out.to_ports.push((port, edits.apply(line)));
                }
                Err(refusal) => out.to_server.push(refusal),
            },
            (Shape::Notification, _) => self.notification(line, out),
            (Shape::Response, Some(id)) => match own(id) {
                Some(own) => self.response(own, line, out),
                None => self.drop_one(),
            },
            _ => self.drop_one(),
        }
    }

    /// Enters a client's request, and says how its line is to be changed for the server.
    fn admit(
        &mut self,
        port: Port,
        line: &[u8],
        envelope: &Envelope<'_>,
    ) -> Result<(u64, Edits), Unsent> {
        let (Some(id), Some(method)) = (envelope.id, envelope.method.as_deref()) else {
            return Err(Unsent::Unreadable);
        };
        let params = Members::of(envelope.params).ok_or(Unsent::Unreadable)?;
        // Anything but a string or a number is no token, and for the server to complain about.
        let meta = params.meta().ok_or(Unsent::Unreadable)?;
        let token = meta.progress_token.filter(|token| is_token(token));
        if [Some(id), token].into_iter().flatten().any(|raw| raw.get().len() > LONGEST_TOKEN) {
            return Err(Unsent::Unreadable);
        }
        let kind = match method {
            "initialize" => Kind::Initialize,
            "subscriptions/listen" => Kind::Listen,
            "tools/list" => Kind::ToolsList,
            "tools/call" => {
                self.may_call(params.name)?;
                if params.task.is_some() { Kind::Task } else { Kind::Plain }
            }
            _ if params.task.is_some() => Kind::Task,
            _ => Kind::Plain,
        };
        if self.in_flight() >= MOST {
            return Err(Unsent::TooBusy);
        }
        self.last_id += 1;
        let own = self.last_id;
        let mut edits = Edits::default();
        edits.put(line, id, own.to_string());
        if let Some(token) = token {
            edits.put(line, token, own.to_string());
        }
        let token = token.map(|token| token.get().into());
        self.pending.insert(own, Pending { port, id: id.get().into(), token, kind });
        Ok((own, edits))
    }

    fn may_call(&self, name: Option<&RawValue>) -> Result<(), Unsent> {
        if self.allows_all() {
            return Ok(());
        }
        let name = name.and_then(|name| serde_json::from_str::<String>(name.get()).ok());
        let name = name.unwrap_or_default();
        if spec::allowed(&self.tools, &name) { Ok(()) } else { Err(Unsent::NotAllowed(name)) }
    }

    fn allows_all(&self) -> bool {
        self.tools.iter().any(|pattern| pattern == "*")
    }

    /// The answer to a client's `initialize`: what the server told us. It has shaken hands with us
    /// already, and a second time would make some servers forget whom they speak with.
    fn welcome(&self, id: &RawValue) -> Vec<u8> {
        match &self.greeting {
            Greeting::Legacy(result) => answer(id.get(), result),
            Greeting::Modern => {
                let message = format!("this server speaks {MODERN} only");
                error(id.get(), UNSUPPORTED_VERSION, &message)
            }
            Greeting::NotYet => error(id.get(), INTERNAL_ERROR, "the server is not ready yet"),
        }
    }

    fn cancelled_by_port(
        &mut self,
        port: Port,
        line: &[u8],
        envelope: &Envelope<'_>,
    ) -> Option<Edits> {
        let request = Members::of(envelope.params)?.request_id?;
        let its = |(own, pending): (&u64, &Pending)| {
            (pending.port == port && *pending.id == *request.get()).then_some(*own)
        };
        let own = self.pending.iter().find_map(its)?;
        self.pending.remove(&own);
        self.remember(own, None);
        let mut edits = Edits::default();
        edits.put(line, request, own.to_string());
        Some(edits)
    }

    /// Who is to be asked what the server asks, and under which id; or the answer to the server.
    fn question(&mut self, id: &RawValue) -> Result<(Port, u64), Vec<u8>> {
        if id.get().len() > LONGEST_TOKEN {
            return Err(error("null", INVALID_REQUEST, "this id is too long"));
        }
        // Nothing says which client a question belongs to, so with several it is nobody's.
        let [port] = self.ports.iter().copied().collect::<Vec<_>>()[..] else {
            let message = "there is not exactly one client that could be asked";
            return Err(error(id.get(), METHOD_NOT_FOUND, message));
        };
        if self.in_flight() >= MOST {
            return Err(error(id.get(), INTERNAL_ERROR, "too many requests in flight"));
        }
        self.last_id += 1;
        self.asked.insert(self.last_id, Asked { port, id: id.get().into() });
        Ok((port, self.last_id))
    }

    fn response(&mut self, own: u64, line: Vec<u8>, out: &mut Routed) {
        let late = || self.over.remove(&own);
        let pending = match self.pending.remove(&own).map(Some).or_else(late) {
            Some(Some(pending)) => pending,
            Some(None) => return,
            None => return self.drop_one(),
        };
        let line = self.restored(&pending, line);
        if pending.port == Port::OURS {
            return out.to_us.push((own, line));
        }
        out.to_ports.push((pending.port, line));
        if pending.kind == Kind::Task && pending.token.is_some() {
            self.tasks.insert(own, pending);
            if self.tasks.len() > REMEMBERED {
                self.tasks.pop_first();
            }
        }
    }

    /// An answer as its client may see it: with the client's own id, and without tools that are not
    /// on the list.
    fn restored(&self, pending: &Pending, line: Vec<u8>) -> Vec<u8> {
        let unreadable = || error(&pending.id, INTERNAL_ERROR, "the answer could not be read");
        let Line::One(envelope) = envelope::read(&line) else { return unreadable() };
        let mut edits = Edits::default();
        if let Some(id) = envelope.id {
            edits.put(&line, id, &*pending.id);
        }
        if pending.kind == Kind::ToolsList && !self.allows_all() {
            // What cannot be filtered is not shown.
            let Some(result) = Members::of(envelope.result) else { return unreadable() };
            if let Some(tools) = result.tools {
                let Some(kept) = self.filtered(tools) else { return unreadable() };
                edits.put(&line, tools, kept);
            }
        }
        if pending.kind == Kind::Listen {
            let meta = Members::of(envelope.result).and_then(|result| result.meta());
            if let Some(subscription) = meta.and_then(|meta| meta.subscription) {
                edits.put(&line, subscription, &*pending.id);
            }
        }
        edits.apply(line)
    }

    fn filtered(&self, tools: &RawValue) -> Option<String> {
        let Items(tools) = serde_json::from_str(tools.get()).ok()?;
        let allowed = |tool: &&&RawValue| {
            let name = Members::of(Some(tool)).and_then(|tool| tool.name);
            name.is_some_and(|name| self.may_call(Some(name)).is_ok())
        };
        let kept: Vec<&str> = tools.iter().filter(allowed).map(|tool| tool.get()).collect();
        Some(format!("[{}]", kept.join(",")))
    }

    fn notification(&mut self, line: Vec<u8>, out: &mut Routed) {
        let Line::One(envelope) = envelope::read(&line) else { return self.drop_one() };
        let Some(params) = Members::of(envelope.params) else { return self.drop_one() };
        let Some(meta) = params.meta() else { return self.drop_one() };
        let method = envelope.method.as_deref().unwrap_or_default();
        out.tools_changed |= method == "notifications/tools/list_changed";
        let mut edits = Edits::default();
        let port = match (method, meta.subscription) {
            ("notifications/progress", _) => {
                let own = params.progress_token.and_then(own);
                let of = |own| self.pending.get(&own).or_else(|| self.tasks.get(&own));
                let pending = own.and_then(of);
                let (Some(Pending { port, token: Some(token), .. }), Some(raw)) =
                    (pending, params.progress_token)
                else {
                    return self.drop_one();
                };
                edits.put(&line, raw, &**token);
                *port
            }
            ("notifications/cancelled", _) => {
                let Some(request) = params.request_id else { return self.drop_one() };
                let Some((port, id)) = self.cancelled_by_server(request, out) else {
                    return self.drop_one();
                };
                edits.put(&line, request, id);
                port
            }
            (_, Some(subscription)) => {
                let listen = own(subscription).and_then(|own| self.pending.get(&own));
                let Some(listen) = listen.filter(|listen| listen.kind == Kind::Listen) else {
                    return self.drop_one();
                };
                edits.put(&line, subscription, &*listen.id);
                listen.port
            }
            _ => {
                out.to_ports.extend(self.ports.iter().map(|port| (*port, line.clone())));
                return;
            }
        };
        // Ours has no ear for notifications.
        if port != Port::OURS {
            out.to_ports.push((port, edits.apply(line)));
        }
    }

    /// The server takes back a question, or ends a listen: whose, and under which id there.
    fn cancelled_by_server(
        &mut self,
        request: &RawValue,
        out: &mut Routed,
    ) -> Option<(Port, String)> {
        let its = |(own, asked): (&u64, &Asked)| (*asked.id == *request.get()).then_some(*own);
        if let Some(own) = self.asked.iter().find_map(its) {
            return self.asked.remove(&own).map(|asked| (asked.port, own.to_string()));
        }
        let own = own(request)?;
        self.pending.get(&own).filter(|pending| pending.kind == Kind::Listen)?;
        let pending = self.pending.remove(&own)?;
        let back = (pending.port, pending.id.to_string());
        if pending.port == Port::OURS {
            let message = "the server ended the subscription";
            out.to_us.push((own, error(&pending.id, INTERNAL_ERROR, message)));
            self.remember(own, None);
        } else {
            self.remember(own, Some(pending));
        }
        Some(back)
    }

    fn remember(&mut self, own: u64, pending: Option<Pending>) {
        self.over.insert(own, pending);
        if self.over.len() > REMEMBERED {
            self.over.pop_first();
        }
    }
}

#[cfg(test)]
mod tests;
