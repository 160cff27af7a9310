//! What a client's first words say about whom it can share a server with. Pure.

use crate::mcp::MODERN;
use crate::mcp::envelope::{self, Line};
use crate::spec::Share;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// What a server may ask a client for that says it has these. Nothing on the wire says whom.
const ASKS: [&str; 3] = ["roots", "sampling", "elicitation"];

/// What is agreed before anything else is said, and cannot be changed after.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Terms {
    /// `initialize` comes first.
    Legacy {
        /// The revision that the client asks for.
        version: String,
        /// What it says that it can do.
        capabilities: Map<String, Value>,
    },
    /// Each request says everything, its revision included.
    Modern {
        /// It is one that we know. One that nobody knows is for a server that has heard no other: some
        /// do not look at it any more after their first request.
        known: bool,
    },
    /// Something else; the server may know what it is.
    Unknown,
}

/// Whether a client shares its process, and why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "lowercase")]
pub enum Verdict {
    /// With whoever else wants the same.
    Shared,
    /// It has its own.
    Private {
        /// Why.
        why: String,
    },
}

impl Verdict {
    pub(super) fn private(why: impl Into<String>) -> Verdict {
        Verdict::Private { why: why.into() }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Shared => f.write_str("shared"),
            Verdict::Private { why } => write!(f, "private: {why}"),
        }
    }
}

impl Terms {
    /// What a client's first line says.
    pub(super) fn of(line: &[u8]) -> Terms {
        let Line::One(envelope) = envelope::read(line) else { return Terms::Unknown };
        let params = envelope.params.map_or("null", |params| params.get());
        match envelope.method.as_deref() {
            Some("initialize") => {
                #[derive(Deserialize)]
                #[serde(rename_all = "camelCase")]
                struct Hello {
                    protocol_version: String,
                    #[serde(default)]
                    capabilities: Map<String, Value>,
                }
                match serde_json::from_str(params) {
                    Ok(Hello { protocol_version: version, capabilities }) => {
                        Terms::Legacy { version, capabilities }
                    }
                    Err(_) => Terms::Unknown,
                }
            }
            Some(method) => {
                #[derive(Default, Deserialize)]
                struct Params {
                    #[serde(default, rename = "_meta")]
                    meta: Meta,
                }
                #[derive(Default, Deserialize)]
                struct Meta {
                    #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
                    version: Option<String>,
                }
                let Params { meta } = serde_json::from_str(params).unwrap_or_default();
                match meta.version {
                    Some(version) => Terms::Modern { known: version == MODERN },
                    None if method == "server/discover" => Terms::Modern { known: true },
                    None => Terms::Unknown,
                }
            }
            None => Terms::Unknown,
        }
    }

    /// Whether who says this may share, and on which terms with the server then.
    pub(super) fn judge(self, share: Share) -> (Terms, Verdict) {
        let why = match (&self, share) {
            (_, Share::Never) => "sharing was not asked for".into(),
            (Terms::Unknown, _) => "its first words are no handshake that we know".into(),
            (Terms::Modern { .. }, _) => return (self, Verdict::Shared),
            (Terms::Legacy { capabilities, .. }, _) => {
                let asks = ASKS.iter().find(|ask| capabilities.contains_key(**ask));
                match (asks, share) {
                    (Some(ask), Share::Strict) => format!("client declares {ask}"),
                    _ => return (self.reduced(), Verdict::Shared),
                }
            }
        };
        (self, Verdict::Private { why })
    }

    /// The same without what a server could ask for.
    fn reduced(mut self) -> Terms {
        if let Terms::Legacy { capabilities, .. } = &mut self {
            capabilities.retain(|name, _| !ASKS.contains(&name.as_str()));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(line: &str, share: Share) -> String {
        Terms::of(line.as_bytes()).judge(share).1.to_string()
    }

    fn hello(capabilities: &str) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"clientInfo":{{"name":"x","version":"1"}}}}}}"#
        )
    }

    #[test]
    fn who_can_be_asked_is_alone() {
        for (capabilities, strict, reduced) in [
            ("{}", "shared", "shared"),
            (r#"{"experimental":{}}"#, "shared", "shared"),
            (r#"{"roots":{}}"#, "private: client declares roots", "shared"),
            (r#"{"sampling":{}}"#, "private: client declares sampling", "shared"),
            (r#"{"elicitation":{}}"#, "private: client declares elicitation", "shared"),
        ] {
            let hello = hello(capabilities);
            assert_eq!(judge(&hello, Share::Strict), strict);
            assert_eq!(judge(&hello, Share::Reduced), reduced);
            assert_eq!(judge(&hello, Share::Never), "private: sharing was not asked for");
        }
    }

    #[test]
    fn a_modern_request_shares() {
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
        assert_eq!(judge(call, Share::Strict), "shared");
        let discover = r#"{"jsonrpc":"2.0","id":1,"method":"server/discover"}"#;
        assert_eq!(judge(discover, Share::Strict), "shared");
    }

    #[test]
    fn what_is_not_understood_is_alone() {
        for line in [
            "",
            "{}",
            "[]",
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}"#,
        ] {
            assert!(judge(line, Share::Reduced).starts_with("private: "), "{line}");
        }
    }

    #[test]
    fn what_a_server_could_ask_for_is_not_told() {
        let (terms, _) = Terms::of(hello(r#"{"roots":{},"experimental":{"a":1}}"#).as_bytes())
            .judge(Share::Reduced);
        let Terms::Legacy { capabilities, .. } = terms else { panic!("{terms:?}") };
        assert_eq!(Value::from(capabilities), serde_json::json!({ "experimental": { "a": 1 } }));
    }
}
