//! One request of a modern client: 2026-07-28. It has a seat of its own for as long as it lasts.

use super::answers::{self, KEEP_ALIVE, accepted, message, refusal};
use super::headers::{self, Body, Mirror};
use super::peek::{self, About};
use super::seat::{Ear, Mouth};
use super::spring::{Course, Source};
use super::{Asked, Caller, Gateway};
use crate::daemon::http::Answer;
use crate::daemon::web;
use crate::mcp::envelope::{self, Envelope, Line, Shape};
use crate::mcp::reply::{INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, NO_SERVER};
use crate::mcp::reply::{UNSUPPORTED_VERSION, error};
use hyper::StatusCode;
use hyper::body::Bytes;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{sleep, timeout};

const HEADER_MISMATCH: i64 = -32020;
const MISSING_CAPABILITY: i64 = -32021;

/// Tools of one server whose headers are known.
const MOST_TOOLS: usize = 10_000;

/// Pages of a list that we ask for ourselves, and how long that may take.
const PAGES: usize = 100;
const PATIENCE: Duration = Duration::from_secs(5);

/// Which arguments of which tools are to be in headers as well, by server, as far as anybody has
/// asked for its tools.
#[derive(Debug, Default)]
pub(super) struct Mirrors(Mutex<HashMap<String, HashMap<String, Vec<Mirror>>>>);

impl Mirrors {
    /// From an answer to `tools/list`.
    fn learn(&self, server: &str, line: &[u8]) {
        let answer: Value = serde_json::from_slice(line).unwrap_or_default();
        let Some(tools) = answer["result"]["tools"].as_array() else { return };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.entry(server.to_owned()).or_default();
        for tool in tools {
            let Some(name) = tool["name"].as_str() else { continue };
            let mirrors = headers::mirrors(&tool["inputSchema"]);
            if mirrors.is_empty() {
                known.remove(name);
            } else if known.len() < MOST_TOOLS {
                known.insert(name.to_owned(), mirrors);
            }
        }
    }

    /// `None` if nobody has asked for the tools of this server.
    fn of(&self, server: &str, tool: &str) -> Option<Vec<Mirror>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(server).map(|tools| tools.get(tool).cloned().unwrap_or_default())
    }

    /// Somebody has asked, whatever came of it.
    fn asked(&self, server: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(server.to_owned()).or_default();
    }
}

/// A request on its way.
#[derive(Debug)]
pub(in crate::daemon) struct Call {
    /// As the client wrote it.
    pub(super) id: String,
    pub(super) mouth: Mouth,
    pub(super) ear: Ear,
}

/// What a server says to a request.
enum Said {
    /// Not the answer yet.
    More(Bytes),
    /// The answer, and its status if nothing was said before.
    Answer(StatusCode, Bytes),
}

impl Gateway {
    /// One message.
    pub(super) async fn modern(
        self: &Arc<Self>,
        asked: Asked<'_>,
        envelope: &Envelope<'_>,
        about: &About,
        line: &[u8],
    ) -> Answer {
        let bad = |id: &str, code, words: &str| refusal(StatusCode::BAD_REQUEST, id, code, words);
        let (id, method) = match (envelope.shape(), envelope.id, envelope.method.as_deref()) {
            (Shape::Request, Some(id), Some(method)) => (id.get(), method),
            // None is defined by this revision, and there is no session that it could be for.
            (Shape::Notification, ..) => return accepted(StatusCode::ACCEPTED),
            _ => return bad("null", INVALID_REQUEST, "a client only asks in this revision"),
        };
        let Some(version) = about.version.as_deref().filter(|_| about.has_capabilities) else {
            let words = "`_meta` must have io.modelcontextprotocol/protocolVersion and \
                         io.modelcontextprotocol/clientCapabilities";
            return bad(id, INVALID_PARAMS, words);
        };
        let name = about.name.as_deref();
        let body = Body { version, method, name, must_name: about.must_name };
        if let Some(words) = headers::disagreement(asked.headers, &body) {
            return bad(id, HEADER_MISMATCH, &words);
        }
        if let (Some(tool), "tools/call") = (name, method) {
            let mirrors = self.mirrors_of(asked.caller, tool, version).await;
            let arguments = peek::params(envelope).map(|params| params.arguments());
            let words =
                headers::unmirrored(asked.headers, &mirrors, &arguments.unwrap_or_default());
            if let Some(words) = words.filter(|_| !mirrors.is_empty()) {
                return bad(id, HEADER_MISMATCH, &words);
            }
        }
        // Of the other era: it would be answered on a server's behalf.
        if matches!(method, "initialize" | "ping") {
            let words = "this method is not part of this revision";
            return refusal(StatusCode::NOT_FOUND, id, METHOD_NOT_FOUND, words);
        }
        let Some((mouth, ear)) = self.join(asked.caller) else {
            return refusal(StatusCode::NOT_FOUND, id, NO_SERVER, "no such server");
        };
        let call = Call { id: id.to_owned(), mouth, ear };
        self.call(call, method, line.to_vec(), asked).await
    }

    /// Which arguments of a tool are to be in headers as well. Asks for the tools if nobody has.
    async fn mirrors_of(&self, caller: Caller<'_>, tool: &str, version: &str) -> Vec<Mirror> {
        let server = caller.target.name();
        if let Some(known) = self.mirrors.of(server, tool) {
            return known;
        }
        // One that does not answer is not asked again: the call itself says what is wrong.
        let _late = timeout(PATIENCE, self.learn(caller, version)).await;
        self.mirrors.asked(server);
        self.mirrors.of(server, tool).unwrap_or_default()
    }

    async fn learn(&self, caller: Caller<'_>, version: &str) -> Option<()> {
        let (mouth, ear) = self.join(caller)?;
        let mut call = Call { id: "0".into(), mouth, ear };
        let mut params = json!({ "_meta": {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
        }});
        for _ in 0..PAGES {
            let list =
                json!({ "jsonrpc": "2.0", "id": 0, "method": "tools/list", "params": params });
            call.mouth.say(list.to_string().into_bytes()).await.ok()?;
            let page = loop {
                if let Said::Answer(_, line) = call.hear().await {
                    break line;
                }
            };
            self.mirrors.learn(caller.target.name(), &page);
            let page: Value = serde_json::from_slice(&page).ok()?;
            params["cursor"] = json!(page["result"]["nextCursor"].as_str()?);
        }
        None
    }

    /// Says it, and answers as the server does. If the client goes, so does the seat, and with it the
    /// request.
    async fn call(&self, mut call: Call, method: &str, line: Vec<u8>, asked: Asked<'_>) -> Answer {
        if let Err(over) = call.mouth.say(line).await {
            return refusal(StatusCode::BAD_GATEWAY, &call.id, NO_SERVER, &over.why);
        }
        // An answer alone is plain, with a status of its own. What takes longer is a stream, and so is what
        // is to rest: of a stream the rest can be said later.
        let mut called = self.called.clone();
        let first = loop {
            let said = tokio::select! {
                biased;
                said = call.hear() => Some(said),
                () = sleep(KEEP_ALIVE) => None,
                Ok(_) = called.wait_for(|called| *called), if asked.accepts.events => None,
            };
            match said {
                Some(Said::More(_)) | None if !asked.accepts.events => {}
                Some(Said::More(line)) => break Some(line),
                None => break None,
                Some(Said::Answer(status, line)) => {
                    if method == "tools/list" {
                        self.mirrors.learn(asked.caller.target.name(), &line);
                    }
                    return message(status, line);
                }
            }
        };
        self.events(Source::Call(Box::new(call)), first, asked.busy)
    }
}

impl Call {
    async fn hear(&mut self) -> Said {
        let Some(line) = self.ear.hear().await else {
            let words = "the server left before it answered";
            return Said::Answer(StatusCode::BAD_GATEWAY, error(&self.id, NO_SERVER, words).into());
        };
        let line = peek::on_one_line(line);
        let status = match envelope::read(&line) {
            Line::One(it) if it.shape() == Shape::Response => {
                Some(it.error.and_then(peek::code).map_or(StatusCode::OK, status))
            }
            _ => None,
        };
        match status {
            Some(status) => Said::Answer(status, line.into()),
            None => Said::More(line.into()),
        }
    }

    /// Sends what the server says until it has answered, or nobody reads it, or the daemon ends, or it rests.
    pub(super) async fn tell(mut self: Box<Self>, mut course: Course) {
        let mut goes_on = true;
        while goes_on {
            let said = tokio::select! {
                said = self.hear() => Some(said),
                () = course.lines.closed() => return,
                _ = course.stopped.wait_for(|stopped| *stopped) => return,
                Ok(_) = course.called.wait_for(|called| *called) => {
                    return course.spring.keep(Source::Call(self), course.lines);
                }
                () = sleep(KEEP_ALIVE) => None,
            };
            goes_on = match said {
                Some(Said::More(line)) => answers::send(&course.lines, None, line).await,
                Some(Said::Answer(_, line)) => {
                    // It is the last in any case.
                    let _read = answers::send(&course.lines, None, line).await;
                    false
                }
                None => web::send(&course.lines, answers::still_here()).await,
            };
        }
    }
}

/// The status that goes with an error.
fn status(code: i64) -> StatusCode {
    match code {
        METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        HEADER_MISMATCH | MISSING_CAPABILITY | UNSUPPORTED_VERSION => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}
