//! What must hold, and the memory that it takes to tell: what was said by whom in which life.
//!
//! Knows the host's side and the server's side of the conversation, and nothing of the machine
//! between them: a judge shares no code with the accused.

use super::super::{OWN_PATIENCE, Signs};
use super::script::{Manners, Says};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// What does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Each request is answered once, and nothing else is.
    Answers,
    /// What the host says reaches the server once, and in order.
    Order,
    /// Nobody is put to sleep who is needed.
    Sleep,
    /// A new life begins with what was in force, and nothing else.
    Replay,
    /// There is one tree at most, and none while asleep.
    Trees,
    /// Whoever waits does not wait for ever.
    Progress,
    /// The host hears nothing of lives that end and begin.
    Silence,
    /// Time that has passed is not waited for.
    Clock,
}

/// A rule, and how it was broken.
pub(super) type Broken = (Rule, String);

/// How far a new life was told who it speaks with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
enum Greeting {
    #[default]
    Untold,
    Asked,
    Answered,
    Introduced,
}

/// One life of the server, as far as it was told.
#[derive(Debug, Clone, Default, Hash)]
struct Life {
    greeting: Greeting,
    /// What was said again, by its place in the script.
    again: BTreeSet<usize>,
    /// Something was said that no life has heard before.
    has_news: bool,
    /// What we have asked ourselves, and since when there was no answer.
    owed: BTreeMap<String, Instant>,
}

/// Who said what.
#[derive(Debug, Clone, Hash)]
pub(super) struct Ledger {
    /// Lines that the host has said.
    pub(super) said: usize,
    answered: Vec<bool>,
    /// Requests that were taken back, and the lines that did so.
    cancelled: BTreeMap<usize, usize>,
    last_delivered: Option<usize>,
    pub(super) lives: u32,
    life: Life,
    /// The life with which the host shook hands.
    shaken_in: Option<u32>,
    /// The host was told that there is nobody to speak with.
    turned_away: bool,
    /// By their places, and the lives in which they began.
    level: Option<(usize, u32)>,
    subscriptions: BTreeMap<&'static str, (usize, u32)>,
    listens: BTreeMap<usize, u32>,
    acknowledged: BTreeSet<usize>,
    tasks: BTreeMap<usize, Instant>,
    /// The server has asked the host something.
    pub(super) wanted: bool,
}

impl Ledger {
    pub(super) fn new(lines: usize) -> Ledger {
        Ledger {
            said: 0,
            answered: vec![false; lines],
            cancelled: BTreeMap::new(),
            last_delivered: None,
            lives: 1,
            life: Life::default(),
            shaken_in: None,
            turned_away: false,
            level: None,
            subscriptions: BTreeMap::new(),
            listens: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            tasks: BTreeMap::new(),
            wanted: false,
        }
    }

    /// True if the host may say this now: who has a handshake to make waits for its end.
    pub(super) fn may_say(&self, script: &[Says], at: usize) -> bool {
        let shaking = script[..at].iter().position(|says| *says == Says::Initialize);
        let needs = if let Says::TaskState(task) = script[at] { Some(task) } else { None };
        !self.turned_away && [shaking, needs].into_iter().flatten().all(|at| self.answered[at])
    }

    /// True if the host has nothing more to say.
    pub(super) fn has_said_all(&self, script: &[Says]) -> bool {
        self.turned_away || self.said == script.len()
    }

    pub(super) fn host_says(&mut self, says: Says) {
        if let Says::Cancel(at) = says
            && !self.answered[at]
        {
            self.cancelled.insert(at, self.said);
        }
        self.said += 1;
    }

    /// True if somebody waits for an answer that is not there.
    pub(super) fn host_waits(&self, script: &[Says]) -> bool {
        let open = |at: &usize| !self.answered[*at] && !self.cancelled.contains_key(at);
        (0..self.said).any(|at| script[at].waits() && open(&at))
    }

    /// Another life begins.
    pub(super) fn begins(&mut self) {
        self.lives += 1;
        self.life = Life::default();
        self.wanted = false;
    }

    /// A line goes to the server.
    pub(super) fn reaches_server(
        &mut self,
        script: &[Says],
        line: &str,
        now: Instant,
    ) -> Result<(), Broken> {
        let at = (0..self.said).find(|at| script[*at].line(*at) == line);
        match at {
            Some(at) if self.is_greeting(script[at]) => self.greets(script[at]),
            Some(at) if self.last_delivered.is_none_or(|last| at > last) => {
                self.told_news(script, at)
            }
            Some(at) if self.listens.contains_key(&at) => self.says_again(at),
            Some(at) => Err((Rule::Order, format!("line {at} twice, or too late"))),
            None => self.told_by_us(script, line, now),
        }
    }

    /// True for the host's side of a handshake that this life did not make.
    fn is_greeting(&self, says: Says) -> bool {
        let ours = matches!(says, Says::Initialize | Says::Initialized);
        ours && self.shaken_in.is_some_and(|life| life != self.lives)
    }

    fn greets(&mut self, says: Says) -> Result<(), Broken> {
        let next = match (says, self.life.greeting) {
            (Says::Initialize, Greeting::Untold) => Greeting::Asked,
            (Says::Initialized, Greeting::Answered) => Greeting::Introduced,
            (_, stage) => return Err((Rule::Replay, format!("{says:?} while {stage:?}"))),
        };
        self.life.greeting = next;
        Ok(())
    }

    fn says_again(&mut self, at: usize) -> Result<(), Broken> {
        if self.life.has_news || !self.life.again.insert(at) {
            return Err((Rule::Replay, format!("line {at} again, and too late or too often")));
        }
        Ok(())
    }

    /// What this life has to be told again.
    fn in_force(&self) -> BTreeSet<usize> {
        let all = self.level.iter().chain(self.subscriptions.values()).copied();
        let all = all.chain(self.listening());
        all.filter(|(_, life)| *life != self.lives).map(|(at, _)| at).collect()
    }

    /// Listens that nobody has taken back.
    fn listening(&self) -> impl Iterator<Item = (usize, u32)> {
        let all = self.listens.iter().map(|(at, life)| (*at, *life));
        all.filter(|(at, _)| !self.cancelled.contains_key(at))
    }

    fn is_strange(&self) -> bool {
        self.shaken_in.is_some_and(|life| life != self.lives)
            && self.life.greeting != Greeting::Introduced
    }

    fn told_news(&mut self, script: &[Says], at: usize) -> Result<(), Broken> {
        if self.is_strange() {
            let stage = self.life.greeting;
            return Err((Rule::Replay, format!("line {at} to a stranger: {stage:?}")));
        }
        let (again, force) = (&self.life.again, self.in_force());
        // What is taken back by this line or a later one is begun again before, or not at all.
        let too_much = |old: &usize| self.cancelled.get(old).is_none_or(|by| *by < at);
        let as_before = force.is_subset(again) && !again.difference(&force).any(too_much);
        if !self.life.has_news && !as_before {
            return Err((Rule::Replay, format!("told again {again:?}, in force {force:?}")));
        }
        (self.life.has_news, self.last_delivered) = (true, Some(at));
        match script[at] {
            Says::Listen => _ = self.listens.insert(at, self.lives),
            Says::Cancel(old) => _ = self.listens.remove(&old),
            _ => {}
        }
        Ok(())
    }

    /// Something that the host has not said.
    fn told_by_us(&mut self, script: &[Says], line: &str, now: Instant) -> Result<(), Broken> {
        let ours: Value = serde_json::from_str(line).unwrap_or_default();
        if ours["params"]["reason"] == "timed out" {
            return Ok(());
        }
        if !is_ours(&ours["id"]) || self.is_strange() {
            return Err((Rule::Order, format!("nobody said {line}")));
        }
        self.life.owed.insert(ours["id"].to_string(), now);
        if ours["method"] == "tools/list" {
            return Ok(());
        }
        // The latest of those that ask the same is the one in force.
        match self.in_force().into_iter().find(|at| script[*at].is_repeated_by(&ours)) {
            Some(at) => self.says_again(at),
            None => Err((Rule::Replay, format!("not in force: {line}"))),
        }
    }

    /// The server says something; true if it answers a handshake that the host knows nothing of.
    pub(super) fn server_says(&mut self, script: &[Says], line: &str) -> bool {
        let said: Value = serde_json::from_str(line).unwrap_or_default();
        self.life.owed.remove(&said["id"].to_string());
        let handshake = script.iter().position(|says| *says == Says::Initialize);
        let is_answer = handshake.is_some_and(|at| said["id"] == at) && !said["result"].is_null();
        let repeated = self.life.greeting == Greeting::Asked && is_answer;
        if repeated {
            self.life.greeting = Greeting::Answered;
        }
        repeated
    }

    /// A line reaches the host: the server's, or ours.
    pub(super) fn reaches_host(
        &mut self,
        script: &[Says],
        line: &str,
        by_us: Option<Manners>,
        now: Instant,
    ) -> Result<(), Broken> {
        let said: Value = serde_json::from_str(line).unwrap_or_default();
        match (said["method"].as_str(), &said["id"]) {
            (None, id) => self.answers(script, id, &said, now),
            (Some(_), id) if !id.is_null() => {
                self.wanted = true;
                by_us.map_or(Ok(()), |_| Err((Rule::Silence, format!("we asked {line}"))))
            }
            (Some("notifications/subscriptions/acknowledged"), _) => {
                let meta = &said["params"]["_meta"];
                let at = meta["io.modelcontextprotocol/subscriptionId"].as_u64().unwrap_or(99);
                let first = self.acknowledged.insert(at as usize);
                first.then_some(()).ok_or((Rule::Silence, format!("again {line}")))
            }
            (Some(method), _) => {
                let uri = said["params"]["uri"].as_str().unwrap_or_default();
                let right = by_us.is_none_or(|manners| match method {
                    "notifications/tools/list_changed" => manners.declares && manners.changes,
                    "notifications/resources/updated" => {
                        self.subscriptions.get(uri).is_some_and(|(_, life)| *life != self.lives)
                    }
                    _ => false,
                });
                right.then_some(()).ok_or((Rule::Silence, format!("we said {line}")))
            }
        }
    }

    fn answers(
        &mut self,
        script: &[Says],
        id: &Value,
        said: &Value,
        now: Instant,
    ) -> Result<(), Broken> {
        let at = id.as_u64().map(|at| at as usize).filter(|at| *at < self.said);
        let Some(at) = at.filter(|at| script[*at].asks()) else {
            return Err((Rule::Answers, format!("nobody asked: {said}")));
        };
        if std::mem::replace(&mut self.answered[at], true) {
            return Err((Rule::Answers, format!("answered twice: {said}")));
        }
        self.listens.remove(&at);
        self.turned_away |= script[at] == Says::Initialize && said["result"].is_null();
        if said["result"].is_null() || self.cancelled.contains_key(&at) {
            return Ok(());
        }
        let here = (at, self.lives);
        match script[at] {
            Says::Initialize => self.shaken_in = Some(self.lives),
            Says::Level(_) => self.level = Some(here),
            Says::Subscribe(uri) => _ = self.subscriptions.insert(uri, here),
            Says::Unsubscribe(uri) => _ = self.subscriptions.remove(uri),
            Says::Task(ttl) => _ = self.tasks.insert(at, now + Duration::from_millis(ttl)),
            Says::TaskState(task) => _ = self.tasks.remove(&task),
            _ => {}
        }
        Ok(())
    }

    /// The server is told to leave, because of these signs.
    pub(super) fn rests(
        &self,
        script: &[Says],
        signs: Signs,
        host_closed: bool,
        now: Instant,
    ) -> Result<(), Broken> {
        let watched = !self.subscriptions.is_empty() || self.listening().next().is_some();
        let abandoned = signs.superseded || signs.host_orphaned || signs.ends_closed;
        let owed = self.life.owed.values().any(|since| now < *since + OWN_PATIENCE);
        let no = [
            (self.host_waits(script), "the host waits"),
            (self.wanted, "the server waits"),
            (owed, "we wait"),
            (self.tasks.values().any(|until| now < *until), "a task is open"),
            (watched && !signs.superseded, "somebody watches"),
            (!(abandoned || signs.stateless || signs.asked), "nothing speaks for it"),
            (host_closed, "the session ends"),
        ];
        match no.into_iter().find(|(holds, _)| *holds) {
            Some((_, why)) => Err((Rule::Sleep, why.into())),
            None => Ok(()),
        }
    }
}

/// True for a name of ours.
fn is_ours(id: &Value) -> bool {
    id.as_str().is_some_and(|id| id.starts_with("lariat:"))
}
