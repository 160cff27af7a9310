//! What a server has said of itself, to be compared with what another one says, or said again.

use super::details::Details;
use crate::mcp::envelope::{Edits, Line, read};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::hash::{DefaultHasher, Hash, Hasher};

/// An answer longer than this is compared but not repeated.
const REPEATED: usize = 128 << 10;

/// What a server can list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum List {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl List {
    pub(crate) const ALL: [List; 4] =
        [List::Tools, List::Prompts, List::Resources, List::Templates];

    /// The list that a request of this name asks for.
    pub(super) fn asked_by(method: &str) -> Option<List> {
        List::ALL.into_iter().find(|list| list.method() == method)
    }

    /// What asks for it.
    pub(crate) fn method(self) -> &'static str {
        match self {
            List::Tools => "tools/list",
            List::Prompts => "prompts/list",
            List::Resources => "resources/list",
            List::Templates => "resources/templates/list",
        }
    }

    /// What tells that it has changed.
    pub(crate) fn changed(self) -> &'static str {
        match self {
            List::Tools => "notifications/tools/list_changed",
            List::Prompts => "notifications/prompts/list_changed",
            List::Resources | List::Templates => "notifications/resources/list_changed",
        }
    }

    /// The capability of a server that tells so.
    fn capability(self) -> &'static str {
        match self {
            List::Tools => "tools",
            List::Prompts => "prompts",
            List::Resources | List::Templates => "resources",
        }
    }
}

/// An answer that was given.
#[derive(Debug, Clone)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct Answer {
    /// All of it, unless it is long.
    line: Option<Vec<u8>>,
    /// Equal for equal results.
    print: u64,
}

impl Answer {
    pub(super) fn new(line: &[u8], result: &RawValue) -> Answer {
        let mut hasher = DefaultHasher::new();
        result.get().hash(&mut hasher);
        // The other pages would be asked of another server, which does not know where this one was.
        let whole = line.len() <= REPEATED && !result.get().contains("\"nextCursor\"");
        let line = whole.then(|| line.to_vec());
        Answer { line, print: hasher.finish() }
    }

    /// The answer in this line, if it is one.
    pub(crate) fn of(line: &[u8]) -> Option<Answer> {
        let Line::One(envelope) = read(line) else { return None };
        Some(Answer::new(line, envelope.result?))
    }

    /// The same answer to another request. Everything but the id keeps its bytes.
    pub(super) fn with_id(&self, id: &str) -> Option<Vec<u8>> {
        let line = self.line.as_ref()?;
        let Line::One(envelope) = read(line) else { return None };
        let mut edits = Edits::default();
        edits.put(line, envelope.id?, id);
        Some(edits.apply(line.clone()))
    }

    pub(crate) fn is_same(&self, other: &Answer) -> bool {
        self.print == other.print
    }
}

/// What a server has said of itself.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Known {
    pub(crate) initialize: Option<Answer>,
    /// The answer holds for who asks with these: version and capabilities, as they were written.
    asked_with: Option<(String, String)>,
    lists: [Option<Answer>; 4],
    /// It asks for the host's roots when it begins, and can do little before it knows them.
    pub(crate) asks_roots: bool,
    /// What a server said that was started since. The host still knows the first.
    newest: Option<Answer>,
    /// How often something was learned.
    learned: u32,
}

/// The same in a file: lines as they were said.
#[derive(Serialize, Deserialize)]
struct Written {
    protocol_version: String,
    capabilities: String,
    initialize: String,
    lists: [Option<String>; 4],
    asks_roots: bool,
}

impl Known {
    /// Nothing yet, of a server that is asked with these.
    pub(super) fn asked(details: &Details<'_>) -> Known {
        Known { asked_with: Some(asked_with(details)), ..Known::default() }
    }

    /// The answer to an `initialize` like this one.
    pub(super) fn initialize_for(&self, details: &Details<'_>) -> Option<&Answer> {
        let with = asked_with(details);
        self.initialize.as_ref().filter(|_| self.asked_with.as_ref() == Some(&with))
    }

    pub(crate) fn list(&self, list: List) -> Option<&Answer> {
        self.lists[list as usize].as_ref()
    }

    pub(crate) fn learn(&mut self, list: List, answer: Answer) {
        self.lists[list as usize] = Some(answer);
        self.learned += 1;
    }

    /// What the server says that the host speaks with from now on.
    pub(super) fn meet(&mut self, answer: Option<Answer>) {
        self.initialize = answer;
        self.learned += 1;
    }

    /// What another server says of itself, of which the host is not told.
    pub(crate) fn meet_again(&mut self, answer: Answer) {
        self.newest = Some(answer);
        self.learned += 1;
    }

    /// Grows whenever something is learned.
    pub(crate) fn learned(&self) -> u32 {
        self.learned
    }

    /// To be read by another who starts the same server.
    pub(crate) fn to_json(&self) -> Option<Vec<u8>> {
        let text = |answer: &Answer| String::from_utf8(answer.line.clone()?).ok();
        let (protocol_version, capabilities) = self.asked_with.clone()?;
        let initialize = text(self.newest.as_ref().or(self.initialize.as_ref())?)?;
        let lists = self.lists.each_ref().map(|list| list.as_ref().and_then(text));
        let asks_roots = self.asks_roots;
        let written = Written { protocol_version, capabilities, initialize, lists, asks_roots };
        serde_json::to_vec(&written).ok()
    }

    /// What another has written.
    pub(crate) fn from_json(text: &[u8]) -> Option<Known> {
        let written: Written = serde_json::from_slice(text).ok()?;
        let answer = |line: &String| Answer::of(line.as_bytes());
        Some(Known {
            initialize: Some(answer(&written.initialize)?),
            asked_with: Some((written.protocol_version, written.capabilities)),
            lists: written.lists.map(|list| list.as_ref().and_then(answer)),
            asks_roots: written.asks_roots,
            ..Known::default()
        })
    }

    /// What the server says to have changed is not known any more.
    pub(super) fn forget(&mut self, notification: &str) {
        for list in List::ALL {
            if list.changed() == notification {
                self.lists[list as usize] = None;
            }
        }
    }

    /// True if the host knows that the server would tell it of changes.
    pub(crate) fn tells_changes(&self, list: List) -> bool {
        let line = self.initialize.as_ref().and_then(|answer| answer.line.as_ref());
        let Some(line) = line else { return false };
        let answer: serde_json::Value = serde_json::from_slice(line).unwrap_or_default();
        answer["result"]["capabilities"][list.capability()]["listChanged"] == true
    }

    /// Name, version and capabilities, as far as they can be told.
    pub(crate) fn introduction(answer: &Answer) -> [serde_json::Value; 4] {
        let line = answer.line.as_deref().unwrap_or_default();
        let value: serde_json::Value = serde_json::from_slice(line).unwrap_or_default();
        let result = &value["result"];
        [
            result["serverInfo"]["name"].clone(),
            result["serverInfo"]["version"].clone(),
            result["capabilities"].clone(),
            result["protocolVersion"].clone(),
        ]
    }
}

/// What the answer to an `initialize` depends on.
fn asked_with(details: &Details<'_>) -> (String, String) {
    let text = |raw: Option<&RawValue>| raw.map(|raw| raw.get().to_owned()).unwrap_or_default();
    (text(details.protocol_version), text(details.capabilities))
}
