//! The receipt: what was there, why it ended, how each process left, and who is left.

use crate::id::{ServerName, SessionId};
use crate::moment;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::SystemTime;

/// Why a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The server left by itself.
    Exited,
    /// The host closed the server's standard input.
    StdinClosed,
    /// Somebody signalled the wrapper.
    Signal(i32),
    /// The host process is gone.
    HostDied,
    /// The wrapper is gone; its guardian or the next sweep did the work.
    WrapperDied,
    /// The owner asked for it.
    Closed,
    /// The owner let go of it, or is gone.
    OwnerGone,
    /// Nobody had used the server for long; the session goes on without it.
    Idle,
    /// It went beyond what it was allowed; the word says which: `memory`, `pids`, `cpu-idle`.
    Limit(String),
    /// It did not finish its handshake in time.
    InitTimeout,
    /// Something of ours failed; the word says what.
    Failed(String),
}

impl Reason {
    /// Why nothing was started, by what `lariat run` ends with then.
    pub(crate) fn not_started(exit_code: u8) -> Reason {
        let what = match exit_code {
            127 => "not-found",
            126 => "not-executable",
            _ => "start",
        };
        Reason::Failed(what.into())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Exited => f.write_str("exited"),
            Reason::StdinClosed => f.write_str("stdin-closed"),
            Reason::Signal(n) => write!(f, "signal:{}", contain::signal_name(*n)),
            Reason::HostDied => f.write_str("host-died"),
            Reason::WrapperDied => f.write_str("wrapper-died"),
            Reason::Closed => f.write_str("closed"),
            Reason::OwnerGone => f.write_str("owner-gone"),
            Reason::Idle => f.write_str("idle"),
            Reason::Limit(which) => write!(f, "limit:{which}"),
            Reason::InitTimeout => f.write_str("init-timeout"),
            Reason::Failed(what) => write!(f, "failed:{what}"),
        }
    }
}

/// How the processes of a session left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processes {
    /// Distinct processes that were observed.
    pub seen: u32,
    /// Left by themselves.
    pub left: u32,
    /// Left after a signal asked them to.
    pub asked: u32,
    /// Were killed.
    pub killed: u32,
}

/// How the containers of a session left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Containers {
    /// Distinct containers that were there when the session's processes were gone.
    pub seen: u32,
    /// Those of them that were removed.
    pub removed: u32,
}

/// Something that is still alive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survivor {
    /// `process`, `cgroup` for one that could not be removed, `container`, `network` or `volume`; in
    /// answers of the daemon also `server` for one of which nobody can say what became.
    pub kind: String,
    /// Its pid; 0 for what is no process.
    pub pid: i32,
    /// Its start time in clock ticks since boot.
    pub start: u64,
    /// The engine's name for what is no process; empty if the engine could not be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The kernel's short name for it, never its arguments; a container's own name.
    pub command: String,
    /// Why it is still there.
    pub why: String,
}

impl fmt::Display for Survivor {
    /// What it is, for a person.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Survivor { kind, pid, command, .. } = self;
        match self.id.as_deref() {
            None => write!(f, "{kind} {pid} ({command})"),
            Some("") => write!(f, "perhaps a {kind}"),
            Some(id) => write!(f, "{kind} {command} ({:.12})", id),
        }
    }
}

/// One JSON object per ended session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// Which run of a server: its own name in the books, not that of a session of several.
    pub session: SessionId,
    /// The session of several servers that this one was part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<SessionId>,
    /// Which server.
    pub server: ServerName,
    /// Why it ended.
    pub reason: String,
    /// What held it.
    pub backend: String,
    /// What that may have missed, in words; only where it cannot hold a tree whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<String>,
    /// When the session began.
    pub started: String,
    /// When it was over.
    pub ended: String,
    /// The time between.
    pub duration_ms: u64,
    /// How much of it was the end: from when somebody asked for it, or the server left, until nothing
    /// was there any more.
    #[serde(default)]
    pub teardown_ms: u64,
    /// True if whoever held it had died, and somebody else came across it later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub swept: bool,
    /// How its processes left.
    pub processes: Processes,
    /// How its containers left.
    #[serde(default)]
    pub containers: Containers,
    /// Who is still there.
    pub survivors: Vec<Survivor>,
}

impl Receipt {
    /// This one, if an earlier one named survivors that were looked for again: why the session ended
    /// and how its processes left was said then.
    pub fn after(mut self, earlier: Receipt) -> Receipt {
        let (then, now) = (earlier.processes, self.processes);
        self.processes = Processes {
            seen: then.seen.max(now.seen),
            left: then.left + now.left,
            asked: then.asked + now.asked,
            killed: then.killed + now.killed,
        };
        // Whoever sweeps again knows what was seen before.
        let Containers { seen, removed } = earlier.containers;
        self.containers.seen = self.containers.seen.max(seen);
        self.containers.removed = self.containers.removed.max(removed);
        Receipt { reason: earlier.reason, backend: earlier.backend, ..self }
    }

    /// Writes a receipt for a report.
    pub fn new(
        session: SessionId,
        server: ServerName,
        reason: &Reason,
        (started, ended): (SystemTime, SystemTime),
        report: &contain::Report,
    ) -> Receipt {
        let survivor = |s: &contain::Survivor| Survivor {
            kind: s.kind.name().into(),
            pid: s.member.pid,
            start: s.member.start,
            id: None,
            command: s.name.clone(),
            why: s.why.clone(),
        };
        Receipt {
            session,
            within: None,
            server,
            reason: reason.to_string(),
            backend: report.backend.name().into(),
            guarantee: report.backend.shortfall().map(Into::into),
            started: moment::rfc3339(started),
            ended: moment::rfc3339(ended),
            duration_ms: ended.duration_since(started).unwrap_or_default().as_millis() as u64,
            teardown_ms: report.took.as_millis() as u64,
            swept: false,
            processes: Processes {
                seen: report.seen,
                left: report.left,
                asked: report.asked,
                killed: report.killed,
            },
            containers: Containers::default(),
            survivors: report.survivors.iter().map(survivor).collect(),
        }
    }
}
