//! Many servers as one: who is asked, and what of their answers a client gets. Pure.
//!
//! A client's id is its own at each server's seat, so it goes through as it is; only what a server
//! asks needs an id of ours, as two of them may use the same. A server that fails is left out.

mod gather;
mod merge;
mod names;

use crate::mcp::envelope::{self, Edits, Envelope, Items, Line, Members, Shape};
use crate::mcp::reply::{
    INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, NO_SERVER, answer, error,
};
use crate::spec;
use gather::Gather;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// More pages than this is a server that never ends its list.
const PAGES: usize = 1000;

/// Requests in flight, in both directions together.
const MOST: usize = 10_000;

/// A server that says nothing to what all are asked is left out after so many ticks.
const PATIENCE: u32 = 30;

/// What is to be sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Out {
    pub(super) to_servers: Vec<(usize, Vec<u8>)>,
    pub(super) to_client: Vec<Vec<u8>>,
}

/// A client of all servers. Written down and read again it is the same.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Blend {
    names: Vec<String>,
    /// Patterns of the tools that the client wants to see.
    tools: Vec<String>,
    gone: BTreeSet<usize>,
    /// What each has said that it can do, in the legacy era.
    offers: BTreeMap<usize, Value>,
    /// The client's requests without an answer, by their id as it wrote it.
    pending: HashMap<Box<str>, Pending>,
    /// What servers have asked, by an id of ours: who, and under which id.
    asked: BTreeMap<u64, (usize, Box<str>)>,
    last: u64,
}

#[derive(Debug, Serialize, Deserialize)]
enum Pending {
    One(usize),
    All(Gather),
}

impl Blend {
    /// Servers by name, and patterns of the tools that the client wants to see.
    pub(super) fn new(names: Vec<String>, tools: Vec<String>) -> Blend {
        Blend {
            names,
            tools,
            gone: BTreeSet::new(),
            offers: BTreeMap::new(),
            pending: HashMap::new(),
            asked: BTreeMap::new(),
            last: 0,
        }
    }

    /// True if no server is left.
    pub(super) fn is_over(&self) -> bool {
        self.gone.len() == self.names.len()
    }

    fn living(&self) -> BTreeSet<usize> {
        (0..self.names.len()).filter(|server| !self.gone.contains(server)).collect()
    }

    /// A line of the client.
    pub(super) fn client_says(&mut self, line: &[u8]) -> Out {
        let mut out = Out::default();
        let Line::One(envelope) = envelope::read(line) else {
            out.to_client.push(error("null", INVALID_REQUEST, "this is no JSON-RPC message"));
            return out;
        };
        let method = envelope.method.as_deref().unwrap_or_default();
        match (envelope.shape(), envelope.id) {
            (Shape::Request, Some(id)) => {
                if let Err(refusal) = self.ask(id.get(), method, &envelope, line, &mut out) {
                    out.to_client.push(refusal);
                }
            }
            (Shape::Notification, _) if method == "notifications/cancelled" => {
                let params = Members::of(envelope.params);
                let id = params.and_then(|params| params.request_id).map_or("", RawValue::get);
                let whom = match self.pending.remove(id) {
                    Some(Pending::One(server)) => BTreeSet::from([server]),
                    Some(Pending::All(gather)) => gather.waiting,
                    None => BTreeSet::new(),
                };
                out.to_servers.extend(whom.into_iter().map(|server| (server, line.to_vec())));
            }
            (Shape::Notification, _) if method.starts_with("notifications/") => {
                out.to_servers.extend(self.living().into_iter().map(|it| (it, line.to_vec())));
            }
            (Shape::Response, Some(id)) => {
                let own = envelope::own(id).and_then(|own| self.asked.remove(&own));
                if let Some((server, theirs)) = own {
                    let mut edits = Edits::default();
                    edits.put(line, id, String::from(theirs));
                    out.to_servers.push((server, edits.apply(line.to_vec())));
                }
            }
            _ => out.to_client.push(error("null", INVALID_REQUEST, "this is no JSON-RPC message")),
        }
        out
    }

    /// A request of the client: to whom it goes, or why to nobody.
    fn ask(
        &mut self,
        id: &str,
        method: &str,
        envelope: &Envelope<'_>,
        line: &[u8],
        out: &mut Out,
    ) -> Result<(), Vec<u8>> {
        let no = |code, words: &str| Err(error(id, code, words));
        if self.pending.contains_key(id) {
            return no(INVALID_REQUEST, "a request with this id has no answer yet");
        }
        if self.pending.len() + self.asked.len() >= MOST {
            return no(INTERNAL_ERROR, "too many requests in flight");
        }
        let whom = match method {
            "ping" => {
                out.to_client.push(answer(id, "{}"));
                return Ok(());
            }
            "initialize" | "server/discover" => self.living(),
            "tools/list" => self.who_has("tools"),
            "prompts/list" => self.who_has("prompts"),
            "resources/list" | "resources/templates/list" => self.who_has("resources"),
            "logging/setLevel" => self.who_has("logging"),
            "subscriptions/listen" => return self.listen(id, envelope, line, out),
            "tools/call"
            | "prompts/get"
            | "resources/read"
            | "resources/subscribe"
            | "resources/unsubscribe"
            | "completion/complete" => {
                let found = names::inward(&self.names, method, envelope, line);
                let found = found.filter(|(server, _, said)| {
                    let is_wanted = method != "tools/call" || spec::allowed(&self.tools, said);
                    is_wanted && !self.gone.contains(server)
                });
                let Some((server, line, _)) = found else {
                    return no(INVALID_PARAMS, "there is nothing of this name here");
                };
                self.pending.insert(id.into(), Pending::One(server));
                out.to_servers.push((server, line));
                return Ok(());
            }
            _ => return no(METHOD_NOT_FOUND, "this method is not known here"),
        };
        if names::has_cursor(envelope) {
            return no(INVALID_PARAMS, "there is no such page: all of it is on the first");
        }
        out.to_servers.extend(whom.iter().map(|server| (*server, line.to_vec())));
        self.gather(id, method, line, whom, out);
        Ok(())
    }

    fn gather(
        &mut self,
        id: &str,
        method: &str,
        line: &[u8],
        whom: BTreeSet<usize>,
        out: &mut Out,
    ) {
        let gather = Gather::new(method, line, whom);
        self.pending.insert(id.into(), Pending::All(gather));
        self.settle(id, out);
    }

    /// Those that have said they can do this. In the modern era nobody has said anything.
    fn who_has(&self, capability: &str) -> BTreeSet<usize> {
        let has = |server: &usize| {
            self.offers.get(server).is_none_or(|offer| !offer["capabilities"][capability].is_null())
        };
        self.living().into_iter().filter(has).collect()
    }

    /// Each is asked for what it can tell.
    fn listen(
        &mut self,
        id: &str,
        envelope: &Envelope<'_>,
        line: &[u8],
        out: &mut Out,
    ) -> Result<(), Vec<u8>> {
        let unreadable = || error(id, INVALID_PARAMS, "`notifications` says what to listen for");
        let mut filter = names::filter(envelope).ok_or_else(unreadable)?;
        let uris = filter.as_object_mut().and_then(|it| it.remove("resourceSubscriptions"));
        let mut whom = BTreeSet::new();
        for server in self.living() {
            let mut own = filter.clone();
            let uris = uris.as_ref().and_then(Value::as_array).into_iter().flatten();
            let its: Vec<&str> = uris
                .filter_map(|uri| names::inner_uri(&self.names, uri.as_str()?))
                .filter(|(at, _)| *at == server)
                .map(|(_, uri)| uri)
                .collect();
            if !its.is_empty() {
                own["resourceSubscriptions"] = json!(its);
            }
            if own.as_object().is_none_or(|own| own.is_empty()) {
                continue;
            }
            let line = names::refiltered(envelope, line, &own).ok_or_else(unreadable)?;
            out.to_servers.push((server, line));
            whom.insert(server);
        }
        self.gather(id, "subscriptions/listen", line, whom, out);
        Ok(())
    }

    /// A line of a server.
    pub(super) fn server_says(&mut self, server: usize, line: &[u8]) -> Out {
        let mut out = Out::default();
        match envelope::read(line) {
            Line::One(envelope) => self.server_says_one(server, &envelope, line, &mut out),
            Line::Many(Items(parts)) => {
                for part in parts {
                    let line = part.get().as_bytes();
                    if let Line::One(envelope) = envelope::read(line) {
                        self.server_says_one(server, &envelope, line, &mut out);
                    }
                }
            }
            Line::Odd | Line::Noise => {}
        }
        out
    }

    fn server_says_one(
        &mut self,
        server: usize,
        envelope: &Envelope<'_>,
        line: &[u8],
        out: &mut Out,
    ) {
        let outward = |names: &[String]| names::outward(&names[server], envelope, line);
        match (envelope.shape(), envelope.id) {
            (Shape::Response, Some(id)) => match self.pending.get(id.get()) {
                Some(Pending::One(one)) if *one == server => {
                    self.pending.remove(id.get());
                    out.to_client.push(outward(&self.names));
                }
                Some(Pending::All(_)) => self.part(id.get(), server, envelope, out),
                _ => {}
            },
            (Shape::Request, Some(id)) if self.asked.len() < MOST => {
                self.last += 1;
                self.asked.insert(self.last, (server, id.get().into()));
                let mut edits = Edits::default();
                edits.put(line, id, self.last.to_string());
                out.to_client.push(edits.apply(line.to_vec()));
            }
            (Shape::Notification, _) => self.notification(server, envelope, line, out),
            _ => {}
        }
    }

    fn notification(&mut self, server: usize, envelope: &Envelope<'_>, line: &[u8], out: &mut Out) {
        let method = envelope.method.as_deref().unwrap_or_default();
        if method == "notifications/cancelled" {
            let request = Members::of(envelope.params).and_then(|params| params.request_id);
            let Some(request) = request else { return };
            let its = |(own, (who, id)): (&u64, &(usize, Box<str>))| {
                (*who == server && **id == *request.get()).then_some(*own)
            };
            if let Some(own) = self.asked.iter().find_map(its) {
                self.asked.remove(&own);
                let mut edits = Edits::default();
                edits.put(line, request, own.to_string());
                out.to_client.push(edits.apply(line.to_vec()));
            } else {
                // The end of a listen, if anything: an answer would say the same.
                self.fail(request.get(), server, "it does not listen any more", out);
            }
            return;
        }
        let line = names::outward(&self.names[server], envelope, line);
        let listen = envelope::subscription_of(envelope);
        match listen.and_then(|id| Some((id, self.pending.get_mut(id)?))) {
            Some((id, Pending::All(gather))) => {
                if method == "notifications/subscriptions/acknowledged" {
                    let mut filter = names::filter(envelope).unwrap_or_default();
                    if let Some(uris) = filter["resourceSubscriptions"].as_array_mut() {
                        for uri in uris {
                            let outer = names::outer_uri(
                                &self.names[server],
                                uri.as_str().unwrap_or_default(),
                            );
                            *uri = json!(outer);
                        }
                    } else if let Some(filter) = filter.as_object_mut() {
                        filter.remove("resourceSubscriptions");
                    }
                    gather.parts.push((server, filter));
                    self.settle(id, out);
                } else if gather.begun {
                    out.to_client.push(line);
                } else if gather.early.len() < PAGES {
                    gather.early.push(line);
                }
            }
            _ => out.to_client.push(line),
        }
    }

    /// One of several answers.
    fn part(&mut self, id: &str, server: usize, envelope: &Envelope<'_>, out: &mut Out) {
        let Some(Pending::All(gather)) = self.pending.get_mut(id) else { return };
        if !gather.waiting.contains(&server) {
            return;
        }
        let Some(result) = envelope.result else {
            let why = envelope.error.map_or("no answer", RawValue::get);
            let why = why.to_owned();
            return self.fail(id, server, &why, out);
        };
        if let Some(key) = gather.key() {
            let keeping = merge::keeping(result);
            // In the modern era every answer says of which kind it is: one that does not is of a server
            // that does not know what it is asked.
            if self.offers.is_empty() && keeping.result_type.is_none() {
                return self.fail(id, server, "it does not know this revision", out);
            }
            let cursor = keeping.next_cursor.clone();
            gather.keepings.push(keeping);
            for (name, item) in listed(&self.names[server], key, result) {
                if key != "tools" || spec::allowed(&self.tools, &name) {
                    gather.items.push((server, item));
                }
            }
            gather.pages += 1;
            let next = cursor.filter(|_| gather.pages < PAGES).and_then(|cursor| {
                let Line::One(first) = envelope::read(&gather.line) else { return None };
                names::next_page(&first, &gather.line, &cursor)
            });
            if let Some(next) = next {
                out.to_servers.push((server, next));
                return;
            }
        } else {
            let value: Value = serde_json::from_str(result.get()).unwrap_or_default();
            if &*gather.method == "initialize" {
                self.offers.insert(server, value.clone());
            }
            if !gather.is_listen() {
                gather.parts.push((server, value));
            }
        }
        gather.waiting.remove(&server);
        self.settle(id, out);
    }

    /// One of those who were asked will not answer.
    fn fail(&mut self, id: &str, server: usize, why: &str, out: &mut Out) {
        let Some(Pending::All(gather)) = self.pending.get_mut(id) else { return };
        if gather.waiting.remove(&server) {
            gather.failures.push((server, why.to_owned()));
            let is_listen = gather.is_listen();
            gather.parts.retain(|(who, _)| !is_listen || *who != server);
            self.settle(id, out);
        }
    }

    /// Answers, if there is nothing more to wait for.
    fn settle(&mut self, id: &str, out: &mut Out) {
        let Some(Pending::All(gather)) = self.pending.get_mut(id) else { return };
        if gather.is_listen() && !gather.waiting.is_empty() {
            let all = gather.waiting.iter().all(|who| gather.parts.iter().any(|(at, _)| at == who));
            if !gather.begun && all {
                begin(id, gather, out);
            }
            return;
        }
        if !gather.waiting.is_empty() {
            return;
        }
        let Some(Pending::All(mut gather)) = self.pending.remove(id) else { return };
        if let (Some((_, why)), true) = (gather.failures.first(), gather.is_barren()) {
            out.to_client.push(failed(id, why));
            return;
        }
        // Who can begin in either era would not see the others' tools: so it is to begin in the one that
        // all of them know.
        let is_older = |(_, why): &(usize, String)| why.starts_with('{') && !is_ours(why);
        if &*gather.method == "server/discover" && gather.failures.iter().any(is_older) {
            let words = "not all servers here know this revision: begin with `initialize`";
            out.to_client.push(error(id, METHOD_NOT_FOUND, words));
            return;
        }
        if &*gather.method == "initialize" {
            // Whoever has refused is not spoken to any more.
            for (server, _) in &gather.failures {
                self.leave_out(*server, out);
            }
        }
        let absent: Vec<String> =
            gather.failures.iter().map(|(who, _)| self.names[*who].clone()).collect();
        gather.parts.sort_by_key(|(who, _)| *who);
        let parts: Vec<(String, Value)> =
            gather.parts.drain(..).map(|(who, part)| (self.names[who].clone(), part)).collect();
        let result = match (&*gather.method, gather.key()) {
            (_, Some(key)) => {
                // As they are called, not as fast as they are.
                gather.items.sort_by_key(|(who, _)| *who);
                merge::list(key, &gather.items, &gather.keepings)
            }
            ("initialize", _) => merge::initialize(&parts, &absent).to_string(),
            ("server/discover", _) => merge::discover(&parts, &absent).to_string(),
            ("subscriptions/listen", _) => {
                if !gather.begun {
                    begin(id, &mut gather, out);
                }
                let id: Value = serde_json::from_str(id).unwrap_or_default();
                let meta = json!({ "io.modelcontextprotocol/subscriptionId": id });
                json!({ "resultType": "complete", "_meta": meta }).to_string()
            }
            _ => "{}".into(),
        };
        out.to_client.push(answer(id, &result));
    }

    /// A server is gone for good.
    pub(super) fn server_gone(&mut self, server: usize) -> Out {
        let mut out = Out::default();
        self.leave_out(server, &mut out);
        out
    }

    fn leave_out(&mut self, server: usize, out: &mut Out) {
        if !self.gone.insert(server) {
            return;
        }
        self.asked.retain(|_, (who, _)| *who != server);
        let mut its: Vec<(Box<str>, bool)> = Vec::new();
        for (id, it) in &self.pending {
            match it {
                Pending::One(one) if *one == server => its.push((id.clone(), false)),
                Pending::All(gather) if gather.waiting.contains(&server) => {
                    its.push((id.clone(), true));
                }
                Pending::One(_) | Pending::All(_) => {}
            }
        }
        for (id, of_several) in its {
            if of_several {
                self.fail(&id, server, "it left", out);
            } else {
                self.pending.remove(&id);
                out.to_client.push(error(&id, INTERNAL_ERROR, "the server left"));
            }
        }
        if let Some(offer) = self.offers.remove(&server) {
            for kind in ["tools", "prompts", "resources"] {
                if offer["capabilities"][kind].is_object() {
                    let method = format!("notifications/{kind}/list_changed");
                    let told = json!({ "jsonrpc": "2.0", "method": method });
                    out.to_client.push(told.to_string().into_bytes());
                }
            }
        }
    }

    /// True if somebody might have to be left out.
    pub(super) fn waits_for_several(&self) -> bool {
        self.pending.values().any(|it| matches!(it, Pending::All(gather) if !gather.begun))
    }

    /// Time goes by: who has not answered for long is left out.
    pub(super) fn tick(&mut self) -> Out {
        let mut out = Out::default();
        let mut late = Vec::new();
        for (id, it) in &mut self.pending {
            let Pending::All(gather) = it else { continue };
            gather.age += 1;
            if gather.age == PATIENCE && !gather.begun {
                let silent = |who: &&usize| {
                    !gather.is_listen() || !gather.parts.iter().any(|(at, _)| at == *who)
                };
                late.extend(gather.waiting.iter().filter(silent).map(|who| (id.clone(), *who)));
            }
        }
        for (id, server) in late {
            self.fail(&id, server, "it did not answer in time", &mut out);
        }
        out
    }
}

impl Gather {
    /// True if nobody has said anything of use.
    fn is_barren(&self) -> bool {
        self.parts.is_empty() && self.items.is_empty() && self.keepings.is_empty() && !self.begun
    }
}

/// Says that a listen has begun, and what came before that was said.
fn begin(id: &str, gather: &mut Gather, out: &mut Out) {
    let id: Value = serde_json::from_str(id).unwrap_or_default();
    let filter = merge::filters(gather.parts.iter().map(|(_, part)| part.clone()).collect());
    let params = json!({
        "_meta": { "io.modelcontextprotocol/subscriptionId": id },
        "notifications": filter,
    });
    let method = "notifications/subscriptions/acknowledged";
    let told = json!({ "jsonrpc": "2.0", "method": method, "params": params });
    out.to_client.push(told.to_string().into_bytes());
    out.to_client.append(&mut gather.early);
    gather.begun = true;
}

/// True if the server was not there to say that.
fn is_ours(error: &str) -> bool {
    let error: Value = serde_json::from_str(error).unwrap_or_default();
    error["code"].as_i64() == Some(NO_SERVER)
}

/// The error that a server gave, as it is; or in words why there is none.
fn failed(id: &str, why: &str) -> Vec<u8> {
    match why.starts_with('{') {
        true => format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{why}}}").into_bytes(),
        false => error(id, INTERNAL_ERROR, why),
    }
}

/// The items of one page of a list, with their names.
fn listed(server: &str, key: &str, result: &RawValue) -> Vec<(String, String)> {
    let page: HashMap<String, &RawValue> = serde_json::from_str(result.get()).unwrap_or_default();
    let items = page.get(key).and_then(|items| serde_json::from_str::<Items<'_>>(items.get()).ok());
    let items = items.unwrap_or_default().0;
    items.into_iter().filter_map(|item| names::item(server, key, item)).collect()
}

#[cfg(test)]
mod tests;
