//! A server of our own, for what real ones do not offer. It speaks both eras, writes down every line
//! it hears, and counts its lives, so that what a wake told it can be compared with what the host
//! said.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};
use trials::until;

/// No server of ours outlives this, whatever happens to the test.
const LIFETIME: Duration = Duration::from_secs(90);
/// How long a slow one takes to answer the handshake of a later life.
pub(crate) const SLOW: Duration = Duration::from_millis(1500);
/// What a hungry one eats at most.
const FULL: usize = 1 << 30;
/// How many children a fertile one has at most.
const BROOD: usize = 200;

const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// Plays the server if asked: `EXE __serve MANNER NOTES`.
pub(crate) fn serve_if_asked() -> bool {
    let mut args = std::env::args_os().skip(1);
    if args.next().as_deref() != Some(OsStr::new("__serve")) {
        return false;
    }
    let manner = args.next().and_then(|word| word.into_string().ok()).expect("a manner");
    let notes = PathBuf::from(args.next().expect("a directory"));
    let life = be_born(&notes);
    // One that cannot start the second time; the third works again.
    if manner == "fails-once" && life == 2 {
        return true;
    }
    let server = Server { manner, notes, life, state: Arc::default() };
    server.serve();
    true
}

/// Notes the birth and says which life this is.
fn be_born(notes: &Path) -> usize {
    note(notes, "notes", "born");
    let text = std::fs::read_to_string(notes.join("notes")).unwrap_or_default();
    text.lines().filter(|line| *line == "born").count()
}

fn note(notes: &Path, file: &str, line: &str) {
    let file = OpenOptions::new().append(true).create(true).open(notes.join(file));
    // A test that is over has removed the directory.
    file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes())).ok();
}

/// What it remembers, all of which is lost with its life.
#[derive(Default)]
struct State {
    level: usize,
    subscribed: Vec<String>,
    tasks: BTreeMap<String, Instant>,
    listens: Vec<Value>,
    /// Answers that are owed for questions to the host.
    owed: BTreeMap<String, Value>,
}

#[derive(Clone)]
struct Server {
    manner: String,
    notes: PathBuf,
    life: usize,
    state: Arc<Mutex<State>>,
}

impl Server {
    fn serve(&self) {
        let born = Instant::now();
        // One that is left alone must not stay: the test may have been killed.
        thread::spawn(move || {
            until(LIFETIME, || born.elapsed() > LIFETIME);
            lariat::contain::leave(3);
        });
        let heard = format!("heard-{}", self.life);
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            note(&self.notes, &heard, &line);
            match serde_json::from_str(&line) {
                Ok(Value::Array(batch)) => batch.iter().for_each(|message| self.take(message)),
                Ok(message) => self.take(&message),
                Err(_) => say(&json!({
                    "jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "no JSON"},
                })),
            }
        }
        note(&self.notes, "notes", "eof");
        if self.manner == "deaf" {
            until(LIFETIME, || false);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics")
    }

    fn take(&self, message: &Value) {
        let (id, params) = (&message["id"], &message["params"]);
        match message["method"].as_str() {
            None => {
                let owed = self.state().owed.remove(&id.to_string());
                if let Some(call) = owed {
                    text(&call, &message["result"]["content"]["text"].to_string());
                }
            }
            Some("notifications/cancelled") => {
                self.state().listens.retain(|listen| *listen != params["requestId"]);
            }
            Some(_) if id.is_null() => {}
            Some("initialize") => self.greet(id, params),
            Some("server/discover") => answer(id, &self.modern(json!({
                "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": true}},
                "serverInfo": {"name": "scripted", "version": "1"},
            }))),
            Some("ping") => answer(id, &json!({})),
            Some("tools/list") => answer(id, &self.modern(json!({"tools": self.tools()}))),
            Some("prompts/list") => answer(id, &json!({"prompts": []})),
            Some("resources/list") => answer(id, &json!({"resources": []})),
            Some("logging/setLevel") => {
                let level = LEVELS.iter().position(|level| params["level"] == **level);
                self.state().level = level.unwrap_or(0);
                answer(id, &json!({}));
            }
            Some("resources/subscribe") => {
                self.state().subscribed.push(params["uri"].to_string());
                answer(id, &json!({}));
            }
            Some("resources/unsubscribe") => {
                let uri = params["uri"].to_string();
                self.state().subscribed.retain(|other| *other != uri);
                answer(id, &json!({}));
            }
            Some("subscriptions/listen") => {
                self.state().listens.push(id.clone());
                let meta = json!({"io.modelcontextprotocol/subscriptionId": id});
                tell("notifications/subscriptions/acknowledged", &json!({"_meta": meta}));
            }
            Some("tasks/get") => match self.task(&params["taskId"]) {
                Some(task) => answer(id, &task),
                None => refuse(id, -32602, "no such task"),
            },
            Some("tasks/result") => answer(id, &json!({"content": [{"type": "text", "text": "task done"}]})),
            Some("tools/call") => self.call(message),
            Some(_) => refuse(id, -32601, "no such method"),
        }
    }

    /// The modern era wants to know what kind of result it is; the older one does not mind.
    fn modern(&self, mut result: Value) -> Value {
        result["resultType"] = json!("complete");
        result
    }

    fn greet(&self, id: &Value, params: &Value) {
        let once = self.manner == "greets-once" && self.life > 1;
        if self.manner == "never-greets" || once {
            return;
        }
        if self.manner == "slow" && self.life > 1 {
            until(SLOW, || false);
        }
        let version = if self.manner == "changes" { self.life.to_string() } else { "1".into() };
        answer(
            id,
            &json!({
                "protocolVersion": params["protocolVersion"],
                "capabilities": {
                    "tools": {"listChanged": true}, "prompts": {}, "logging": {},
                    "resources": {"subscribe": true},
                    "tasks": {"requests": {"tools": {"call": {}}}},
                },
                "serverInfo": {"name": "scripted", "version": version},
            }),
        );
    }

    fn tools(&self) -> Vec<Value> {
        let tool = |name| json!({"name": name, "inputSchema": {"type": "object"}});
        let mut tools: Vec<Value> = ["echo", "wait", "log"].into_iter().map(tool).collect();
        if self.manner == "changes" && self.life > 1 {
            tools.push(tool("new"));
        }
        tools
    }

    fn task(&self, id: &Value) -> Option<Value> {
        let over = *self.state().tasks.get(id.as_str()?)?;
        let status = if Instant::now() >= over { "completed" } else { "working" };
        Some(json!({
            "taskId": id, "status": status, "ttl": 60000, "pollInterval": 50,
            "createdAt": "2026-11-16T00:00:00Z", "lastUpdatedAt": "2026-11-16T00:00:00Z",
        }))
    }

    fn call(&self, message: &Value) {
        let (id, params) = (message["id"].clone(), &message["params"]);
        let arguments = params["arguments"].clone();
        let time = Duration::from_millis(arguments["ms"].as_u64().unwrap_or(0));
        if !params["task"].is_null() {
            let task = format!("task-{}-{id}", self.life);
            self.state().tasks.insert(task.clone(), Instant::now() + time);
            return answer(&id, &json!({"task": self.task(&json!(task))}));
        }
        match params["name"].as_str().unwrap_or_default() {
            "echo" => text(&id, arguments["text"].as_str().unwrap_or_default()),
            "life" => text(&id, &self.life.to_string()),
            "wait" => {
                // Others are answered meanwhile.
                let token = params["_meta"]["progressToken"].clone();
                thread::spawn(move || {
                    if !token.is_null() {
                        until(time / 2, || false);
                        tell(
                            "notifications/progress",
                            &json!({"progressToken": token, "progress": 1}),
                        );
                    }
                    until(time, || false);
                    text(&id, "waited");
                });
            }
            "hang" => {}
            // It does not even hear what is said after that.
            "deafen" => _ = until(LIFETIME, || false),
            "log" => {
                for level in &LEVELS[self.state().level..] {
                    tell("notifications/message", &json!({"level": level, "data": "logged"}));
                }
                text(&id, "logged");
            }
            "touch" => {
                let uri = arguments["uri"].clone();
                if self.state().subscribed.contains(&uri.to_string()) {
                    tell("notifications/resources/updated", &json!({"uri": uri}));
                }
                for listen in &self.state().listens {
                    let meta = json!({"io.modelcontextprotocol/subscriptionId": listen});
                    tell("notifications/resources/updated", &json!({"uri": uri, "_meta": meta}));
                }
                text(&id, "touched");
            }
            "ask" => {
                let question = format!("question-{}-{id}", self.life);
                self.state().owed.insert(json!(question).to_string(), id);
                say(&json!({
                    "jsonrpc": "2.0", "id": question, "method": "sampling/createMessage",
                    "params": {"messages": [], "maxTokens": 1},
                }));
            }
            "spin" => {
                text(&id, "spinning");
                thread::spawn(|| {
                    let began = Instant::now();
                    while began.elapsed() < LIFETIME {
                        std::hint::black_box(began);
                    }
                });
            }
            "trickle" => {
                text(&id, "trickling");
                thread::spawn(|| {
                    let began = Instant::now();
                    until(LIFETIME, || {
                        let turn = Instant::now();
                        while turn.elapsed() < Duration::from_micros(500) {
                            std::hint::black_box(turn);
                        }
                        began.elapsed() > LIFETIME
                    });
                });
            }
            "eat" => {
                thread::spawn(move || {
                    let mut eaten: Vec<Vec<u8>> = Vec::new();
                    while eaten.len() << 20 < FULL {
                        // Written to, so that there is memory behind it.
                        eaten.push(vec![1; 1 << 20]);
                        until(Duration::from_millis(2), || false);
                    }
                    text(&id, "full");
                });
            }
            "breed" => {
                thread::spawn(move || {
                    let mut brood = Vec::new();
                    for _ in 0..BROOD {
                        let mut child = Command::new("sleep");
                        child.arg(LIFETIME.as_secs().to_string());
                        brood.extend(child.stdin(Stdio::null()).stdout(Stdio::null()).spawn());
                    }
                    until(LIFETIME, || false);
                    text(&id, &brood.len().to_string());
                });
            }
            _ => refuse(&id, -32602, "no such tool"),
        }
    }
}

fn text(id: &Value, text: &str) {
    let content = json!([{"type": "text", "text": text}]);
    answer(id, &json!({"content": content, "resultType": "complete"}));
}

fn answer(id: &Value, result: &Value) {
    say(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
}

fn refuse(id: &Value, code: i32, message: &str) {
    say(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}));
}

fn tell(method: &str, params: &Value) {
    say(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
}

/// One write per line: several threads speak.
fn say(message: &Value) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{message}\n").as_bytes()).and_then(|()| out.flush()).ok();
}
