//! The members of params and results that tell what a message opens or ends.

use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

/// What is looked for in an object.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Details<'a> {
    #[serde(borrow, default)]
    pub(super) request_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) uri: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) task_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) elicitation_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) status: Option<&'a RawValue>,
    #[serde(borrow, default)]
    ttl: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) protocol_version: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) capabilities: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<&'a RawValue>,
    #[serde(borrow, default)]
    task: Option<&'a RawValue>,
    #[serde(borrow, default)]
    action: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    elicitations: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    input_responses: Option<&'a RawValue>,
    #[serde(borrow, default)]
    request_state: Option<&'a RawValue>,
    /// There is nothing in it but `_meta`.
    #[serde(skip)]
    pub(super) is_plain: bool,
}

/// A task, as far as it concerns us.
#[derive(Debug, Default)]
pub(super) struct Task {
    pub(super) id: String,
    pub(super) is_over: bool,
    /// How long it is kept at most.
    pub(super) lives: Option<Duration>,
}

impl<'a> Details<'a> {
    /// Of an object; anything else has none. `None` if it cannot be read one way only.
    pub(super) fn of(object: Option<&'a RawValue>) -> Option<Details<'a>> {
        match object {
            Some(object) if object.get().starts_with('{') => {
                let mut details: Details<'_> = serde_json::from_str(object.get()).ok()?;
                details.is_plain = is_plain(object);
                Some(details)
            }
            _ => Some(Details { is_plain: true, ..Details::default() }),
        }
    }

    /// The state of the task that this object is.
    pub(super) fn task_state(&self) -> Task {
        let status = self.status.map(RawValue::get);
        let over = [r#""completed""#, r#""failed""#, r#""cancelled""#];
        Task {
            id: String::new(),
            is_over: status.is_some_and(|status| over.contains(&status)),
            lives: self.ttl.and_then(|ttl| ttl.get().parse().ok()).map(Duration::from_millis),
        }
    }
}

impl Details<'_> {
    /// True if a request gives what the server had asked for instead of an answer.
    pub(super) fn gives_input(&self) -> bool {
        self.input_responses.is_some() || self.request_state.is_some()
    }
}

fn is_plain(object: &RawValue) -> bool {
    // Most params are no list's, and longer.
    object.get().len() < 4096
        && serde_json::from_str::<BTreeMap<&str, &RawValue>>(object.get())
            .is_ok_and(|members| members.keys().all(|key| *key == "_meta"))
}

/// True if a result asks for more before there can be one.
pub(super) fn wants_input(result: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Kind<'a> {
        #[serde(borrow, rename = "resultType")]
        kind: Cow<'a, str>,
    }
    result.get().contains("\"input_required\"")
        && serde_json::from_str::<Kind<'_>>(result.get())
            .is_ok_and(|result| result.kind == "input_required")
}

/// True if a request says of itself what a handshake would have said.
pub(super) fn is_modern(details: &Details<'_>) -> bool {
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion")]
        _version: &'a RawValue,
    }
    details.meta.is_some_and(|meta| serde_json::from_str::<Meta<'_>>(meta.get()).is_ok())
}

/// The task that a result stands for, if it does.
pub(super) fn created_task(result: &RawValue) -> Option<Task> {
    // Most results are long and hold none.
    if !result.get().contains("\"task") {
        return None;
    }
    let outer = Details::of(Some(result))?;
    let inner = outer.task.and_then(|task| Details::of(Some(task)));
    let details = inner.unwrap_or(outer);
    let id = details.task_id.as_ref()?.to_string();
    details.status?;
    Some(Task { id, ..details.task_state() })
}

/// True if the answer to a question sends the user elsewhere to answer it.
pub(super) fn is_accepted(result: Option<&RawValue>) -> bool {
    Details::of(result).is_some_and(|details| details.action.as_deref() == Some("accept"))
}

/// What an error wants to be done elsewhere first.
pub(super) fn elicitations_in(error: &RawValue) -> Vec<String> {
    if !error.get().contains("-32042") {
        return Vec::new();
    }
    let data = Details::of(Some(error)).and_then(|error| Details::of(error.data));
    let each = data.and_then(|data| data.elicitations).unwrap_or_default().into_iter();
    let ids = each.filter_map(|one| Details::of(Some(one))?.elicitation_id);
    ids.map(Cow::into_owned).collect()
}
