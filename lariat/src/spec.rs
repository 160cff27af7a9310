//! What a server is to be: what to run, where, and for how long to be patient. Plain data.
//!
//! The same words in a Rust host, in the daemon's API and in a file. A field that nobody knows is an
//! error: a misspelt limit must not be a limit that is not there.

mod sharing;

pub use sharing::{Idle, Share};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

/// Servers by name.
pub type Servers = BTreeMap<String, ServerSpec>;

/// A server of a session.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSpec {
    /// The program, looked up in `PATH` unless it contains a slash. May be absent if there is an
    /// image that knows its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables it gets beside those that it inherits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Its working directory; in an image, a directory there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// The image in which it runs, as a container of this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The tools that may be seen and called: names, `prefix*`, or `*` for all.
    #[serde(default = "all_tools")]
    pub tools: Vec<String>,
    /// How long it may take from nothing to the end of its handshake.
    #[serde(rename = "startup_timeout_ms", with = "millis", default = "startup_timeout")]
    pub startup_timeout: Duration,
    /// How long a call may take.
    #[serde(rename = "tool_timeout_ms", with = "millis", default = "tool_timeout")]
    pub tool_timeout: Duration,
    /// What to do when it leaves by itself.
    #[serde(default)]
    pub restart: Restart,
    /// What we tell the server that its client can do (`roots`, `sampling`, `elicitation`). Who
    /// attaches to it can have no more than this.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub capabilities: Map<String, Value>,
    /// Whether sessions may have one process together.
    #[serde(default, skip_serializing_if = "Share::is_never")]
    pub share: Share,
    /// When its process is ended while nobody needs it.
    #[serde(default, skip_serializing_if = "Idle::is_usual")]
    pub idle: Idle,
    /// How many sessions may have one process together; the next gets another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_sessions: Option<NonZero<usize>>,
    /// True to have a process ready before it is needed, and while it is not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm: bool,
    /// A process that is older than this, or has more memory, is not joined any more: the next
    /// session gets a fresh one, and it ends with its last.
    #[serde(default, skip_serializing_if = "Recycle::is_never")]
    pub recycle: Recycle,
}

/// When a shared process is too old to be joined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recycle {
    /// After so many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_s: Option<u64>,
    /// From so many bytes on, of all its processes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above_bytes: Option<u64>,
}

impl Recycle {
    fn is_never(&self) -> bool {
        *self == Recycle::default()
    }
}

/// What to do when a server leaves by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Restart {
    /// Start it again, after a pause that grows. One that keeps leaving is given up.
    #[default]
    Always,
    /// Leave it.
    Never,
}

impl ServerSpec {
    /// A program, with everything else as usual.
    pub fn new(command: impl Into<String>) -> ServerSpec {
        ServerSpec {
            command: Some(command.into()),
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            image: None,
            tools: all_tools(),
            startup_timeout: startup_timeout(),
            tool_timeout: tool_timeout(),
            restart: Restart::default(),
            capabilities: Map::new(),
            share: Share::default(),
            idle: Idle::default(),
            max_sessions: None,
            warm: false,
            recycle: Recycle::default(),
        }
    }

    /// The same with these arguments.
    pub fn args<T: Into<String>>(mut self, args: impl IntoIterator<Item = T>) -> ServerSpec {
        self.args = args.into_iter().map(Into::into).collect();
        self
    }

    /// The same with this variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> ServerSpec {
        self.env.insert(name.into(), value.into());
        self
    }

    /// A sentence that says what is wrong with it, if something is.
    pub fn complaint(&self) -> Option<String> {
        let empty = |text: &Option<String>| text.as_ref().is_some_and(|t| t.trim().is_empty());
        if empty(&self.command) || empty(&self.image) {
            return Some("`command` and `image` must not be empty".into());
        }
        if self.command.is_none() && self.image.is_none() {
            return Some("there is neither a `command` nor an `image` to run".into());
        }
        if self.image.as_ref().is_some_and(|image| image.starts_with('-')) {
            return Some("an `image` does not begin with a dash".into());
        }
        let mut texts: Vec<&str> = self.args.iter().map(String::as_str).collect();
        texts.extend(self.command.as_deref());
        texts.extend(self.image.as_deref());
        texts.extend(self.env.iter().flat_map(|(name, value)| [name.as_str(), value]));
        texts.extend(self.cwd.as_deref().and_then(|cwd| cwd.to_str()));
        if texts.iter().any(|text| text.contains('\0')) {
            return Some("there is a null character in it, which no command can take".into());
        }
        if self.env.keys().any(|name| name.is_empty() || name.contains('=')) {
            return Some("a name in `env` is empty or contains `=`".into());
        }
        if self.startup_timeout.is_zero() || self.tool_timeout.is_zero() {
            return Some("a timeout of 0 leaves no time at all; leave it out for the usual".into());
        }
        None
    }

    /// True if this tool may be seen and called.
    pub fn allows(&self, tool: &str) -> bool {
        allowed(&self.tools, tool)
    }
}

/// True if one of these patterns (names, `prefix*`, or `*` for all) fits this tool.
pub fn allowed(patterns: &[String], tool: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(prefix) => tool.starts_with(prefix),
        None => tool == pattern,
    })
}

impl fmt::Debug for ServerSpec {
    /// Without arguments and values: they can be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerSpec")
            .field("command", &self.command)
            .field("args", &self.args.len())
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("cwd", &self.cwd)
            .field("image", &self.image)
            .field("tools", &self.tools)
            .field("startup_timeout", &self.startup_timeout)
            .field("tool_timeout", &self.tool_timeout)
            .field("restart", &self.restart)
            .field("share", &self.share)
            .finish_non_exhaustive()
    }
}

fn all_tools() -> Vec<String> {
    vec!["*".into()]
}

fn startup_timeout() -> Duration {
    Duration::from_secs(30)
}

fn tool_timeout() -> Duration {
    Duration::from_secs(300)
}

/// Durations as whole milliseconds.
mod millis {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(time.as_millis().try_into().unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        // A day is longer than anybody waits; more would overflow a clock.
        let millis = u64::deserialize(from)?;
        Ok(Duration::from_millis(millis.min(86_400_000)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ServerSpec, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    #[test]
    fn what_is_left_out_is_as_usual() {
        let spec = parse(r#"{"command":"npx","args":["-y","x"]}"#).unwrap();
        assert_eq!(spec, ServerSpec::new("npx").args(["-y", "x"]));
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(parse(&text).unwrap(), spec);
    }

    #[test]
    fn what_nobody_knows_is_refused_by_name() {
        let error = parse(r#"{"command":"npx","startup_timeout":5}"#).unwrap_err();
        assert!(error.contains("unknown field `startup_timeout`"), "{error}");
    }

    #[test]
    fn nonsense_is_said_in_a_sentence() {
        let complaint = |text: &str| parse(text).unwrap().complaint();
        assert_eq!(complaint(r#"{"command":"x"}"#), None);
        assert_eq!(complaint(r#"{"image":"x"}"#), None);
        for text in [
            "{}",
            r#"{"command":" "}"#,
            r#"{"command":"a\u0000b"}"#,
            r#"{"command":"x","env":{"A=B":"c"}}"#,
            r#"{"command":"x","tool_timeout_ms":0}"#,
            r#"{"image":"--privileged"}"#,
        ] {
            assert!(complaint(text).is_some(), "{text}");
        }
    }

    #[test]
    fn tools_are_allowed_by_name_or_prefix() {
        let mut spec = ServerSpec::new("x");
        assert!(spec.allows("anything"));
        spec.tools = vec!["read".into(), "list_*".into()];
        assert!(spec.allows("read") && spec.allows("list_issues"));
        assert!(!spec.allows("reader") && !spec.allows("delete"));
        spec.tools.clear();
        assert!(!spec.allows("read"));
    }

    #[test]
    fn secrets_are_not_printed() {
        let spec = ServerSpec::new("x").args(["--token", "s3cret"]).env("TOKEN", "s3cret");
        assert!(!format!("{spec:?}").contains("s3cret"));
    }
}
