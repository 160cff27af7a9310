//! What the server says, on its way to whom it concerns.

use super::levels::Level;
use super::{Asked, Company, Greeting, Kind, Late, MOST, Mux, Pending, Port, Routed, version};
use super::{kept, tasks};
use crate::mcp::envelope::{
    self, Edits, Envelope, Failure, Items, Line, Members, Meta, Shape, Token, own, text,
};
use crate::mcp::reply::{
    INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, LONGEST_TOKEN, METHOD_NOT_FOUND, answer, error,
};
use serde_json::json;
use serde_json::value::RawValue;

/// The error that says which pages are to be visited first.
const ELICITATION_REQUIRED: i64 = -32042;

/// What becomes of a line of the server.
enum Fate {
    /// It is for nobody.
    Drop,
    /// It was for us, and has been heeded.
    Heeded,
    To(Port, Edits),
    /// As it is.
    ToAll(Vec<Port>),
    ToUs(u64, Edits),
}

impl Mux {
    /// A line of the server. What in it is no text is replaced, as most clients do: whoever waits for
    /// the answer must not wait for ever.
    pub(in crate::mcp) fn server_says(&mut self, line: Vec<u8>) -> Routed {
        let mut out = Routed::default();
        let line = String::from_utf8(line)
            .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
        match envelope::read_text(&line) {
            Line::One(envelope) => {
                let fate = self.server_says_one(&line, &envelope, &mut out);
                self.meet(fate, line.into_bytes(), &mut out);
            }
            // 2025-03-26 allows batches. Each message finds its own way.
            Line::Many(Items(parts)) if !parts.is_empty() => {
                for part in parts.iter().map(|part| part.get()) {
                    let fate = match envelope::read_text(part) {
                        Line::One(envelope) => self.server_says_one(part, &envelope, &mut out),
                        _ => Fate::Drop,
                    };
                    self.meet(fate, part.as_bytes().to_vec(), &mut out);
                }
            }
            // A client that has a server of its own sees what it would see of it without us.
            _ => match (&self.greeting, self.alone()) {
                (Greeting::ByClient(_), Some(port)) => out.to_ports.push((port, line.into_bytes())),
                _ => self.drop_one(),
            },
        }
        out
    }

    fn meet(&mut self, fate: Fate, line: Vec<u8>, out: &mut Routed) {
        match fate {
            Fate::Drop => self.drop_one(),
            Fate::Heeded => {}
            Fate::To(port, edits) => out.to_ports.push((port, edits.apply(line))),
            Fate::ToUs(own, edits) => out.to_us.push((own, edits.apply(line))),
            Fate::ToAll(ports) => {
                out.to_ports.extend(ports.into_iter().map(|port| (port, line.clone())));
            }
        }
    }

    fn server_says_one(&mut self, line: &str, envelope: &Envelope<'_>, out: &mut Routed) -> Fate {
        match (envelope.shape(), envelope.id) {
            // A ping belongs to nobody in particular.
            (Shape::Request, Some(id)) if envelope.method.as_deref() == Some("ping") => {
                out.to_server.push(answer(id.get(), "{}"));
                Fate::Heeded
            }
            (Shape::Request, Some(id)) => match self.question(id, envelope) {
                Ok((port, own)) => {
                    let mut edits = Edits::default();
                    edits.put(line.as_bytes(), id, own);
                    Fate::To(port, edits)
                }
                Err(refusal) => {
                    out.to_server.push(refusal);
                    Fate::Heeded
                }
            },
            (Shape::Notification, _) => {
                self.notification(line.as_bytes(), envelope, out).unwrap_or(Fate::Drop)
            }
            (Shape::Response, Some(id)) => match own(id) {
                Some(own) => self.response(own, line.as_bytes(), envelope, out),
                None => Fate::Drop,
            },
            _ => Fate::Drop,
        }
    }

    /// Who is to be asked what the server asks, and under which id; or the answer to the server.
    fn question(&mut self, id: &RawValue, envelope: &Envelope<'_>) -> Result<(Port, u64), Vec<u8>> {
        if id.get().len() > LONGEST_TOKEN {
            return Err(error("null", INVALID_REQUEST, "this id is too long"));
        }
        let Some(params) = Members::of(envelope.params) else {
            let message = "a key occurs twice in the params";
            return Err(error(id.get(), INVALID_PARAMS, message));
        };
        let Some(port) = self.asked_one(&params) else {
            if !self.ports.is_empty() && self.company == Company::Strangers {
                self.note_hazard(match envelope.method.as_deref() {
                    Some("roots/list") => kept::ASKS_ROOTS,
                    Some("sampling/createMessage") => kept::ASKS_SAMPLING,
                    Some("elicitation/create") => kept::ASKS_USER,
                    _ => kept::ASKS,
                });
            }
            let message = "there is not exactly one client that could be asked";
            return Err(error(id.get(), METHOD_NOT_FOUND, message));
        };
        if self.in_flight() >= MOST {
            return Err(error(id.get(), INTERNAL_ERROR, "too many requests in flight"));
        }
        self.last_id += 1;
        let (own, id) = (self.last_id, Token::from(id));
        self.asked_as.insert((id.clone(), own));
        self.asked.insert(own, Asked { port, id });
        if let Some(client) = self.ports.get_mut(&port) {
            client.asked.insert(own);
        }
        if let Some(elicitation) = params.elicitation_id.and_then(short) {
            self.elicitations.begin(port, &elicitation);
        }
        Ok((port, own))
    }

    /// The one client that a question can be for. Nothing in it says whose it is, unless it is about
    /// a task, so with several it is nobody's.
    fn asked_one(&self, params: &Members<'_>) -> Option<Port> {
        match params.meta()?.related_task {
            Some(task) if self.is_shared() => self.owner_of(task),
            _ => self.alone(),
        }
    }

    /// The attached client whose task this is about.
    fn owner_of(&self, related: &RawValue) -> Option<Port> {
        let task = Members::of(Some(related))?.task_id.and_then(text)?;
        self.tasks.owner(&task)?.filter(|port| self.ports.contains_key(port))
    }

    fn response(
        &mut self,
        own: u64,
        line: &[u8],
        envelope: &Envelope<'_>,
        out: &mut Routed,
    ) -> Fate {
        let (port, id, kind) = match self.close(own) {
            Some(pending) => {
                self.logged.remove(&own);
                self.settle(own, &pending, envelope, out);
                (pending.port, pending.id, pending.kind)
            }
            None => match self.forget(own) {
                Some(Late { port, listen: Some(id) }) if self.ports.contains_key(&port) => {
                    (port, id, Kind::Listen)
                }
                Some(_) => return Fate::Heeded,
                None => return Fate::Drop,
            },
        };
        let edits = self.restored(port, &id, &kind, line, envelope);
        match (edits, port, kind) {
            (_, _, Kind::Aside) => Fate::Heeded,
            (Some(edits), Port::OURS, _) => Fate::ToUs(own, edits),
            (Some(edits), port, _) => Fate::To(port, edits),
            (None, port, _) => {
                let message = "the answer could not be read";
                let line = error(&id.to_string(), INTERNAL_ERROR, message);
                match port {
                    Port::OURS => out.to_us.push((own, line)),
                    port => out.to_ports.push((port, line)),
                }
                Fate::Heeded
            }
        }
    }

    /// What an answer changes here.
    fn settle(&mut self, own: u64, pending: &Pending, envelope: &Envelope<'_>, out: &mut Routed) {
        // Some servers say that there is no error.
        let failure = envelope.error.filter(|error| error.get() != "null");
        let result = envelope.result.filter(|_| failure.is_none());
        let port = pending.port;
        match &pending.kind {
            Kind::Initialize if port != Port::OURS => {
                if let (Some(result), Greeting::ByClient(handshake)) = (result, &mut self.greeting)
                {
                    self.version = version(result);
                    handshake.result = Some(result.get().into());
                }
            }
            Kind::SetLevel(change) => self.levels.answered(port, own, *change, result.is_some()),
            Kind::Subscribe(uri) => {
                let agreed = result.is_some();
                let is_nobodys = self.subscriptions.answered(port, uri, own, agreed);
                if is_nobodys && self.is_shared() {
                    out.to_server.push(self.aside("resources/unsubscribe", &json!({ "uri": uri })));
                }
            }
            Kind::AboutTask(task, is_outcome) => {
                let refused = failure.and_then(|failure| Failure::of(Some(failure)));
                let is_gone = refused.is_some_and(|refused| refused.has_code(INVALID_PARAMS));
                if is_gone || *is_outcome && result.is_some() {
                    self.tasks.finish(task);
                }
                if let Some(status) = status(result) {
                    self.tasks.status(task, &status);
                }
                return;
            }
            Kind::TasksList => return,
            _ => {}
        }
        if port == Port::OURS {
            return;
        }
        // Most answers speak of neither, and are not looked into. One that hides its keys behind
        // escapes is not understood, and then its task or page is nobody's.
        if let Some(result) = result.filter(|result| result.get().contains("\"taskId\"")) {
            self.begin_task(own, pending, result);
        }
        if let Some(failure) = failure.filter(|failure| failure.get().contains("\"elicitationId\""))
        {
            self.begin_elicitations(port, failure);
        }
    }

    /// Any answer may turn out to be a task, in one of two places.
    fn begin_task(&mut self, own: u64, pending: &Pending, result: &RawValue) {
        let Some(members) = Members::of(Some(result)) else { return };
        let inside = members.task.and_then(|task| Members::of(Some(task)));
        let task = inside.filter(|task| task.task_id.is_some()).unwrap_or(members);
        let Some(id) = task.task_id.and_then(short) else { return };
        let is_open = match task.status.and_then(text) {
            Some(status) => !tasks::is_end(&status),
            None => matches!(pending.kind, Kind::Task),
        };
        self.tasks.begin(pending.port, own, &id, pending.token.clone(), is_open);
    }

    fn begin_elicitations(&mut self, port: Port, failure: &RawValue) {
        let Some(failure) = Failure::of(Some(failure)) else { return };
        let Some(data) = Members::of(failure.data) else { return };
        let Some(list) = data.elicitations.filter(|_| failure.has_code(ELICITATION_REQUIRED))
        else {
            return;
        };
        let Ok(Items(list)) = serde_json::from_str(list.get()) else { return };
        for item in list {
            let members = Members::of(Some(item));
            if let Some(id) = members.and_then(|members| members.elicitation_id).and_then(short) {
                self.elicitations.begin(port, &id);
            }
        }
    }

    /// An answer as its client may see it: with the client's own id, and without tools that are not
    /// on the list or tasks that are not its own. What cannot be filtered is not shown.
    fn restored(
        &self,
        port: Port,
        id: &Token,
        kind: &Kind,
        line: &[u8],
        envelope: &Envelope<'_>,
    ) -> Option<Edits> {
        let mut edits = Edits::default();
        edits.put(line, envelope.id?, id.clone());
        match kind {
            Kind::ToolsList if !self.allows_all() => {
                if let Some(tools) = Members::of(envelope.result)?.tools {
                    let allowed = |tool: &Members<'_>| {
                        tool.name.is_some_and(|name| self.may_call(Some(name)).is_ok())
                    };
                    edits.put(line, tools, Token::Text(filtered(tools, allowed)?.into()));
                }
            }
            Kind::TasksList if self.is_shared() => {
                if let Some(tasks) = Members::of(envelope.result)?.tasks {
                    let its = |task: &Members<'_>| {
                        let id = task.task_id.and_then(text);
                        id.is_some_and(|id| self.tasks.is_for(&id, port))
                    };
                    edits.put(line, tasks, Token::Text(filtered(tasks, its)?.into()));
                }
            }
            Kind::Listen => {
                let meta = Members::of(envelope.result).and_then(|result| result.meta());
                if let Some(subscription) = meta.and_then(|meta| meta.subscription) {
                    edits.put(line, subscription, id.clone());
                }
            }
            _ => {}
        }
        Some(edits)
    }

    fn notification(
        &mut self,
        line: &[u8],
        envelope: &Envelope<'_>,
        out: &mut Routed,
    ) -> Option<Fate> {
        let params = Members::of(envelope.params)?;
        let meta = params.meta()?;
        let method = envelope.method.as_deref().unwrap_or_default();
        out.tools_changed |= method == "notifications/tools/list_changed";
        let is_task = method.starts_with("notifications/tasks");
        let task = params.task_id.filter(|_| is_task).and_then(text);
        if let (Some(task), Some(status)) = (&task, params.status.and_then(text)) {
            self.tasks.status(task, &status);
        }
        let mut edits = Edits::default();
        let port = match (method, meta.subscription) {
            ("notifications/progress", _) => {
                let raw = params.progress_token?;
                let own = own(raw)?;
                let (port, token) = match self.pending.get(&own) {
                    Some(pending) => (pending.port, pending.token.as_ref()?),
                    None => self.tasks.progress(own)?,
                };
                edits.put(line, raw, token.clone());
                port
            }
            ("notifications/cancelled", _) => {
                let request = params.request_id?;
                let (port, id) = self.cancelled_by_server(request, out)?;
                edits.put(line, request, id);
                port
            }
            (_, Some(subscription)) => {
                let listen = self.pending.get(&own(subscription)?)?;
                if !matches!(listen.kind, Kind::Listen) {
                    return None;
                }
                edits.put(line, subscription, listen.id.clone());
                listen.port
            }
            _ if !self.is_shared() => {
                return Some(Fate::ToAll(self.ports.keys().copied().collect()));
            }
            ("notifications/resources/updated", _) => {
                let ports = self.subscriptions.of(&params.uri.and_then(text)?);
                let ports = Vec::from_iter(ports);
                return (!ports.is_empty()).then_some(Fate::ToAll(ports));
            }
            (
                "notifications/tools/list_changed"
                | "notifications/prompts/list_changed"
                | "notifications/resources/list_changed",
                _,
            ) => {
                let greeted = self.ports.iter().filter(|(_, client)| client.is_greeted);
                let ports = Vec::from_iter(greeted.map(|(port, _)| *port));
                return (!ports.is_empty()).then_some(Fate::ToAll(ports));
            }
            ("notifications/message", _) => self.log_reader(&params)?,
            ("notifications/elicitation/complete", _) => {
                self.elicitations.of(&params.elicitation_id.and_then(text)?)?
            }
            _ if is_task => self.tasks.owner(&task?)??,
            _ => self.audience(&meta)?,
        };
        match port {
            // Ours has no ear for notifications.
            Port::OURS => Some(Fate::Heeded),
            port if self.ports.contains_key(&port) => Some(Fate::To(port, edits)),
            _ => None,
        }
    }

    /// For whom a log message is. In the modern era it belongs to one of the requests that asked for
    /// some, and does not say to which; before, it belongs to nobody.
    fn log_reader(&self, params: &Members<'_>) -> Option<Port> {
        if !self.is_modern() {
            let level = params.level.and_then(text).and_then(|word| Level::of(&word));
            return self.alone().filter(|port| self.levels.admits(*port, level));
        }
        let port = *self.logged.values().next()?;
        let is_open = self.logged.keys().any(|own| self.pending.contains_key(own));
        (is_open && self.logged.values().all(|other| *other == port)).then_some(port)
    }

    /// For whom a notification is that we do not know.
    fn audience(&mut self, meta: &Meta<'_>) -> Option<Port> {
        let port = match meta.related_task {
            Some(task) => self.owner_of(task),
            None => self.alone(),
        };
        if port.is_none() && !self.ports.is_empty() {
            self.note_hazard(kept::NOTIFIES);
        }
        port
    }

    /// The server takes back a question, or ends a listen: whose, and under which id there.
    fn cancelled_by_server(
        &mut self,
        request: &RawValue,
        out: &mut Routed,
    ) -> Option<(Port, Token)> {
        let id = Token::from(request);
        let its = self.asked_as.range((id.clone(), 0)..=(id, u64::MAX)).next();
        if let Some((_, own)) = its.cloned() {
            return self.unask(own).map(|asked| (asked.port, own.into()));
        }
        let own = own(request)?;
        let pending = self.pending.get(&own)?;
        if !matches!(pending.kind, Kind::Listen) {
            return None;
        }
        let Pending { port, id, .. } = self.close(own)?;
        if port == Port::OURS {
            let message = "the server ended the subscription";
            out.to_us.push((own, error(&id.to_string(), INTERNAL_ERROR, message)));
        }
        let listen = (port != Port::OURS).then(|| id.clone());
        self.remember(own, Late { port, listen });
        Some((port, id))
    }
}

/// The items of a list of which this holds, as they were written.
fn filtered(list: &RawValue, holds: impl Fn(&Members<'_>) -> bool) -> Option<String> {
    let Items(items) = serde_json::from_str(list.get()).ok()?;
    let kept = |item: &&&RawValue| Members::of(Some(item)).is_some_and(|members| holds(&members));
    let kept: Vec<&str> = items.iter().filter(kept).map(|item| item.get()).collect();
    Some(format!("[{}]", kept.join(",")))
}

/// How far a task is, as an answer about it says.
fn status(result: Option<&RawValue>) -> Option<String> {
    let members = Members::of(Some(result?))?;
    let inside = members.task.and_then(|task| Members::of(Some(task)));
    let status = inside.and_then(|task| task.status).or(members.status)?;
    text(status).map(|text| text.into_owned())
}

/// The words of a string that is short enough to be kept.
fn short(raw: &RawValue) -> Option<std::borrow::Cow<'_, str>> {
    text(raw).filter(|_| raw.get().len() <= LONGEST_TOKEN)
}
