//! What the headers of a request say, and whether its body says the same. Pure.
//!
//! In the modern era a request says in its headers what it is about, so that somebody between can
//! send it the right way without reading it. Whoever does read it must see that both agree: otherwise
//! one would be let through for what another is asked to do.

use crate::daemon::base64;
use hyper::header::{self, HeaderMap, HeaderValue};
use serde_json::Value;

/// The revisions that begin with a handshake. The oldest had another transport, but a server may
/// still choose it.
pub(super) const LEGACY: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// The revision in which a message may be an array of messages.
pub(super) const BATCHES: &str = "2025-03-26";

/// From here on a stream begins with an event that says where to resume it. Older clients take it for
/// a message.
pub(super) const PRIMES: &str = "2025-11-25";

pub(super) const VERSION: &str = "mcp-protocol-version";
pub(super) const METHOD: &str = "mcp-method";
pub(super) const NAME: &str = "mcp-name";
pub(super) const SESSION: &str = "mcp-session-id";
const PARAM: &str = "mcp-param-";

/// A tool's schema is followed this deep.
const DEEPEST: usize = 32;

/// What a client can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepts {
    pub(super) json: bool,
    pub(super) events: bool,
}

impl Accepts {
    /// Who says nothing about it can read anything.
    pub(super) fn of(headers: &HeaderMap) -> Accepts {
        let mut accepts = Accepts { json: false, events: false };
        let mut said = false;
        for value in headers.get_all(header::ACCEPT) {
            said = true;
            for range in value.to_str().unwrap_or_default().split(',') {
                let kind = range.split(';').next().unwrap_or_default().trim();
                let is = |kinds: [&str; 3]| kinds.iter().any(|k| kind.eq_ignore_ascii_case(k));
                accepts.json |= is(["application/json", "application/*", "*/*"]);
                accepts.events |= is(["text/event-stream", "text/*", "*/*"]);
            }
        }
        if said { accepts } else { Accepts { json: true, events: true } }
    }
}

/// True if the body is said to be JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// A header's text; `None` if it is not there or there twice, which is no answer either.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    value.to_str().ok().map(str::trim)
}

/// What a modern request says about itself in its body.
#[derive(Debug, Default)]
pub(super) struct Body<'a> {
    pub(super) version: &'a str,
    pub(super) method: &'a str,
    /// What it calls, gets or reads, if the method is one that does.
    pub(super) name: Option<&'a str>,
    /// False if the headers need not say so.
    pub(super) must_name: bool,
}

/// Why the headers and the body of a modern request do not agree, in words.
pub(super) fn disagreement(headers: &HeaderMap, body: &Body<'_>) -> Option<String> {
    let same = |name: &str, shown: &str, wanted: &str| match text(headers, name) {
        None => Some(format!("the header {shown} is missing or unreadable")),
        Some(said) if said != wanted => {
            Some(format!("the header {shown} says something else than the body"))
        }
        Some(_) => None,
    };
    let named = || {
        let wanted = body.name.filter(|_| body.must_name || headers.contains_key(NAME))?;
        let Some(value) = single(headers, NAME) else {
            return Some("the header Mcp-Name is missing or unreadable".into());
        };
        match decoded(value) {
            None => Some("the header Mcp-Name is not properly encoded".into()),
            Some(said) if said != wanted => {
                Some("the header Mcp-Name says something else than the body".into())
            }
            Some(_) => None,
        }
    };
    same(VERSION, "MCP-Protocol-Version", body.version)
        .or_else(|| same(METHOD, "Mcp-Method", body.method))
        .or_else(named)
}

/// An argument of a tool that is to be in a header as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mirror {
    path: Vec<String>,
    header: String,
}

/// Those of one tool, by its `inputSchema`.
pub(super) fn mirrors(schema: &Value) -> Vec<Mirror> {
    let mut found = Vec::new();
    collect(schema, &mut Vec::new(), &mut found);
    found
}

fn collect(schema: &Value, path: &mut Vec<String>, found: &mut Vec<Mirror>) {
    let Some(properties) = schema["properties"].as_object().filter(|_| path.len() < DEEPEST) else {
        return;
    };
    for (name, property) in properties {
        path.push(name.clone());
        if let Some(header) = property["x-mcp-header"].as_str() {
            let header = format!("{PARAM}{}", header.to_ascii_lowercase());
            found.push(Mirror { path: path.clone(), header });
        }
        collect(property, path, found);
        path.pop();
    }
}

/// Why the headers and the arguments of a call do not agree, in words.
pub(super) fn unmirrored(
    headers: &HeaderMap,
    mirrors: &[Mirror],
    arguments: &Value,
) -> Option<String> {
    mirrors.iter().find_map(|mirror| {
        let value = mirror.path.iter().try_fold(arguments, |value, key| value.get(key));
        let shown = &mirror.header;
        let there = headers.contains_key(shown);
        let wanted = match value {
            None | Some(Value::Null) if there => {
                return Some(format!("the header {shown} stands for no argument"));
            }
            None | Some(Value::Null) => return None,
            Some(wanted) => wanted,
        };
        let Some(value) = single(headers, shown) else {
            return Some(format!("the header {shown} is missing or unreadable"));
        };
        let Some(said) = decoded(value) else {
            return Some(format!("the header {shown} is not properly encoded"));
        };
        let agrees = match wanted {
            Value::String(text) => *text == said,
            Value::Bool(yes) => said == yes.to_string(),
            Value::Number(number) => {
                let both = number.as_f64().zip(said.parse::<f64>().ok());
                number.to_string() == said || both.is_some_and(|(one, other)| one == other)
            }
            _ => false,
        };
        (!agrees).then(|| format!("the header {shown} says something else than the body"))
    })
}

fn single<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// The value that a header carries, plain or wrapped; `None` if it is neither.
fn decoded(value: &HeaderValue) -> Option<String> {
    let text = value.to_str().ok()?.trim();
    match text.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        Some(wrapped) => String::from_utf8(base64::standard(wrapped)?).ok(),
        None => Some(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn what_a_client_reads_is_what_it_says() {
        let accepts = |text| Accepts::of(&headers(&[("accept", text)]));
        let both = Accepts { json: true, events: true };
        assert_eq!(accepts("application/json, text/event-stream"), both);
        assert_eq!(accepts("TEXT/event-stream;q=0.5,application/json;charset=utf-8"), both);
        assert_eq!(accepts("*/*"), both);
        assert_eq!(Accepts::of(&HeaderMap::new()), both);
        assert_eq!(accepts("application/json"), Accepts { json: true, events: false });
        assert_eq!(accepts("text/html"), Accepts { json: false, events: false });
        assert!(is_json(&headers(&[("content-type", "application/json; charset=utf-8")])));
        assert!(
            !is_json(&headers(&[("content-type", "text/plain")])) && !is_json(&HeaderMap::new())
        );
    }

    #[test]
    fn headers_and_body_agree_or_not() {
        let body = Body {
            version: "2026-07-28",
            method: "tools/call",
            name: Some("grüße"),
            must_name: true,
        };
        let with = |version, method, name| {
            let mut all = headers(&[(VERSION, version), (METHOD, method)]);
            if let Some(name) = name {
                all.append(NAME, HeaderValue::from_str(name).unwrap());
            }
            disagreement(&all, &body)
        };
        let wrapped = Some("=?base64?Z3LDvMOfZQ==?=");
        assert_eq!(with("2026-07-28", "tools/call", wrapped), None);
        assert!(with("2025-11-25", "tools/call", wrapped).unwrap().contains("Protocol-Version"));
        assert!(with("2026-07-28", "TOOLS/CALL", wrapped).unwrap().contains("Mcp-Method"));
        for name in [None, Some("gruesse"), Some("=?base64?Z3LDvMOfZQ=?="), Some("=?base64?!!!!?=")]
        {
            assert!(
                with("2026-07-28", "tools/call", name).unwrap().contains("Mcp-Name"),
                "{name:?}"
            );
        }
        let list = Body { version: "2026-07-28", method: "tools/list", ..Body::default() };
        let twice = headers(&[(VERSION, "2026-07-28"), (METHOD, "tools/list"), (METHOD, "x")]);
        assert!(disagreement(&twice, &list).is_some());
    }

    #[test]
    fn arguments_are_mirrored_where_the_schema_says_so() {
        let schema = json!({ "properties": {
            "region": { "type": "string", "x-mcp-header": "Region" },
            "deep": { "properties": { "n": { "type": "integer", "x-mcp-header": "Count" } } },
            "list": { "items": { "properties": { "a": { "x-mcp-header": "No" } } } },
        }});
        let mirrors = mirrors(&schema);
        assert_eq!(mirrors.len(), 2);
        let arguments = json!({ "region": "eu", "deep": { "n": 42 } });
        let check = |pairs: &[(&'static str, &str)], arguments: &Value| {
            unmirrored(&headers(pairs), &mirrors, arguments)
        };
        assert_eq!(
            check(&[("mcp-param-region", "eu"), ("mcp-param-count", "42.0")], &arguments),
            None
        );
        assert_eq!(
            check(
                &[("mcp-param-region", "=?base64?ZXU=?="), ("mcp-param-count", "42")],
                &arguments
            ),
            None
        );
        assert!(
            check(&[("mcp-param-region", "us"), ("mcp-param-count", "42")], &arguments).is_some()
        );
        assert!(check(&[("mcp-param-count", "42")], &arguments).is_some());
        assert_eq!(check(&[], &json!({ "region": null })), None);
        assert!(check(&[("mcp-param-region", "eu")], &json!({})).is_some());
    }
}
