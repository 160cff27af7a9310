//! The one picture of the world that `ps`, JSON and a page all render. Plain data.

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
}

/// One container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The engine's id for it.
    pub id: String,
    /// What it was made from.
    pub image: String,
}
