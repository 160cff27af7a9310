//! What a host can see of a server: the state it is in, what happened to it, why something failed.

use crate::id::SessionId;
use crate::mcp::Hello;
use crate::receipt::Receipt;
use serde::Serialize;
use serde_json::value::RawValue;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How a server is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum State {
    /// It is being started: the holder, the process, the handshake.
    Starting,
    /// It can be called.
    Ready(Arc<Ready>),
    /// It left by itself, and will be started again.
    Restarting {
        /// How often it has left in a row.
        attempt: u32,
        /// After this time.
        after: Duration,
        /// Why it left.
        why: Arc<str>,
    },
    /// It is not running, and will not be started again.
    Failed {
        /// Why.
        why: Arc<str>,
    },
    /// It was told to end.
    Ending,
    /// It has ended.
    Ended(Option<Arc<Receipt>>),
}

/// A server that can be called.
#[derive(Debug, Clone)]
pub struct Ready {
    /// The server's own process, as this process sees it.
    pub pid: i32,
    /// What holds it.
    pub backend: String,
    /// How it introduced itself.
    pub hello: Hello,
    /// Its tools, those that are allowed.
    pub tools: Vec<Box<RawValue>>,
}

impl State {
    /// One word.
    pub fn word(&self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Ready(_) => "ready",
            State::Restarting { .. } => "restarting",
            State::Failed { .. } => "failed",
            State::Ending => "ending",
            State::Ended(_) => "ended",
        }
    }

    /// True if waiting longer changes nothing by itself.
    pub fn is_settled(&self) -> bool {
        !matches!(self, State::Starting | State::Ending | State::Restarting { .. })
    }
}

/// Something that happened in a session.
#[derive(Debug, Clone, Serialize)]
pub struct Event {
    /// When, in RFC 3339.
    pub time: String,
    /// In which session.
    pub session: SessionId,
    /// To which server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// What: the word of a [`State`], or `opened`, `closed`, `tools-changed`.
    pub event: &'static str,
    /// More, for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Arc<str>>,
    /// How a server that ended did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Arc<Receipt>>,
}

/// Why something could not be done.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The session has ended, or is about to.
    Closed,
    /// The session has no such server.
    NoServer(String),
    /// The server is not ready; the sentence says why.
    NotReady(String, Arc<str>),
    /// The session does not allow this tool of this server.
    NotAllowed {
        /// Which server.
        server: String,
        /// Which tool.
        tool: String,
    },
    /// The server left while the call was in flight.
    Left(String),
    /// The call took longer than it may.
    Timeout {
        /// Which tool.
        tool: String,
        /// How long it may take.
        after: Duration,
    },
    /// The server refused.
    Refused {
        /// The JSON-RPC code.
        code: i64,
        /// What the server says.
        message: String,
    },
    /// A server's description makes no sense; the sentence says why.
    Spec(String, String),
    /// The state directory cannot be written.
    State(PathBuf, io::Error),
    /// There is nobody to hold processes: `main_if_asked` was never called, and no holder is named.
    NoHolder,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Closed => f.write_str("the session is closed"),
            Error::NoServer(name) => write!(f, "the session has no server `{name}`"),
            Error::NotReady(name, why) => write!(f, "the server `{name}` is not ready: {why}"),
            Error::NotAllowed { server, tool } => {
                write!(f, "the session does not allow the tool `{tool}` of `{server}`")
            }
            Error::Left(name) => write!(f, "the server `{name}` left while the call was in flight"),
            Error::Timeout { tool, after } => {
                write!(f, "`{tool}` took longer than {} ms", after.as_millis())
            }
            Error::Refused { code, message } => write!(f, "the server refused: {message} ({code})"),
            Error::Spec(name, why) => write!(f, "the server `{name}` cannot be: {why}"),
            Error::State(dir, _) => write!(f, "cannot write the state directory {}", dir.display()),
            Error::NoHolder => f.write_str(
                "nobody can hold processes: call lariat::main_if_asked() first in main, or name an \
                 installed lariat as the holder",
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::State(_, e) => Some(e),
            _ => None,
        }
    }
}
