//! What is held at one moment, as the daemon answers and as `ps`, `top` and the page draw it. Plain data.

use crate::id::{ServerName, SessionId};
use serde::{Deserialize, Serialize};

/// Everything that is held, at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Who holds something.
    pub sessions: Vec<Session>,
}

/// Somebody's servers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Which session.
    pub id: String,
    /// What its owner called it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whose end is its end.
    pub owner: Owner,
    /// Its servers.
    pub servers: Vec<Server>,
}

/// Whose end ends a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its pid.
    pub pid: i32,
    /// The kernel's short name for it, never its arguments.
    pub command: String,
}

/// One server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Server {
    /// Its name in the session.
    pub name: String,
    /// `starting`, `ready`, `busy`, `restarting`, `failed`, `ending`, `ended`.
    pub state: String,
    /// What holds it; absent unless it is ready.
    pub backend: Option<String>,
    /// Its processes.
    pub processes: Vec<Process>,
    /// Its containers.
    pub containers: Vec<Container>,
    /// Seconds since it was started.
    pub age_s: f64,
    /// Seconds since it last said or heard something.
    pub idle_s: f64,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its pid.
    pub pid: i32,
    /// Its parent.
    pub ppid: i32,
    /// Its start time in clock ticks since boot.
    pub start: u64,
    /// The kernel's short name for it, never its arguments.
    pub command: String,
    /// Resident memory.
    pub rss_bytes: u64,
    /// CPU time that it has used, in milliseconds.
    #[serde(default)]
    pub cpu_ms: u64,
}

/// One container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The engine's id for it.
    pub id: String,
    /// What it was made from.
    pub image: String,
}

/// What a living session under `lariat run` says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// What it is doing.
    pub state: State,
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
    /// When it last said or heard something; absent while somebody waits for an answer, and where
    /// nobody looks at the messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet_since_ms: Option<u64>,
    /// What speaks for its being forgotten.
    #[serde(default)]
    pub evidence: Vec<Evidence>,
}

/// What a wrapped server is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It has not been heard yet.
    Starting,
    /// It can be used.
    Ready,
    /// Somebody waits for its answer.
    Busy,
    /// It can be used, and the same host has started the same server again since.
    Superseded,
    /// Its processes are gone, and its host does not know.
    Asleep,
    /// Its host has spoken: it is being started again.
    Waking,
    /// It is leaving.
    Ending,
    /// It has ended, and some of its processes or containers have not.
    Survivors,
}

impl State {
    /// As JSON has it.
    pub fn word(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Ready => "ready",
            State::Busy => "busy",
            State::Superseded => "superseded",
            State::Asleep => "asleep",
            State::Waking => "waking",
            State::Ending => "ending",
            State::Survivors => "survivors",
        }
    }
}

/// Why a session may be put to sleep. Each is a reason to look, none is a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// The same host has started the same server again since.
    Superseded,
    /// An ancestor of the host has died.
    HostOrphaned,
    /// The host has closed other ends than stdin and stdout.
    EndsClosed,
    /// The server keeps nothing between requests.
    Stateless,
    /// The user has asked for it.
    Asked,
}

impl Evidence {
    /// As JSON has it.
    pub fn word(self) -> &'static str {
        match self {
            Evidence::Superseded => "superseded",
            Evidence::HostOrphaned => "host-orphaned",
            Evidence::EndsClosed => "ends-closed",
            Evidence::Stateless => "stateless",
            Evidence::Asked => "asked",
        }
    }
}

/// Who uses a server that the pool holds, and why not more of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharing {
    /// Whether others may join.
    pub verdict: Verdict,
    /// Why not, if not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How many use it now.
    pub sessions: usize,
}

/// Whether a server may have several users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It may.
    Shared,
    /// It is one's alone.
    Private,
}

impl Sharing {
    /// In words: `shared by 3`, `private: client declares roots`.
    pub fn words(&self) -> String {
        match (self.verdict, &self.why) {
            (Verdict::Shared, _) => format!("shared by {}", self.sessions),
            (Verdict::Private, Some(why)) => format!("private: {why}"),
            (Verdict::Private, None) => "private".into(),
        }
    }
}

/// One living session of the books: a server and whoever wanted it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Living {
    /// Which session.
    pub session: SessionId,
    /// The session of several servers that it is part of.
    pub within: Option<SessionId>,
    /// Which server.
    pub server: ServerName,
    /// Who wanted it.
    pub host: Option<Host>,
    /// The pid of the process that holds it.
    pub wrapper: i32,
    /// What it is doing.
    pub state: State,
    /// Seconds since it last said or heard something, where that is known.
    pub idle_s: Option<f64>,
    /// What speaks for its being forgotten.
    pub evidence: Vec<Evidence>,
    /// Who uses it, if that can be more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Sharing>,
    /// What holds it.
    pub backend: String,
    /// When the session began.
    pub started: String,
    /// Seconds since then.
    pub age_s: f64,
    /// How many processes the server has; those that hold it are not among them.
    pub processes: usize,
    /// Their resident memory together.
    pub rss_bytes: u64,
    /// The same with each page divided by the number of those who share it; absent where nobody
    /// asked, or where the kernel does not tell us.
    #[serde(default)]
    pub pss_bytes: Option<u64>,
    /// CPU time that they have used, in milliseconds.
    #[serde(default)]
    pub cpu_ms: u64,
    /// What they use of one CPU, in percent; absent for a first look, which cannot tell.
    #[serde(default)]
    pub cpu_percent: Option<f64>,
    /// The processes, parents before their children.
    #[serde(default)]
    pub tree: Vec<Process>,
    /// Its containers, where somebody asked.
    #[serde(default)]
    pub containers: Vec<Container>,
}

/// The process that started a wrapper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its pid.
    pub pid: i32,
    /// The kernel's short name for it, never its arguments; absent if it has gone.
    pub name: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_same_everywhere() {
        use Evidence::{Asked, EndsClosed, HostOrphaned, Stateless, Superseded};
        use State::{Asleep, Busy, Ending, Ready, Starting, Survivors, Waking};
        for state in [Starting, Ready, Busy, State::Superseded, Asleep, Waking, Ending, Survivors] {
            assert_eq!(serde_json::to_value(state).unwrap(), state.word());
        }
        for evidence in [Superseded, HostOrphaned, EndsClosed, Stateless, Asked] {
            assert_eq!(serde_json::to_value(evidence).unwrap(), evidence.word());
        }
    }
}
