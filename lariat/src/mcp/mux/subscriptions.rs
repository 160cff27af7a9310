//! Who wants to know when a resource changes. Pure.
//!
//! The server hears of the first that subscribes and of the last that leaves. A wish counts from
//! when it is passed on, and no longer if the server refuses it.

use super::Port;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Each wish of each client is kept.
const MOST: usize = 10_000;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Subscriptions {
    by_uri: BTreeMap<Box<str>, Holders>,
    count: usize,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Holders {
    ports: BTreeMap<Port, Hold>,
    /// The server may have agreed to somebody since it was last told that nobody wants to know.
    server_knows: bool,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Hold {
    /// By this request, which the server has not answered.
    Asked(u64),
    Agreed,
}

/// What becomes of a client's wish.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Ask,
    Known,
    TooMany,
}

impl Subscriptions {
    /// A client subscribes, by this request if the server has to be asked.
    pub(super) fn subscribe(&mut self, port: Port, uri: &str, own: u64, ask: bool) -> Wish {
        let holders = self.by_uri.get_mut(uri);
        let known = holders.as_ref().is_some_and(|all| all.ports.values().any(Hold::is_agreed));
        let is_new = holders.is_none_or(|holders| !holders.ports.contains_key(&port));
        if is_new && self.count >= MOST {
            return Wish::TooMany;
        }
        self.count += usize::from(is_new);
        let holders = self.by_uri.entry(uri.into()).or_default();
        let hold = holders.ports.entry(port).or_insert(Hold::Asked(own));
        match *hold {
            _ if known && !ask => *hold = Hold::Agreed,
            Hold::Asked(_) => *hold = Hold::Asked(own),
            Hold::Agreed => {}
        }
        if known && !ask { Wish::Known } else { Wish::Ask }
    }

    /// A client does not want to know any more. `Ask` if the server need not know either.
    pub(super) fn unsubscribe(&mut self, port: Port, uri: &str) -> Wish {
        let Some(holders) = self.by_uri.get_mut(uri) else { return Wish::Known };
        if holders.ports.remove(&port).is_none() {
            return Wish::Known;
        }
        self.count -= 1;
        if !holders.ports.is_empty() {
            return Wish::Known;
        }
        self.by_uri.remove(uri);
        Wish::Ask
    }

    /// The server has answered. True if it is to be told that nobody wants to know.
    pub(super) fn answered(&mut self, port: Port, uri: &str, own: u64, agreed: bool) -> bool {
        let Some(holders) = self.by_uri.get_mut(uri) else { return false };
        holders.server_knows |= agreed;
        let hold = holders.ports.get_mut(&port).filter(|hold| **hold == Hold::Asked(own));
        match hold {
            Some(hold) if agreed => *hold = Hold::Agreed,
            Some(_) => {
                let server_knows = holders.server_knows;
                return self.unsubscribe(port, uri) == Wish::Ask && server_knows;
            }
            None => {}
        }
        false
    }

    /// The server's answer will not be known. True as above.
    pub(super) fn abandoned(&mut self, port: Port, uri: &str, own: u64) -> bool {
        if let Some(holders) = self.by_uri.get_mut(uri) {
            holders.server_knows = true;
        }
        self.answered(port, uri, own, false)
    }

    /// A client is gone. The server is to be told that nobody wants to know of these.
    pub(super) fn depart(&mut self, port: Port) -> Vec<Box<str>> {
        let its = self.by_uri.iter().filter(|(_, holders)| holders.ports.contains_key(&port));
        let mut uris: Vec<Box<str>> = its.map(|(uri, _)| uri.clone()).collect();
        uris.retain(|uri| self.unsubscribe(port, uri) == Wish::Ask);
        uris
    }

    /// All that somebody wants to know of.
    pub(super) fn uris(&self) -> impl Iterator<Item = &str> {
        self.by_uri.keys().map(|uri| &**uri)
    }

    /// Who wants to know of this one, or of one that it is part of.
    pub(super) fn of(&self, uri: &str) -> BTreeSet<Port> {
        let mut ports = BTreeSet::new();
        // Whatever `uri` begins with sorts before it, and between two such there can be others.
        let mut end = (uri.len(), true);
        loop {
            let bound = match end {
                (length, true) => Bound::Included(&uri[..length]),
                (length, false) => Bound::Excluded(&uri[..length]),
            };
            let before = (Bound::Unbounded, bound);
            let Some((held, holders)) = self.by_uri.range::<str, _>(before).next_back() else {
                return ports;
            };
            match uri.strip_prefix(&**held) {
                Some(rest) => {
                    if rest.is_empty() || held.ends_with('/') || rest.starts_with(['/', '?', '#']) {
                        ports.extend(holders.ports.keys());
                    }
                    end = (held.len(), false);
                }
                None => end = (common(held, uri), true),
            }
        }
    }
}

impl Hold {
    fn is_agreed(&self) -> bool {
        *self == Hold::Agreed
    }
}

/// How much two texts have in common at their beginning, in whole letters.
fn common(a: &str, b: &str) -> usize {
    let same = a.char_indices().zip(b.chars()).find(|((_, a), b)| a != b);
    same.map_or(a.len().min(b.len()), |((at, _), _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_found_by_what_it_is_part_of() {
        let all = ["f:/", "f:/a", "f:/a/b", "f:/a/b/c", "f:/a/b-", "f:/a/ä", "f:/b", "", "g:"];
        let mut subscriptions = Subscriptions::default();
        let ports: Vec<Port> = (1..=all.len() as u32).map(Port).collect();
        for (uri, port) in all.iter().zip(&ports) {
            assert_eq!(subscriptions.subscribe(*port, uri, 1, false), Wish::Ask);
        }
        for uri in
            ["f:/a/b/c", "f:/a/b/cd", "f:/a/b?x", "f:/a/b-c", "f:/a/ä/ö", "f:/a/å", "g:x", "x"]
        {
            let is_part = |whole: &str| {
                uri == whole
                    || uri.starts_with(whole)
                        && (whole.ends_with('/') || uri[whole.len()..].starts_with(['/', '?', '#']))
            };
            let expected: BTreeSet<Port> = all
                .iter()
                .zip(&ports)
                .filter(|(whole, _)| is_part(whole))
                .map(|(_, p)| *p)
                .collect();
            assert_eq!(subscriptions.of(uri), expected, "{uri}");
        }
    }
}
