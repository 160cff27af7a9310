//! Whether sessions may have one process together, and for how long it may be of no use.

use crate::duration;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// Whether sessions may have one process together: `false`, `true` or `"reduced"`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Share {
    /// Each has its own.
    #[default]
    Never,
    /// Those may whose clients can be asked nothing by a server: a client that says it has roots, or
    /// can be asked to sample or to elicit, gets its own.
    Strict,
    /// Such clients, too: the server is not told what they can do, and so asks them nothing.
    Reduced,
}

impl Share {
    pub(super) fn is_never(&self) -> bool {
        *self == Share::Never
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Share::Never => to.serialize_bool(false),
            Share::Strict => to.serialize_bool(true),
            Share::Reduced => to.serialize_str("reduced"),
        }
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Share, D::Error> {
        struct Words;
        impl Visitor<'_> for Words {
            type Value = Share;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or \"reduced\"")
            }

            fn visit_bool<E: Error>(self, share: bool) -> Result<Share, E> {
                Ok(if share { Share::Strict } else { Share::Never })
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<Share, E> {
                match word {
                    "reduced" => Ok(Share::Reduced),
                    _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
                }
            }
        }
        from.deserialize_any(Words)
    }
}

/// When a process of the pool that nobody needs is ended, to be started again for the next message:
/// `"5m"`, a number of seconds, or `"off"`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Idle {
    /// After a while, if nothing can be lost by it.
    #[default]
    Usual,
    /// Never.
    Off,
    /// After this time, whatever the server keeps in its memory.
    After(Duration),
}

impl Idle {
    pub(super) fn is_usual(&self) -> bool {
        *self == Idle::Usual
    }
}

impl Serialize for Idle {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Idle::Usual => to.serialize_str("auto"),
            Idle::Off => to.serialize_str("off"),
            Idle::After(time) => to.serialize_str(&format!("{}ms", time.as_millis())),
        }
    }
}

impl<'de> Deserialize<'de> for Idle {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Idle, D::Error> {
        struct Words;
        impl Visitor<'_> for Words {
            type Value = Idle;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"5m\", a number of seconds, \"auto\" or \"off\"")
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<Idle, E> {
                match word {
                    "auto" => Ok(Idle::Usual),
                    "off" => Ok(Idle::Off),
                    _ => duration::some(word).map(Idle::After).map_err(E::custom),
                }
            }

            fn visit_u64<E: Error>(self, seconds: u64) -> Result<Idle, E> {
                self.visit_str(&seconds.to_string())
            }

            fn visit_i64<E: Error>(self, seconds: i64) -> Result<Idle, E> {
                self.visit_str(&seconds.to_string())
            }
        }
        from.deserialize_any(Words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for (text, share) in
            [("false", Share::Never), ("true", Share::Strict), ("\"reduced\"", Share::Reduced)]
        {
            assert_eq!(serde_json::from_str::<Share>(text).unwrap(), share);
            assert_eq!(serde_json::to_string(&share).unwrap(), text);
        }
        assert!(serde_json::from_str::<Share>("\"yes\"").is_err());
        for (text, idle) in [
            ("\"off\"", Idle::Off),
            ("\"auto\"", Idle::Usual),
            ("\"90000ms\"", Idle::After(Duration::from_secs(90))),
        ] {
            assert_eq!(serde_json::from_str::<Idle>(text).unwrap(), idle);
            assert_eq!(serde_json::to_string(&idle).unwrap(), text);
        }
        assert_eq!(
            serde_json::from_str::<Idle>("90").unwrap(),
            Idle::After(Duration::from_secs(90))
        );
        for bad in ["\"soon\"", "0", "-1", "true"] {
            assert!(serde_json::from_str::<Idle>(bad).is_err(), "{bad}");
        }
    }
}
