//! The checker: a server that knows nothing of Lariat and sees whether its clients are kept apart.
//!
//! `EXE __check TOKEN WORDS…` speaks newline-delimited JSON-RPC in the era of the first request, and
//! answers each call with who called and the number of the call, at once or late and out of order.
//! What a sender must not do (an id or a token that is in use, the other era, a second greeting) it
//! counts; `about` tells.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::time::{Duration, Instant};
use trials::until;

/// By which a test binary knows that it is to be the server.
pub(crate) const FLAG: &str = "__check";

/// No server of ours outlives this, whatever happens to the test.
const LIFETIME: Duration = Duration::from_secs(300);

/// What is written at once.
const MOUTHFUL: usize = 1 << 18;

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const LEGACY: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// Is the server if asked, until its input ends.
pub(crate) fn check_if_asked() -> bool {
    let mut args = std::env::args_os().skip(1);
    if args.next().as_deref() != Some(OsStr::new(FLAG)) {
        return false;
    }
    let words = args.map(|word| word.to_string_lossy().into_owned()).collect();
    Checker { words, born: Some(Instant::now()), ..Checker::default() }.serve();
    true
}

/// A message, as far as it matters here.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Params<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    arguments: Arguments<'a>,
    #[serde(borrow, rename = "_meta")]
    meta: Meta<'a>,
    #[serde(borrow, rename = "requestId")]
    request: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Meta<'a> {
    #[serde(borrow, rename = "progressToken")]
    token: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<Cow<'a, str>>,
}

/// What the tools take, each as much of it as it needs.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Arguments<'a> {
    /// Who calls: given back as it is.
    #[serde(borrow)]
    who: Option<&'a RawValue>,
    /// Which call of theirs.
    nonce: u64,
    /// How many milliseconds later to answer.
    late: u64,
    /// How many steps to report before.
    progress: u64,
    /// How many bytes to add to the answer.
    pad: usize,
    /// What to ask or tell the client.
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    /// The variable to look up.
    #[serde(borrow)]
    variable: Option<Cow<'a, str>>,
    /// The code to leave with.
    code: u8,
}

/// A call that is not answered yet.
struct Held {
    answer: Option<String>,
    token: Option<String>,
}

/// What it has seen, for `about`.
#[derive(Default)]
struct Seen {
    requests: u64,
    /// Calls that were cancelled before they were answered.
    cancelled: u64,
    /// Cancellations of what is not here (any more).
    late_cancels: u64,
    greetings: u64,
    /// What a sender must not do.
    sins: Vec<String>,
}

#[derive(Default)]
struct Checker {
    words: Vec<String>,
    born: Option<Instant>,
    is_modern: Option<bool>,
    greeting: Value,
    held: BTreeMap<String, Held>,
    due: BinaryHeap<Reverse<(Instant, String)>>,
    used: HashSet<Box<str>>,
    seen: Seen,
    /// Calls that wait for what the client says to a question, by the question's id.
    asked: BTreeMap<String, String>,
    /// What was said to us that we had not asked for.
    unasked: u64,
    out: Vec<u8>,
    is_over: bool,
}

impl Checker {
    fn serve(&mut self) {
        let deadline = self.born.unwrap_or_else(Instant::now) + LIFETIME;
        let mut input = std::io::stdin();
        let (mut pending, mut scanned) = (Vec::new(), 0);
        let mut piece = vec![0; 1 << 16];
        while !self.is_over && Instant::now() < deadline {
            self.answer_due();
            if self.flush().is_err() {
                return;
            }
            let next = self.due.peek().map_or(deadline, |Reverse((at, _))| *at).min(deadline);
            let left = next.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap_or_default();
            let mut fds = [PollFd::new(&input, PollFlags::IN)];
            if poll(&mut fds, Some(&left)).unwrap_or(0) == 0 {
                continue;
            }
            match input.read(&mut piece) {
                Ok(0) | Err(_) => return self.finish(),
                Ok(got) => pending.extend_from_slice(&piece[..got]),
            }
            let mut start = 0;
            while let Some(at) = pending[scanned..].iter().position(|byte| *byte == b'\n') {
                let end = scanned + at;
                self.hear(&pending[start..end]);
                (start, scanned) = (end + 1, end + 1);
                if self.out.len() > MOUTHFUL && self.flush().is_err() {
                    return;
                }
            }
            pending.drain(..start);
            scanned = pending.len();
        }
        self.flush().ok();
    }

    /// Answers what is owed and will be answered some day, and no more.
    fn finish(&mut self) {
        until(LIFETIME, || {
            self.answer_due();
            self.due.is_empty()
        });
        // Whoever does not listen any more misses nothing.
        self.flush().ok();
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let mut output = std::io::stdout().lock();
        output.write_all(&self.out)?;
        output.flush()?;
        self.out.clear();
        self.out.shrink_to(MOUTHFUL);
        Ok(())
    }

    fn say(&mut self, line: &str) {
        self.out.extend_from_slice(line.as_bytes());
        self.out.push(b'\n');
    }

    fn sin(&mut self, what: String) {
        if self.seen.sins.len() < 20 {
            self.seen.sins.push(what);
        }
    }

    fn hear(&mut self, line: &[u8]) {
        let message: Message<'_> = match serde_json::from_slice(line) {
            Ok(message) => message,
            Err(error) => return self.sin(format!("no message: {error}")),
        };
        let params = message.params.map_or("{}", RawValue::get);
        let id = message.id.map(RawValue::get);
        match (message.method.as_deref(), id) {
            (None, Some(id)) => self.hear_answer(id, &message),
            (None, None) => self.sin("neither a method nor an id".into()),
            (Some("notifications/cancelled"), None) => self.cancel(params),
            (Some(_), None) => {}
            (Some(method), Some(id)) => self.request(id, method, params),
        }
    }

    fn request(&mut self, id: &str, method: &str, params: &str) {
        self.seen.requests += 1;
        if !self.used.insert(id.into()) {
            self.sin(format!("id {id} used twice"));
        }
        let parsed: Params<'_> = serde_json::from_str(params).unwrap_or_default();
        let is_modern = parsed.meta.version.is_some() || method == "server/discover";
        if *self.is_modern.get_or_insert(is_modern) != is_modern {
            self.sin(format!("{method} of the other era"));
            return self.refuse(id, -32600, "the other era");
        }
        match method {
            "initialize" => self.greet(id, params),
            "server/discover" => self.answer(
                id,
                &json!({
                    "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                    "serverInfo": {"name": "checker", "version": "1"},
                }),
            ),
            "tools/list" => {
                let tools = ["whoami", "hold", "about", "ask", "tell", "leave"];
                let tools =
                    tools.map(|name| json!({"name": name, "inputSchema": {"type": "object"}}));
                self.answer(id, &json!({ "tools": tools }));
            }
            "ping" | "logging/setLevel" => self.answer(id, &json!({})),
            "tools/call" => self.call(id, &parsed),
            _ => self.refuse(id, -32601, "no such method"),
        }
    }

    fn greet(&mut self, id: &str, params: &str) {
        self.seen.greetings += 1;
        if self.seen.greetings > 1 {
            self.sin("greeted twice".into());
        }
        self.greeting = serde_json::from_str(params).unwrap_or_default();
        let asked = self.greeting["protocolVersion"].as_str().unwrap_or_default();
        let version = LEGACY.into_iter().find(|version| *version == asked).unwrap_or(LEGACY[3]);
        self.answer(
            id,
            &json!({
                "protocolVersion": version, "capabilities": {"tools": {}, "logging": {}},
                "serverInfo": {"name": "checker", "version": "1"},
            }),
        );
    }

    fn call(&mut self, id: &str, params: &Params<'_>) {
        let (arguments, token) = (&params.arguments, params.meta.token.map(RawValue::get));
        match params.name.as_deref().unwrap_or_default() {
            "whoami" => self.whoami(id, arguments, token),
            "hold" => self.hold(id, Held { answer: None, token: token.map(str::to_owned) }),
            "about" => self.about(id, arguments.variable.as_deref()),
            "ask" => {
                let question = format!("\"question-{}\"", self.seen.requests);
                let method = arguments.method.as_deref().unwrap_or("roots/list");
                let params = arguments.params.map_or("{}", RawValue::get);
                self.say(&format!(
                    r#"{{"jsonrpc":"2.0","id":{question},"method":"{method}","params":{params}}}"#
                ));
                self.asked.insert(question, id.to_owned());
            }
            "tell" => {
                let method = arguments.method.as_deref().unwrap_or("notifications/message");
                let params = arguments.params.map_or("{}", RawValue::get);
                self.say(&format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#));
                self.answer(id, &json!({"content": []}));
            }
            "leave" => {
                self.is_over = true;
                self.flush().ok();
                leave(arguments.code);
            }
            _ => self.refuse(id, -32602, "no such tool"),
        }
    }

    /// Who called, as which call of theirs, and who answers.
    fn whoami(&mut self, id: &str, arguments: &Arguments<'_>, token: Option<&str>) {
        let who = arguments.who.map_or("null", RawValue::get);
        let (nonce, pid) = (arguments.nonce, std::process::id());
        for step in 1..=arguments.progress {
            let Some(token) = token else { break };
            let message = format!(r#""who":{who},"nonce":{nonce}"#);
            self.say(&format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{step},{message}}}}}"#
            ));
        }
        let pad = "x".repeat(arguments.pad);
        let complete = self.complete();
        let answer = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{{complete}"content":[],"structuredContent":{{"who":{who},"nonce":{nonce},"pid":{pid},"pad":"{pad}"}}}}}}"#
        );
        if arguments.late == 0 {
            return self.say(&answer);
        }
        let due = Instant::now() + Duration::from_millis(arguments.late);
        self.due.push(Reverse((due, id.to_owned())));
        self.hold(id, Held { answer: Some(answer), token: token.map(str::to_owned) });
    }

    fn hold(&mut self, id: &str, call: Held) {
        if let Some(token) = &call.token
            && self.held.values().any(|other| other.token.as_ref() == Some(token))
        {
            self.sin(format!("token {token} is in use"));
        }
        if self.held.insert(id.to_owned(), call).is_some() {
            self.sin(format!("id {id} is in use"));
        }
    }

    fn answer_due(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, _))) = self.due.peek()
            && *at <= now
        {
            let Some(Reverse((_, id))) = self.due.pop() else { break };
            if let Some(answer) = self.held.remove(&id).and_then(|call| call.answer) {
                self.say(&answer);
            }
        }
    }

    fn cancel(&mut self, params: &str) {
        let parsed: Params<'_> = serde_json::from_str(params).unwrap_or_default();
        let id = parsed.request.map_or("", RawValue::get);
        match self.held.remove(id) {
            Some(_) => self.seen.cancelled += 1,
            None => self.seen.late_cancels += 1,
        }
    }

    /// What the client said to a question is the answer to the call that made us ask.
    fn hear_answer(&mut self, id: &str, message: &Message<'_>) {
        let Some(call) = self.asked.remove(id) else {
            self.unasked += 1;
            return;
        };
        let said = message.result.or(message.error).map_or("null", RawValue::get);
        let said: Value = serde_json::from_str(said).unwrap_or_default();
        let refused = message.error.is_some();
        let told = json!({"said": said, "refused": refused, "pid": std::process::id()});
        self.answer(&call, &json!({"content": [], "structuredContent": told}));
    }

    /// What it is and what it has seen.
    fn about(&mut self, id: &str, variable: Option<&str>) {
        #[expect(clippy::disallowed_methods, reason = "whoever asks wants to know just this")]
        let variable = variable.and_then(|name| std::env::var(name).ok());
        let cwd = std::env::current_dir().unwrap_or_default();
        let told = json!({
            "pid": std::process::id(), "words": self.words, "cwd": cwd, "variable": variable,
            "greeting": self.greeting, "greetings": self.seen.greetings, "held": self.held.len(),
            "requests": self.seen.requests, "cancelled": self.seen.cancelled,
            "late_cancels": self.seen.late_cancels, "unasked": self.unasked,
            "sins": self.seen.sins,
        });
        self.answer(id, &json!({"content": [], "structuredContent": told}));
    }

    fn complete(&self) -> &'static str {
        if self.is_modern == Some(true) { r#""resultType":"complete","# } else { "" }
    }

    fn answer(&mut self, id: &str, result: &Value) {
        let mut result = result.clone();
        if self.is_modern == Some(true) {
            result["resultType"] = json!("complete");
        }
        self.say(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
    }

    fn refuse(&mut self, id: &str, code: i32, message: &str) {
        let error = json!({"code": code, "message": message});
        self.say(&format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#));
    }
}

#[expect(clippy::disallowed_methods, clippy::exit, reason = "a server that leaves by itself")]
fn leave(code: u8) -> ! {
    std::process::exit(code.into())
}

/// What a modern client adds to every request.
pub(crate) fn modern_meta() -> Value {
    json!({VERSION: "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},
           "io.modelcontextprotocol/clientInfo": {"name": "trial", "version": "1"}})
}
