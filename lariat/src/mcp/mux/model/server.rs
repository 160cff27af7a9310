//! What the server says, for the model.

use super::reading::{Message, Object, Read, read};
use super::{
    CANCELLED, Greeting, Heard, LEVELS, Model, Request, Said, State, Task, result, rewritten,
};
use crate::mcp::mux::{Company, Port};

const TAG: &str = "io.modelcontextprotocol/subscriptionId";
const RELATED: &str = "io.modelcontextprotocol/related-task";

fn is_terminal(status: &str) -> bool {
    ["completed", "failed", "cancelled"].contains(&status)
}

impl Model {
    pub(in crate::mcp::mux) fn server_says(&mut self, line: &[u8]) -> Heard {
        let mut heard = Heard::default();
        let text = String::from_utf8_lossy(line);
        match read(&text) {
            Read::One(one) => self.server_says_one(&text, &one, &mut heard),
            Read::Many(parts) if !parts.is_empty() => {
                for part in parts {
                    match read(&text[part.clone()]) {
                        Read::One(one) => self.server_says_one(&text[part], &one, &mut heard),
                        _ => self.dropped += 1,
                    }
                }
            }
            _ => match (&self.greeting, self.alone()) {
                (Greeting::ByClient(_), Some(port)) => {
                    heard.ports.push((port, Said::Line(text.into_owned())));
                }
                _ => self.dropped += 1,
            },
        }
        heard
    }

    fn server_says_one(&mut self, line: &str, one: &Message, heard: &mut Heard) {
        let id = one.id.as_ref().map(|id| &line[id.clone()]);
        match (one.shape(line), id) {
            ("request", Some(id)) if one.method.as_deref() == Some("ping") => {
                heard.server.push(result(id, "{}"));
            }
            ("request", Some(id)) => self.question(line, id, one, heard),
            ("response", Some(id)) => {
                let at = self
                    .requests
                    .iter()
                    .position(|r| r.state != State::Done && r.own.to_string() == id);
                match at {
                    Some(at) => self.response(at, line, one, heard),
                    None => self.dropped += 1,
                }
            }
            ("notification", _) => {
                if self.notification(line, one, heard).is_none() {
                    self.dropped += 1;
                }
            }
            _ => self.dropped += 1,
        }
    }

    fn question(&mut self, line: &str, id: &str, one: &Message, heard: &mut Heard) {
        if id.len() > 4096 {
            return heard.server.push(Said::Error("null".into(), -32600));
        }
        let Some(params) = Object::of(line, &one.params) else {
            return heard.server.push(Said::Error(id.into(), -32602));
        };
        let related = params.object("_meta").map(|meta| {
            meta.object(RELATED).map(|task| (meta.raw(RELATED).is_some(), task.text("taskId")))
        });
        let port = match related {
            None => None,
            Some(Some((false, _))) => self.alone(),
            Some(_) if !self.is_shared() => self.alone(),
            Some(Some((true, Some(task)))) => self.owner(&task),
            Some(_) => None,
        };
        let Some(port) = port else {
            self.hazards +=
                usize::from(!self.ports.is_empty() && self.company == Company::Strangers);
            return heard.server.push(Said::Error(id.into(), -32601));
        };
        self.last += 1;
        self.questions.push((self.last, port, id.into()));
        if let Some(page) = params.text("elicitationId")
            && self.pages.iter().all(|(known, _)| *known != page)
        {
            self.pages.push((page, port));
        }
        let edits = vec![(one.id.clone().unwrap(), self.last.to_string())];
        heard.ports.push((port, rewritten(line, edits)));
    }

    fn owner(&self, task: &str) -> Option<Port> {
        let owner = self.tasks.iter().find(|known| known.id == task)?.port?;
        self.ports.contains(&owner).then_some(owner)
    }

    fn response(&mut self, at: usize, line: &str, one: &Message, heard: &mut Heard) {
        let request = self.requests[at].clone();
        self.requests[at].state = State::Done;
        match request.state {
            State::Late => return,
            State::LateListen if !self.ports.contains(&request.port) => return,
            State::Waiting => self.settle(&request, line, one, heard),
            _ => {}
        }
        let mut edits = vec![(one.id.clone().unwrap(), request.id.clone())];
        let members = Object::of(line, &one.result);
        let list = match &*request.method {
            "tools/list" if !self.tools.contains(&"*".to_string()) => Some("tools"),
            "tasks/list" if self.is_shared() => Some("tasks"),
            "subscriptions/listen" => {
                let meta = members.as_ref().and_then(|result| result.object("_meta"));
                let tag = meta.and_then(|meta| meta.raw(TAG));
                edits.extend(tag.map(|tag| (tag, request.id.clone())));
                None
            }
            _ => None,
        };
        let mut is_readable = true;
        if let Some(list) = list {
            let found = members.as_ref().and_then(|result| result.raw(list));
            is_readable = members.is_some();
            if let Some(found) = found {
                match read(&line[found.clone()]) {
                    Read::Many(parts) => {
                        let kept = parts.into_iter().filter_map(|part| {
                            let item = &line[found.clone()][part];
                            let object = Object::of(item, &Some(0..item.len()))?;
                            let keep = match list {
                                "tools" => self.allows(&object.text("name")?),
                                _ => {
                                    let id = object.text("taskId")?;
                                    self.tasks.iter().any(|task| {
                                        task.id == id && task.port.is_none_or(|p| p == request.port)
                                    })
                                }
                            };
                            keep.then(|| item.to_string())
                        });
                        let kept = format!("[{}]", kept.collect::<Vec<_>>().join(","));
                        edits.push((found, kept));
                    }
                    _ => is_readable = false,
                }
            }
        }
        let said = match is_readable {
            true => rewritten(line, edits),
            false => Said::Error(request.id, -32603),
        };
        match request.port {
            Port::OURS if request.method == "aside" => {}
            Port::OURS => heard.us.push((request.own, said)),
            port => heard.ports.push((port, said)),
        }
    }

    fn settle(&mut self, request: &Request, line: &str, one: &Message, heard: &mut Heard) {
        let failure = one.error.clone().filter(|error| &line[error.clone()] != "null");
        let success = one.result.clone().filter(|_| failure.is_none());
        let members = success.as_ref().and_then(|at| Object::of(line, &Some(at.clone())));
        let error = failure.and_then(|at| Object::of_error(line, &Some(at)));
        let code = error.as_ref().and_then(|error| error.raw("code"));
        let code = code.and_then(|code| line[code].parse::<i64>().ok());
        match (&*request.method, &request.about) {
            ("initialize", _) => {
                if let (Some(at), Greeting::ByClient(known)) = (success, &mut self.greeting) {
                    *known = Some(line[at].into());
                }
            }
            ("logging/setLevel", Some(wanted)) => {
                let is_last = self.agreed.is_none_or(|(own, _)| own < request.own);
                let stands = self.level(request.port).map(|level| LEVELS[level]) == Some(wanted);
                if success.is_some() && is_last {
                    self.agreed = Some((request.own, request.told));
                } else if success.is_none() && stands {
                    self.levels.retain(|(port, _)| *port != request.port);
                    self.levels.extend(request.level_before.map(|level| (request.port, level)));
                }
            }
            ("resources/subscribe", Some(uri)) => {
                if success.is_some() && self.holds.iter().any(|hold| hold.1 == *uri) {
                    self.known.push(uri.clone());
                }
                let its = |hold: &(Port, String, Option<u64>)| {
                    hold.0 == request.port && hold.1 == *uri && hold.2 == Some(request.own)
                };
                match self.holds.iter_mut().find(|hold| its(hold)) {
                    Some(hold) if success.is_some() => hold.2 = None,
                    Some(_) => {
                        self.holds.retain(|hold| !its(hold));
                        if self.holds.iter().all(|hold| hold.1 != *uri) {
                            let is_known = self.known.contains(uri);
                            self.known.retain(|known| known != uri);
                            if is_known && self.is_shared() {
                                self.aside("resources/unsubscribe", uri, heard);
                            }
                        }
                    }
                    None => {}
                }
            }
            (method, Some(task)) if method.starts_with("tasks/") => {
                let inside = members.as_ref().and_then(|result| result.object("task"));
                let status = inside.and_then(|task| task.text("status"));
                let status = status.or(members.and_then(|result| result.text("status")));
                let is_over = code == Some(-32602)
                    || method == "tasks/result" && success.is_some()
                    || status.is_some_and(|status| is_terminal(&status));
                if is_over {
                    self.finish(task);
                }
                return;
            }
            ("tasks/list", _) => return,
            _ => {}
        }
        if request.port == Port::OURS {
            return;
        }
        if let Some(members) = members {
            let inside = members.object("task").filter(|task| task.raw("taskId").is_some());
            let task = inside.unwrap_or(members);
            if let Some(id) = task
                .text("taskId")
                .filter(|_| task.raw("taskId").is_some_and(|id| id.len() <= 4096))
                && self.tasks.iter().all(|known| known.id != id)
            {
                let status = task.text("status");
                let is_open = status.as_ref().is_some_and(|status| !is_terminal(status))
                    || status.is_none() && request.has_task;
                let (port, own, token) = (Some(request.port), request.own, request.token.clone());
                self.tasks.push(Task { id, port, own, token, is_open });
            }
        }
        if code == Some(-32042)
            && let Some(data) = error.and_then(|error| error.object("data"))
            && let Some(list) = data.raw("elicitations")
            && let Read::Many(parts) = read(&line[list.clone()])
        {
            for part in parts {
                let item = &line[list.clone()][part];
                let object = Object::of(item, &Some(0..item.len()));
                if let Some(page) = object.and_then(|item| item.text("elicitationId"))
                    && self.pages.iter().all(|(known, _)| *known != page)
                {
                    self.pages.push((page, request.port));
                }
            }
        }
    }

    fn finish(&mut self, id: &str) {
        self.tasks.iter_mut().filter(|task| task.id == id).for_each(|task| task.is_open = false);
    }

    fn notification(&mut self, line: &str, one: &Message, heard: &mut Heard) -> Option<()> {
        let params = Object::of(line, &one.params)?;
        let meta = params.object("_meta")?;
        let method = one.method.as_deref()?;
        heard.tools_changed |= method == "notifications/tools/list_changed";
        let is_task = method.starts_with("notifications/tasks");
        if let (true, Some(task), Some(status)) =
            (is_task, params.text("taskId"), params.text("status"))
            && is_terminal(&status)
        {
            self.finish(&task);
        }
        let waiting = |own: &str| {
            let is = |r: &&Request| r.state == State::Waiting && r.own.to_string() == own;
            self.requests.iter().find(is).cloned()
        };
        let as_is = Said::Line(line.into());
        let port = if method == "notifications/progress" {
            let at = params.raw("progressToken")?;
            let (port, token) = match waiting(&line[at.clone()]) {
                Some(request) => (request.port, request.token?),
                None => {
                    let own = &line[at.clone()];
                    let its = |task: &&Task| task.is_open && task.own.to_string() == own;
                    let task = self.tasks.iter().find(its)?;
                    (task.port?, task.token.clone()?)
                }
            };
            heard
                .ports
                .extend((port != Port::OURS).then(|| (port, rewritten(line, vec![(at, token)]))));
            return Some(());
        } else if method == CANCELLED {
            let at = params.raw("requestId")?;
            let asked = self.questions.iter().position(|(_, _, id)| *id == line[at.clone()]);
            let (port, id) = match asked.map(|asked| self.questions.remove(asked)) {
                Some((own, port, _)) => (port, own.to_string()),
                None => {
                    let request = waiting(&line[at.clone()])?;
                    if request.method != "subscriptions/listen" {
                        return None;
                    }
                    let at = self.requests.iter().position(|r| r.own == request.own)?;
                    self.requests[at].state = State::LateListen;
                    (request.port, request.id)
                }
            };
            heard.ports.push((port, rewritten(line, vec![(at, id)])));
            return Some(());
        } else if let Some(tag) = meta.raw(TAG) {
            let listen = waiting(&line[tag.clone()])?;
            if listen.method != "subscriptions/listen" {
                return None;
            }
            heard.ports.push((listen.port, rewritten(line, vec![(tag, listen.id)])));
            return Some(());
        } else if !self.is_shared() {
            heard.ports.extend(self.ports.iter().map(|port| (*port, as_is.clone())));
            return Some(());
        } else {
            match method {
                "notifications/resources/updated" => {
                    let uri = params.text("uri")?;
                    let concerns = |held: &str| {
                        uri.strip_prefix(held).is_some_and(|rest| {
                            rest.is_empty()
                                || held.ends_with('/')
                                || ["/", "?", "#"].iter().any(|edge| rest.starts_with(edge))
                        })
                    };
                    let wants = |port: &&Port| {
                        self.holds.iter().any(|hold| hold.0 == **port && concerns(&hold.1))
                    };
                    let before = heard.ports.len();
                    heard
                        .ports
                        .extend(self.ports.iter().filter(wants).map(|port| (*port, as_is.clone())));
                    return (heard.ports.len() > before).then_some(());
                }
                "notifications/tools/list_changed"
                | "notifications/prompts/list_changed"
                | "notifications/resources/list_changed" => {
                    let greeted = self.ports.iter().filter(|port| self.greeted.contains(port));
                    let before = heard.ports.len();
                    heard.ports.extend(greeted.map(|port| (*port, as_is.clone())));
                    return (heard.ports.len() > before).then_some(());
                }
                "notifications/message" if self.is_modern() => {
                    let live = |r: &&Request| r.wants_logs && r.state != State::Done;
                    let mut asked = self.requests.iter().filter(live);
                    let port = asked.clone().find(|r| r.state == State::Waiting)?.port;
                    asked.all(|r| r.port == port).then_some(port)?
                }
                "notifications/message" => {
                    let port = self.alone()?;
                    let level = params.text("level");
                    let level = LEVELS.iter().position(|known| Some(*known) == level.as_deref());
                    match (self.level(port), level) {
                        (Some(wanted), Some(level)) if level < wanted => return None,
                        _ => port,
                    }
                }
                "notifications/elicitation/complete" => {
                    let page = params.text("elicitationId")?;
                    self.pages.iter().find(|(known, _)| *known == page)?.1
                }
                _ if is_task => self.owner(&params.text("taskId")?)?,
                _ => {
                    let port = match meta.raw(RELATED) {
                        Some(_) => meta
                            .object(RELATED)
                            .and_then(|task| task.text("taskId"))
                            .and_then(|task| self.owner(&task)),
                        None => self.alone(),
                    };
                    self.hazards += usize::from(port.is_none() && !self.ports.is_empty());
                    port?
                }
            }
        };
        self.ports.contains(&port).then(|| heard.ports.push((port, as_is)))
    }
}
