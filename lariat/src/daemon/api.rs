//! What goes over the socket: requests, answers and problems. Plain data, shared by both ends.
//!
//! Requests refuse what they do not know: a misspelt field must not be a field that is not there.
//! Answers may grow, so a client ignores what it does not know.

use crate::receipt::{Receipt, Survivor};
use crate::session::{self, State};
use crate::spec::{ServerSpec, Servers};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

/// The header by which a client says what its session's life hangs on.
pub const LEASE: &str = "lariat-lease";

/// The only value that it has: the session ends with the connection.
pub const LEASE_CONNECTION: &str = "connection";

/// What a connection is upgraded to for speaking with one server.
pub const UPGRADE: &str = "mcp";

/// Longer names are refused: they end up in paths and tables.
const LONGEST_NAME: usize = 80;

/// More of somebody's text than this is not said back.
const LONGEST_ECHO: usize = 60;

/// More of a sentence than this is not said.
const LONGEST_DETAIL: usize = 500;

/// `POST /v1/sessions`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// What to call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The process that it ends with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_pid: Option<i32>,
    /// What to start.
    #[serde(deserialize_with = "each_once")]
    pub servers: Servers,
}

/// `POST /v1/sessions/{id}/refresh`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refresh {
    /// What is to run from now on.
    #[serde(deserialize_with = "each_once")]
    pub servers: Servers,
}

/// `POST /v1/sessions/{id}/servers/{name}/call`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Which tool.
    pub tool: String,
    /// What to give it.
    #[serde(default)]
    pub arguments: Option<Map<String, Value>>,
}

/// A session, as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// By which all other requests name it.
    pub id: String,
    /// What its owner called it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `open` or `ending`.
    pub state: Phase,
    /// Whose end is its end.
    pub owner: Owner,
    /// Its servers by name.
    pub servers: BTreeMap<String, Server>,
    /// After a refresh: of the servers that were replaced or removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipts: Option<Vec<Receipt>>,
    /// After a refresh: servers of which nobody can say what became of their last run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unaccounted: Vec<String>,
}

/// Where in its life a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It can be used.
    Open,
    /// Its servers are being ended.
    Ending,
}

/// Whose end is a session's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its pid.
    pub pid: i32,
    /// The kernel's short name for it, never its arguments.
    pub command: String,
    /// By what its end is seen.
    pub lease: Lease,
}

/// By what the end of an owner is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lease {
    /// The process ends.
    Process,
    /// The connection by which the session was opened ends; or the process, if one was named.
    Connection,
}

/// One server of a session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Server {
    /// `starting`, `ready`, `restarting`, `failed`, `ending` or `ended`.
    pub state: String,
    /// Its process, if it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// The names of its tools, if it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Why it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// `GET /v1/sessions`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sessions {
    /// In the order in which they were opened.
    pub sessions: Vec<Session>,
}

/// `DELETE /v1/sessions/{id}`: what was there, and what still is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// One for each server that ran.
    pub receipts: Vec<Receipt>,
    /// What could not be ended.
    pub survivors: Vec<Survivor>,
}

/// `POST /v1/page/links`: a way into the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// It works once.
    pub url: String,
    /// And no longer than this.
    pub expires_s: u64,
    /// Where the metrics are, which is not always the same port; empty from a daemon that does not say.
    #[serde(default)]
    pub metrics: String,
    /// Where the token is that programs show; absent if nobody needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
}

/// Why a request was refused, as RFC 9457 has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What kind, as a URN.
    #[serde(rename = "type")]
    pub kind: String,
    /// What kind, in words.
    pub title: String,
    /// The status of the answer.
    pub status: u16,
    /// A sentence that says what to do.
    pub detail: String,
    /// What a server said: its JSON-RPC error code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i64>,
    /// What a server said: its JSON-RPC error message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Server {
    /// What of a server's state goes over the socket.
    pub fn of(state: &State) -> Server {
        let mut server = Server { state: state.word().into(), ..Server::default() };
        match state {
            State::Ready(ready) => {
                server.pid = Some(ready.pid);
                server.tools = Some(ready.tools.iter().filter_map(|t| tool_name(t)).collect());
            }
            State::Restarting { why, .. } | State::Failed { why } => {
                server.error = Some(why.to_string());
            }
            State::Starting | State::Ending | State::Ended(_) => {}
        }
        server
    }
}

impl Closed {
    /// The survivors are those of all receipts, and the servers that have none.
    pub fn of(ended: session::Ended) -> Closed {
        let lost = |server: &String| Survivor {
            kind: "server".into(),
            pid: 0,
            start: 0,
            id: None,
            command: server.clone(),
            why: "nobody can say what became of it; the next lariat command looks again".into(),
        };
        let lost: Vec<Survivor> = ended.unaccounted.iter().map(lost).collect();
        let survivors = ended.survivors().cloned().chain(lost).collect();
        Closed { receipts: ended.receipts, survivors }
    }
}

fn tool_name(tool: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    serde_json::from_str::<Named>(tool.get()).ok().map(|named| named.name)
}

impl Problem {
    /// A problem of some kind. The detail is cut: it may repeat what somebody sent.
    pub fn new(status: u16, kind: &str, title: &str, detail: impl AsRef<str>) -> Problem {
        Problem {
            kind: format!("urn:lariat:problem:{kind}"),
            title: title.into(),
            status,
            detail: cut(detail.as_ref(), LONGEST_DETAIL),
            code: None,
            message: None,
        }
    }

    /// The body is no JSON.
    pub fn malformed(error: &serde_json::Error) -> Problem {
        let detail = format!("The body is not JSON: {error}. Send one JSON object.");
        Problem::new(400, "malformed", "Malformed JSON", detail)
    }

    /// The body is JSON, but not what the request wants.
    pub fn invalid(detail: impl AsRef<str>) -> Problem {
        Problem::new(422, "invalid", "Invalid request", detail)
    }

    /// There is no such session.
    pub fn no_session(id: &str) -> Problem {
        let detail = format!(
            "There is no session `{}`, or it has ended. GET /v1/sessions lists those there are.",
            echo(id)
        );
        Problem::new(404, "no-session", "No such session", detail)
    }

    /// A limit is reached; the sentence names it.
    pub fn limit(detail: impl AsRef<str>) -> Problem {
        Problem::new(429, "limit", "Limit reached", detail)
    }

    /// The session has ended or is about to.
    pub fn closed() -> Problem {
        let detail = "The session is ending or has ended. Open another one with POST /v1/sessions.";
        Problem::new(409, "closed", "Session closed", detail)
    }
}

impl From<session::Error> for Problem {
    fn from(error: session::Error) -> Problem {
        use session::Error;
        let said = sentence(&error);
        match error {
            Error::Closed => Problem::closed(),
            Error::NoServer(_) => {
                let detail = format!("{said} GET /v1/sessions/{{id}} lists its servers.");
                Problem::new(404, "no-server", "No such server", detail)
            }
            Error::NotReady(..) => {
                let detail = format!("{said} GET /v1/sessions/{{id}} says how it is.");
                Problem::new(409, "not-ready", "Server not ready", detail)
            }
            Error::NotAllowed { .. } => {
                let detail = format!("{said} Add it to `tools` of that server, and refresh.");
                Problem::new(403, "tool-not-allowed", "Tool not allowed", detail)
            }
            Error::Left(_) => {
                let detail = format!("{said} Call again: it may have been started again.");
                Problem::new(502, "server-left", "The server left", detail)
            }
            Error::Timeout { .. } => {
                let detail = format!("{said} `tool_timeout_ms` of the server sets the time.");
                Problem::new(504, "timeout", "Tool timed out", detail)
            }
            Error::Refused { code, message } => {
                let detail = format!("{said} Its words are in `code` and `message`.");
                let problem = Problem::new(502, "server-error", "The server refused", detail);
                Problem { code: Some(code), message: Some(message), ..problem }
            }
            Error::Spec(..) => Problem::invalid(said),
            Error::State(..) => {
                let detail = format!("{said} Make it writable, or start the daemon with another.");
                Problem::new(500, "state", "State directory unusable", detail)
            }
            Error::NoHolder => Problem::new(500, "no-holder", "Nobody to hold processes", said),
        }
    }
}

/// An error with its causes, as a sentence.
pub(super) fn sentence(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str().trim_end_matches('.'))
}

/// Reads a request's body, and checks everything in it that can be checked here.
pub trait Request: Sized + serde::de::DeserializeOwned {
    /// What is wrong although every field is there, as a sentence.
    fn complaint(&self) -> Option<String>;

    /// From the bytes of a body.
    fn read(body: &[u8]) -> Result<Self, Problem> {
        use serde_json::error::Category;
        let wrong = |what: &str| {
            Problem::invalid(format!(
                "The body is not what this request takes: {}. GET /v1/openapi.json says what is.",
                cut(what, LONGEST_DETAIL / 2)
            ))
        };
        // All of it first: what is no JSON is not judged by how it begins.
        let text: &RawValue = serde_json::from_slice(body).map_err(|e| Problem::malformed(&e))?;
        if !text.get().starts_with('{') {
            return Err(wrong("it is no JSON object"));
        }
        let request: Self =
            serde_json::from_slice(body).map_err(|error| match error.classify() {
                Category::Data => wrong(&error.to_string()),
                Category::Syntax | Category::Eof | Category::Io => Problem::malformed(&error),
            })?;
        match request.complaint() {
            Some(complaint) => Err(Problem::invalid(complaint)),
            None => Ok(request),
        }
    }
}

impl Request for Open {
    fn complaint(&self) -> Option<String> {
        let named = self.name.as_deref().and_then(|name| bad_name("name", name));
        let owned = || {
            let sense = self.owner_pid.is_none_or(|pid| pid > 0);
            (!sense).then(|| "`owner_pid` is the pid of a process, a number above 0.".into())
        };
        named.or_else(owned).or_else(|| bad_servers(&self.servers))
    }
}

impl Request for Refresh {
    fn complaint(&self) -> Option<String> {
        bad_servers(&self.servers)
    }
}

impl Request for Call {
    fn complaint(&self) -> Option<String> {
        self.tool.is_empty().then(|| "`tool` is empty; name the tool to call.".into())
    }
}

fn bad_servers(servers: &Servers) -> Option<String> {
    servers.iter().find_map(|(name, spec)| {
        let wrong = || spec.complaint().map(|what| format!("In `servers.{name}`: {what}."));
        bad_name("servers", name).or_else(wrong)
    })
}

/// Why this is no name, as a sentence.
fn bad_name(field: &str, name: &str) -> Option<String> {
    let fit = |c: char| c.is_alphanumeric() || "-_.+".contains(c);
    let length = name.chars().take(LONGEST_NAME + 1).count();
    let good = (1..=LONGEST_NAME).contains(&length) && name.chars().all(fit);
    (!good || name.starts_with('.')).then(|| {
        format!(
            "In `{field}`: `{}` is not a name. Use 1 to {LONGEST_NAME} letters, digits, `-`, `_`, \
             `.` or `+`, and no dot at the beginning.",
            echo(name)
        )
    })
}

/// Enough of somebody's text to know it by.
pub(super) fn echo(text: &str) -> String {
    let plain = |c: char| if c.is_control() { '?' } else { c };
    cut(text, LONGEST_ECHO).chars().map(plain).collect()
}

fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.into(),
    }
}

/// Servers by name; a name that comes twice is refused, as one of the two would be lost.
fn each_once<'de, D: Deserializer<'de>>(from: D) -> Result<Servers, D::Error> {
    struct Once;
    impl<'de> Visitor<'de> for Once {
        type Value = Servers;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of servers by name")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Servers, A::Error> {
            let mut servers = Servers::new();
            while let Some(name) = map.next_key::<String>()? {
                let spec = map.next_value::<ServerSpec>()?;
                match servers.entry(name) {
                    Entry::Vacant(free) => drop(free.insert(spec)),
                    Entry::Occupied(taken) => {
                        let name = echo(taken.key());
                        return Err(A::Error::custom(format!("server `{name}` is there twice")));
                    }
                }
            }
            Ok(servers)
        }
    }
    from.deserialize_map(Once)
}

#[cfg(test)]
mod tests;
