//! What things are called when many servers look like one: `NAME__tool`, `NAME+uri`. Pure.
//!
//! Only the names are replaced, where they stand. The rest of a message keeps its bytes.

use crate::mcp::envelope::{Edits, Envelope, Items};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

/// Between a server's name and that of its tool or prompt.
const OF: &str = "__";

/// Between a server's name and the address of its resource.
const AT: &str = "+";

/// Members that carry a name or an address, or something that does.
#[derive(Debug, Default, Deserialize)]
struct Named<'a> {
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    uri: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "uriTemplate")]
    template: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "ref")]
    reference: Option<&'a RawValue>,
    #[serde(borrow, default)]
    resource: Option<&'a RawValue>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    contents: Option<&'a RawValue>,
    #[serde(borrow, default)]
    messages: Option<&'a RawValue>,
    #[serde(borrow, default)]
    cursor: Option<&'a RawValue>,
    #[serde(borrow, default)]
    notifications: Option<&'a RawValue>,
}

impl<'a> Named<'a> {
    /// Anything but an object has no members. `None` if a key occurs twice.
    fn of(raw: Option<&'a RawValue>) -> Option<Named<'a>> {
        match raw {
            Some(raw) if raw.get().starts_with('{') => serde_json::from_str(raw.get()).ok(),
            _ => Some(Named::default()),
        }
    }
}

/// The address of a server's resource, for a client.
pub(super) fn outer_uri(server: &str, uri: &str) -> String {
    format!("{server}{AT}{uri}")
}

/// Whose resource this is, and its address there.
pub(super) fn inner_uri<'a>(servers: &[String], uri: &'a str) -> Option<(usize, &'a str)> {
    inner(servers, uri, AT)
}

fn inner<'a>(servers: &[String], text: &'a str, between: &str) -> Option<(usize, &'a str)> {
    let (server, rest) = text.split_once(between)?;
    Some((servers.iter().position(|name| name == server)?, rest))
}

/// What a request is about, where that stands in its line, and what is between there.
fn subject<'a>(method: &str, params: &Named<'a>) -> Option<(&'a RawValue, &'static str)> {
    match method {
        "tools/call" | "prompts/get" => Some((params.name?, OF)),
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => {
            Some((params.uri?, AT))
        }
        "completion/complete" => {
            let reference = Named::of(params.reference)?;
            match (reference.uri, reference.name) {
                (Some(uri), _) => Some((uri, AT)),
                (None, name) => Some((name?, OF)),
            }
        }
        _ => None,
    }
}

/// Which server a request is for, its line for that server, and what it is about as the client says.
pub(super) fn inward(
    servers: &[String],
    method: &str,
    envelope: &Envelope<'_>,
    line: &[u8],
) -> Option<(usize, Vec<u8>, String)> {
    let params = Named::of(envelope.params)?;
    let (raw, between) = subject(method, &params)?;
    let said: String = serde_json::from_str(raw.get()).ok()?;
    let (server, rest) = inner(servers, &said, between)?;
    let mut edits = Edits::default();
    edits.put(line, raw, json!(rest).to_string());
    Some((server, edits.apply(line.to_vec()), said))
}

/// An item of a list, as a client knows it; with its new name, if it is a tool.
pub(super) fn item(server: &str, key: &str, item: &RawValue) -> Option<(String, String)> {
    let named = Named::of(Some(item))?;
    let (raw, between) = match key {
        "resources" => (named.uri?, AT),
        "resourceTemplates" => (named.template?, AT),
        _ => (named.name?, OF),
    };
    let said: String = serde_json::from_str(raw.get()).ok()?;
    let name = format!("{server}{between}{said}");
    let line = item.get().as_bytes();
    let mut edits = Edits::default();
    edits.put(line, raw, json!(name).to_string());
    Some((name, String::from_utf8(edits.apply(line.to_vec())).ok()?))
}

/// An answer or a notification of a server, with the addresses in it as a client knows them.
pub(super) fn outward(server: &str, envelope: &Envelope<'_>, line: &[u8]) -> Vec<u8> {
    let mut edits = Edits::default();
    let mut prefix = |raw: Option<&RawValue>| {
        let said = raw.and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
        if let (Some(raw), Some(said)) = (raw, said) {
            edits.put(line, raw, json!(outer_uri(server, &said)).to_string());
        }
    };
    if envelope.method.as_deref() == Some("notifications/resources/updated") {
        prefix(Named::of(envelope.params).and_then(|params| params.uri));
    }
    if let Some(result) = Named::of(envelope.result) {
        for part in items(result.contents) {
            prefix(Named::of(Some(part)).and_then(|part| part.uri));
        }
        let messages = items(result.messages);
        let inside = messages.into_iter().filter_map(|it| Named::of(Some(it))?.content);
        for content in inside.chain(result.content) {
            for part in items(Some(content)) {
                let Some(part) = Named::of(Some(part)) else { continue };
                prefix(part.uri);
                prefix(Named::of(part.resource).and_then(|resource| resource.uri));
            }
        }
    }
    edits.apply(line.to_vec())
}

/// The items of a list; one thing is a list of one.
fn items<'a>(raw: Option<&'a RawValue>) -> Vec<&'a RawValue> {
    match raw {
        Some(raw) if raw.get().starts_with('[') => {
            serde_json::from_str::<Items<'a>>(raw.get()).map(|items| items.0).unwrap_or_default()
        }
        Some(raw) => vec![raw],
        None => Vec::new(),
    }
}

/// True if a request wants another page.
pub(super) fn has_cursor(envelope: &Envelope<'_>) -> bool {
    Named::of(envelope.params).is_none_or(|params| params.cursor.is_some())
}

/// The same request for the next page.
pub(super) fn next_page(envelope: &Envelope<'_>, line: &[u8], cursor: &str) -> Option<Vec<u8>> {
    let cursor = format!("\"cursor\":{}", json!(cursor));
    let mut edits = Edits::default();
    match envelope.params {
        Some(params) => {
            let rest = params.get().strip_prefix('{')?;
            let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
            edits.put(line, params, format!("{{{cursor}{comma}{rest}"));
        }
        None => {
            let id = envelope.id?;
            edits.put(line, id, format!("{},\"params\":{{{cursor}}}", id.get()));
        }
    }
    Some(edits.apply(line.to_vec()))
}

/// What a listen is for, as JSON: an object.
pub(super) fn filter(envelope: &Envelope<'_>) -> Option<serde_json::Value> {
    let filter = Named::of(envelope.params)?.notifications?;
    serde_json::from_str(filter.get()).ok().filter(serde_json::Value::is_object)
}

/// The same listen for something else.
pub(super) fn refiltered(
    envelope: &Envelope<'_>,
    line: &[u8],
    filter: &serde_json::Value,
) -> Option<Vec<u8>> {
    let mut edits = Edits::default();
    edits.put(line, Named::of(envelope.params)?.notifications?, filter.to_string());
    Some(edits.apply(line.to_vec()))
}
