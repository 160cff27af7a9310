//! How a mux is written down where serde alone does not know. Pure.

use crate::bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// What a server can have done that makes it unfit for several clients.
pub(super) const ASKS_ROOTS: &str = "the server asks for roots";
pub(super) const ASKS_SAMPLING: &str = "the server asks for sampling";
pub(super) const ASKS_USER: &str = "the server asks the user";
pub(super) const ASKS: &str = "the server asks its client";
pub(super) const NOTIFIES: &str = "the server notifies its client of something unknown";

/// The same words, of which there is one copy. Words of another version are the vaguest of ours.
pub(crate) fn hazard(word: &str) -> &'static str {
    let known = [ASKS_ROOTS, ASKS_SAMPLING, ASKS_USER, ASKS, NOTIFIES];
    known.into_iter().find(|known| *known == word).unwrap_or(NOTIFIES)
}

/// Words that are known.
pub(super) mod hazards {
    use super::{Deserialize, Deserializer, Serialize, Serializer, hazard};

    pub(in super::super) fn serialize<S: Serializer>(
        words: &[&'static str],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        words.serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<&'static str>, D::Error> {
        let words = Vec::<String>::deserialize(from)?;
        Ok(words.iter().map(|word| hazard(word)).collect())
    }
}

/// A line, which is text unless somebody has written nonsense.
pub(super) mod line {
    use super::{Bytes, Deserialize, Deserializer, Serialize, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        line: &Option<Vec<u8>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        line.clone().map(Bytes).serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        Ok(Option::<Bytes>::deserialize(from)?.map(|line| line.0))
    }
}

/// What has keys that are no text.
pub(super) mod pairs {
    use super::{BTreeMap, Deserialize, Deserializer, Serialize, Serializer};

    pub(in super::super) fn serialize<S: Serializer, K: Serialize, V: Serialize>(
        map: &BTreeMap<K, V>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(map)
    }

    pub(in super::super) fn deserialize<'de, D, K, V>(from: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        D: Deserializer<'de>,
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(from)?.into_iter().collect())
    }
}
