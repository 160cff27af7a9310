//! One request of a legacy client: 2025-03-26 to 2025-11-25.

use super::answers::{self, accepted, message, refusal, with_session};
use super::headers::{self, Accepts, BATCHES, LEGACY, PRIMES, SESSION, VERSION};
use super::session::{InUse, Listening, Reading, Session};
use super::spring::Source;
use super::streams::{Ask, OWN};
use super::{Asked, Caller, Gateway, SESSIONS, peek};
use crate::daemon::http::Answer;
use crate::daemon::web::Busy;
use crate::mcp::envelope::{self, Envelope, Items, Line, Members, Shape};
use crate::mcp::reply::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, NO_SERVER, error};
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::HeaderMap;
use std::sync::Arc;

/// What other servers say of a session that is not there.
const NO_SESSION: i64 = -32001;

/// What is said of a request that nobody waits for any more.
const CANCELLED: &str = "the request was cancelled";

impl Gateway {
    /// One message.
    pub(super) async fn legacy(
        self: &Arc<Self>,
        asked: Asked<'_>,
        envelope: &Envelope<'_>,
        line: &[u8],
    ) -> Answer {
        let id = envelope.id.map_or("null", |id| id.get());
        let method = envelope.method.as_deref().unwrap_or_default();
        let shape = envelope.shape();
        if shape == Shape::Request && method == "initialize" && !asked.headers.contains_key(SESSION)
        {
            return self.greet(asked, id, line).await;
        }
        let (session, usage) = match self.find(asked.caller, asked.headers, id) {
            Ok(found) => found,
            Err(refusal) => return *refusal,
        };
        if method == "initialize" {
            let words = "this session has begun already";
            return refusal(StatusCode::BAD_REQUEST, id, INVALID_REQUEST, words);
        }
        if shape == Shape::Request {
            let ask = Ask { id, token: peek::token(envelope) };
            return self.ask(asked, &session, usage, &[ask], vec![line.to_vec()], &[]).await;
        }
        if session.say(line.to_vec()).await.is_err() {
            return gone(id);
        }
        if let Some(cancelled) = cancelled(envelope) {
            session.cancel(cancelled);
        }
        accepted(StatusCode::ACCEPTED)
    }

    /// Several messages at once, as one revision has it.
    pub(super) async fn batch(self: &Arc<Self>, asked: Asked<'_>, items: Items<'_>) -> Answer {
        let bad = |words| refusal(StatusCode::BAD_REQUEST, "null", INVALID_REQUEST, words);
        let (session, usage) = match self.find(asked.caller, asked.headers, "null") {
            Ok(found) => found,
            Err(refusal) => return *refusal,
        };
        if session.version() != BATCHES {
            return bad("several messages at once are not part of this revision");
        }
        let mut envelopes = Vec::new();
        for item in &items.0 {
            match envelope::read(item.get().as_bytes()) {
                Line::One(envelope) if envelope.shape() != Shape::Odd => envelopes.push(envelope),
                _ => return bad("one of these is no JSON-RPC message"),
            }
        }
        if envelopes.is_empty() {
            return bad("there is no message in it");
        }
        if envelopes.iter().any(|it| it.method.as_deref() == Some("initialize")) {
            return bad("a handshake comes alone");
        }
        let requests = envelopes.iter().filter(|it| it.shape() == Shape::Request);
        let asks: Vec<Ask<'_>> = requests
            .filter_map(|it| Some(Ask { id: it.id?.get(), token: peek::token(it) }))
            .collect();
        let cancelled: Vec<&str> = envelopes.iter().filter_map(cancelled).collect();
        let lines = items.0.iter().map(|item| item.get().as_bytes().to_vec()).collect();
        self.ask(asked, &session, usage, &asks, lines, &cancelled).await
    }

    /// Says what the client says, and answers when and as the server does.
    async fn ask(
        self: &Arc<Self>,
        asked: Asked<'_>,
        session: &Arc<Session>,
        usage: InUse,
        asks: &[Ask<'_>],
        lines: Vec<Vec<u8>>,
        cancelled: &[&str],
    ) -> Answer {
        let first = asks.first().map_or("null", |ask| ask.id);
        let is_batch = lines.len() > 1;
        let Ok(mut reading) = session.open(asks, !asked.accepts.events) else {
            let words = "a request with this id has no answer yet";
            return refusal(StatusCode::BAD_REQUEST, first, INVALID_REQUEST, words);
        };
        for line in lines {
            if session.say(line).await.is_err() {
                return gone(first);
            }
        }
        reading.is_said();
        for id in cancelled {
            session.cancel(id);
        }
        if asks.is_empty() {
            return accepted(StatusCode::ACCEPTED);
        }
        if asked.accepts.events {
            return self.stream(session, usage, reading, 0, asked.busy);
        }
        let found = reading.collect().await;
        match found.as_slice() {
            [only] if !is_batch => message(StatusCode::OK, only.clone()),
            [] => message(StatusCode::OK, error(first, NO_SERVER, CANCELLED)),
            many => message(StatusCode::OK, format!("[{}]", joined(many))),
        }
    }

    /// The handshake: a session, if the server agrees.
    async fn greet(self: &Arc<Self>, asked: Asked<'_>, id: &str, line: &[u8]) -> Answer {
        if self.sessions().len() >= SESSIONS {
            let words = format!("there are {SESSIONS} sessions; end some with DELETE, or wait");
            return refusal(StatusCode::SERVICE_UNAVAILABLE, id, INTERNAL_ERROR, &words);
        }
        let defect =
            |words: &str| refusal(StatusCode::INTERNAL_SERVER_ERROR, id, INTERNAL_ERROR, words);
        let Some((mouth, ear)) = self.join(asked.caller) else { return defect("no such server") };
        let Ok(session) = Session::new(asked.caller, mouth) else {
            return defect("no chance for an id");
        };
        let session = Arc::new(session);
        let Ok(mut reading) = session.open(&[Ask { id, token: None }], true) else {
            return defect("a new session has no requests");
        };
        // Who goes away before it has an id cannot come back.
        let mut guard = Unanswered(Some(session.clone()));
        self.admit(session.clone(), ear);
        let usage = session.in_use();
        if let Err(over) = session.say(line.to_vec()).await {
            return refusal(StatusCode::BAD_GATEWAY, id, NO_SERVER, &over.why);
        }
        reading.is_said();
        let found = reading.collect().await;
        drop(usage);
        let Some(answer) = found.into_iter().next() else {
            let words = "the server left before it answered";
            return refusal(StatusCode::BAD_GATEWAY, id, NO_SERVER, words);
        };
        let version = match envelope::read(&answer) {
            Line::One(envelope) => envelope.result.and_then(peek::negotiated),
            _ => None,
        };
        match version {
            // No later request could name it.
            Some(version) if !LEGACY.contains(&version.as_str()) => {
                let known = LEGACY.join(", ");
                let words = format!(
                    "it agrees to a revision that is not spoken here; ask for one of {known}"
                );
                refusal(StatusCode::BAD_REQUEST, id, INVALID_PARAMS, &words)
            }
            Some(version) => {
                session.greeted(version);
                guard.0 = None;
                with_session(message(StatusCode::OK, answer), &session.id)
            }
            None => message(StatusCode::OK, answer),
        }
    }

    /// `GET`: the stream that belongs to no request, or one that broke.
    pub(super) fn listen(
        self: &Arc<Self>,
        caller: Caller<'_>,
        busy: Busy,
        headers: &HeaderMap,
    ) -> Answer {
        let is_modern =
            headers::text(headers, VERSION).is_some_and(|version| !LEGACY.contains(&version));
        if is_modern && !headers.contains_key(SESSION) {
            return no_method();
        }
        if !Accepts::of(headers).events {
            let words = "accept text/event-stream";
            return refusal(StatusCode::NOT_ACCEPTABLE, "null", INVALID_REQUEST, words);
        }
        let (session, usage) = match self.find(caller, headers, "null") {
            Ok(found) => found,
            Err(refusal) => return *refusal,
        };
        let place = match headers.get("last-event-id") {
            None => Some((OWN, None)),
            Some(place) => place.to_str().ok().and_then(|place| {
                let (stream, number) = place.split_once('-')?;
                Some((stream.parse().ok()?, Some(number.parse().ok()?)))
            }),
        };
        let reading = place.and_then(|(stream, after)| {
            Some((session.attach(stream, after)?, after.unwrap_or_default()))
        });
        match reading {
            Some((reading, after)) => self.stream(&session, usage, reading, after, busy),
            None => {
                let words = "what came after this event is not kept any more";
                refusal(StatusCode::BAD_REQUEST, "null", INVALID_REQUEST, words)
            }
        }
    }

    /// `DELETE`: the session ends.
    pub(super) fn leave(&self, caller: Caller<'_>, headers: &HeaderMap) -> Answer {
        let is_modern =
            headers::text(headers, VERSION).is_some_and(|version| !LEGACY.contains(&version));
        if is_modern && !headers.contains_key(SESSION) {
            return no_method();
        }
        match self.find(caller, headers, "null") {
            Ok((session, _usage)) => {
                // From now on there is no such session, although its server may still be ending.
                self.sessions().remove(&session.id);
                session.end();
                accepted(StatusCode::NO_CONTENT)
            }
            Err(refusal) => *refusal,
        }
    }

    /// The session that a request names.
    fn find(
        &self,
        caller: Caller<'_>,
        headers: &HeaderMap,
        id: &str,
    ) -> Result<(Arc<Session>, InUse), Box<Answer>> {
        let no = |status, code, words: &str| Err(Box::new(refusal(status, id, code, words)));
        let Some(name) = headers::text(headers, SESSION) else {
            let words = "the header Mcp-Session-Id is missing; a session begins with `initialize`";
            return no(StatusCode::BAD_REQUEST, INVALID_REQUEST, words);
        };
        let found = self.sessions().get(name).cloned();
        let found = found.filter(|it| it.is_for(caller) && !it.version().is_empty());
        let Some(session) = found else {
            let words = "there is no such session, or it has ended; begin another";
            return no(StatusCode::NOT_FOUND, NO_SESSION, words);
        };
        if headers.contains_key(VERSION)
            && !headers::text(headers, VERSION).is_some_and(|it| LEGACY.contains(&it))
        {
            let words = "the header MCP-Protocol-Version names no revision that is spoken here";
            return no(StatusCode::BAD_REQUEST, INVALID_REQUEST, words);
        }
        let usage = session.in_use();
        Ok((session, usage))
    }

    /// Events of one stream.
    fn stream(
        &self,
        session: &Arc<Session>,
        usage: InUse,
        reading: Reading,
        after: u64,
        busy: Busy,
    ) -> Answer {
        let primed = (session.version() >= PRIMES).then_some(after);
        self.events(Source::Session(Listening { reading, _usage: usage, primed }), None, busy)
    }
}

/// Ends a session that nobody was told of.
struct Unanswered(Option<Arc<Session>>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            session.end();
        }
    }
}

/// The id of the request that this message takes back.
fn cancelled<'a>(envelope: &Envelope<'a>) -> Option<&'a str> {
    let is_cancelled = envelope.method.as_deref() == Some("notifications/cancelled");
    let params = is_cancelled.then(|| Members::of(envelope.params)).flatten()?;
    params.request_id.map(|id| id.get())
}

fn joined(lines: &[Bytes]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| String::from_utf8_lossy(line)).collect();
    lines.join(",")
}

fn gone(id: &str) -> Answer {
    let words = "the server of this session is gone; begin another session";
    refusal(StatusCode::NOT_FOUND, id, NO_SESSION, words)
}

fn no_method() -> Answer {
    let words = "this revision has no sessions and no streams but those of its requests";
    let answer = refusal(StatusCode::METHOD_NOT_ALLOWED, "null", INVALID_REQUEST, words);
    answers::with_methods(answer, "POST")
}
