//! The table and the document agree; paths of any kind are found or refused, never more.

use super::*;
use crate::dice::Dice;
use serde_json::Value;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

/// Statuses by method and path.
type Table = BTreeMap<(String, String), BTreeSet<u16>>;

fn document() -> Value {
    serde_json::from_str(include_str!("../openapi.json")).unwrap()
}

#[test]
fn the_document_is_what_is_served() {
    let route = |route: &Route| {
        let answers = route.answers.iter().copied().chain(ANYWHERE).collect();
        ((route.method.as_str().to_lowercase(), route.path.to_owned()), answers)
    };
    let served: Table = ROUTES.iter().map(route).collect();
    let mut documented = Table::new();
    for (path, item) in document()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            // Beside methods, a path has parameters that all of them share.
            let Some(responses) = operation.get("responses") else { continue };
            let statuses = responses.as_object().unwrap().keys().map(|key| key.parse().unwrap());
            documented.insert((method.clone(), path.clone()), statuses.collect());
        }
    }
    assert_eq!(served, documented);
}

#[test]
fn every_reference_in_the_document_leads_somewhere() {
    fn walk(value: &Value, document: &Value) {
        if let Some(target) = value.get("$ref") {
            let pointer = target.as_str().unwrap().strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
        match value {
            Value::Object(object) => object.values().for_each(|value| walk(value, document)),
            Value::Array(items) => items.iter().for_each(|value| walk(value, document)),
            _ => {}
        }
    }
    walk(&document(), &document());
}

#[test]
fn paths_name_sessions_and_servers() {
    let found = find(&Method::POST, "/v1/sessions/a1/servers/git%2Bhub%20x/call").unwrap();
    assert_eq!(found, Found { verb: Verb::Call, id: "a1".into(), name: "git+hub x".into() });
    assert_eq!(find(&Method::GET, "/v1/sessions/a1").unwrap().verb, Verb::Look);
    for unknown in [
        "",
        "/",
        "/v1",
        "/v1/sessions/",
        "/v1/sessions//refresh",
        "/v1/sessions/a/b",
        "/v2/sessions",
        "/v1/sessions/%zz",
        "/v1/sessions/%f",
        "/v1/sessions/%ff",
        "v1/sessions",
    ] {
        assert_eq!(find(&Method::GET, unknown), Err(Unknown::Path), "{unknown}");
    }
}

#[test]
fn another_method_is_told_which_there_are() {
    let refused = |method, path| find(&method, path).unwrap_err();
    assert_eq!(refused(Method::PUT, "/v1/sessions"), Unknown::Method("POST, GET".into()));
    assert_eq!(refused(Method::POST, "/v1/sessions/x"), Unknown::Method("GET, DELETE".into()));
    assert_eq!(refused(Method::HEAD, "/v1/snapshot"), Unknown::Method("GET".into()));
}

#[test]
fn what_is_encoded_is_decoded() {
    for text in ["plain", "a b/c%", "größe", "..", "\u{1f600}", "+", "a\0b"] {
        assert!(encoded(text).is_ascii(), "{text}");
        assert_eq!(decoded(&encoded(text)).as_deref(), Some(text));
    }
}

#[test]
fn no_path_is_too_odd() {
    let words: [&[u8]; 6] = [b"/", b"%2f", b"%", b"{id}", b"/v1/sessions/", b"\xff"];
    let (mut dice, mut known) = (Dice(0x2545_f491_4f6c_dd1d), 0);
    for round in 0..20_000 {
        let route = &ROUTES[round % ROUTES.len()];
        let path = dice.mutate(route.path.as_bytes(), &words);
        let path = String::from_utf8_lossy(&path);
        match find(&route.method, &path) {
            Ok(_) => known += 1,
            Err(unknown) => assert!(unknown.problem(&route.method, &path).detail.len() < 1000),
        }
    }
    assert!(known > 100, "{known}");
}
