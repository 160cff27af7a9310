//! The few members of a message by which it is judged here. The message itself goes on as it is.

use crate::mcp::envelope::{Envelope, Members};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

/// Members of `params`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Params<'a> {
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<&'a RawValue>,
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    uri: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "taskId")]
    task: Option<&'a RawValue>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

/// Members of `_meta` that a modern request must have.
#[derive(Debug, Default, Deserialize)]
struct Meta<'a> {
    #[serde(borrow, default, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<&'a RawValue>,
}

/// What a modern request says about itself.
#[derive(Debug, Default, PartialEq)]
pub(super) struct About {
    pub(super) version: Option<String>,
    pub(super) has_capabilities: bool,
    /// What it calls, gets or reads.
    pub(super) name: Option<String>,
    /// False if its headers need not say so.
    pub(super) must_name: bool,
}

/// `None` if a key occurs twice.
pub(super) fn params<'a>(envelope: &Envelope<'a>) -> Option<Params<'a>> {
    object(envelope.params)
}

impl Params<'_> {
    /// `None` if a key occurs twice.
    pub(super) fn about(&self, method: &str) -> Option<About> {
        let meta: Meta<'_> = object(self.meta)?;
        let name = match method {
            "tools/call" | "prompts/get" => self.name,
            "resources/read" => self.uri,
            "tasks/get" | "tasks/update" | "tasks/cancel" => self.task,
            _ => None,
        };
        Some(About {
            version: meta.version.and_then(text),
            has_capabilities: meta.capabilities.is_some_and(|it| it.get().starts_with('{')),
            name: name.and_then(text),
            must_name: !method.starts_with("tasks/"),
        })
    }

    /// The arguments of a call.
    pub(super) fn arguments(&self) -> Value {
        let parsed = self.arguments.and_then(|raw| serde_json::from_str(raw.get()).ok());
        parsed.unwrap_or_default()
    }
}

fn object<'a, T: Default + Deserialize<'a>>(object: Option<&'a RawValue>) -> Option<T> {
    match object {
        Some(object) if object.get().starts_with('{') => serde_json::from_str(object.get()).ok(),
        _ => Some(T::default()),
    }
}

/// A string's text.
pub(super) fn text(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

/// The progress token of a request, as it is written.
pub(super) fn token<'a>(envelope: &Envelope<'a>) -> Option<&'a str> {
    Some(Members::of(envelope.params)?.meta()?.progress_token?.get())
}

/// The code of an error.
pub(super) fn code(error: &RawValue) -> Option<i64> {
    #[derive(Deserialize)]
    struct Code {
        code: i64,
    }
    serde_json::from_str::<Code>(error.get()).ok().map(|error| error.code)
}

/// The revision that a handshake led to.
pub(super) fn negotiated(result: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Negotiated {
        #[serde(rename = "protocolVersion")]
        version: String,
    }
    serde_json::from_str::<Negotiated>(result.get()).ok().map(|result| result.version)
}

/// The same message on one line: between tokens a line break is as good as a space. Inside of strings
/// there is none in JSON; a text that has one there comes out as it is, which nobody can read.
pub(super) fn on_one_line(mut message: Vec<u8>) -> Vec<u8> {
    let breaks = |byte: &u8| matches!(byte, b'\n' | b'\r');
    if message.iter().any(breaks) && serde_json::from_slice::<IgnoredAny>(&message).is_ok() {
        message.iter_mut().filter(|byte| breaks(byte)).for_each(|byte| *byte = b' ');
    }
    message
}
