//! What the model's host says, line by line, and what its server answers.

use serde_json::{Value, json};

/// Something that the host says. Its place in the script is its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    Initialize,
    Initialized,
    Ping,
    Tools,
    Call,
    /// A call whose answer is a task that lives this many milliseconds.
    Task(u64),
    /// Asks for the task that this line began.
    TaskState(usize),
    Note,
    Subscribe(&'static str),
    Unsubscribe(&'static str),
    Level(&'static str),
    /// Takes back what this line asked.
    Cancel(usize),
    /// Says of itself what a handshake would say.
    ModernCall,
    Listen,
}

impl Says {
    fn method(self) -> &'static str {
        match self {
            Says::Initialize => "initialize",
            Says::Initialized => "notifications/initialized",
            Says::Ping => "ping",
            Says::Tools => "tools/list",
            Says::Call | Says::ModernCall | Says::Task(_) => "tools/call",
            Says::TaskState(_) => "tasks/get",
            Says::Note => "notifications/note",
            Says::Subscribe(_) => "resources/subscribe",
            Says::Unsubscribe(_) => "resources/unsubscribe",
            Says::Level(_) => "logging/setLevel",
            Says::Cancel(_) => "notifications/cancelled",
            Says::Listen => "subscriptions/listen",
        }
    }

    fn params(self) -> Value {
        let version = "io.modelcontextprotocol/protocolVersion";
        match self {
            Says::Initialize => json!({ "protocolVersion": "2025-11-25", "capabilities": {} }),
            Says::Task(ttl) => json!({ "task": { "ttl": ttl } }),
            Says::TaskState(at) => json!({ "taskId": format!("t{at}") }),
            Says::Subscribe(uri) | Says::Unsubscribe(uri) => json!({ "uri": uri }),
            Says::Level(level) => json!({ "level": level }),
            Says::Cancel(at) => json!({ "requestId": at }),
            Says::ModernCall | Says::Listen => json!({ "_meta": { version: "2026-07-28" } }),
            Says::Initialized | Says::Ping | Says::Tools | Says::Call | Says::Note => json!({}),
        }
    }

    /// True if it wants an answer.
    pub(super) fn asks(self) -> bool {
        !matches!(self, Says::Initialized | Says::Note | Says::Cancel(_))
    }

    /// True if it wants one soon.
    pub(super) fn waits(self) -> bool {
        self.asks() && self != Says::Listen
    }

    /// The line, as the one at this place.
    pub(super) fn line(self, at: usize) -> String {
        let mut message = json!({ "method": self.method(), "params": self.params() });
        match self {
            _ if self.asks() => message["id"] = at.into(),
            // No two lines are equal.
            _ => message["nth"] = at.into(),
        }
        format!("{message}\n")
    }

    /// True if this request of ours asks the same under another name.
    pub(super) fn is_repeated_by(self, ours: &Value) -> bool {
        ours["method"] == self.method() && ours["params"] == self.params()
    }
}

/// What kind of server it is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Manners {
    /// It answers also what was taken back.
    pub(super) ignores_cancel: bool,
    /// It refuses the handshake the second time.
    pub(super) refuses_return: bool,
    /// Its tools are others in every life.
    pub(super) changes: bool,
    /// It has said that it would tell so.
    pub(super) declares: bool,
}

/// What a server in its n-th life has to say to this line, in order.
pub(super) fn replies(line: &Value, manners: Manners, life: u32) -> Vec<String> {
    let (id, params) = (&line["id"], &line["params"]);
    let say = |message: Value| vec![format!("{message}\n")];
    let answer = |result: Value| say(json!({ "id": id, "result": result }));
    let Some(method) = line["method"].as_str().filter(|_| !id.is_null()) else {
        return Vec::new();
    };
    match method {
        "initialize" if manners.refuses_return && life == 2 => {
            say(json!({ "id": id, "error": { "code": 1, "message": "not again" } }))
        }
        "initialize" => answer(json!({
            "protocolVersion": "2025-11-25",
            "capabilities": { "tools": { "listChanged": manners.declares } },
        })),
        "tools/list" => answer(json!({ "tools": if manners.changes { life } else { 0 } })),
        "tools/call" if params["task"].is_object() => {
            let (id, ttl) = (format!("t{id}"), &params["task"]["ttl"]);
            answer(json!({ "task": { "taskId": id, "status": "working", "ttl": ttl } }))
        }
        "tasks/get" => answer(json!({ "taskId": params["taskId"], "status": "completed" })),
        "subscriptions/listen" => {
            let meta = json!({ "io.modelcontextprotocol/subscriptionId": id });
            let method = "notifications/subscriptions/acknowledged";
            say(json!({ "method": method, "params": { "_meta": meta } }))
        }
        _ => answer(json!({})),
    }
}
