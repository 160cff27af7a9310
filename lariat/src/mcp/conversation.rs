//! What must be known of a conversation between a host and its server, to end the server in the
//! middle of it and go on with another one: what is open, and what would have to be said again.
//!
//! Pure, and only a listener: it is shown the lines that passed, in the order in which they passed.
//! Whatever it cannot make sense of makes it lose track, and then the conversation counts as busy
//! for ever.

mod details;
mod known;

use super::envelope::{Envelope, Items, Line, Shape, read};
use super::lookout::Sight;
use details::{Details, Task, created_task, elicitations_in, is_accepted, is_modern, wants_input};
pub(crate) use known::{Answer, Known, List};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Who has more open than this has lost track itself.
const MOST: usize = 10_000;

/// A server that asks for roots this soon after the handshake does so whenever it begins.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The two ways to speak MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum Era {
    /// A handshake, and state from then on.
    Legacy,
    /// Everything is in each request.
    Modern,
}

/// What keeps a conversation from being interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Open {
    /// Nothing.
    Nothing,
    /// Somebody waits to be told of changes.
    Watches,
    /// Somebody waits for an answer, or we cannot tell.
    Work,
}

/// What a host has asked and not been told yet.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
struct Asked {
    what: What,
    since: Instant,
}

impl Asked {
    fn greets(&self) -> bool {
        matches!(self.what, What::Initialize | What::Discover)
    }
}

/// What the answer will mean.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
enum What {
    Initialize,
    Discover,
    Ping,
    List(List),
    Level(Vec<u8>),
    Subscribe(String, Vec<u8>),
    Unsubscribe(String),
    Listen(Vec<u8>),
    /// Its answer is the task's state.
    TaskState(String),
    /// Its answer is the task's end.
    TaskEnd(String),
    Other,
}

/// A conversation so far.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Conversation {
    era: Option<Era>,
    /// By the id as it is written.
    asked: BTreeMap<String, Asked>,
    /// What the server has asked; with it what it asked to be done elsewhere.
    wanted: BTreeMap<String, Option<String>>,
    /// The host's side of the handshake, as it made it.
    initialize: Option<(String, Vec<u8>)>,
    initialized: Option<Vec<u8>>,
    level: Option<Vec<u8>>,
    subscriptions: BTreeMap<String, Vec<u8>>,
    tasks: BTreeMap<String, Option<Instant>>,
    elicitations: BTreeSet<String>,
    /// How often the server has asked for more instead of answering, and not been told yet.
    inputs: u32,
    known: Known,
    /// Somebody has said something that could have opened something.
    begun: bool,
    /// When the host finished the handshake.
    greeted: Option<Instant>,
    lost_track: bool,
    /// When anybody last said something that is not a ping.
    spoke: Instant,
}

impl Conversation {
    /// One that has not begun.
    pub(crate) fn new(now: Instant) -> Conversation {
        Conversation {
            era: None,
            asked: BTreeMap::new(),
            wanted: BTreeMap::new(),
            initialize: None,
            initialized: None,
            level: None,
            subscriptions: BTreeMap::new(),
            tasks: BTreeMap::new(),
            elicitations: BTreeSet::new(),
            inputs: 0,
            known: Known::default(),
            begun: false,
            greeted: None,
            lost_track: false,
            spoke: now,
        }
    }

    pub(crate) fn era(&self) -> Option<Era> {
        self.era
    }

    /// When it last was not silent.
    pub(crate) fn spoke(&self) -> Instant {
        self.spoke
    }

    /// What keeps it from being interrupted now.
    pub(crate) fn open(&self, now: Instant) -> Open {
        let settled = match self.era {
            None => !self.begun,
            Some(Era::Legacy) => self.known.initialize.is_some(),
            Some(Era::Modern) => true,
        };
        if self.lost_track || !settled || self.is_awaited(now) {
            Open::Work
        } else if !self.subscriptions.is_empty() || !self.asked.is_empty() {
            Open::Watches
        } else {
            Open::Nothing
        }
    }

    /// True while somebody waits for an answer, or for work that goes on behind one.
    pub(crate) fn is_awaited(&self, now: Instant) -> bool {
        let listens = |asked: &Asked| matches!(asked.what, What::Listen(_));
        let waits = self.asked.values().any(|asked| !listens(asked)) || !self.wanted.is_empty();
        let works = |until: &Option<Instant>| until.is_none_or(|until| now < until);
        let elsewhere = !self.elicitations.is_empty() || self.inputs > 0;
        waits || elsewhere || self.tasks.values().any(works)
    }

    /// From when on it may be interrupted if nobody says anything more: at once, or when the last
    /// of its tasks is over by itself. `None` if it is open for another reason.
    pub(crate) fn frees_at(&self) -> Option<Instant> {
        let mut ends = self.tasks.values();
        let last = ends.try_fold(self.spoke, |last, until| Some(last.max((*until)?)))?;
        (self.open(last) != Open::Work).then_some(last)
    }

    /// The host's requests that wait for an answer, by their ids, and since when. Not what only
    /// listens.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (&str, Instant)> {
        let listens = |asked: &Asked| matches!(asked.what, What::Listen(_));
        let waiting = self.asked.iter().filter(move |(_, asked)| !listens(asked));
        waiting.map(|(id, asked)| (id.as_str(), asked.since))
    }

    /// Since when the host waits for the server to introduce itself, and by which id.
    pub(crate) fn greeting(&self) -> Option<(&str, Instant)> {
        let (id, asked) = self.asked.iter().find(|(_, asked)| asked.greets())?;
        Some((id, asked.since))
    }

    /// What waits for an answer and is no greeting, which has a time of its own.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (&str, Instant)> {
        let greets = |id: &str| self.asked.get(id).is_some_and(Asked::greets);
        self.waiting().filter(move |(id, _)| !greets(id))
    }

    /// The server is gone, and what it has asked with it.
    pub(crate) fn server_left(&mut self) {
        self.wanted.clear();
    }

    /// True for a ping, which anybody can answer.
    pub(crate) fn is_ping(line: &[u8]) -> bool {
        matches!(read(line), Line::One(envelope) if envelope.method.as_deref() == Some("ping"))
    }

    /// Nobody is going to answer this any more.
    pub(crate) fn give_up(&mut self, id: &str) {
        self.asked.remove(id);
    }

    /// A line of the host's has gone to the server.
    pub(crate) fn host_said(&mut self, sight: &Sight<'_>, now: Instant) {
        self.listen(sight, now, |this, line, message| this.host_message(line, &message, now));
    }

    /// A line of the server's has gone to the host.
    pub(crate) fn server_said(&mut self, sight: &Sight<'_>, now: Instant) {
        self.listen(sight, now, |this, line, message| this.server_message(line, &message, now));
    }

    fn listen(
        &mut self,
        sight: &Sight<'_>,
        now: Instant,
        each: impl Fn(&mut Conversation, &[u8], Message<'_>),
    ) {
        match sight {
            Sight::Line(line) => match read(line) {
                Line::One(envelope) => each(self, line, Message::of(&envelope)),
                Line::Many(Items(parts)) => {
                    for part in parts {
                        match read(part.get().as_bytes()) {
                            Line::One(envelope) => {
                                // Repeated later, it is a message of its own.
                                let line = [part.get().as_bytes(), b"\n"].concat();
                                each(self, &line, Message::of(&envelope));
                            }
                            _ => self.lost_track = true,
                        }
                    }
                }
                Line::Odd => self.lost_track = true,
                // Said to nobody.
                Line::Noise => self.spoke = now,
            },
            Sight::Long(outline) if outline.is_odd => self.lost_track = true,
            Sight::Long(outline) => {
                let (id, method) = (outline.id.as_deref(), outline.method.as_deref());
                let shape = match (method, id) {
                    (Some(_), Some(_)) => Shape::Request,
                    (Some(_), None) => Shape::Notification,
                    (None, Some(_)) if outline.is_answer => Shape::Response,
                    _ => Shape::Odd,
                };
                let message =
                    Message { shape, id, method, params: None, result: None, error: None };
                each(self, b"", message);
            }
        }
        let open = self.asked.len() + self.wanted.len() + self.subscriptions.len();
        if open + self.tasks.len() + self.elicitations.len() > MOST {
            self.lose_track();
        }
    }

    /// It will not be interrupted any more: nothing has to be remembered for that, and our memory
    /// does not grow with what they leave open.
    fn lose_track(&mut self) {
        self.lost_track = true;
        self.wanted.clear();
        self.subscriptions.clear();
        self.tasks.clear();
        self.elicitations.clear();
        while self.asked.len() > MOST {
            self.asked.pop_last();
        }
    }

    fn host_message(&mut self, line: &[u8], message: &Message<'_>, now: Instant) {
        let Some(details) = Details::of(message.params) else {
            self.lost_track = true;
            return;
        };
        self.begun |= message.method != Some("notifications/cancelled");
        match (&message.shape, message.id, message.method) {
            (Shape::Request, Some(id), Some(method)) => {
                if self.era.is_none() && is_modern(&details) {
                    self.era = Some(Era::Modern);
                }
                if details.gives_input() {
                    self.inputs = self.inputs.saturating_sub(1);
                }
                let what = self.meaning(method, id, line, &details);
                if !matches!(what, What::Ping) {
                    self.spoke = now;
                }
                // Two of one name cannot be told apart.
                self.lost_track |=
                    self.asked.insert(id.into(), Asked { what, since: now }).is_some();
            }
            (Shape::Notification, _, Some("notifications/initialized")) => {
                (self.spoke, self.greeted) = (now, Some(now));
                self.initialized = Some(line.to_vec());
            }
            (Shape::Notification, _, Some("notifications/cancelled")) => {
                self.spoke = now;
                if let Some(id) = details.request_id {
                    self.asked.remove(id.get());
                }
            }
            (Shape::Notification, ..) => self.spoke = now,
            (Shape::Response, Some(id), _) => {
                self.spoke = now;
                if let Some(Some(elsewhere)) = self.wanted.remove(id)
                    && is_accepted(message.result)
                {
                    self.elicitations.insert(elsewhere);
                }
            }
            _ => self.lost_track = true,
        }
    }

    /// What a request of the host's is about.
    fn meaning(&mut self, method: &str, id: &str, line: &[u8], details: &Details<'_>) -> What {
        let uri = || details.uri.as_deref().unwrap_or_default().to_owned();
        let task = || details.task_id.as_deref().unwrap_or_default().to_owned();
        match method {
            "initialize" => {
                self.era = Some(Era::Legacy);
                self.initialize = (!line.is_empty()).then(|| (id.to_owned(), line.to_vec()));
                (self.initialized, self.known) = (None, Known::asked(details));
                What::Initialize
            }
            "server/discover" => What::Discover,
            "ping" => What::Ping,
            "logging/setLevel" => What::Level(line.to_vec()),
            "resources/subscribe" => What::Subscribe(uri(), line.to_vec()),
            "resources/unsubscribe" => What::Unsubscribe(uri()),
            "subscriptions/listen" => What::Listen(line.to_vec()),
            "tasks/get" | "tasks/cancel" | "tasks/update" => What::TaskState(task()),
            "tasks/result" => What::TaskEnd(task()),
            method => match List::asked_by(method).filter(|_| details.is_plain) {
                Some(list) if self.era == Some(Era::Legacy) => What::List(list),
                _ => What::Other,
            },
        }
    }

    fn server_message(&mut self, line: &[u8], message: &Message<'_>, now: Instant) {
        self.begun = true;
        match (&message.shape, message.id, message.method) {
            (Shape::Response, Some(id), _) => {
                let Some(Asked { what, .. }) = self.asked.remove(id) else {
                    // Late, after it was cancelled; or to nobody.
                    self.spoke = now;
                    return;
                };
                if !matches!(what, What::Ping) {
                    self.spoke = now;
                }
                self.answered(what, line, message, now);
            }
            (Shape::Request, Some(id), Some(method)) => {
                if method != "ping" {
                    self.spoke = now;
                }
                let at_once = |greeted| now.saturating_duration_since(greeted) < AT_ONCE;
                if method == "roots/list" && self.greeted.is_some_and(at_once) {
                    self.known.asks_roots = true;
                }
                let Some(details) = Details::of(message.params) else {
                    self.lost_track = true;
                    return;
                };
                let elsewhere = details.elicitation_id.map(|id| id.into_owned());
                self.wanted.insert(id.into(), elsewhere);
            }
            (Shape::Notification, _, Some(method)) => {
                self.spoke = now;
                if let Some(details) = Details::of(message.params) {
                    self.told(method, &details, now);
                }
            }
            // An error that says of nothing what it is about.
            _ => self.spoke = now,
        }
    }

    /// The server has told something of itself.
    fn told(&mut self, method: &str, details: &Details<'_>, now: Instant) {
        match method {
            "notifications/cancelled" => {
                // Both sides count from the same number: it takes back what it has asked, or ends a
                // listen, and nothing else of the host's.
                if let Some(id) = details.request_id.map(RawValue::get)
                    && self.wanted.remove(id).is_none()
                    && matches!(self.asked.get(id), Some(Asked { what: What::Listen(_), .. }))
                {
                    self.asked.remove(id);
                }
            }
            "notifications/elicitation/complete" => {
                if let Some(id) = &details.elicitation_id {
                    self.elicitations.remove(id.as_ref());
                }
            }
            method if method.starts_with("notifications/tasks") => {
                if let Some(id) = &details.task_id {
                    let task = Task { id: id.to_string(), ..details.task_state() };
                    self.note_task(task, now);
                }
            }
            method => self.known.forget(method),
        }
    }

    fn answered(&mut self, what: What, line: &[u8], message: &Message<'_>, now: Instant) {
        let succeeded = message.result.is_some();
        if let Some(error) = message.error {
            self.elicitations.extend(elicitations_in(error));
        }
        if message.result.is_some_and(wants_input) {
            self.inputs += 1;
        }
        if let Some(task) = message.result.and_then(created_task) {
            self.note_task(task, now);
        }
        match what {
            What::Initialize if succeeded => {
                self.known.meet(message.result.map(|result| Answer::new(line, result)));
                // Whoever looked for the other era has given that up.
                self.asked.retain(|_, asked| !matches!(asked.what, What::Discover));
            }
            What::Initialize => self.initialize = None,
            What::List(list) if succeeded => {
                if let Some(result) = message.result {
                    self.known.learn(list, Answer::new(line, result));
                }
            }
            What::Level(line) if succeeded => self.level = Some(line),
            What::Subscribe(uri, line) if succeeded => {
                self.subscriptions.insert(uri, line);
            }
            What::Unsubscribe(uri) if succeeded => {
                self.subscriptions.remove(&uri);
            }
            What::TaskState(id) => match message.result.and_then(|r| Details::of(Some(r))) {
                Some(details) if details.status.is_some() => {
                    let task = Task { id, ..details.task_state() };
                    self.note_task(task, now);
                }
                // An error need not be the end of it.
                _ => {}
            },
            What::TaskEnd(id) => _ = self.tasks.remove(&id),
            _ => {}
        }
    }

    fn note_task(&mut self, task: Task, now: Instant) {
        if task.is_over {
            self.tasks.remove(&task.id);
        } else {
            self.tasks.insert(task.id, task.lives.and_then(|lives| now.checked_add(lives)));
        }
    }

    /// What the host said at first: the id of its `initialize`, and both its lines.
    pub(crate) fn handshake(&self) -> Option<(&str, &[u8], &[u8])> {
        let (id, initialize) = self.initialize.as_ref()?;
        Some((id, initialize, self.initialized.as_deref().unwrap_or_default()))
    }

    /// The requests of the host's that would have to be made again.
    pub(crate) fn in_force(&self) -> impl Iterator<Item = &[u8]> {
        self.level.iter().chain(self.subscriptions.values()).map(Vec::as_slice)
    }

    /// Listens that would have to be begun again, by their ids.
    pub(crate) fn listens(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.asked.iter().filter_map(|(id, asked)| match &asked.what {
            What::Listen(line) => Some((id.as_str(), line.as_slice())),
            _ => None,
        })
    }

    /// What the host wants to be told changes of.
    pub(crate) fn subscribed(&self) -> impl Iterator<Item = &str> {
        self.subscriptions.keys().map(String::as_str)
    }

    /// What is known of the server.
    pub(crate) fn known(&self) -> &Known {
        &self.known
    }

    /// The same, to be changed.
    pub(crate) fn known_mut(&mut self) -> &mut Known {
        &mut self.known
    }

    /// The answer to a request of the host's that needs no server: a ping, or what was asked before
    /// and has not changed since. What it asks is in force as if the server had answered.
    pub(crate) fn answer(&mut self, line: &[u8], now: Instant) -> Option<Vec<u8>> {
        let Line::One(envelope) = read(line) else { return None };
        let message = Message::of(&envelope);
        let (Shape::Request, Some(id), Some(method)) = (&message.shape, message.id, message.method)
        else {
            return None;
        };
        if method == "ping" && self.era != Some(Era::Modern) {
            return Some([super::reply::answer(id, "{}"), b"\n".to_vec()].concat());
        }
        let details = Details::of(message.params)?;
        if method == "initialize" {
            let answer = self.known.initialize_for(&details)?.with_id(id)?;
            let known = std::mem::take(&mut self.known);
            self.host_said(&Sight::Line(line), now);
            self.asked.remove(id);
            self.known = known;
            return Some(answer);
        }
        let list = List::asked_by(method).filter(|_| details.is_plain)?;
        if self.era != Some(Era::Legacy) {
            return None;
        }
        let answer = self.known.list(list)?.with_id(id)?;
        self.spoke = now;
        Some(answer)
    }

    /// True for an answer to something that the server has asked.
    pub(crate) fn is_answer(&self, line: &[u8]) -> bool {
        let Line::One(envelope) = read(line) else { return false };
        let asked = |id: &RawValue| self.wanted.contains_key(id.get());
        envelope.shape() == Shape::Response && envelope.id.is_some_and(asked)
    }

    /// True if the server waits for an answer of the host's.
    pub(crate) fn server_waits(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// True for what a host says that a server which is not there need not hear: it would have
    /// nothing to do with it, or asks for it itself when it begins. What it settles is noted.
    pub(crate) fn is_idle_talk(&mut self, line: &[u8]) -> bool {
        let Line::One(envelope) = read(line) else { return false };
        let message = Message::of(&envelope);
        match (&message.shape, message.method) {
            (Shape::Response, _) => true,
            (Shape::Notification, Some("notifications/initialized")) => {
                self.initialized = Some(line.to_vec());
                true
            }
            (Shape::Notification, Some("notifications/cancelled")) => {
                // A listen that would be begun again.
                let details = Details::of(message.params);
                if let Some(id) = details.and_then(|details| details.request_id) {
                    self.asked.remove(id.get());
                }
                true
            }
            (Shape::Notification, Some(method)) => method == "notifications/roots/list_changed",
            _ => false,
        }
    }
}

/// What matters of a message.
#[derive(Debug)]
struct Message<'a> {
    shape: Shape,
    /// As it is written.
    id: Option<&'a str>,
    method: Option<&'a str>,
    params: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
}

impl<'a> Message<'a> {
    fn of(envelope: &'a Envelope<'a>) -> Message<'a> {
        Message {
            shape: envelope.shape(),
            id: envelope.id.map(RawValue::get),
            method: envelope.method.as_deref(),
            params: envelope.params,
            result: envelope.result,
            error: envelope.error,
        }
    }
}

#[cfg(test)]
mod tests;
