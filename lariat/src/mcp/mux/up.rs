//! What a client says, on its way to the server.

use super::levels::Level;
use super::subscriptions::Wish;
use super::{Company, Greeting, Kind, LONGEST_HANDSHAKE, Late, MOST, Mux, Port, Routed};
use crate::mcp::MODERN;
use crate::mcp::envelope::{
    self, Edits, Envelope, Items, Line, Members, Meta, Shape, Token, is_token, own, text,
};
use crate::mcp::reply::{
    INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, LONGEST_TOKEN, METHOD_NOT_FOUND, PARSE_ERROR,
    UNSUPPORTED_VERSION, Unsent, answer, error,
};
use crate::spec;
use serde_json::json;
use serde_json::value::RawValue;

/// The one revision in which a line may hold several messages.
const WITH_BATCHES: &str = "2025-03-26";

impl Mux {
    /// A line of an attached client.
    pub(in crate::mcp) fn port_says(&mut self, port: Port, line: Vec<u8>) -> Routed {
        let mut out = Routed::default();
        if self.ports.contains_key(&port) {
            self.port_says_to(port, line, &mut out);
        }
        out
    }

    fn port_says_to(&mut self, port: Port, line: Vec<u8>, out: &mut Routed) {
        let mut refuse = |code, message| out.to_ports.push((port, error("null", code, message)));
        match envelope::read(&line) {
            Line::One(envelope) => {
                if let Some(edits) = self.port_says_one(port, &line, &envelope, out) {
                    out.to_server.push(edits.apply(line));
                }
            }
            Line::Many(Items(parts)) if !parts.is_empty() && self.has_batches() => {
                for part in parts {
                    match envelope::read_text(part.get()) {
                        Line::One(_) => {
                            self.port_says_to(port, part.get().as_bytes().to_vec(), out);
                        }
                        _ => out.to_ports.push((port, error("null", INVALID_REQUEST, ODD))),
                    }
                }
            }
            Line::Many(_) => refuse(INVALID_REQUEST, "batches are not supported"),
            Line::Odd => refuse(INVALID_REQUEST, ODD),
            Line::Noise => refuse(PARSE_ERROR, "this is not JSON"),
        }
    }

    /// How the line is to be changed for the server, if it is to have it.
    fn port_says_one(
        &mut self,
        port: Port,
        line: &[u8],
        envelope: &Envelope<'_>,
        out: &mut Routed,
    ) -> Option<Edits> {
        let method = envelope.method.as_deref().unwrap_or_default();
        match (envelope.shape(), method, envelope.id) {
            // Not the server's: whoever sleeps is not to be woken by this. The modern era has none.
            (Shape::Request, "ping", Some(id))
                if self.company == Company::Kin || !self.is_modern() =>
            {
                out.to_ports.push((port, answer(id.get(), "{}")));
                None
            }
            (Shape::Request, "initialize", Some(id)) if !self.shakes_hands(port) => {
                let welcome = self.welcome(port, id);
                out.to_ports.push((port, welcome));
                None
            }
            (Shape::Request, _, Some(id)) => {
                let request = self.request(port, line, envelope);
                match request.unwrap_or_else(|unsent| Fate::Answer(unsent.answer(id))) {
                    Fate::Send(_, edits) => Some(edits),
                    Fate::Answer(line) => {
                        out.to_ports.push((port, line));
                        None
                    }
                }
            }
            (Shape::Notification, "notifications/initialized", _) => {
                let passes = self.shakes_hands(port);
                if passes && let Greeting::ByClient(handshake) = &mut self.greeting {
                    handshake.initialized =
                        Some(line.to_vec()).filter(|line| line.len() <= LONGEST_HANDSHAKE);
                }
                passes.then(Edits::default)
            }
            (Shape::Notification, "notifications/cancelled", _) => {
                let edits = self.cancelled_by_port(port, line, envelope, out);
                if edits.is_none() {
                    self.drop_one();
                }
                edits
            }
            // Nobody's roots are the server's when it is everybody's.
            (Shape::Notification, "notifications/roots/list_changed", _) if self.is_shared() => {
                None
            }
            // A call that wants no answer is a call.
            (Shape::Notification, "tools/call", _) if !self.may_notify(envelope) => {
                self.drop_one();
                None
            }
            // What is said of others' requests, tasks and subscriptions is checked where it is asked for. Said
            // without an id it would pass by that, to a server that does not look.
            (Shape::Notification, ..) if self.is_shared() && !self.answers(port, method) => {
                self.drop_one();
                None
            }
            (Shape::Notification, ..) => Some(Edits::default()),
            (Shape::Response, _, Some(id)) => {
                let asked = own(id)
                    .filter(|own| self.asked.get(own).is_some_and(|asked| asked.port == port));
                let Some(asked) = asked.and_then(|own| self.unask(own)) else {
                    self.drop_one();
                    return None;
                };
                let mut edits = Edits::default();
                edits.put(line, id, asked.id);
                Some(edits)
            }
            _ => {
                out.to_ports.push((port, error("null", INVALID_REQUEST, ODD)));
                None
            }
        }
    }

    /// Enters a request of ours, and says how its line is to be changed for the server.
    pub(super) fn admit(
        &mut self,
        port: Port,
        line: &[u8],
        envelope: &Envelope<'_>,
    ) -> Result<(u64, Edits), Unsent> {
        match self.request(port, line, envelope)? {
            Fate::Send(own, edits) => Ok((own, edits)),
            Fate::Answer(_) => Err(Unsent::Unreadable),
        }
    }

    fn request(
        &mut self,
        port: Port,
        line: &[u8],
        envelope: &Envelope<'_>,
    ) -> Result<Fate, Unsent> {
        let (Some(id), Some(method)) = (envelope.id, envelope.method.as_deref()) else {
            return Err(Unsent::Unreadable);
        };
        let params = Members::of(envelope.params).ok_or(Unsent::Unreadable)?;
        let meta: Meta<'_> = params.meta().ok_or(Unsent::Unreadable)?;
        // Anything but a string or a number is no token, and for the server to complain about.
        let token = meta.progress_token.filter(|token| is_token(token));
        if [Some(id), token].into_iter().flatten().any(is_long) {
            return Err(Unsent::Unreadable);
        }
        let mut edits = Edits::default();
        let kind = match self.meant(port, method, line, envelope, &params, &mut edits)? {
            Ok(kind) => kind,
            Err(answer) => return Ok(Fate::Answer(answer)),
        };
        let own = self.enter(port, Token::from(id), token.map(Token::from), kind);
        // What is asked for stays in the request: without it the server might do other work, and
        // what cannot be attributed later is not delivered anyway.
        if meta.log_level.is_some() {
            self.logged.insert(own, port);
        }
        edits.put(line, id, own);
        if let Some(token) = token {
            edits.put(line, token, own);
        }
        Ok(Fate::Send(own, edits))
    }

    /// What kind of request this is; or what its client is answered at once.
    fn meant(
        &mut self,
        port: Port,
        method: &str,
        line: &[u8],
        envelope: &Envelope<'_>,
        params: &Members<'_>,
        edits: &mut Edits,
    ) -> Result<Result<Kind, Vec<u8>>, Unsent> {
        if method == "tools/call" {
            self.may_call(params.name)?;
        }
        if self.in_flight() >= MOST {
            return Err(Unsent::TooBusy);
        }
        let id = envelope.id.map_or("null", RawValue::get);
        if port != Port::OURS
            && self.is_shared()
            && let Some((code, why)) = self.is_misplaced(method)
        {
            return Ok(Err(error(id, code, why)));
        }
        let stands = port != Port::OURS && self.company == Company::Strangers && !self.is_modern();
        let known = || Ok(Err(answer(id, "{}")));
        let kind = match method {
            "tools/list" => Kind::ToolsList,
            "initialize" => {
                if port != Port::OURS
                    && let Greeting::ByClient(handshake) = &mut self.greeting
                {
                    let kept = (line.len() <= LONGEST_HANDSHAKE).then(|| line.to_vec());
                    (handshake.initialize, handshake.initialized) = (kept, None);
                }
                Kind::Initialize
            }
            "subscriptions/listen" => Kind::Listen,
            "logging/setLevel" if stands => {
                let word = params.level.and_then(text);
                let (Some(level), Some(raw)) =
                    (word.and_then(|word| Level::of(&word)), params.level)
                else {
                    return Ok(self.unclear(id));
                };
                let Some(change) = self.levels.want(port, level, !self.is_shared()) else {
                    return known();
                };
                if change.told != level {
                    edits.put(line, raw, json!(change.told.word()).to_string());
                }
                Kind::SetLevel(change)
            }
            "resources/subscribe" | "resources/unsubscribe"
                if stands && params.uri.is_some_and(is_long) =>
            {
                return Err(Unsent::Unreadable);
            }
            "resources/subscribe" if stands => {
                let Some(uri) = params.uri.and_then(text) else { return Ok(self.unclear(id)) };
                let ask = !self.is_shared();
                match self.subscriptions.subscribe(port, &uri, self.last_id + 1, ask) {
                    Wish::Ask => Kind::Subscribe((*uri).into()),
                    Wish::Known => return known(),
                    Wish::TooMany => {
                        return Ok(Err(error(id, INTERNAL_ERROR, "too many subscriptions")));
                    }
                }
            }
            "resources/unsubscribe" if stands => {
                let Some(uri) = params.uri.and_then(text) else { return Ok(self.unclear(id)) };
                match self.subscriptions.unsubscribe(port, &uri) {
                    Wish::Known if self.is_shared() => return known(),
                    _ => Kind::Plain,
                }
            }
            "tasks/list" => Kind::TasksList,
            _ if method.starts_with("tasks/") => {
                match params.task_id.filter(|raw| !is_long(raw)).and_then(text) {
                    Some(task) if !self.is_shared() || self.tasks.is_for(&task, port) => {
                        Kind::AboutTask((&*task).into(), method == "tasks/result")
                    }
                    None if !self.is_shared() => Kind::Plain,
                    _ => return Ok(Err(error(id, INVALID_PARAMS, "there is no such task"))),
                }
            }
            _ if params.task.is_some() => Kind::Task,
            _ => Kind::Plain,
        };
        Ok(Ok(kind))
    }

    /// A request about what concerns all clients that does not say what it is about: for the server to complain
    /// about if there is one client, and for nobody to guess otherwise.
    fn unclear(&self, id: &str) -> Result<Kind, Vec<u8>> {
        if self.is_shared() {
            return Err(error(id, INVALID_PARAMS, "it does not say what it is about"));
        }
        Ok(Kind::Plain)
    }

    /// Why a shared server does not get a request of this name: one that is a notification could end what is
    /// somebody else's, by an id that only we know to be another's; and what the modern era does not have would be
    /// kept for everybody.
    fn is_misplaced(&self, method: &str) -> Option<(i64, &'static str)> {
        if is_notification(method) {
            return Some((INVALID_REQUEST, "this is a notification and has no id"));
        }
        let is_state =
            matches!(method, "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe");
        (is_state && self.is_modern())
            .then_some((METHOD_NOT_FOUND, "this method is not part of this revision"))
    }

    /// Whether a notification of this name can be about nothing but what this client was asked.
    fn answers(&self, port: Port, method: &str) -> bool {
        let is_asked = || self.ports.get(&port).is_some_and(|client| !client.asked.is_empty());
        method == "notifications/progress" && is_asked()
    }

    pub(super) fn may_call(&self, name: Option<&RawValue>) -> Result<(), Unsent> {
        if self.allows_all() {
            return Ok(());
        }
        let name = name.and_then(|name| serde_json::from_str::<String>(name.get()).ok());
        let name = name.unwrap_or_default();
        if spec::allowed(&self.tools, &name) { Ok(()) } else { Err(Unsent::NotAllowed(name)) }
    }

    /// Whether a call may be passed on whose client wants no answer.
    fn may_notify(&self, envelope: &Envelope<'_>) -> bool {
        let name = Members::of(envelope.params).and_then(|params| params.name);
        self.may_call(name).is_ok()
    }

    pub(super) fn allows_all(&self) -> bool {
        self.tools.iter().any(|pattern| pattern == "*")
    }

    /// True if this client's own handshake goes through: the only one, or the one that began it.
    fn shakes_hands(&self, port: Port) -> bool {
        matches!(self.greeting, Greeting::ByClient(_)) && self.ports.keys().next() == Some(&port)
    }

    /// True if a client may put several messages in a line.
    fn has_batches(&self) -> bool {
        // Kin that we greeted ourselves were told another revision.
        let is_theirs = matches!(self.greeting, Greeting::ByClient(_));
        let may = self.company == Company::Strangers || is_theirs;
        may && self.version.as_deref() == Some(WITH_BATCHES)
    }

    /// The answer to a client's `initialize`: what the server told us. It has shaken hands with us
    /// already, and a second time would make some servers forget whom they speak with.
    fn welcome(&mut self, port: Port, id: &RawValue) -> Vec<u8> {
        let result = match &self.greeting {
            Greeting::Legacy(result) => Some(result),
            Greeting::ByClient(handshake) => handshake.result.as_ref(),
            Greeting::Modern => {
                let message = format!("this server speaks {MODERN} only");
                return error(id.get(), UNSUPPORTED_VERSION, &message);
            }
            Greeting::NotYet => None,
        };
        let Some(result) = result else {
            return error(id.get(), INTERNAL_ERROR, "the server is not ready yet");
        };
        let welcome = answer(id.get(), result);
        if let Some(client) = self.ports.get_mut(&port) {
            client.is_greeted = true;
        }
        welcome
    }

    fn cancelled_by_port(
        &mut self,
        port: Port,
        line: &[u8],
        envelope: &Envelope<'_>,
        out: &mut Routed,
    ) -> Option<Edits> {
        let request = Members::of(envelope.params)?.request_id?;
        let id = Token::from(request);
        let client = self.ports.get(&port)?;
        // The oldest, should it use one id twice.
        let (_, own) = client.open.range((id.clone(), 0)..=(id, u64::MAX)).next()?.clone();
        if matches!(self.pending.get(&own)?.kind, Kind::Initialize) {
            return None;
        }
        let pending = self.close(own)?;
        self.remember(own, Late { port, listen: None });
        if self.abandoned(own, &pending)
            && let Kind::Subscribe(uri) = &pending.kind
        {
            out.to_server.push(self.aside("resources/unsubscribe", &json!({ "uri": uri })));
        }
        let mut edits = Edits::default();
        edits.put(line, request, own);
        Some(edits)
    }
}

fn is_notification(method: &str) -> bool {
    method.starts_with("notifications/") || method.starts_with("$/")
}

fn is_long(raw: &RawValue) -> bool {
    raw.get().len() > LONGEST_TOKEN
}

const ODD: &str = "this is not a JSON-RPC message";

/// What becomes of a request.
enum Fate {
    Send(u64, Edits),
    Answer(Vec<u8>),
}
