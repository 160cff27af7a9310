//! Whose a container is: which requests create something, and the labels put into their bodies.
//!
//! A create that goes through without its labels is a container that nobody will end. So paths are
//! recognised generously, and a body that could mean something else to the engine than to us is
//! refused. All other bytes of a body stay as they are: the engine knows fields that we do not.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;
use std::ops::Range;

/// The session that ends it.
pub const SESSION: &str = "dev.lariat.session";
/// The server that made it.
pub const SERVER: &str = "dev.lariat.server";
/// Who looks after the session.
pub const OWNER: &str = "dev.lariat.owner";
/// Another value for each create. An image made of a container carries the container's labels, this
/// one too: what is started from that image past us has the image's value, and is not ours.
pub const BIRTH: &str = "dev.lariat.birth";
/// The user wants it to stay.
pub const KEEP: &str = "dev.lariat.keep";
/// Before the name of an outer session, on what an inner session owns.
pub const WITHIN: &str = "dev.lariat.within.";

/// The labels of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    /// Goes under [`SESSION`].
    pub session: String,
    /// Goes under [`SERVER`].
    pub server: String,
    /// Goes under [`OWNER`].
    pub owner: String,
    /// Goes under [`BIRTH`].
    pub birth: String,
}

impl Labels {
    /// All of them, by key.
    pub fn all(&self) -> [(&'static str, &str); 4] {
        let Labels { session, server, owner, birth } = self;
        [(SESSION, session), (SERVER, server), (OWNER, owner), (BIRTH, birth)]
    }
}

/// What a request creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Creates {
    /// A container.
    Container,
    /// A network.
    Network,
    /// A volume.
    Volume,
    /// One of Podman's pods.
    Pod,
}

/// Why a create cannot be labelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unlabelled {
    /// There is no body.
    Empty,
    /// Not text.
    NotUtf8,
    /// Not JSON.
    Malformed,
    /// JSON, but nothing that has members.
    NotAnObject,
    /// Something comes after the object, where not every reader looks.
    Trailing,
    /// Labels that are neither an object nor null.
    LabelsNotAnObject,
    /// A label of ours is there, and is not a text.
    LabelNotText,
}

impl fmt::Display for Unlabelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self {
            Unlabelled::Empty => "the body is empty",
            Unlabelled::NotUtf8 => "the body is not UTF-8",
            Unlabelled::Malformed => "the body is not well-formed JSON",
            Unlabelled::NotAnObject => "the body is not a JSON object",
            Unlabelled::Trailing => "something follows the JSON object",
            Unlabelled::LabelsNotAnObject => "the labels are not a JSON object",
            Unlabelled::LabelNotText => "a dev.lariat label is not a string",
        };
        write!(f, "lariat: cannot label this create: {why}")
    }
}

impl std::error::Error for Unlabelled {}

/// What a request creates, if it creates something that we label.
///
/// Takes more spellings than any engine does: a label too many harms nobody.
pub fn creates(method: &str, target: &str) -> Option<Creates> {
    if !method.eq_ignore_ascii_case("POST") {
        return None;
    }
    let path = path(target);
    match path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["containers", "create"] => Some(Creates::Container),
        ["networks", "create"] => Some(Creates::Network),
        ["volumes", "create"] => Some(Creates::Volume),
        ["pods", "create"] => Some(Creates::Pod),
        _ => None,
    }
}

/// Whether the engine may turn a request for this target into a tunnel.
///
/// No other request has a reason to, and behind a tunnel nothing is labelled any more.
pub fn may_hijack(target: &str) -> bool {
    let path = path(target);
    match path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["session" | "grpc"] => true,
        // A container's name may have slashes in it: those of links do.
        ["containers", _, .., "attach"] | ["containers", _, .., "attach", "ws"] => true,
        ["exec", _, .., "start"] => true,
        _ => false,
    }
}

/// The parts of a target's path, without the version and Podman's own prefix.
fn path(target: &str) -> Vec<String> {
    let target = target.split(['?', '#']).next().unwrap_or_default();
    // A whole URL, as proxies are asked for.
    let target = match target.split_once(':') {
        Some((_, rest)) if !target.starts_with('/') => match rest.strip_prefix("//") {
            Some(rest) => rest.find('/').map_or("", |at| &rest[at..]),
            None => rest,
        },
        _ => target,
    };
    let mut parts = Vec::new();
    // An encoded slash is a slash in the path that engines match.
    for part in percent_decoded(target).split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part.to_string()),
        }
    }
    if parts.first().is_some_and(|part| is_version(part)) {
        parts.remove(0);
    }
    if parts.first().is_some_and(|part| part == "libpod") {
        parts.remove(0);
    }
    parts
}

/// Docker takes digits and dots, Podman also what may follow them.
fn is_version(part: &str) -> bool {
    part.strip_prefix('v')
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
}

/// Decoded once; what is no escape stays as it is.
fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let digit = |ahead: usize| char::from(*bytes.get(at + ahead)?).to_digit(16);
        match (byte, digit(1), digit(2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high << 4 | low) as u8);
                at += 3;
            }
            _ => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The same body with our labels in it, every other byte as it was.
///
/// Ours win over what the body says, with one exception: what already belongs to another session
/// stays its own, and is marked as being [within](WITHIN) ours, so that both find it.
///
/// An empty body is an error. Engines create no container, network or pod without a body, so a
/// caller may forward such a request untouched and let the engine say so. Not for a volume: of an
/// empty body Docker makes one without a name, and it would have no owner.
pub fn inject(body: &[u8], what: Creates, labels: &Labels) -> Result<Vec<u8>, Unlabelled> {
    if body.is_empty() {
        return Err(Unlabelled::Empty);
    }
    let text = std::str::from_utf8(body).map_err(|_| Unlabelled::NotUtf8)?;
    let blank = [' ', '\t', '\r', '\n'];
    if !text.trim_start_matches(blank).starts_with('{') {
        return Err(Unlabelled::NotAnObject);
    }
    let members = Members::read(text)?;

    let mut fields = vec![Field::find("Labels", &members)?];
    if what == Creates::Volume {
        // Podman's older name: still read, but its values yield to those of the newer one.
        fields.insert(0, Field::find("Label", &members)?);
        fields.retain(|field| field.name == "Labels" || field.place.is_some());
    }
    let session = fields.iter().filter_map(|field| field.session.as_deref()).next_back();
    let ours = match session {
        Some(other) if other != labels.session => {
            let within = quoted(&format!("{WITHIN}{}", labels.session));
            format!("{within}:{}", quoted(&labels.birth))
        }
        _ => {
            labels.all().map(|(key, value)| format!("{}:{}", quoted(key), quoted(value))).join(",")
        }
    };

    let end = text.trim_end_matches(blank).len() - 1;
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    for field in fields {
        edits.push(match field.place {
            Some(Place::Null(value)) => (range_of(value, text), format!("{{{ours}}}")),
            Some(Place::Object { value, empty }) => {
                let at = range_of(value, text).end - 1;
                (at..at, format!("{}{ours}", if empty { "" } else { "," }))
            }
            Some(Place::New) | None => {
                let comma = if members.0.is_empty() { "" } else { "," };
                (end..end, format!("{comma}{}:{{{ours}}}", quoted(field.name)))
            }
        });
    }
    edits.sort_by_key(|(range, _)| range.start);
    let mut new = String::with_capacity(text.len() + 2 * ours.len() + 32);
    let mut copied = 0;
    for (range, put) in edits {
        new.push_str(&text[copied..range.start]);
        new.push_str(&put);
        copied = range.end;
    }
    new.push_str(&text[copied..]);
    Ok(new.into_bytes())
}

/// What a body says in one field of labels, as the engine reads it.
struct Field<'b> {
    name: &'static str,
    /// Where ours go; `None` if the body does not have the field.
    place: Option<Place<'b>>,
    /// The session that the labels name.
    session: Option<String>,
}

/// Where our labels go: into what the engine reads last.
enum Place<'b> {
    /// In place of this null.
    Null(&'b RawValue),
    /// At the end of this object.
    Object { value: &'b RawValue, empty: bool },
    /// Into a member of their own, after all others.
    New,
}

impl<'b> Field<'b> {
    /// Reads all members of this name in order: objects add up, and null takes everything back.
    fn find(name: &'static str, members: &Members<'b>) -> Result<Field<'b>, Unlabelled> {
        let mut field = Field { name, place: None, session: None };
        for (key, value) in members.0.iter().filter(|(key, _)| folds_to(key, name)) {
            let place = if value.get() == "null" {
                field.session = None;
                // Not over a null that takes something back: that would come again.
                if field.place.is_some() { Place::New } else { Place::Null(value) }
            } else if value.get().starts_with('{') {
                let labels = Members::read(value.get())?;
                for (key, value) in &labels.0 {
                    if [SESSION, SERVER, OWNER, BIRTH].contains(&key.as_str()) {
                        let text = serde_json::from_str(value.get())
                            .map_err(|_| Unlabelled::LabelNotText)?;
                        if key == SESSION {
                            field.session = Some(text);
                        }
                    }
                }
                Place::Object { value, empty: labels.0.is_empty() }
            } else {
                return Err(Unlabelled::LabelsNotAnObject);
            };
            // Not every reader folds beyond ASCII; one that does adds the two members up.
            let plain = key.eq_ignore_ascii_case(name);
            field.place = Some(if plain { place } else { Place::New });
        }
        Ok(field)
    }
}

/// Whether the engine takes this key for that name: in any case, with two letters beyond ASCII.
fn folds_to(key: &str, name: &str) -> bool {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    key.chars().map(fold).eq(name.chars().map(fold))
}

/// A JSON string.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Where in `text` a value borrowed from it stands.
fn range_of(value: &RawValue, text: &str) -> Range<usize> {
    let start = value.get().as_ptr().addr() - text.as_ptr().addr();
    start..start + value.get().len()
}

/// The members of an object in their order, duplicates and all.
#[derive(Debug)]
struct Members<'b>(Vec<(String, &'b RawValue)>);

impl<'b> Members<'b> {
    fn read(text: &'b str) -> Result<Members<'b>, Unlabelled> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let members = Members::deserialize(&mut reader).map_err(|_| Unlabelled::Malformed)?;
        reader.end().map_err(|_| Unlabelled::Trailing)?;
        Ok(members)
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests;
