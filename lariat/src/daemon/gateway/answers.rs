//! Answers as clients of MCP expect them: refusals that are JSON-RPC errors, and events.

use super::super::http::{self, Answer, Content};
use super::super::web;
use crate::mcp::reply;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName};
use tokio::sync::mpsc;
use tokio::time::Duration;

/// After this long without an event somebody between might take a stream for dead.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How soon a client whose stream broke may come back.
const COME_BACK_MS: u32 = 500;

/// Events on their way to one reader.
pub(super) const IN_FLIGHT: usize = 4;

/// A longer line is not copied to stand in one piece with what is around it.
const LONG: usize = 16 << 10;

/// One JSON-RPC message.
pub(super) fn message(status: StatusCode, line: impl Into<Bytes>) -> Answer {
    lasting(http::answer(status, "application/json", Content::Whole(line.into())))
}

/// A refusal. The id is JSON; `null` for one that is not known.
pub(super) fn refusal(status: StatusCode, id: &str, code: i64, words: &str) -> Answer {
    message(status, reply::error(id, code, words))
}

/// It was taken, and there is nothing to say.
pub(super) fn accepted(status: StatusCode) -> Answer {
    let mut answer = Answer::new(Content::Whole(Bytes::new()));
    *answer.status_mut() = status;
    lasting(answer)
}

/// Events, as they come.
pub(super) fn events(lines: mpsc::Receiver<Bytes>) -> Answer {
    let answer = http::answer(StatusCode::OK, "text/event-stream", Content::Stream(lines));
    // Otherwise some proxies hold back what is not yet a whole buffer.
    http::with(answer, HeaderName::from_static("x-accel-buffering"), "no")
}

/// Says for how long the connection may be idle, so that no client sends when we have just closed it.
fn lasting(answer: Answer) -> Answer {
    let rest = web::SILENCE.as_secs().saturating_sub(1);
    http::with(answer, HeaderName::from_static("keep-alive"), &format!("timeout={rest}"))
}

/// The same with the session's id.
pub(super) fn with_session(answer: Answer, id: &str) -> Answer {
    http::with(answer, HeaderName::from_static(super::headers::SESSION), id)
}

/// Says which methods there are.
pub(super) fn with_methods(answer: Answer, methods: &str) -> Answer {
    http::with(answer, header::ALLOW, methods)
}

/// The first event: nothing but where to resume.
pub(super) fn prime(place: &str) -> Bytes {
    format!("id: {place}\nretry: {COME_BACK_MS}\ndata: \n\n").into()
}

/// A comment.
pub(super) fn still_here() -> Bytes {
    Bytes::from_static(b": \n\n")
}

/// Sends one message as an event. False if nobody reads it in time.
pub(super) async fn send(lines: &mpsc::Sender<Bytes>, place: Option<&str>, line: Bytes) -> bool {
    let mut head = String::from("event: message\n");
    if let Some(place) = place {
        head += &format!("id: {place}\n");
    }
    head += "data: ";
    if line.len() > LONG {
        if !web::send(lines, head.into()).await {
            return false;
        }
        // Piece by piece: who reads slowly makes progress all the same.
        let mut rest = line;
        while !rest.is_empty() {
            let piece = rest.split_to(LONG.min(rest.len()));
            if !web::send(lines, piece).await {
                return false;
            }
        }
        return web::send(lines, Bytes::from_static(b"\n\n")).await;
    }
    let mut event = Vec::with_capacity(head.len() + line.len() + 2);
    event.extend_from_slice(head.as_bytes());
    event.extend_from_slice(&line);
    event.extend_from_slice(b"\n\n");
    web::send(lines, event.into()).await
}
