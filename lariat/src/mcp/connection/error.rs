//! How a request, and a whole connection, can end.

use serde_json::value::RawValue;
use std::fmt;

/// Why a request has no result.
#[derive(Debug)]
pub enum Error {
    /// The connection is over.
    Closed,
    /// The answer is an error.
    Refused {
        /// The JSON-RPC code, or 0 if there was none.
        code: i64,
        /// What the server said.
        message: String,
        /// What it added.
        data: Option<Box<RawValue>>,
    },
    /// The answer to this method makes no sense.
    Garbled(String),
    /// This tool is not on the list.
    NotAllowed(String),
    /// Too many requests are in flight.
    TooBusy,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Closed => f.write_str("the connection to the server is closed"),
            Error::Refused { code, message, .. } => write!(f, "refused: {message} ({code})"),
            Error::Garbled(method) => write!(f, "the answer to {method} makes no sense"),
            Error::NotAllowed(tool) => write!(f, "the tool {tool:?} is not allowed here"),
            Error::TooBusy => f.write_str("too many requests are in flight"),
        }
    }
}

impl std::error::Error for Error {}

/// What ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The server closed its output.
    Output,
    /// The server closed its input.
    Input,
    /// The server said a line that is longer than any message.
    TooLong,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ended::Output => "the server closed its output",
            Ended::Input => "the server closed its input",
            Ended::TooLong => "the server said a line that is too long",
        })
    }
}
