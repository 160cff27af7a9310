//! A client that asks a server what it offers. Synchronous and bounded by a deadline.

#[cfg(target_os = "linux")]
#[path = "client/linux.rs"]
mod wire;
#[cfg(any(target_os = "macos", windows))]
#[path = "client/pipes.rs"]
mod wire;

pub use wire::Wire;

use super::{LEGACY, MODERN, PAGES};
use serde_json::{Value, json};
use std::fmt;
use std::time::{Duration, Instant};

/// How often the caller gets to look around while we wait.
const GLANCE: Duration = Duration::from_millis(10);

/// Why a conversation failed.
#[derive(Debug)]
pub enum Error {
    /// The server closed its output.
    Closed,
    /// The time was up while waiting for this method's answer.
    Timeout(String),
    /// The server answered this method with an error.
    Refused(String, i64, String),
    /// The caller wants to stop.
    Interrupted,
    /// The server sent something that is not an answer to this method.
    Garbled(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Closed => f.write_str("the server closed its output before it answered"),
            Error::Timeout(method) => write!(f, "no answer to {method} in time"),
            Error::Refused(method, code, text) => {
                write!(f, "the server refused {method}: {text} ({code})")
            }
            Error::Interrupted => f.write_str("interrupted"),
            Error::Garbled(method) => write!(f, "the answer to {method} makes no sense"),
        }
    }
}

impl std::error::Error for Error {}

/// What a server says it is and has.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Offer {
    /// Its name, if it gave one.
    pub name: Option<String>,
    /// Its version, if it gave one.
    pub version: Option<String>,
    /// The protocol revision in force.
    pub protocol: String,
    /// `legacy` or `modern`.
    pub era: &'static str,
    /// Names of its tools.
    pub tools: Vec<String>,
    /// How many resources it lists.
    pub resources: usize,
    /// How many prompts it lists.
    pub prompts: usize,
}

/// How far the streams got, within a glance.
enum Moved<T> {
    Done(T),
    NotYet,
    Closed,
    /// The line is longer than any message.
    TooLong,
}

/// A conversation over a server's stdin and stdout.
pub struct Client<'a> {
    wire: Wire<'a>,
    next_id: u64,
    deadline: Instant,
    /// Called every few milliseconds while waiting; false to stop.
    glance: &'a mut dyn FnMut() -> bool,
    next_glance: Instant,
    modern: bool,
}

impl<'a> Client<'a> {
    /// A conversation that has not begun.
    pub fn new(
        wire: Wire<'a>,
        deadline: Instant,
        glance: &'a mut dyn FnMut() -> bool,
    ) -> Client<'a> {
        Client { wire, next_id: 0, deadline, glance, next_glance: Instant::now(), modern: false }
    }

    /// Shakes hands. `initialize` first: every legacy server knows it, and a modern one refuses it
    /// without harm, whereas some legacy servers leave when their first message is another.
    pub fn greet(&mut self) -> Result<Offer, Error> {
        let hello = json!({
            "protocolVersion": LEGACY, "capabilities": {},
            "clientInfo": { "name": "lariat", "version": env!("CARGO_PKG_VERSION") },
        });
        match self.request("initialize", hello) {
            Ok(answer) => {
                let protocol = answer["protocolVersion"].as_str().map(str::to_string);
                let protocol = protocol.ok_or_else(|| Error::Garbled("initialize".into()))?;
                self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
                Ok(named(&answer["serverInfo"], protocol, "legacy"))
            }
            Err(Error::Refused(..)) => {
                self.modern = true;
                let answer = self.request("server/discover", json!({}))?;
                let info = &answer["_meta"]["io.modelcontextprotocol/serverInfo"];
                let info = if info.is_object() { info } else { &answer["serverInfo"] };
                Ok(named(info, MODERN.into(), "modern"))
            }
            Err(other) => Err(other),
        }
    }

    /// Adds what the server has. A list it does not know is empty, not an error.
    pub fn list(&mut self, offer: &mut Offer) -> Result<(), Error> {
        let tools = self.pages("tools/list", "tools")?;
        offer.tools = tools.iter().filter_map(|t| Some(t["name"].as_str()?.to_string())).collect();
        offer.resources = self.pages("resources/list", "resources")?.len();
        offer.prompts = self.pages("prompts/list", "prompts")?.len();
        Ok(())
    }

    fn pages(&mut self, method: &str, key: &str) -> Result<Vec<Value>, Error> {
        let mut items = Vec::new();
        let mut params = json!({});
        for _ in 0..PAGES {
            let answer = match self.request(method, params) {
                Ok(answer) => answer,
                Err(Error::Refused(..)) => break,
                Err(other) => return Err(other),
            };
            items.extend(answer[key].as_array().cloned().unwrap_or_default());
            match answer["nextCursor"].as_str() {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => break,
            }
        }
        Ok(items)
    }

    fn request(&mut self, method: &str, mut params: Value) -> Result<Value, Error> {
        if self.modern {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo":
                    { "name": "lariat", "version": env!("CARGO_PKG_VERSION") },
            });
        }
        self.next_id += 1;
        let id = self.next_id;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        loop {
            let line = self.line(method)?;
            // A line that is no JSON is a server talking to itself on stdout; hosts skip it too.
            let Ok(mut message) = serde_json::from_slice::<Value>(&line) else {
                continue;
            };
            let ours = message["id"] == json!(id) && message.get("method").is_none();
            if let Some(asked) = message.get("method").cloned() {
                self.answer(&asked, &message["id"])?;
            } else if ours && message.get("error").is_some() {
                let error = &message["error"];
                let code = error["code"].as_i64().unwrap_or(0);
                let text = error["message"].as_str().unwrap_or("no message").to_string();
                return Err(Error::Refused(method.into(), code, text));
            } else if ours {
                return Ok(message["result"].take());
            }
        }
    }

    /// We declared no capabilities, so a server may only ping us.
    fn answer(&mut self, method: &Value, id: &Value) -> Result<(), Error> {
        if id.is_null() {
            return Ok(());
        }
        let mut reply = json!({ "jsonrpc": "2.0", "id": id });
        if method == "ping" {
            reply["result"] = json!({});
        } else {
            reply["error"] = json!({ "code": -32601, "message": "not supported by a probe" });
        }
        self.send(&reply)
    }

    fn send(&mut self, message: &Value) -> Result<(), Error> {
        let mut text = message.to_string();
        text.push('\n');
        let mut rest = text.as_bytes();
        loop {
            match self.wire.write(&mut rest) {
                Moved::Done(()) => return Ok(()),
                Moved::NotYet => self.check("our message")?,
                Moved::Closed | Moved::TooLong => return Err(Error::Closed),
            }
        }
    }

    fn line(&mut self, method: &str) -> Result<Vec<u8>, Error> {
        loop {
            self.check(method)?;
            match self.wire.line() {
                Moved::Done(line) => return Ok(line),
                Moved::NotYet => {}
                Moved::Closed => return Err(Error::Closed),
                Moved::TooLong => return Err(Error::Garbled(method.to_string())),
            }
        }
    }

    /// Looks at the clock and, every few milliseconds, lets the caller look around: a server that
    /// never stops talking must not keep us from either.
    fn check(&mut self, method: &str) -> Result<(), Error> {
        let now = Instant::now();
        if now >= self.deadline {
            return Err(Error::Timeout(method.into()));
        }
        if now >= self.next_glance {
            self.next_glance = now + GLANCE;
            if !(self.glance)() {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }
}

fn named(info: &Value, protocol: String, era: &'static str) -> Offer {
    let text = |key: &str| info[key].as_str().map(str::to_string);
    Offer { name: text("name"), version: text("version"), protocol, era, ..Offer::default() }
}
