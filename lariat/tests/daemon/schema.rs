//! Answers against the document: as much of JSON Schema as the document uses, and nothing unknown.

use crate::http::Answer;
use serde_json::Value;

/// Words of a schema that say nothing about the value.
const SILENT: [&str; 2] = ["description", "minimum"];

fn document() -> Value {
    serde_json::from_str(include_str!("../../src/daemon/openapi.json")).unwrap()
}

/// Checks status, content type and body of an answer.
#[track_caller]
pub(crate) fn check(method: &str, path: &str, answer: &Answer) {
    let document = document();
    let paths = document["paths"].as_object().unwrap();
    let path = path.split('?').next().unwrap();
    let found = paths.iter().find(|(pattern, _)| fits(pattern, path));
    let operation = found.and_then(|(_, item)| item.get(method.to_lowercase()));
    let Some(operation) = operation else {
        // What is not in the document can only be refused.
        assert!(matches!(answer.status, 404 | 405 | 403 | 503), "{method} {path}: {answer:?}");
        assert_eq!(answer.headers["content-type"], "application/problem+json");
        let schema = &document["components"]["schemas"]["Problem"];
        return assert_valid(&answer.json(), schema, &document);
    };
    let response = &operation["responses"][answer.status.to_string()];
    assert!(response.is_object(), "{method} {path} is not to answer {answer:?}");
    let Some(content) = response.get("content") else { return };
    let kind = &answer.headers["content-type"];
    let schema = &content[kind]["schema"];
    assert!(schema.is_object(), "{method} {path} is not to answer with {kind}");
    assert_valid(&answer.json(), schema, &document);
}

/// Checks one line of the stream of events.
#[track_caller]
pub(crate) fn check_event(event: &Value) {
    let document = document();
    assert_valid(event, &document["components"]["schemas"]["Event"], &document);
}

fn fits(pattern: &str, path: &str) -> bool {
    let (pattern, path): (Vec<&str>, Vec<&str>) =
        (pattern.split('/').collect(), path.split('/').collect());
    pattern.len() == path.len()
        && pattern.iter().zip(path).all(|(want, have)| want.starts_with('{') || *want == have)
}

#[track_caller]
fn assert_valid(value: &Value, schema: &Value, document: &Value) {
    let mut complaints = Vec::new();
    validate(value, schema, document, "answer", &mut complaints);
    assert!(complaints.is_empty(), "{complaints:#?}\n{value:#}");
}

fn validate(value: &Value, schema: &Value, document: &Value, at: &str, bad: &mut Vec<String>) {
    for (word, rule) in schema.as_object().unwrap() {
        match word.as_str() {
            "$ref" => {
                let target = document.pointer(&rule.as_str().unwrap()[1..]).unwrap();
                validate(value, target, document, at, bad);
            }
            "type" => {
                let one = std::slice::from_ref(rule);
                let kinds = rule.as_array().map_or(one, Vec::as_slice);
                if !kinds.iter().any(|kind| is(value, kind.as_str().unwrap())) {
                    bad.push(format!("{at} is no {rule}"));
                }
            }
            "enum" => {
                if !rule.as_array().unwrap().contains(value) {
                    bad.push(format!("{at} is none of {rule}"));
                }
            }
            "required" => {
                for name in rule.as_array().unwrap() {
                    if value.get(name.as_str().unwrap()).is_none() {
                        bad.push(format!("{at} has no {name}"));
                    }
                }
            }
            "items" => {
                for (n, item) in value.as_array().into_iter().flatten().enumerate() {
                    validate(item, rule, document, &format!("{at}[{n}]"), bad);
                }
            }
            "properties" => {
                for (name, rule) in rule.as_object().unwrap() {
                    if let Some(member) = value.get(name) {
                        validate(member, rule, document, &format!("{at}.{name}"), bad);
                    }
                }
            }
            "additionalProperties" => {
                let known = schema.get("properties").and_then(Value::as_object);
                let is_known = |name: &str| known.is_some_and(|known| known.contains_key(name));
                let members = value.as_object().into_iter().flatten();
                for (name, member) in members.filter(|(name, _)| !is_known(name)) {
                    match rule {
                        Value::Bool(true) => {}
                        Value::Bool(false) => bad.push(format!("{at} has {name}")),
                        _ => validate(member, rule, document, &format!("{at}.{name}"), bad),
                    }
                }
            }
            word if SILENT.contains(&word) => {}
            word => panic!("the validator does not know `{word}`"),
        }
    }
}

fn is(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => panic!("no such type: {kind}"),
    }
}

#[test]
fn the_validator_can_fail() {
    let document = document();
    let complaints = |schema: &str, text: &str| {
        let mut bad = Vec::new();
        let value = serde_json::from_str(text).unwrap();
        let schema = &document["components"]["schemas"][schema];
        validate(&value, schema, &document, "x", &mut bad);
        bad
    };
    assert_eq!(complaints("Owner", r#"{"pid":1,"command":"x","lease":"process"}"#), [""; 0]);
    assert_eq!(complaints("Owner", r#"{"pid":"1","command":"x","lease":"soon"}"#).len(), 2);
    assert_eq!(complaints("Owner", r#"{"pid":1,"lease":"process","more":1}"#).len(), 2);
    assert_eq!(complaints("Sessions", r#"{"sessions":[{}]}"#).len(), 4);
    let server = r#"{"id":"a","state":"open","owner":{"pid":1,"command":"x","lease":"process"},
                     "servers":{"a":{"state":"odd"}}}"#;
    assert_eq!(
        complaints("Session", server),
        [
            r#"x.servers.a.state is none of ["starting","ready","restarting","failed","ending","ended"]"#
        ]
    );
}
