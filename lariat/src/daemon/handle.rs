//! What each request does.

pub(super) use super::desk::Desk;

use super::api::{self, Call, Closed, Open, Problem, Refresh, Request as _, echo};
use super::desk;
use super::http::{self, Answer, Content};
use super::lease::{Lease, Line, Unowned};
use super::registry::Entry;
use super::routes::{self, Found, Unknown, Verb};
use crate::session::{Config, Event};
use crate::snapshot::Snapshot;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap};
use hyper::{Request, StatusCode};
use serde_json::json;
use std::sync::Arc;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, mpsc, watch};

/// The API, as OpenAPI has it.
const DOCUMENT: &str = include_str!("openapi.json");

/// Lines of events on their way to one reader.
const IN_FLIGHT: usize = 16;

impl Desk {
    /// Answers one request.
    pub(super) async fn answer(
        self: &Arc<Desk>,
        line: &Arc<Line>,
        request: Request<Incoming>,
    ) -> Answer {
        let path = request.uri().path();
        let found = match routes::find(request.method(), path) {
            Ok(found) => found,
            Err(unknown) => {
                let answer = http::problem(&unknown.problem(request.method(), path));
                return match unknown {
                    Unknown::Path => answer,
                    Unknown::Method(allowed) => http::with(answer, header::ALLOW, &allowed),
                };
            }
        };
        let answer = self.dispatch(line, found, request).await;
        answer.unwrap_or_else(|problem| http::problem(&problem))
    }

    async fn dispatch(
        self: &Arc<Desk>,
        line: &Arc<Line>,
        found: Found,
        request: Request<Incoming>,
    ) -> Result<Answer, Problem> {
        let Found { verb, id, name } = found;
        let ok = StatusCode::OK;
        match verb {
            Verb::Open => self.open(line, request).await,
            Verb::List => {
                let sessions = self.registry.all().iter().map(|entry| entry.view()).collect();
                Ok(http::json(ok, &api::Sessions { sessions }))
            }
            Verb::Look => Ok(http::json(ok, &self.registry.find(&id)?.view())),
            Verb::Close => {
                let closed = close(&*self.registry.find(&id)?).await?;
                Ok(http::json(ok, &*closed))
            }
            Verb::Refresh => {
                // A session that is not there is said before a body that is wrong.
                let entry = self.registry.find(&id)?;
                let Refresh { servers } =
                    Refresh::read(&http::read(request.into_body(), http::LARGEST_BODY).await?)?;
                self.registry.check_processes(Some(&entry))?;
                let change = self.registry.refresh(&entry, servers).await?;
                let view = api::Session {
                    receipts: Some(change.receipts),
                    unaccounted: change.unaccounted,
                    ..entry.view()
                };
                Ok(http::json(ok, &view))
            }
            Verb::Call => {
                let entry = self.registry.find(&id)?;
                let call = Call::read(&http::read(request.into_body(), http::LARGEST_BODY).await?)?;
                let arguments = call.arguments.unwrap_or_default().into();
                let result = entry.session.call(&name, &call.tool, arguments).await?;
                // As the server wrote it, to the byte.
                let bytes = Bytes::from(String::from(Box::<str>::from(result)));
                Ok(http::answer(ok, "application/json", Content::Whole(bytes)))
            }
            Verb::Attach => {
                let entry = self.registry.find(&id)?;
                attach(self.clone(), line.clone(), &entry, name, request).await
            }
            Verb::Snapshot => {
                let snapshot: Snapshot = self.registry.snapshot().await;
                Ok(http::json(ok, &snapshot))
            }
            Verb::Events => Ok(self.events()),
            Verb::Link => Ok(http::json(StatusCode::CREATED, &self.web.link(self)?)),
            Verb::Document => {
                let text = Bytes::from_static(DOCUMENT.as_bytes());
                Ok(http::answer(ok, "application/json", Content::Whole(text)))
            }
        }
    }

    async fn open(&self, line: &Line, request: Request<Incoming>) -> Result<Answer, Problem> {
        let by_connection = wants_connection_lease(request.headers())?;
        let open = Open::read(&http::read(request.into_body(), http::LARGEST_BODY).await?)?;
        let lease = Lease::new(line, open.owner_pid, by_connection).map_err(|unowned| {
            Problem::invalid(match unowned {
                Unowned::Nobody(pid) => format!(
                    "There is no process {pid} that could own the session. Name a living one in \
                     `owner_pid`, or send the header `Lariat-Lease: connection`."
                ),
                Unowned::Unseen => {
                    "The process at the other end cannot be seen from here. Name one \
                                    in `owner_pid`, or send the header `Lariat-Lease: connection`."
                        .into()
                }
            })
        })?;
        self.registry.check_processes(None)?;
        let Open { name, servers, .. } = open;
        let config = Config { name, servers, ..self.defaults.session.clone() };
        let entry = self.registry.open(config, lease)?;
        // Nobody else knows the session until it is answered: if the request goes, so does it.
        let mut unclaimed = Unclaimed(Some(&entry));
        tokio::select! {
            () = entry.session.settled() => {}
            _ended = entry.closed() => {}
        }
        unclaimed.0 = None;
        if entry.is_ending() {
            return Err(Problem::closed());
        }
        let view = entry.view();
        let place = format!("/v1/sessions/{}", view.id);
        Ok(http::with(http::json(StatusCode::CREATED, &view), header::LOCATION, &place))
    }

    fn events(&self) -> Answer {
        let (lines, reader) = mpsc::channel(IN_FLIGHT);
        tokio::spawn(tell(self.registry.events(), lines, self.stopped.subscribe()));
        http::answer(StatusCode::OK, "application/x-ndjson", Content::Stream(reader))
    }
}

/// Ends a session whose request went away before it was answered.
struct Unclaimed<'a>(Option<&'a Entry>);

impl Drop for Unclaimed<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.0 {
            entry.end("who opened it left before it was ready");
        }
    }
}

async fn close(entry: &Entry) -> Result<Arc<Closed>, Problem> {
    entry.end("a client closed it");
    entry.closed().await.ok_or_else(|| {
        let detail = "The session ended without a receipt. This is a defect; the event log in the \
                      state directory says how its servers ended.";
        Problem::new(500, "defect", "Defect", detail)
    })
}

/// Whether the session is to end with the connection.
fn wants_connection_lease(headers: &HeaderMap) -> Result<bool, Problem> {
    let mut values = headers.get_all(api::LEASE).iter();
    let Some(value) = values.next() else { return Ok(false) };
    if values.next().is_some() {
        let detail = "The header `Lariat-Lease` is there more than once. Send it once.";
        return Err(Problem::invalid(detail));
    }
    if value.as_bytes().eq_ignore_ascii_case(b"connection") {
        return Ok(true);
    }
    Err(Problem::invalid(format!(
        "`Lariat-Lease: {}` is unknown. The header is `Lariat-Lease: {}`, or left out.",
        echo(&String::from_utf8_lossy(value.as_bytes())),
        api::LEASE_CONNECTION
    )))
}

/// True if the client wants to speak MCP on this connection from here on.
fn wants_mcp(headers: &HeaderMap) -> bool {
    let has = |name, word: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|w| w.trim().eq_ignore_ascii_case(word))
    };
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, api::UPGRADE)
}

/// Hands the connection to a server, once it is ready.
async fn attach(
    desk: Arc<Desk>,
    line: Arc<Line>,
    entry: &Entry,
    server: String,
    mut request: Request<Incoming>,
) -> Result<Answer, Problem> {
    if !entry.session.states().contains_key(&server) {
        return Err(crate::session::Error::NoServer(server).into());
    }
    if !wants_mcp(request.headers()) {
        let detail = "This is where MCP is spoken. Send `Connection: Upgrade` and `Upgrade: mcp`, \
                      and one JSON-RPC message a line from then on.";
        let answer = http::problem(&Problem::new(426, "upgrade", "Upgrade required", detail));
        return Ok(http::with(answer, header::UPGRADE, api::UPGRADE));
    }
    // A client that leaves meanwhile takes this request with it.
    entry.session.wait_ready(&server).await?;
    let upgrade = hyper::upgrade::on(&mut request);
    // Keeps no session alive: the attachment ends when the session does.
    let session = entry.session.clone();
    tokio::spawn(desk::speak(desk, line, session, server, upgrade));
    let mut answer = http::Answer::new(Content::Whole(Bytes::new()));
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answer = http::with(answer, header::CONNECTION, "upgrade");
    Ok(http::with(answer, header::UPGRADE, api::UPGRADE))
}

/// Tells one reader what happens, until it leaves or nothing more can happen.
async fn tell(
    mut events: broadcast::Receiver<Event>,
    lines: mpsc::Sender<Bytes>,
    mut stopped: watch::Receiver<bool>,
) {
    loop {
        // Room first: what happened is either still to be heard or on its way, and never only in here.
        let room = tokio::select! {
            room = lines.reserve() => room,
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        let Ok(room) = room else { return };
        let event = tokio::select! {
            event = events.recv() => event,
            () = lines.closed() => return,
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        room.send(match event {
            Ok(event) => line(&event),
            Err(RecvError::Lagged(count)) => missed(count),
            Err(RecvError::Closed) => return,
        });
    }
    // The last ones have been said; they are still to be read.
    loop {
        let line = match events.try_recv() {
            Ok(event) => line(&event),
            Err(TryRecvError::Lagged(count)) => missed(count),
            Err(TryRecvError::Empty | TryRecvError::Closed) => return,
        };
        if lines.send(line).await.is_err() {
            return;
        }
    }
}

pub(super) fn line(event: &impl serde::Serialize) -> Bytes {
    // Text and numbers can always be written.
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

pub(super) fn missed(count: u64) -> Bytes {
    line(&json!({ "event": "missed", "count": count }))
}

#[cfg(test)]
mod tests;
