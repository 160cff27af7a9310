//! Lines taken apart letter by letter, for the model.

use serde_json::value::RawValue;
use std::ops::Range;

pub(super) enum Read {
    One(Message),
    Many(Vec<Range<usize>>),
    Odd,
    Noise,
}

/// Where the members of a message stand.
pub(super) struct Message {
    pub(super) id: Option<Range<usize>>,
    pub(super) method: Option<String>,
    pub(super) params: Option<Range<usize>>,
    pub(super) result: Option<Range<usize>>,
    pub(super) error: Option<Range<usize>>,
}

impl Message {
    pub(super) fn shape(&self, line: &str) -> &'static str {
        let id = self.id.as_ref().map(|id| &line[id.clone()]);
        match (&self.method, id) {
            (Some(_), Some(id)) if is_token(id) => "request",
            (Some(_), None) => "notification",
            (None, Some(_)) if self.result.is_some() || self.error.is_some() => "response",
            _ => "odd",
        }
    }
}

/// The members of an object, with their places in the line.
#[derive(Clone)]
pub(super) struct Object<'a>(&'a str, Vec<(String, Range<usize>)>);

const MEMBERS: &[&str] = &[
    "_meta",
    "progressToken",
    "requestId",
    "name",
    "task",
    "tools",
    "uri",
    "level",
    "taskId",
    "status",
    "tasks",
    "elicitationId",
    "elicitations",
    "protocolVersion",
];
const META: &[&str] = &[
    "progressToken",
    "io.modelcontextprotocol/subscriptionId",
    "io.modelcontextprotocol/related-task",
    "io.modelcontextprotocol/logLevel",
];

impl<'a> Object<'a> {
    /// `None` if a key that matters occurs twice. What is no object has no members.
    pub(super) fn of(line: &'a str, at: &Option<Range<usize>>) -> Option<Object<'a>> {
        Object::knowing(line, at, MEMBERS)
    }

    pub(super) fn of_error(line: &'a str, at: &Option<Range<usize>>) -> Option<Object<'a>> {
        Object::knowing(line, at, &["code", "data"])
    }

    fn knowing(line: &'a str, at: &Option<Range<usize>>, keys: &[&str]) -> Option<Object<'a>> {
        let at = at.as_ref().filter(|at| line[at.start..].starts_with('{'));
        let members = at.map_or(Vec::new(), |at| members(line, at.start));
        let times = |key: &&str| members.iter().filter(|(name, _)| name == *key).count();
        keys.iter().all(|key| times(key) < 2).then_some(Object(line, members))
    }

    pub(super) fn raw(&self, key: &str) -> Option<Range<usize>> {
        self.1.iter().find(|(name, _)| name == key).map(|(_, at)| at.clone())
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        serde_json::from_str(&self.0[self.raw(key)?]).ok()
    }

    pub(super) fn object(&self, key: &str) -> Option<Object<'a>> {
        Object::knowing(self.0, &self.raw(key), if key == "_meta" { META } else { MEMBERS })
    }
}

pub(super) fn is_token(raw: &str) -> bool {
    raw.starts_with(['"', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'])
}

pub(super) fn read(line: &str) -> Read {
    if serde_json::from_str::<&RawValue>(line).is_err() {
        return Read::Noise;
    }
    let start = skip_space(line, 0);
    match line.as_bytes()[start] {
        b'[' => Read::Many(items(line, start)),
        b'{' => {
            let members = members(line, start);
            let keys = ["id", "method", "params", "result", "error"];
            let places = keys.map(|key| {
                let mut its =
                    members.iter().filter(|(name, _)| name == key).map(|(_, at)| at.clone());
                (its.next(), its.next())
            });
            if places.iter().any(|(_, twice)| twice.is_some()) {
                return Read::Odd;
            }
            let [id, method, params, result, error] = places.map(|(place, _)| place);
            let Ok(method) = serde_json::from_str(method.map_or("null", |at| &line[at])) else {
                return Read::Odd;
            };
            Read::One(Message { id, method, params, result, error })
        }
        _ => Read::Odd,
    }
}

fn skip_space(line: &str, mut at: usize) -> usize {
    while line.as_bytes().get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// Where the value that begins here ends.
fn end_of(line: &str, start: usize) -> usize {
    let bytes = line.as_bytes();
    let (mut at, mut depth) = (start, 0);
    loop {
        match bytes[at] {
            b'"' => {
                at += 1;
                while bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        let is_over = |byte: &u8| b",]} \t\r\n".contains(byte);
        let closed = matches!(bytes[at - 1], b'"' | b'}' | b']');
        if depth == 0 && (closed || bytes.get(at).is_none_or(is_over)) {
            return at;
        }
    }
}

fn members(line: &str, start: usize) -> Vec<(String, Range<usize>)> {
    let mut members = Vec::new();
    let mut at = skip_space(line, start + 1);
    while line.as_bytes()[at] != b'}' {
        let key = at..end_of(line, at);
        let colon = skip_space(line, key.end);
        let from = skip_space(line, colon + 1);
        let value = from..end_of(line, from);
        at = skip_space(line, value.end);
        if line.as_bytes()[at] == b',' {
            at = skip_space(line, at + 1);
        }
        members.push((serde_json::from_str(&line[key]).unwrap(), value));
    }
    members
}

fn items(line: &str, start: usize) -> Vec<Range<usize>> {
    let mut items = Vec::new();
    let mut at = skip_space(line, start + 1);
    while line.as_bytes()[at] != b']' {
        let item = at..end_of(line, at);
        at = skip_space(line, item.end);
        if line.as_bytes()[at] == b',' {
            at = skip_space(line, at + 1);
        }
        items.push(item);
    }
    items
}
