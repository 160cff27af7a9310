//! Many answers made into one. Pure.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// Who is there when many are.
fn ourselves() -> Value {
    json!({ "name": "lariat", "version": env!("CARGO_PKG_VERSION") })
}

/// What several servers offer: what any of them does.
fn union(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                match into.get_mut(&key) {
                    Some(there) => union(there, value),
                    None => drop(into.insert(key, value)),
                }
            }
        }
        (Value::Bool(into), Value::Bool(from)) => *into |= from,
        _ => {}
    }
}

/// What all of them can do. Tasks have ids of which nobody can tell whose they are.
fn capabilities(parts: &[(String, Value)]) -> Value {
    let mut all = json!({});
    for (_, part) in parts {
        union(&mut all, part["capabilities"].clone());
    }
    if let Some(all) = all.as_object_mut() {
        all.remove("tasks");
        if let Some(extensions) = all.get_mut("extensions").and_then(Value::as_object_mut) {
            extensions.remove("io.modelcontextprotocol/tasks");
        }
    }
    all
}

fn instructions(parts: &[(String, Value)], result: &mut Value) {
    let said = |(server, part): &(String, Value)| {
        Some(format!("{server}: {}", part["instructions"].as_str()?))
    };
    let said: Vec<String> = parts.iter().filter_map(said).collect();
    if !said.is_empty() {
        result["instructions"] = json!(said.join("\n\n"));
    }
}

/// The answer to `initialize`: the oldest revision that any of them has chosen.
pub(super) fn initialize(parts: &[(String, Value)], absent: &[String]) -> Value {
    let versions = parts.iter().filter_map(|(_, part)| part["protocolVersion"].as_str());
    let mut result = json!({
        "protocolVersion": versions.min(),
        "capabilities": capabilities(parts),
        "serverInfo": ourselves(),
    });
    instructions(parts, &mut result);
    if !absent.is_empty() {
        result["_meta"] = json!({ "dev.lariat/absent": absent });
    }
    result
}

/// The answer to `server/discover`: the revisions that all of them know.
pub(super) fn discover(parts: &[(String, Value)], absent: &[String]) -> Value {
    let known = |(_, part): &(String, Value)| -> Vec<Value> {
        part["supportedVersions"].as_array().cloned().unwrap_or_default()
    };
    let mut versions = parts.first().map(known).unwrap_or_default();
    for part in parts {
        let known = known(part);
        versions.retain(|version| known.contains(version));
    }
    let mut result = json!({
        "resultType": "complete",
        "supportedVersions": versions,
        "capabilities": capabilities(parts),
        "_meta": { "io.modelcontextprotocol/serverInfo": ourselves() },
    });
    if !absent.is_empty() {
        result["_meta"]["dev.lariat/absent"] = json!(absent);
    }
    instructions(parts, &mut result);
    let keeping: Vec<Keeping> =
        parts.iter().filter_map(|(_, part)| Keeping::deserialize(part).ok()).collect();
    for (key, value) in kept(&keeping) {
        result[key] = value;
    }
    result
}

/// How a page of a list may be kept, and where it goes on.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Keeping {
    #[serde(default)]
    pub(super) next_cursor: Option<String>,
    #[serde(default)]
    pub(super) result_type: Option<String>,
    #[serde(default)]
    ttl_ms: Option<u64>,
    #[serde(default)]
    cache_scope: Option<String>,
}

/// Of one answer.
pub(super) fn keeping(result: &RawValue) -> Keeping {
    serde_json::from_str(result.get()).unwrap_or_default()
}

/// As long as the shortest, and for as few as the most careful says.
fn kept(all: &[Keeping]) -> Map<String, Value> {
    let mut said = Map::new();
    if let Some(ttl) = all.iter().filter_map(|it| it.ttl_ms).min() {
        said.insert("ttlMs".into(), json!(ttl));
    }
    let mut scopes = all.iter().filter_map(|it| it.cache_scope.as_deref()).peekable();
    if scopes.peek().is_some() {
        let scope = if scopes.all(|it| it == "public") { "public" } else { "private" };
        said.insert("cacheScope".into(), json!(scope));
    }
    said
}

/// A list of all items; each is JSON.
pub(super) fn list(key: &str, items: &[(usize, String)], keepings: &[Keeping]) -> String {
    let mut rest = kept(keepings);
    if keepings.iter().any(|it| it.result_type.is_some()) {
        rest.insert("resultType".into(), json!("complete"));
    }
    let items: Vec<&str> = items.iter().map(|(_, item)| &**item).collect();
    let mut text = format!("{{\"{key}\":[{}]", items.join(","));
    for (key, value) in rest {
        text += &format!(",\"{key}\":{value}");
    }
    text + "}"
}

/// What all of them have agreed to tell.
pub(super) fn filters(parts: Vec<Value>) -> Value {
    let mut all = json!({});
    for mut part in parts {
        let uris = part.as_object_mut().and_then(|part| part.remove("resourceSubscriptions"));
        if let Some(Value::Array(uris)) = uris {
            match all["resourceSubscriptions"].as_array_mut() {
                Some(there) => there.extend(uris),
                None => all["resourceSubscriptions"] = json!(uris),
            }
        }
        union(&mut all, part);
    }
    all
}
