//! When a server sleeps, and what wakes it. Pure: it is told what happened and says what to do.
//!
//! ```text
//!            silent long enough            its tree is gone
//!   Awake ─────────────────────▶ Leaving ─────────────────▶ Asleep
//!     ▲                                                        │ a message that needs it
//!     │  handshake repeated, what waited delivered             ▼
//!     └──────────────────────────────────────────────────── Waking
//!                        (fails: back to Asleep, an error for each that waits)
//! ```
//!
//! A server that asks for the host's roots when it begins is Settling before it is told what waited.
//! Awake, lines have gone through before they are shown here. In any other phase they stop here.

mod act;
mod settling;

use super::policy::{Idle, Policy, Signs};
use crate::mcp::conversation::{Answer, Conversation, Era, Known, List, Open};
use crate::mcp::envelope::{Edits, Line, Shape, read};
use crate::mcp::lookout::Sight;
use crate::mcp::reply;
pub(crate) use act::{Act, Over, Told};
use serde_json::json;
use settling::Settling;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// How long to wait after a first wake that failed; twice as long after each more.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Who does not answer what we ask ourselves for this long is not waited for.
const OWN_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
enum Phase {
    Awake,
    Leaving,
    Asleep,
    /// Since when.
    Waking(Instant),
    /// It is back, and asks for what it needs to know.
    Settling(Settling),
}

/// What the answer to a request of our own is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
enum Own {
    /// Something is in force again.
    Repeated,
    /// To be compared.
    Listed(List),
}

/// One conversation, its server there or not.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Hibernation {
    policy: Policy,
    talk: Conversation,
    phase: Phase,
    /// What the host has said while nobody could hear it.
    queue: VecDeque<Vec<u8>>,
    own: BTreeMap<String, Own>,
    own_since: Instant,
    owned: u64,
    /// What our own requests are called after.
    name: String,
    /// Requests that the host has been given an error for; an answer comes too late.
    too_late: BTreeSet<String>,
    /// Listens that were begun again and that the server will acknowledge again.
    begun_again: BTreeSet<String>,
    /// When signs of abandonment were last looked for in vain.
    looked: Instant,
    failures: u32,
    not_before: Option<Instant>,
    host_closed: bool,
    /// A line is on its way.
    passing: bool,
    /// Why it sleeps.
    signs: Signs,
    acts: VecDeque<Act>,
}

impl Hibernation {
    /// A server that is being started, and a host that has said nothing yet.
    pub(crate) fn awake(policy: Policy, now: Instant) -> Hibernation {
        Hibernation {
            policy,
            talk: Conversation::new(now),
            phase: Phase::Awake,
            queue: VecDeque::new(),
            own: BTreeMap::new(),
            own_since: now,
            owned: 0,
            name: "lariat".into(),
            too_late: BTreeSet::new(),
            begun_again: BTreeSet::new(),
            looked: now,
            failures: 0,
            not_before: None,
            host_closed: false,
            passing: false,
            signs: Signs::default(),
            acts: VecDeque::new(),
        }
    }

    /// The same, but the server is not started before it is needed.
    pub(crate) fn asleep(policy: Policy, known: Known, now: Instant) -> Hibernation {
        let mut this = Hibernation::awake(policy, now);
        *this.talk.known_mut() = known;
        this.phase = Phase::Asleep;
        this
    }

    /// The same, with requests of its own that are called after this: a host might use the same ids.
    pub(crate) fn called(self, name: &str) -> Hibernation {
        Hibernation { name: format!("lariat:{name}"), ..self }
    }

    /// What to do next.
    pub(crate) fn act(&mut self) -> Option<Act> {
        self.acts.pop_front()
    }

    /// True if what the host says goes through as it comes.
    pub(crate) fn host_is_heard(&self) -> bool {
        self.phase == Phase::Awake
    }

    /// True if what the server says goes through as it comes.
    pub(crate) fn server_is_heard(&self) -> bool {
        let quiet = self.own.is_empty() && self.too_late.is_empty() && self.begun_again.is_empty();
        self.phase == Phase::Awake && quiet
    }

    /// True while there is no server, nor one on the way out.
    pub(crate) fn is_asleep(&self) -> bool {
        self.phase == Phase::Asleep
    }

    /// True while a server that was ended before is on its way back.
    pub(crate) fn is_waking(&self) -> bool {
        matches!(self.phase, Phase::Waking(_) | Phase::Settling(..))
    }

    /// How much the host has said that nobody has heard.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.queue.iter().map(Vec::len).sum()
    }

    /// Since when nobody waits for anything: what the server does now, it does by itself.
    pub(crate) fn alone_since(&self, now: Instant) -> Option<Instant> {
        let alone = self.phase == Phase::Awake && self.talk.open(now) != Open::Work;
        alone.then(|| self.talk.spoke())
    }

    /// Tells whether a line is on its way, in the middle of which nobody is put to sleep.
    pub(crate) fn set_passing(&mut self, passing: bool) {
        self.passing = passing;
    }

    /// What was said between host and server.
    pub(crate) fn talk(&self) -> &Conversation {
        &self.talk
    }

    /// A line of the host's. Awake, it has gone to the server already.
    pub(crate) fn hear_host(&mut self, sight: &Sight<'_>, now: Instant) {
        if self.phase == Phase::Awake {
            self.talk.host_said(sight, now);
            return;
        }
        let Sight::Line(line) = sight else { return };
        if let Phase::Settling(settling) = self.phase
            && self.talk.is_answer(line)
        {
            self.talk.host_said(sight, now);
            self.acts.push_back(Act::ToServer(line.to_vec()));
            if !self.talk.server_waits() {
                self.phase = Phase::Settling(settling.told(now));
            }
            return;
        }
        let undisturbed = self.queue.is_empty() && !self.is_waking();
        if (undisturbed || Conversation::is_ping(line))
            && let Some(answer) = self.talk.answer(line, now)
        {
            self.acts.push_back(Act::ToHost(answer));
        } else if !(undisturbed && self.talk.is_idle_talk(line)) {
            self.queue.push_back(line.to_vec());
            self.start_if_due(now);
        }
    }

    /// The host says nothing more. What it said before is still delivered.
    pub(crate) fn host_closed(&mut self) {
        self.host_closed = true;
        match self.phase {
            Phase::Awake => self.acts.push_back(Act::CloseInput),
            Phase::Waking(_) | Phase::Settling(..) => self.acts.push_back(Act::Hurry),
            _ if self.queue.is_empty() => self.acts.push_back(Act::End(Over::HostClosed)),
            _ => {}
        }
    }

    /// A line of the server's; true if it is for the host. Heard as it comes, it has gone there.
    pub(crate) fn hear_server(&mut self, sight: &Sight<'_>, now: Instant) -> bool {
        match self.phase {
            Phase::Awake if self.server_is_heard() => {
                self.talk.server_said(sight, now);
                true
            }
            Phase::Awake | Phase::Settling(..) => {
                let ours = matches!(sight, Sight::Line(line) if self.is_for_us(line, now));
                if !ours {
                    self.talk.server_said(sight, now);
                }
                !ours
            }
            Phase::Waking(_) => {
                if let Sight::Line(line) = sight {
                    self.greeted(line, now);
                }
                false
            }
            // It has been told to go.
            Phase::Leaving | Phase::Asleep => false,
        }
    }

    /// The server runs. If it is a new one, it is told what the old one knew.
    pub(crate) fn started(&mut self, now: Instant) {
        if !self.is_waking() {
            return;
        }
        match self.talk.handshake().filter(|_| self.talk.era() == Some(Era::Legacy)) {
            Some((_, initialize, _)) => self.acts.push_back(Act::ToServer(initialize.to_vec())),
            None => self.go_on(now),
        }
    }

    /// The server's tree is gone. `why` says so in words.
    pub(crate) fn ended(&mut self, why: &str, now: Instant) {
        if self.is_waking() {
            self.fail(why, now);
        }
        self.phase = Phase::Asleep;
        self.talk.server_left();
        // It owes us nothing any more.
        self.own.clear();
        self.too_late.clear();
        self.begun_again.clear();
        self.acts.push_back(Act::Tell(Told::Asleep(self.signs)));
        if !self.queue.is_empty() {
            self.start_if_due(now);
        } else if self.host_closed {
            self.acts.push_back(Act::End(Over::HostClosed));
        }
    }

    /// When to call [`Hibernation::tick`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Awake => {
                let greeting = self.talk.greeting().map(|(_, since)| since);
                let greeting = greeting.zip(self.policy.init_timeout).map(|(s, t)| s + t);
                let oldest = self
                    .policy
                    .call_timeout
                    .and_then(|timeout| self.talk.calls().map(|(_, since)| since + timeout).min());
                [self.idle_at(), greeting, oldest].into_iter().flatten().min()
            }
            Phase::Waking(since) => self.policy.init_timeout.map(|timeout| since + timeout),
            Phase::Settling(settling) => Some(settling.until),
            Phase::Asleep if !self.queue.is_empty() => self.not_before,
            Phase::Leaving | Phase::Asleep => None,
        }
    }

    /// Time has passed, and nothing has been said meanwhile. `look` finds signs of abandonment.
    pub(crate) fn tick(&mut self, now: Instant, look: impl FnOnce() -> Signs) {
        match self.phase {
            Phase::Awake => {
                self.time_out(now);
                self.rest_if_idle(now, look);
            }
            Phase::Waking(since) => {
                if self.policy.init_timeout.is_some_and(|timeout| now >= since + timeout) {
                    self.fail("it did not answer initialize in time", now);
                    self.phase = Phase::Leaving;
                    self.acts.push_back(Act::Rest { failed: true });
                }
            }
            Phase::Settling(settling) if now >= settling.until => self.deliver(now),
            Phase::Asleep => self.start_if_due(now),
            Phase::Leaving | Phase::Settling(..) => {}
        }
    }

    /// The server has to go, though the session need not end. Whoever waits is told.
    pub(crate) fn cut_off(&mut self, why: &str) {
        let waiting: Vec<String> = self.talk.waiting().map(|(id, _)| id.to_owned()).collect();
        for id in waiting {
            self.give_up(id, why);
        }
        self.refuse_all(why);
    }

    /// When it has been silent for long enough, if nobody says anything from now on.
    fn idle_at(&self) -> Option<Instant> {
        let after = self.policy.idle.after().filter(|_| !self.host_closed && !self.passing)?;
        let silent = (self.talk.spoke().max(self.looked) + after).max(self.talk.frees_at()?);
        let owed = !self.own.is_empty() || !self.begun_again.is_empty();
        Some(if owed { silent.max(self.own_since + OWN_PATIENCE) } else { silent })
    }

    fn rest_if_idle(&mut self, now: Instant, look: impl FnOnce() -> Signs) {
        if self.idle_at().is_none_or(|due| now < due) {
            return;
        }
        self.looked = now;
        let mut signs = look();
        signs.stateless = self.talk.era() == Some(Era::Modern);
        signs.asked = matches!(self.policy.idle, Idle::After(_));
        if signs.suffice(self.talk.open(now) == Open::Watches) {
            (self.phase, self.signs) = (Phase::Leaving, signs);
            self.acts.push_back(Act::Tell(Told::Slept(signs)));
            self.acts.push_back(Act::Rest { failed: false });
        } else if signs != self.signs {
            self.signs = signs;
            self.acts.push_back(Act::Tell(Told::Stayed(signs)));
        }
    }

    fn time_out(&mut self, now: Instant) {
        if let (Some((id, since)), Some(timeout)) = (self.talk.greeting(), self.policy.init_timeout)
            && now >= since + timeout
        {
            let seconds = timeout.as_secs_f64();
            let why = format!("the server did not answer within {seconds} s (--init-timeout)");
            self.give_up(id.to_owned(), &why);
            self.acts.push_back(Act::End(Over::InitTimeout));
        }
        let Some(timeout) = self.policy.call_timeout else { return };
        let late = |since: Instant| now >= since + timeout;
        let waiting = self.talk.calls().filter(|(_, since)| late(*since));
        let waiting: Vec<String> = waiting.map(|(id, _)| id.to_owned()).collect();
        for id in waiting {
            // The id as it was written.
            let cancelled = format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\
                 \"params\":{{\"requestId\":{id},\"reason\":\"timed out\"}}}}\n"
            );
            let seconds = timeout.as_secs_f64();
            self.give_up(id, &format!("no answer within {seconds} s (--call-timeout)"));
            self.acts.push_back(Act::ToServer(cancelled.into_bytes()));
        }
    }

    /// Answers a request that the server has, in its place and once for all.
    fn give_up(&mut self, id: String, why: &str) {
        self.talk.give_up(&id);
        self.refuse(&id, why);
        self.too_late.insert(id);
    }

    /// Answers a request with an error.
    fn refuse(&mut self, id: &str, why: &str) {
        let mut line = reply::error(id, reply::NO_SERVER, &format!("lariat: {why}"));
        line.push(b'\n');
        self.acts.push_back(Act::ToHost(line));
    }

    fn start_if_due(&mut self, now: Instant) {
        let due = self.not_before.is_none_or(|then| now >= then);
        if self.phase == Phase::Asleep && due && !self.queue.is_empty() {
            self.phase = Phase::Waking(now);
            self.acts.push_back(Act::Tell(Told::Waking));
            self.acts.push_back(Act::Start);
            if self.host_closed {
                self.acts.push_back(Act::Hurry);
            }
        }
    }

    /// What has waited is not going to be heard.
    fn refuse_all(&mut self, why: &str) {
        let waiting: Vec<Vec<u8>> = self.queue.drain(..).collect();
        for line in waiting {
            // What it takes back is taken back all the same.
            self.talk.is_idle_talk(&line);
            for id in requests_in(&line) {
                self.refuse(&id, why);
            }
        }
    }

    /// The wake came to nothing: whoever waits is told, and the next message tries again.
    fn fail(&mut self, why: &str, now: Instant) {
        self.refuse_all(&format!("the server could not be started: {why}"));
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        (self.failures, self.not_before) = (self.failures + 1, Some(now + pause));
        self.acts.push_back(Act::Tell(Told::WakeFailed(why.to_owned())));
    }

    /// What a server says that was just started anew.
    fn greeted(&mut self, line: &[u8], now: Instant) {
        let Line::One(envelope) = read(line) else { return };
        let (Some(id), shape) = (envelope.id, envelope.shape()) else { return };
        if shape == Shape::Request && envelope.method.as_deref() == Some("ping") {
            let mut pong = reply::answer(id.get(), "{}");
            pong.push(b'\n');
            self.acts.push_back(Act::ToServer(pong));
            return;
        }
        let ours = self.talk.handshake().is_some_and(|(asked, ..)| asked == id.get());
        if shape != Shape::Response || !ours {
            return;
        }
        if envelope.result.is_none() {
            self.fail("it refused the handshake that it had accepted before", now);
            self.phase = Phase::Leaving;
            self.acts.push_back(Act::Rest { failed: true });
            return;
        }
        self.compare_introductions(line);
        self.go_on(now);
    }

    fn compare_introductions(&mut self, line: &[u8]) {
        let (Some(new), Some(old)) = (Answer::of(line), &self.talk.known().initialize) else {
            return;
        };
        if !new.is_same(old) {
            let names = ["name", "version", "capabilities", "protocol revision"];
            let pairs = Known::introduction(old).into_iter().zip(Known::introduction(&new));
            let other = names.into_iter().zip(pairs).filter(|(_, (old, new))| old != new);
            let other: Vec<&str> = other.map(|(name, _)| name).collect();
            let what = if other.is_empty() { "instructions".into() } else { other.join(", ") };
            self.acts.push_back(Act::Tell(Told::Differs(what)));
        }
        self.talk.known_mut().meet_again(new);
    }

    /// The new server knows who it speaks with: tells it the rest, and what has waited.
    fn go_on(&mut self, now: Instant) {
        let Phase::Waking(since) = self.phase else { return };
        (self.own_since, self.looked) = (now, now);
        let legacy = self.talk.era() == Some(Era::Legacy);
        if let (Some((_, _, initialized)), true) = (self.talk.handshake(), legacy)
            && !initialized.is_empty()
        {
            self.acts.push_back(Act::ToServer(initialized.to_vec()));
        }
        let again: Vec<Vec<u8>> = self.talk.in_force().map(<[u8]>::to_vec).collect();
        for line in again {
            self.repeat(line);
        }
        for (id, line) in self.talk.listens() {
            self.begun_again.insert(id.to_owned());
            self.acts.push_back(Act::ToServer(line.to_vec()));
        }
        let after = now.saturating_duration_since(since);
        self.acts.push_back(Act::Tell(Told::Woke(after)));
        if legacy && self.talk.known().asks_roots {
            self.phase = Phase::Settling(Settling::begun(now, after));
        } else {
            self.deliver(now);
        }
    }

    /// Says what has waited.
    fn deliver(&mut self, now: Instant) {
        (self.phase, self.own_since) = (Phase::Awake, now);
        (self.failures, self.not_before) = (0, None);
        let legacy = self.talk.era() == Some(Era::Legacy);
        let changed: Vec<String> = self.talk.subscribed().map(str::to_owned).collect();
        while let Some(line) = self.queue.pop_front() {
            self.talk.host_said(&Sight::Line(&line), now);
            self.acts.push_back(Act::ToServer(line));
        }
        for list in List::ALL.into_iter().filter(|_| legacy) {
            if self.talk.known().list(list).is_some() {
                let id = self.own_id(Own::Listed(list));
                let ask = format!(
                    "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{}\"}}\n",
                    list.method()
                );
                self.acts.push_back(Act::ToServer(ask.into_bytes()));
            }
        }
        // Whatever was to be told of them while nobody watched, was not.
        for uri in changed {
            self.notify("notifications/resources/updated", json!({ "uri": uri }));
        }
        if self.host_closed {
            self.acts.push_back(Act::CloseInput);
        }
    }

    fn own_id(&mut self, own: Own) -> String {
        self.owned += 1;
        let id = format!("\"{}:{}\"", self.name, self.owned);
        self.own.insert(id.clone(), own);
        id
    }

    /// Makes a request of the host's again, under a name of ours.
    fn repeat(&mut self, line: Vec<u8>) {
        let id = self.own_id(Own::Repeated);
        if let Line::One(envelope) = read(&line)
            && let Some(old) = envelope.id
        {
            let mut edits = Edits::default();
            edits.put(&line, old, id);
            self.acts.push_back(Act::ToServer(edits.apply(line.clone())));
        }
    }

    fn notify(&mut self, method: &str, params: serde_json::Value) {
        let mut message = json!({ "jsonrpc": "2.0", "method": method });
        if params.is_object() {
            message["params"] = params;
        }
        self.acts.push_back(Act::ToHost(format!("{message}\n").into_bytes()));
    }

    /// True if a line of a server that was started anew is none of the host's business.
    fn is_for_us(&mut self, line: &[u8], now: Instant) -> bool {
        let Line::One(envelope) = read(line) else { return false };
        match (envelope.shape(), envelope.id) {
            (Shape::Response, Some(id)) => {
                if let Some(own) = self.own.remove(id.get()) {
                    if let (Own::Listed(list), Some(new)) = (own, Answer::of(line)) {
                        self.compare_lists(list, new);
                    }
                    return true;
                }
                self.too_late.remove(id.get())
            }
            (Shape::Notification, _) => {
                let method = envelope.method.as_deref().unwrap_or_default();
                if method == "notifications/subscriptions/acknowledged" {
                    let id = crate::mcp::envelope::subscription_of(&envelope);
                    return id.is_some_and(|id| self.begun_again.remove(id));
                }
                // It says so of itself while it begins; whether it is true, we are about to see.
                let compared = |own: &Own| matches!(own, Own::Listed(l) if l.changed() == method);
                let about_to_be = |list: &List| {
                    list.changed() == method && self.talk.known().list(*list).is_some()
                };
                let settling = matches!(self.phase, Phase::Settling(..));
                (settling && List::ALL.iter().any(about_to_be))
                    || (now < self.own_since + OWN_PATIENCE && self.own.values().any(compared))
            }
            _ => false,
        }
    }

    fn compare_lists(&mut self, list: List, new: Answer) {
        let known = self.talk.known();
        let same = known.list(list).is_none_or(|old| old.is_same(&new));
        let tells = known.tells_changes(list);
        self.talk.known_mut().learn(list, new);
        if !same {
            self.acts.push_back(Act::Tell(Told::Differs(list.method().into())));
            if tells {
                self.notify(list.changed(), serde_json::Value::Null);
            }
        }
    }
}

/// The ids of the requests in a line.
fn requests_in(line: &[u8]) -> Vec<String> {
    let id_of = |text: &[u8]| match read(text) {
        Line::One(envelope) if envelope.shape() == Shape::Request => {
            envelope.id.map(|id| id.get().to_owned())
        }
        _ => None,
    };
    match read(line) {
        Line::Many(parts) => parts.0.iter().filter_map(|p| id_of(p.get().as_bytes())).collect(),
        _ => id_of(line).into_iter().collect(),
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
