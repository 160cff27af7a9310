//! The daemon's own file: which servers it offers by HTTP. Text in, data out; who reads the file is
//! the command.
//!
//! A server has the same words as anywhere else ([`ServerSpec`]). A word that nobody knows is an error,
//! and every error has its line.

use crate::duration;
use crate::spec::{ServerSpec, Servers};
use serde_json::{Map, Value, json};
use std::fmt;
use std::ops::Range;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// How long a client by HTTP may be away before its session ends.
const SESSION_TTL: Duration = Duration::from_secs(3600);

/// Words of a server's spec that say what its client does: start it again, give up waiting, be able to
/// do something.
const NOT_BY_HTTP: [&str; 3] = ["restart", "tool_timeout_ms", "capabilities"];

/// What the file says.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The servers by name.
    pub servers: Servers,
    /// How long a client by HTTP may be away before its session ends: most never say goodbye.
    pub session_ttl: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config { servers: Servers::new(), session_ttl: SESSION_TTL }
    }
}

/// What is wrong with a file, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// Counted from 1.
    pub line: usize,
    /// In words.
    pub what: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for Wrong {}

/// Something wrong at a place of the text.
struct Mark(Range<usize>, String);

impl Config {
    /// Reads a whole text.
    pub fn parse(text: &str) -> Result<Config, Wrong> {
        let place = |at: usize| 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let what = error.message().lines().next().unwrap_or("this is no TOML").to_owned();
            Wrong { line: place(at), what }
        })?;
        read(table.get_ref()).map_err(|Mark(span, what)| Wrong { line: place(span.start), what })
    }
}

fn read(table: &DeTable<'_>) -> Result<Config, Mark> {
    let mut config = Config::default();
    for (key, value) in table {
        match &**key.get_ref() {
            "servers" => {
                for (name, server) in inner(value, "servers")? {
                    let name_at = name.span();
                    let name = name.get_ref().to_string();
                    if let Some(what) = bad_name(&name) {
                        return Err(Mark(name_at, what));
                    }
                    let offered = offered(name_at, inner(server, &name)?)?;
                    config.servers.insert(name, offered);
                }
            }
            "session_ttl" => config.session_ttl = time(value)?,
            other => {
                let what = format!("`{other}` is not known here; `servers` and `session_ttl` are");
                return Err(Mark(key.span(), what));
            }
        }
    }
    Ok(config)
}

fn inner<'a, 'b>(value: &'a Spanned<DeValue<'b>>, name: &str) -> Result<&'a DeTable<'b>, Mark> {
    match value.get_ref() {
        DeValue::Table(table) => Ok(table),
        _ => Err(Mark(value.span(), format!("`{name}` is a table, as in [servers.{name}]"))),
    }
}

/// A name is part of a path, and of the names of tools.
fn bad_name(name: &str) -> Option<String> {
    let fit = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let good = (1..=64).contains(&name.len()) && name.chars().all(fit) && !name.starts_with('.');
    let what = "is no name for a server: 1 to 64 letters, digits, `-`, `_` or `.`, and neither a \
                dot at the beginning nor `_` at the end nor `__` inside, which ends it in the names of tools";
    (!good || name.contains("__") || name.ends_with('_')).then(|| format!("`{name}` {what}"))
}

fn offered(place: Range<usize>, table: &DeTable<'_>) -> Result<ServerSpec, Mark> {
    let mut words = Map::new();
    for (key, value) in table {
        let name = &**key.get_ref();
        if NOT_BY_HTTP.contains(&name) {
            let what =
                "by HTTP clients do that for themselves; it has a meaning in a session's spec";
            return Err(Mark(key.span(), format!("`{name}`: {what}")));
        }
        let value = plain(value)?;
        // Alone first: then it is this one that is wrong.
        serde_json::from_value::<ServerSpec>(json!({ name: &value })).map_err(|error| {
            let error = error.to_string();
            let known = error.split_once("expected one of ");
            let what = known
                .map_or(error.clone(), |(_, known)| format!("not known here; known are {known}"));
            Mark(key.span(), format!("`{name}`: {what}"))
        })?;
        words.insert(name.into(), value);
    }
    let spec: ServerSpec = serde_json::from_value(Value::Object(words))
        .map_err(|error| Mark(place.clone(), error.to_string()))?;
    match spec.complaint() {
        Some(complaint) => Err(Mark(place, complaint)),
        None => Ok(spec),
    }
}

fn time(value: &Spanned<DeValue<'_>>) -> Result<Duration, Mark> {
    let what = "a time is text, as in \"30s\", \"5m\" or \"1h\"";
    match value.get_ref() {
        DeValue::String(text) => {
            duration::some(text).map_err(|why| Mark(value.span(), format!("{what}: {why}")))
        }
        _ => Err(Mark(value.span(), what.into())),
    }
}

/// The same value as JSON has it.
fn plain(value: &Spanned<DeValue<'_>>) -> Result<Value, Mark> {
    let odd = |what: &str| Mark(value.span(), what.into());
    Ok(match value.get_ref() {
        DeValue::String(text) => json!(text),
        DeValue::Boolean(yes) => json!(yes),
        DeValue::Integer(number) => {
            let number = i64::from_str_radix(number.as_str(), number.radix());
            json!(number.map_err(|_| odd("this number is too large"))?)
        }
        DeValue::Array(items) => Value::Array(items.iter().map(plain).collect::<Result<_, _>>()?),
        DeValue::Table(table) => {
            let mut map = Map::new();
            for (key, value) in table {
                map.insert(key.get_ref().to_string(), plain(value)?);
            }
            Value::Object(map)
        }
        DeValue::Float(_) | DeValue::Datetime(_) => {
            return Err(odd("nothing here is a fraction or a date"));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Share;

    #[test]
    fn a_file_says_which_servers_there_are() {
        let config = Config::parse(
            r#"
session_ttl = "10m"

[servers.time]
command = "mcp-server-time"
args = ["--local-timezone", "UTC"]
env = { TZ = "UTC" }
share = true
idle = "5m"
max_sessions = 8
tools = ["get_*"]

[servers.files]
image = "files:1"
startup_timeout_ms = 0x10
idle = "off"
share = "reduced"
"#,
        )
        .unwrap();
        let time = &config.servers["time"];
        assert_eq!(time.share, Share::Strict);
        assert_eq!(time.max_sessions.map(usize::from), Some(8));
        let spec = ServerSpec::new("mcp-server-time").args(["--local-timezone", "UTC"]);
        let spec = ServerSpec {
            tools: vec!["get_*".into()],
            share: time.share,
            idle: time.idle,
            max_sessions: time.max_sessions,
            ..spec.env("TZ", "UTC")
        };
        assert_eq!(*time, spec);
        assert_ne!(time.idle, Default::default());
        let files = &config.servers["files"];
        assert_eq!(files.share, Share::Reduced);
        assert_eq!(files.startup_timeout, Duration::from_millis(16));
        assert_eq!(config.session_ttl, Duration::from_secs(600));
        assert_eq!(Config::parse(""), Ok(Config::default()));
    }

    #[test]
    fn what_is_wrong_has_its_line() {
        for (text, line, word) in [
            ("[servers.a]\ncommand = \"x\"\nshares = true\n", 3, "`shares`: not known"),
            ("[servers.a]\ncommand = \"x\"\nshare = \"maybe\"\n", 3, "reduced"),
            ("[servers.a]\ncommand = \"x\"\nargs = \"y\"\n", 3, "`args`"),
            ("\n[servers.a]\nargs = [\"y\"]\n", 2, "neither a `command` nor an `image`"),
            ("[servers.a]\ncommand = \"x\"\nidle = [5]\n", 3, "`idle`"),
            ("[servers.a]\ncommand = \"x\"\nidle = \"5y\"\n", 3, "`idle`"),
            ("[servers.a]\ncommand = \"x\"\nmax_sessions = 0\n", 3, "`max_sessions`"),
            ("[servers.a]\ncommand = \"x\"\nrestart = \"never\"\n", 3, "`restart`: by HTTP"),
            ("[servers.a__b]\ncommand = \"x\"\n", 1, "is no name"),
            ("[server.a]\ncommand = \"x\"\n", 1, "`server` is not known"),
            ("servers = 3\n", 1, "is a table"),
            ("[servers.a\n", 1, ""),
            ("[servers.a]\ncommand = \"x\"\ncommand = \"y\"\n", 3, "duplicate key"),
        ] {
            let wrong = Config::parse(text).unwrap_err();
            assert_eq!(wrong.line, line, "{text}: {wrong}");
            assert!(wrong.what.contains(word), "{text}: {wrong}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let config = Config::parse("[servers.a]\ncommand = \"x\"\nenv = { T = \"s3cret\" }\n");
        assert!(!format!("{config:?}").contains("s3cret"));
    }
}
