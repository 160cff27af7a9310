//! MCP by HTTP: every server of the daemon's file at a path of its own, and all of them at one.
//!
//! Two eras at the same path. A *legacy* client shakes hands and has a session from then on
//! ([`legacy`]); a *modern* one says everything in each request ([`modern`]). Messages go through as
//! they are; here is only decided to whom, and on which stream the answers come back.
//!
//! ```text
//! headers, peek, streams    what a request says, and where a message goes (pure)
//! blend < many < seat       a seat at one server, or at all
//! answers < session         a legacy client's seat and its streams
//! legacy, modern            one request
//! ```

mod answers;
mod blend;
#[cfg(target_os = "linux")]
pub(super) mod carried;
#[cfg(test)]
mod fuzz;
mod headers;
mod legacy;
mod many;
mod modern;
mod peek;
mod seat;
mod session;
mod spring;
mod streams;

use super::api::{Problem, echo};
use super::config::Config;
use super::http::{self, Answer};
use super::rest::Rest;
use super::routes::decoded;
use super::web::Busy;
use crate::mcp::envelope::{self, Line, Shape};
use crate::mcp::reply::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR};
use crate::pool::{Pool, Server, Want};
use crate::spec::{Idle, ServerSpec};
use answers::{IN_FLIGHT, refusal, with_methods};
use blend::Blend;
use headers::{Accepts, LEGACY, SESSION, VERSION};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderMap;
use hyper::{Method, Request, StatusCode};
use many::{Between, Place};
use modern::Mirrors;
use seat::{Ear, From, Mouth};
use session::Session;
pub(super) use spring::{Course, Source, Spring};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

/// A message may have this many bytes.
const LARGEST: usize = 64 << 20;

/// All messages that are being read or handed on may have this many KiB together.
const ROOM: usize = 256 << 10;

/// How long a shared process without clients is kept for the next: modern ones come and go with
/// each request.
const LINGER: Duration = Duration::from_secs(60);

/// Legacy sessions at once.
const SESSIONS: usize = 1024;

/// Which server a path is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// The one of this name.
    One(String),
    /// All of them, and of their tools those that fit one of these patterns.
    All(Vec<String>),
}

impl Target {
    /// `None` if the path is none of ours.
    pub(super) fn of(path: &str, query: Option<&str>) -> Option<Target> {
        if path == "/mcp" {
            let mut queries = query.unwrap_or_default().split('&');
            // A filter that says nothing lets nothing through.
            let tools = queries.find_map(|it| match it {
                "tools" => Some(""),
                it => it.strip_prefix("tools="),
            });
            let tools = tools.map_or(Some("*".into()), decoded).unwrap_or_default();
            return Some(Target::All(tools.split(',').map(|it| it.trim().to_owned()).collect()));
        }
        let name = path.strip_prefix("/servers/")?;
        let name = name.strip_suffix("/mcp").unwrap_or(name);
        Some(Target::One(name.to_owned()))
    }

    /// Empty for all.
    fn name(&self) -> &str {
        match self {
            Target::One(name) => name,
            Target::All(_) => "",
        }
    }
}

/// All servers that can be reached by HTTP, and who is there.
#[derive(Debug)]
pub(super) struct Gateway {
    pool: Pool,
    servers: BTreeMap<String, Arc<Server>>,
    session_ttl: Duration,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    mirrors: Mirrors,
    /// Room for messages, in KiB.
    bodies: Semaphore,
    /// Rung when a session has ended.
    changed: Arc<Notify>,
    stopped: watch::Receiver<bool>,
    /// Another daemon has our place.
    retired: watch::Receiver<bool>,
    /// What is sent is to rest.
    called: watch::Receiver<bool>,
    /// Where sessions rest.
    rest: Rest<session::Resting>,
    /// Where those rest who stand between a client and all servers.
    betweens: Arc<Rest<Between>>,
}

/// Who asks, and for what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller<'a> {
    /// Nobody else ever has the same process, or the same session.
    pub(super) principal: &'a Arc<str>,
    /// At which path.
    pub(super) target: &'a Target,
}

/// A request that is not refused outright.
struct Asked<'a> {
    caller: Caller<'a>,
    headers: &'a HeaderMap,
    accepts: Accepts,
    busy: Busy,
}

impl Gateway {
    pub(super) fn new(
        config: &Config,
        pool: Pool,
        changed: Arc<Notify>,
        [stopped, retired, called]: [watch::Receiver<bool>; 3],
    ) -> Gateway {
        let server = |(name, spec): (&String, &ServerSpec)| {
            let (name, spec) = (name.clone(), spec.clone());
            (name.clone(), Arc::new(Server { name, spec, environment: None }))
        };
        Gateway {
            pool,
            servers: config.servers.iter().map(server).collect(),
            session_ttl: config.session_ttl,
            sessions: Mutex::default(),
            mirrors: Mirrors::default(),
            bodies: Semaphore::new(ROOM),
            changed,
            stopped,
            retired,
            called,
            rest: Rest::new(),
            betweens: Arc::new(Rest::new()),
        }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        // Nothing in here can be left half done by a panic.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if there is no session.
    pub(super) fn is_empty(&self) -> bool {
        self.sessions().is_empty()
    }

    /// Has a session go on until it is over.
    fn admit(self: &Arc<Self>, session: Arc<Session>, ear: Ear) {
        let gateway = self.clone();
        self.sessions().insert(session.id.clone(), session.clone());
        tokio::spawn(async move {
            let (id, retired) = (session.id.clone(), gateway.retired.clone());
            session.listen(ear, gateway.session_ttl, retired, &gateway.rest).await;
            gateway.sessions().remove(&id);
            gateway.changed.notify_one();
        });
    }

    /// An answer that comes as events, after this first one.
    fn events(&self, source: Source, first: Option<Bytes>, busy: Busy) -> Answer {
        let (lines, receiver) = mpsc::channel(IN_FLIGHT);
        let spring = Arc::new(Spring::default());
        let course = self.course(lines, spring.clone(), busy);
        tokio::spawn(async move {
            let begun = match first {
                Some(line) => answers::send(&course.lines, None, line).await,
                None => true,
            };
            if begun {
                source.flow(course).await;
            }
        });
        let mut answer = answers::events(receiver);
        answer.extensions_mut().insert(spring);
        answer
    }

    /// A way for events.
    fn course(&self, lines: mpsc::Sender<Bytes>, spring: Arc<Spring>, busy: Busy) -> Course {
        let (stopped, called) = (self.stopped.clone(), self.called.clone());
        Course { lines, stopped, called, spring, _busy: busy }
    }

    /// Answers one request, of somebody who may ask.
    pub(super) async fn answer(
        self: &Arc<Self>,
        caller: Caller<'_>,
        busy: Busy,
        request: Request<Incoming>,
    ) -> Answer {
        if let Some(problem) = self.missing(caller.target) {
            return http::problem(&problem);
        }
        match *request.method() {
            Method::POST => self.post(caller, busy, request).await,
            Method::GET => self.listen(caller, busy, request.headers()),
            Method::DELETE => self.leave(caller, request.headers()),
            _ => {
                let detail = "MCP is spoken with POST, and with GET and DELETE up to 2025-11-25.";
                let problem = Problem::new(405, "no-method", "No such method", detail);
                with_methods(http::problem(&problem), "POST, GET, DELETE")
            }
        }
    }

    /// Why there is no such server.
    fn missing(&self, target: &Target) -> Option<Problem> {
        let detail = match target {
            _ if self.servers.is_empty() => "This daemon offers no servers: start it with \
                `lariat daemon --config lariat.toml`, and name them there as [servers.NAME]."
                .to_owned(),
            Target::One(name) if !self.servers.contains_key(name) => {
                let known: Vec<&str> = self.servers.keys().map(String::as_str).collect();
                format!("There is no server `{}`. There are: {}.", echo(name), known.join(", "))
            }
            Target::One(_) | Target::All(_) => return None,
        };
        Some(Problem::new(404, "no-server", "No such server", detail))
    }

    async fn post(
        self: &Arc<Self>,
        caller: Caller<'_>,
        busy: Busy,
        request: Request<Incoming>,
    ) -> Answer {
        let (parts, body) = request.into_parts();
        let headers = &parts.headers;
        if !headers::is_json(headers) {
            let words = "the body must be application/json";
            return refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, "null", INVALID_REQUEST, words);
        }
        let accepts = Accepts::of(headers);
        if !accepts.json {
            let words = "accept both application/json and text/event-stream";
            return refusal(StatusCode::NOT_ACCEPTABLE, "null", INVALID_REQUEST, words);
        }
        // Whoever does not say how long it is gets room for the longest.
        let length = headers::text(headers, "content-length").and_then(|it| it.parse().ok());
        let room = length.unwrap_or(LARGEST).min(LARGEST).div_ceil(1 << 10) as u32;
        let Ok(_room) = self.bodies.acquire_many(room).await else {
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "null", INTERNAL_ERROR, "it ends");
        };
        let line = match http::read(body, LARGEST).await {
            Ok(body) => peek::on_one_line(body),
            Err(problem) => return http::problem(&problem),
        };
        let asked = Asked { caller, headers, accepts, busy };
        let bad = |code, words| refusal(StatusCode::BAD_REQUEST, "null", code, words);
        let envelope = match envelope::read(&line) {
            Line::One(envelope) if envelope.shape() != Shape::Odd => envelope,
            Line::Many(items) => return self.batch(asked, items).await,
            Line::One(_) | Line::Odd => return bad(INVALID_REQUEST, "this is no JSON-RPC message"),
            Line::Noise => return bad(PARSE_ERROR, "this is not JSON"),
        };
        let method = envelope.method.as_deref().unwrap_or_default();
        let about = peek::params(&envelope).and_then(|params| params.about(method));
        let Some(about) = about else {
            let id = envelope.id.map_or("null", |id| id.get());
            let words = "a key occurs twice in the params";
            return refusal(StatusCode::BAD_REQUEST, id, INVALID_PARAMS, words);
        };
        let says_modern = headers::text(headers, VERSION).is_some_and(|it| !LEGACY.contains(&it));
        let is_modern = about.version.is_some()
            || (!headers.contains_key(SESSION) && (says_modern || method == "server/discover"));
        if is_modern {
            self.modern(asked, &envelope, &about, &line).await
        } else {
            self.legacy(asked, &envelope, &line).await
        }
    }

    /// A seat at what a path is for. Nothing is started before something is said.
    fn join(&self, caller: Caller<'_>) -> Option<(Mouth, Ear)> {
        match caller.target {
            Target::One(name) => {
                let (mouth, ear) = self.seat(caller, self.servers.get(name)?).split();
                Some((Mouth::One(Box::new(mouth)), Ear::new(From::One(Box::new(ear)))))
            }
            Target::All(tools) => {
                let place = |(name, server)| {
                    (String::clone(name), Some(Place::new(self.seat(caller, server))))
                };
                let (names, places) = self.servers.iter().map(place).unzip();
                let (between, ends) = Between::new(Blend::new(names, tools.clone()), places);
                self.stand_between(between);
                Some(ends.into())
            }
        }
    }

    fn stand_between(&self, between: Between) {
        let rest = self.betweens.clone();
        tokio::spawn(async move { between.stand(&rest).await });
    }

    /// Has those ready that are to be ready before anybody comes.
    pub(super) fn warm(&self, principal: &Arc<str>) {
        for server in self.servers.values().filter(|server| server.spec.warm) {
            self.pool.warm(&want(principal, server));
        }
    }

    fn seat(&self, caller: Caller<'_>, server: &Arc<Server>) -> crate::pool::Seat {
        self.pool.join(want(caller.principal, server))
    }
}

fn want(principal: &Arc<str>, server: &Arc<Server>) -> Want {
    Want {
        server: server.clone(),
        principal: principal.clone(),
        share: server.spec.share,
        host: None,
        linger: match server.spec.idle {
            // Whoever wants it to sleep soon does not want it to be kept for longer.
            Idle::After(time) => time.min(LINGER),
            Idle::Usual | Idle::Off => LINGER,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_server_or_all() {
        let all =
            |tools: &[&str]| Some(Target::All(tools.iter().map(|it| String::from(*it)).collect()));
        assert_eq!(Target::of("/mcp", None), all(&["*"]));
        assert_eq!(
            Target::of("/mcp", Some("a=b&tools=a__*%2Cb__c,d")),
            all(&["a__*", "b__c", "d"])
        );
        assert_eq!(Target::of("/mcp", Some("tools=%f")), all(&[""]), "and nothing fits that");
        assert_eq!(Target::of("/servers/a/mcp", None), Some(Target::One("a".into())));
        assert_eq!(Target::of("/servers/a", None), Some(Target::One("a".into())));
        assert_eq!(Target::of("/", None), None);
        assert_eq!(Target::of("/v1/sessions", None), None);
    }
}
