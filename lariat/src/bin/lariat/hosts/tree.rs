//! A config file as a tree whose every node knows its place in the text.
//!
//! The three formats meet here. Nothing is ever written from a tree: edits are cuts in the text, at
//! places that the tree names. What belongs here is what all formats have in common.

use super::{json, toml, yaml};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// JSON, with whatever its dialects allow: comments, trailing commas, bare keys, single quotes.
    Json,
    Toml,
    Yaml,
}

/// A value and where it is written.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) span: Range<usize>,
    pub(crate) value: Value,
    /// Why these bytes would mean something else at another place, if so.
    pub(crate) fixed: Option<&'static str>,
}

/// What is written there.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Text(String),
    /// A number, a truth value, a date, nothing: as it is written.
    Other(String),
    List(Vec<Node>),
    Map(Vec<Pair>),
}

/// One line of a map.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    pub(crate) key: String,
    pub(crate) key_span: Range<usize>,
    pub(crate) value: Node,
}

/// The meaning of a tree without its places: equal if a host would read the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Plain {
    Text(String),
    Other(String),
    List(Vec<Plain>),
    Map(BTreeMap<String, Plain>),
}

/// Why a text is no tree, and where.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) why: String,
}

impl Broken {
    /// A complaint about a byte of a text.
    pub(crate) fn at(text: &str, byte: usize, why: impl Into<String>) -> Broken {
        let (line, column) = place(text, byte);
        Broken { line, column, why: why.into() }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.why)
    }
}

/// Line and column of a byte, as editors count them.
pub(crate) fn place(text: &str, byte: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..byte.min(text.len())];
    let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    let column = String::from_utf8_lossy(&before[line_start..])
        .trim_start_matches('\u{feff}')
        .chars()
        .count()
        + 1;
    (line, column)
}

/// Reads a text. An empty one is an empty map: hosts make such files.
pub(crate) fn parse(format: Format, text: &str) -> Result<Node, Broken> {
    let body = text.strip_prefix('\u{feff}').unwrap_or(text);
    let skipped = text.len() - body.len();
    let read = match format {
        Format::Json => json::parse(body),
        Format::Toml => toml::parse(body),
        Format::Yaml => yaml::parse(body),
    };
    let mut tree = read?;
    if skipped > 0 {
        tree.shift(skipped);
    }
    Ok(tree)
}

impl Node {
    /// A node that may be moved.
    pub(crate) fn new(span: Range<usize>, value: Value) -> Node {
        Node { span, value, fixed: None }
    }

    fn shift(&mut self, by: usize) {
        let moved = |span: &Range<usize>| span.start + by..span.end + by;
        self.span = moved(&self.span);
        match &mut self.value {
            Value::List(items) => items.iter_mut().for_each(|item| item.shift(by)),
            Value::Map(pairs) => {
                for pair in pairs {
                    pair.key_span = moved(&pair.key_span);
                    pair.value.shift(by);
                }
            }
            Value::Text(_) | Value::Other(_) => {}
        }
    }

    /// The value of a key; the last one, as every host takes it.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.pair(key).map(|pair| &pair.value)
    }

    /// The line of a key.
    pub(crate) fn pair(&self, key: &str) -> Option<&Pair> {
        self.pairs().iter().rfind(|pair| pair.key == key)
    }

    /// The lines of a map; none if it is something else.
    pub(crate) fn pairs(&self) -> &[Pair] {
        match &self.value {
            Value::Map(pairs) => pairs,
            Value::Text(_) | Value::Other(_) | Value::List(_) => &[],
        }
    }

    /// The text, if it is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            Value::Other(_) | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The items, if it is a list.
    pub(crate) fn items(&self) -> Option<&[Node]> {
        match &self.value {
            Value::List(items) => Some(items),
            Value::Text(_) | Value::Other(_) | Value::Map(_) => None,
        }
    }

    /// The meaning alone.
    pub(crate) fn plain(&self) -> Plain {
        match &self.value {
            Value::Text(text) => Plain::Text(text.clone()),
            Value::Other(text) => Plain::Other(text.clone()),
            Value::List(items) => Plain::List(items.iter().map(Node::plain).collect()),
            Value::Map(pairs) => Plain::Map(
                pairs.iter().map(|pair| (pair.key.clone(), pair.value.plain())).collect(),
            ),
        }
    }
}
