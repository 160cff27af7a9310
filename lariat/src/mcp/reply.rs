//! What we answer ourselves, to a client or to the server. Pure.

use super::envelope::{self, Line, Shape};
use serde_json::json;
use serde_json::value::RawValue;

pub(crate) const PARSE_ERROR: i64 = -32700;
pub(crate) const INVALID_REQUEST: i64 = -32600;
pub(crate) const METHOD_NOT_FOUND: i64 = -32601;
pub(crate) const INVALID_PARAMS: i64 = -32602;
pub(crate) const INTERNAL_ERROR: i64 = -32603;
pub(crate) const UNSUPPORTED_VERSION: i64 = -32022;

/// Ours: the server is not there.
pub(crate) const NO_SERVER: i64 = -32000;

/// A longer id or token is refused: each is kept for as long as its request lasts.
pub(crate) const LONGEST_TOKEN: usize = 4 << 10;

/// Why a request is not passed on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unsent {
    /// Too many are in flight.
    TooBusy,
    /// This tool is not on the list.
    NotAllowed(String),
    /// A key occurs twice, or a token is too long.
    Unreadable,
}

impl Unsent {
    /// The same for the client that sent it.
    pub(crate) fn answer(&self, id: &RawValue) -> Vec<u8> {
        match self {
            Unsent::TooBusy => error(id.get(), INTERNAL_ERROR, "too many requests in flight"),
            Unsent::NotAllowed(tool) => {
                error(id.get(), INVALID_PARAMS, &format!("the tool {tool:?} is not allowed here"))
            }
            // An id that is too long is not repeated.
            Unsent::Unreadable if id.get().len() > LONGEST_TOKEN => {
                error("null", INVALID_REQUEST, "this id is too long")
            }
            Unsent::Unreadable => {
                let message = "a key occurs twice in the params, or the progress token is too long";
                error(id.get(), INVALID_PARAMS, message)
            }
        }
    }
}

/// What a client gets whose request reached no server. `None` if the line is no request.
pub(crate) fn refusal(line: &[u8], why: &str) -> Option<Vec<u8>> {
    match envelope::read(line) {
        Line::One(envelope) if envelope.shape() == Shape::Request => {
            let id = envelope.id.filter(|id| id.get().len() <= LONGEST_TOKEN)?;
            Some(error(id.get(), NO_SERVER, why))
        }
        _ => None,
    }
}

/// A result. Both texts are JSON.
pub(crate) fn answer(id: &str, result: &str) -> Vec<u8> {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}").into_bytes()
}

/// An error. The id is JSON, the message is words.
pub(crate) fn error(id: &str, code: i64, message: &str) -> Vec<u8> {
    let error = json!({ "code": code, "message": message });
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}").into_bytes()
}
