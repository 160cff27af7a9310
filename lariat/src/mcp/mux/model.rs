//! The mux once more, slow and plain: lists that are searched from end to end, and lines that are
//! taken apart letter by letter. What it says is what the other has to say.

mod reading;
mod server;

use super::{Company, Port};
use reading::{Message, Object, Read, is_token, read};
use serde_json::{Value, json};
use std::ops::Range;

/// What somebody hears.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Said {
    /// A line of somebody else, with these bytes.
    Line(String),
    /// An error of our own: the id as it is written, and the code.
    Error(String, i64),
    /// A message of our own, whatever the order of its keys.
    Ours(Value),
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Heard {
    pub(super) server: Vec<Said>,
    pub(super) ports: Vec<(Port, Said)>,
    pub(super) us: Vec<(u64, Said)>,
    pub(super) tools_changed: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Greeting {
    NotYet,
    Legacy(String),
    Modern,
    ByClient(Option<String>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Waiting,
    /// Over for its client; the answer is swallowed, or passed on if it was a listen.
    Late,
    LateListen,
    Done,
}

#[derive(Debug, Clone)]
struct Request {
    own: u64,
    port: Port,
    id: String,
    token: Option<String>,
    method: String,
    /// The level, the resource or the task that it is about.
    about: Option<String>,
    has_task: bool,
    wants_logs: bool,
    level_before: Option<usize>,
    told: usize,
    state: State,
}

#[derive(Debug)]
struct Task {
    id: String,
    port: Option<Port>,
    own: u64,
    token: Option<String>,
    is_open: bool,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) tools: Vec<String>,
    pub(super) company: Company,
    pub(super) greeting: Greeting,
    pub(super) ports: Vec<Port>,
    greeted: Vec<Port>,
    pub(super) last: u64,
    requests: Vec<Request>,
    /// Own id, who was asked, the server's id.
    questions: Vec<(u64, Port, String)>,
    levels: Vec<(Port, usize)>,
    agreed: Option<(u64, usize)>,
    /// Who, which, by which request until the server has agreed.
    holds: Vec<(Port, String, Option<u64>)>,
    /// Resources of which the server may want to tell us.
    known: Vec<String>,
    tasks: Vec<Task>,
    pages: Vec<(String, Port)>,
    /// Somebody has left since the server began.
    had_others: bool,
    pub(super) dropped: u64,
    pub(super) hazards: usize,
}

const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
const CANCELLED: &str = "notifications/cancelled";

impl Model {
    pub(super) fn new(tools: Vec<String>, company: Company, greeting: Greeting) -> Model {
        Model {
            tools,
            company,
            greeting,
            ports: Vec::new(),
            greeted: Vec::new(),
            last: 0,
            requests: Vec::new(),
            questions: Vec::new(),
            levels: Vec::new(),
            agreed: None,
            holds: Vec::new(),
            known: Vec::new(),
            tasks: Vec::new(),
            pages: Vec::new(),
            had_others: false,
            dropped: 0,
            hazards: 0,
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.requests.iter().filter(|r| r.state == State::Waiting).count() + self.questions.len()
    }

    pub(super) fn in_flight_of(&self, port: Port) -> usize {
        self.requests.iter().filter(|r| r.state == State::Waiting && r.port == port).count()
    }

    pub(super) fn may_sleep(&self) -> bool {
        let said = self.requests.iter().any(|r| r.method == "initialize");
        let is_repeatable = !matches!(self.greeting, Greeting::ByClient(_)) || said;
        self.in_flight() == 0 && self.tasks.iter().all(|task| !task.is_open) && is_repeatable
    }

    fn is_shared(&self) -> bool {
        let is_private = matches!(self.greeting, Greeting::ByClient(_)) && self.ports.len() < 2;
        self.company == Company::Strangers && !is_private
    }

    fn is_modern(&self) -> bool {
        self.greeting == Greeting::Modern
    }

    fn allows(&self, tool: &str) -> bool {
        self.tools.iter().any(|pattern| pattern == "*" || pattern == tool)
    }

    /// The only client, if nobody who has left can be meant.
    fn alone(&self) -> Option<Port> {
        let [port] = self.ports[..] else { return None };
        (!self.is_shared() || !self.had_others).then_some(port)
    }

    pub(super) fn replay(&mut self) -> Heard {
        let mut heard = Heard::default();
        if let Some(most) = self.levels.iter().map(|(_, level)| *level).min() {
            let params = json!({ "level": LEVELS[most] });
            self.say_aside("logging/setLevel", params, &mut heard);
            self.agreed = Some((self.last, most));
        }
        let mut uris: Vec<String> = self.holds.iter().map(|hold| hold.1.clone()).collect();
        uris.sort();
        uris.dedup();
        for uri in uris {
            self.aside("resources/subscribe", &uri, &mut heard);
        }
        heard
    }

    fn aside(&mut self, method: &str, uri: &str, heard: &mut Heard) {
        self.say_aside(method, json!({ "uri": uri }), heard);
    }

    fn say_aside(&mut self, method: &str, params: Value, heard: &mut Heard) {
        self.last += 1;
        let own = self.last;
        heard.server.push(Said::Ours(
            json!({ "jsonrpc": "2.0", "id": own, "method": method, "params": params }),
        ));
        self.requests.push(Request {
            own,
            port: Port::OURS,
            id: "0".into(),
            token: None,
            method: "aside".into(),
            about: None,
            has_task: false,
            wants_logs: false,
            level_before: None,
            told: 0,
            state: State::Waiting,
        });
    }

    /// Nobody will hear the answer to this request.
    fn abandon(&mut self, at: usize, heard: Option<&mut Heard>) {
        self.requests[at].state = State::Late;
        let request = self.requests[at].clone();
        match (&*request.method, request.about) {
            ("logging/setLevel", Some(_)) => self.agreed = None,
            ("resources/subscribe", Some(uri)) => {
                let its = |(port, held, own): &(Port, String, Option<u64>)| {
                    *port == request.port && *held == uri && *own == Some(request.own)
                };
                let is_held = self.holds.iter().any(|(_, held, _)| *held == uri);
                let before = self.holds.len();
                self.holds.retain(|hold| !its(hold));
                if before > self.holds.len() && self.holds.iter().all(|(_, held, _)| *held != uri) {
                    self.known.retain(|known| *known != uri);
                    if let Some(heard) = heard {
                        self.aside("resources/unsubscribe", &uri, heard);
                    }
                } else if is_held {
                    self.known.push(uri);
                }
            }
            _ => {}
        }
    }

    pub(super) fn depart(&mut self, port: Port) -> Heard {
        let mut heard = Heard::default();
        if !self.ports.contains(&port) {
            return heard;
        }
        self.had_others = true;
        let mut uris: Vec<String> =
            self.holds.iter().filter(|hold| hold.0 == port).map(|hold| hold.1.clone()).collect();
        uris.sort();
        self.holds.retain(|hold| hold.0 != port);
        uris.retain(|uri| self.holds.iter().all(|hold| hold.1 != *uri));
        self.known.retain(|known| !uris.contains(known));
        for at in 0..self.requests.len() {
            if self.requests[at].port == port && self.requests[at].state == State::Waiting {
                if self.requests[at].method != "initialize" {
                    heard.server.push(Said::Ours(json!({
                        "jsonrpc": "2.0", "method": CANCELLED,
                        "params": {
                            "requestId": self.requests[at].own,
                            "reason": "nobody waits for it any more",
                        },
                    })));
                }
                self.abandon(at, None);
            }
        }
        self.ports.retain(|p| *p != port);
        self.greeted.retain(|p| *p != port);
        for (_, asked, id) in &self.questions {
            if *asked == port {
                heard.server.push(Said::Error(id.clone(), -32603));
            }
        }
        self.questions.retain(|(_, asked, _)| *asked != port);
        self.levels.retain(|(p, _)| *p != port);
        for uri in uris {
            self.aside("resources/unsubscribe", &uri, &mut heard);
        }
        if self.is_modern() {
            for task in self.tasks.iter_mut().filter(|task| task.port == Some(port)) {
                (task.port, task.token) = (None, None);
            }
        } else {
            self.tasks.retain(|task| task.port != Some(port));
        }
        heard
    }

    pub(super) fn arrive(&mut self, port: Port) {
        self.ports.push(port);
    }

    pub(super) fn server_left(&mut self) -> Heard {
        let mut heard = Heard::default();
        self.had_others = false;
        for at in 0..self.requests.len() {
            if self.requests[at].state != State::Waiting {
                continue;
            }
            let Request { own, port, id, method, .. } = self.requests[at].clone();
            self.abandon(at, None);
            let error = Said::Error(id, -32000);
            match port {
                Port::OURS if method == "aside" => {}
                Port::OURS => heard.us.push((own, error)),
                port => heard.ports.push((port, error)),
            }
        }
        self.requests.iter_mut().for_each(|request| request.state = State::Done);
        self.questions.clear();
        self.agreed = None;
        self.tasks.clear();
        self.pages.clear();
        heard
    }

    pub(super) fn port_says(&mut self, port: Port, line: &[u8]) -> Heard {
        let mut heard = Heard::default();
        if self.ports.contains(&port) {
            let text = std::str::from_utf8(line).ok();
            match text.map_or(Read::Noise, read) {
                Read::Noise => heard.ports.push((port, Said::Error("null".into(), -32700))),
                Read::Many(parts) if !parts.is_empty() && self.has_batches() => {
                    for part in parts {
                        let part = &text.unwrap()[part];
                        match read(part) {
                            Read::One(one) => self.port_says_one(port, part, &one, &mut heard),
                            _ => heard.ports.push((port, Said::Error("null".into(), -32600))),
                        }
                    }
                }
                Read::One(one) => self.port_says_one(port, text.unwrap(), &one, &mut heard),
                _ => heard.ports.push((port, Said::Error("null".into(), -32600))),
            }
        }
        heard
    }

    fn has_batches(&self) -> bool {
        let (Greeting::Legacy(result) | Greeting::ByClient(Some(result))) = &self.greeting else {
            return false;
        };
        let version = Object::of(result, &Some(0..result.len()))
            .and_then(|result| result.text("protocolVersion"));
        let is_theirs = matches!(self.greeting, Greeting::ByClient(_));
        let may = self.company == Company::Strangers || is_theirs;
        may && version.as_deref() == Some("2025-03-26")
    }

    fn port_says_one(&mut self, port: Port, line: &str, one: &Message, heard: &mut Heard) {
        let method = one.method.as_deref().unwrap_or_default();
        let by_client = matches!(self.greeting, Greeting::ByClient(_)) && self.ports[0] == port;
        let mut refuse = |id: &str, code| heard.ports.push((port, Said::Error(id.into(), code)));
        let id = one.id.as_ref().map(|id| &line[id.clone()]);
        match (one.shape(line), id) {
            ("request", Some(id)) => {
                let has_ping = self.company == Company::Kin || !self.is_modern();
                if method == "ping" && has_ping {
                    heard.ports.push((port, result(id, "{}")));
                } else if method == "initialize" && !by_client {
                    match self.greeting.clone() {
                        Greeting::Modern => refuse(id, -32022),
                        Greeting::Legacy(known) | Greeting::ByClient(Some(known)) => {
                            heard.ports.push((port, result(id, &known)));
                            self.greeted.push(port);
                        }
                        _ => refuse(id, -32603),
                    }
                } else if id.len() > 4096 {
                    refuse("null", -32600);
                } else {
                    self.request(port, line, one, heard);
                }
            }
            ("notification", _) => match method {
                "notifications/initialized" if !by_client => {}
                "notifications/initialized" => heard.server.push(Said::Line(line.into())),
                "notifications/roots/list_changed" if self.is_shared() => {}
                CANCELLED => {
                    let params = Object::of(line, &one.params);
                    let named = params.as_ref().and_then(|params| params.raw("requestId"));
                    let at = self.requests.iter().position(|r| {
                        r.state == State::Waiting
                            && r.port == port
                            && Some(&*r.id) == named.as_ref().map(|at| &line[at.clone()])
                    });
                    match (at, named) {
                        (Some(at), Some(named)) if self.requests[at].method != "initialize" => {
                            self.abandon(at, Some(heard));
                            let own = self.requests[at].own.to_string();
                            heard.server.push(rewritten(line, vec![(named, own)]));
                        }
                        _ => self.dropped += 1,
                    }
                }
                "tools/call" if !self.allows("*") => {
                    let params = Object::of(line, &one.params);
                    let name = params.and_then(|params| params.text("name"));
                    match self.allows(&name.unwrap_or_default()) && !self.is_shared() {
                        true => heard.server.push(Said::Line(line.into())),
                        false => self.dropped += 1,
                    }
                }
                _ if self.is_shared() => {
                    let is_asked = self.questions.iter().any(|(_, asked, _)| *asked == port);
                    match method == "notifications/progress" && is_asked {
                        true => heard.server.push(Said::Line(line.into())),
                        false => self.dropped += 1,
                    }
                }
                _ => heard.server.push(Said::Line(line.into())),
            },
            ("response", Some(id)) => {
                let at = self
                    .questions
                    .iter()
                    .position(|(own, asked, _)| *asked == port && own.to_string() == id);
                match at.map(|at| self.questions.remove(at)) {
                    Some((_, _, theirs)) => {
                        let place = one.id.clone().unwrap();
                        heard.server.push(rewritten(line, vec![(place, theirs)]));
                    }
                    None => self.dropped += 1,
                }
            }
            _ => refuse("null", -32600),
        }
    }

    fn request(&mut self, port: Port, line: &str, one: &Message, heard: &mut Heard) {
        let place = one.id.clone().unwrap();
        let id = line[place.clone()].to_string();
        let method = one.method.clone().unwrap();
        let refuse = |code| (port, Said::Error(id.clone(), code));
        let params = Object::of(line, &one.params);
        let meta = params.as_ref().and_then(|params| params.object("_meta"));
        let (Some(params), Some(meta)) = (params, meta) else {
            return heard.ports.push(refuse(-32602));
        };
        let token = meta.raw("progressToken").filter(|at| is_token(&line[at.clone()]));
        if token.as_ref().is_some_and(|token| token.len() > 4096) {
            return heard.ports.push(refuse(-32602));
        }
        if method == "tools/call" && !self.allows(&params.text("name").unwrap_or_default()) {
            return heard.ports.push(refuse(-32602));
        }
        if self.is_shared() {
            if method.starts_with("notifications/") || method.starts_with("$/") {
                return heard.ports.push(refuse(-32600));
            }
            let about = match &*method {
                "logging/setLevel" => {
                    params.text("level").filter(|level| LEVELS.contains(&&**level))
                }
                "resources/subscribe" | "resources/unsubscribe" => params.text("uri"),
                _ => Some(String::new()),
            };
            let is_state = ["logging/setLevel", "resources/subscribe", "resources/unsubscribe"]
                .contains(&&*method);
            if is_state && self.is_modern() {
                return heard.ports.push(refuse(-32601));
            }
            if about.is_none() && self.company == Company::Strangers {
                return heard.ports.push(refuse(-32602));
            }
        }
        let own = self.last + 1;
        let mut edits = vec![(place, own.to_string())];
        edits.extend(token.clone().map(|token| (token, own.to_string())));
        let mut request = Request {
            own,
            port,
            id: id.clone(),
            token: token.map(|token| line[token].to_string()),
            method: method.clone(),
            about: None,
            has_task: params.raw("task").is_some(),
            wants_logs: meta.raw("io.modelcontextprotocol/logLevel").is_some(),
            level_before: None,
            told: 0,
            state: State::Waiting,
        };
        let stands = self.company == Company::Strangers && !self.is_modern();
        let known = (port, result(&id, "{}"));
        match &*method {
            "logging/setLevel" if stands => {
                let word = params.text("level");
                if let Some(level) = LEVELS.iter().position(|known| Some(*known) == word.as_deref())
                {
                    let asking = self.requests.iter().any(|r| {
                        r.state == State::Waiting && r.method == method && r.about.is_some()
                    });
                    request.level_before = self.level(port);
                    self.levels.retain(|(p, _)| *p != port);
                    self.levels.push((port, level));
                    let most = self.levels.iter().map(|(_, level)| *level).min().unwrap();
                    let is_known = self.agreed.is_some_and(|(_, agreed)| agreed == most);
                    if self.is_shared() && !asking && is_known {
                        return heard.ports.push(known);
                    }
                    if most != level {
                        edits.push((params.raw("level").unwrap(), format!("{:?}", LEVELS[most])));
                    }
                    (request.about, request.told) = (word, most);
                }
            }
            "resources/subscribe" | "resources/unsubscribe" if stands => {
                if params.raw("uri").is_some_and(|uri| uri.len() > 4096) {
                    return heard.ports.push(refuse(-32602));
                }
                if let Some(uri) = params.text("uri") {
                    let of_all = |hold: &&(Port, String, Option<u64>)| hold.1 == uri;
                    let its = self.holds.iter().filter(of_all).find(|hold| hold.0 == port);
                    let agreed = self.holds.iter().filter(of_all).any(|hold| hold.2.is_none());
                    let others = self.holds.iter().filter(of_all).any(|hold| hold.0 != port);
                    if method == "resources/subscribe" {
                        let is_known = agreed && self.is_shared();
                        let stays = its.is_some_and(|hold| hold.2.is_none());
                        if !stays {
                            self.holds.retain(|hold| hold.0 != port || hold.1 != uri);
                            let by = (!is_known).then_some(own);
                            self.holds.push((port, uri.clone(), by));
                        }
                        if is_known {
                            return heard.ports.push(known);
                        }
                        request.about = Some(uri);
                    } else {
                        let is_last = its.is_some() && !others;
                        self.holds.retain(|hold| hold.0 != port || hold.1 != uri);
                        if is_last {
                            self.known.retain(|known| *known != uri);
                        } else if self.is_shared() {
                            return heard.ports.push(known);
                        }
                    }
                }
            }
            "tasks/list" => {}
            _ if method.starts_with("tasks/") => {
                request.about = params.text("taskId");
                let its = self.tasks.iter().any(|task| {
                    Some(&task.id) == request.about.as_ref() && task.port.is_none_or(|p| p == port)
                });
                if self.is_shared() && !its {
                    return heard.ports.push(refuse(-32602));
                }
            }
            _ => {}
        }
        self.last = own;
        self.requests.push(request);
        heard.server.push(rewritten(line, edits));
    }

    fn level(&self, port: Port) -> Option<usize> {
        self.levels.iter().find(|(p, _)| *p == port).map(|(_, level)| *level)
    }
}

fn result(id: &str, result: &str) -> Said {
    Said::Line(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
}

/// The line with other words in some places.
fn rewritten(line: &str, mut edits: Vec<(Range<usize>, String)>) -> Said {
    edits.sort_by_key(|(place, _)| place.start);
    let mut text = String::new();
    let mut from = 0;
    for (place, new) in edits {
        text = text + &line[from..place.start] + &new;
        from = place.end;
    }
    Said::Line(text + &line[from..])
}
