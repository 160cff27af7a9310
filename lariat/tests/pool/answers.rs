//! The right answers: many sessions call at once, cancel, ask for progress and vanish, and every
//! answer reaches who asked, once.
//!
//! Who calls and which call it is stand in every answer; ids and tokens are the same small numbers in
//! every session, so that whoever mixes them up is seen. Two naive ways to share are tried as well:
//! what cannot see their faults proves nothing.

use crate::client::Client;
use crate::naive::{Manner, Naive};
use crate::stage::{PATIENCE, Stage, is_full, trial};
use libtest_mimic::Trial;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use trials::until;

/// How long the stand-ins may take, of which losses are expected.
const SHORT: Duration = Duration::from_secs(2);

/// How many calls of one session wait at once.
const WINDOW: usize = 8;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial("answers::everybody_gets_their_own", everybody_gets_their_own),
        trial("answers::in_the_later_era_too", in_the_later_era_too),
        trial("answers::broadcasting_is_seen", broadcasting_is_seen),
        trial("answers::mapping_ids_alone_is_seen", mapping_ids_alone_is_seen),
    ]
}

fn everybody_gets_their_own() {
    let stage = Stage::new();
    // It stays, and the server with it: one that nobody uses ends.
    let mut witness = stage.join();
    let calls = if is_full() { 10_000 } else { 400 };
    let tally = storm(50, calls, Era::Legacy, PATIENCE, &|| stage.meet(&[]));
    judge_answers(&tally, &mut witness);
    witness.leave();
    stage.close();
}

fn in_the_later_era_too() {
    let stage = Stage::new();
    let mut witness = stage.meet(&[]).modern();
    witness.about();
    let tally = storm(12, 200, Era::Modern, PATIENCE, &|| stage.meet(&[]).modern());
    judge_answers(&tally, &mut witness);
    witness.leave();
    stage.close();
}

/// No fault, and one server that has nothing to complain of and nothing left to do: so this client
/// hears from it.
#[track_caller]
pub(crate) fn judge_answers(tally: &Tally, client: &mut Client) {
    println!("{}", tally.told());
    assert_eq!(tally.faults, [""; 0], "{}", tally.told());
    assert_eq!(tally.servers.len(), 1, "they were to share one: {:?}", tally.servers);
    let nothing_held = until(PATIENCE, || client.about()["held"] == 0);
    let about = client.about();
    assert!(nothing_held, "who vanished was not cancelled: {about}");
    assert_eq!(about["sins"], serde_json::json!([]), "{about}");
    assert!(tally.servers.contains(&about["pid"].as_u64().unwrap_or_default()), "{about}");
}

/// Everything to everybody: the plainest way.
fn broadcasting_is_seen() {
    let stage = Stage::without_daemon();
    let naive = Naive::start(&stage, Manner::Broadcast);
    let tally = storm(8, 400, Era::Legacy, SHORT, &|| naive.join());
    tally.assert_faulty();
}

/// Answers find their way, but tokens and cancellations do not: what most do who share.
fn mapping_ids_alone_is_seen() {
    let stage = Stage::without_daemon();
    let naive = Naive::start(&stage, Manner::IdsAlone);
    let tally = storm(8, 400, Era::Legacy, SHORT, &|| naive.join());
    tally.assert_faulty();
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Modern,
}

/// What all sessions together have seen.
#[derive(Default)]
pub(crate) struct Tally {
    calls: usize,
    answered: usize,
    cancelled: usize,
    /// Left behind by a session that vanished.
    abandoned: usize,
    steps: usize,
    connections: usize,
    servers: BTreeSet<u64>,
    faults: Vec<String>,
    took: Duration,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.calls += other.calls;
        self.answered += other.answered;
        self.cancelled += other.cancelled;
        self.abandoned += other.abandoned;
        self.steps += other.steps;
        self.connections += other.connections;
        self.servers.extend(other.servers);
        let room = 12_usize.saturating_sub(self.faults.len());
        self.faults.extend(other.faults.into_iter().take(room));
    }

    /// Something went to the wrong place; that somebody was hung up on is not enough.
    #[track_caller]
    fn assert_faulty(&self) {
        println!("{}", self.told());
        let mixed_up = self.faults.iter().any(|fault| !fault.contains("hung up on"));
        assert!(mixed_up, "the trial is blind: {}", self.told());
    }

    fn told(&self) -> String {
        let Tally { calls, answered, cancelled, abandoned, steps, connections, .. } = self;
        let rate = *answered as f64 / self.took.as_secs_f64();
        let mut text = format!(
            "{calls} calls over {connections} connections in {:.1?} ({rate:.0}/s): {answered} answered, \
             {cancelled} cancelled, {abandoned} abandoned, {steps} steps of progress, {} servers",
            self.took,
            self.servers.len(),
        );
        for fault in &self.faults {
            write!(text, "\n  {fault}").expect("room");
        }
        text
    }
}

/// That many sessions at once, of that many calls each.
pub(crate) fn storm(
    sessions: usize,
    calls: usize,
    era: Era,
    patience: Duration,
    connect: &(dyn Fn() -> Client + Sync),
) -> Tally {
    let began = Instant::now();
    let (mut tally, there) = (Tally::default(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let there = &there;
        let caller = |number| {
            move || {
                let mut caller = Caller::new(number, era, patience, connect());
                caller.arrive();
                // All at once, and not one after the other as they come.
                there.fetch_add(1, Ordering::Relaxed);
                until(patience, || there.load(Ordering::Relaxed) == sessions);
                caller.play(calls, connect)
            }
        };
        let threads: Vec<_> = (0..sessions).map(|number| scope.spawn(caller(number))).collect();
        for thread in threads {
            match thread.join() {
                Ok(one) => tally.add(one),
                Err(_) => tally.faults.push("a session panicked, see above".into()),
            }
        }
    });
    tally.took = began.elapsed();
    tally
}

/// A call that waits for its answer.
struct Open {
    nonce: u64,
    token: Option<String>,
    /// How many steps of progress there will be, and how many there were.
    wanted: u64,
    steps: u64,
    is_cancelled: bool,
    /// One that is never answered.
    is_held: bool,
}

/// One session's side, over all its connections.
struct Caller {
    number: usize,
    era: Era,
    patience: Duration,
    generation: usize,
    client: Client,
    dice: Dice,
    next: u64,
    nonce: u64,
    open: BTreeMap<String, Open>,
    /// Calls of this connection that were cancelled, and whose answer may have been on its way.
    cancelled: BTreeMap<String, Open>,
    tally: Tally,
}

/// What is looked at in a line.
#[derive(Deserialize)]
struct Line {
    id: Option<serde_json::Value>,
    method: Option<String>,
    params: Option<Step>,
    result: Option<Answer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Step {
    progress_token: Option<serde_json::Value>,
    #[serde(flatten)]
    told: Told,
    progress: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    structured_content: Option<Told>,
}

#[derive(Deserialize)]
struct Told {
    who: Option<String>,
    nonce: Option<u64>,
    pid: Option<u64>,
}

impl Caller {
    fn new(number: usize, era: Era, patience: Duration, client: Client) -> Caller {
        let dice = Dice(number as u64 + 1);
        let (open, cancelled, tally) = (BTreeMap::new(), BTreeMap::new(), Tally::default());
        let (generation, next, nonce) = (0, 0, 0);
        Caller {
            number,
            era,
            patience,
            generation,
            client,
            dice,
            next,
            nonce,
            open,
            cancelled,
            tally,
        }
    }

    fn who(&self) -> String {
        format!("s{}g{}", self.number, self.generation)
    }

    fn fault(&mut self, what: &str) {
        if self.tally.faults.len() < 5 {
            self.tally.faults.push(format!("{}: {what}", self.who()));
        }
    }

    fn play(mut self, calls: usize, connect: &(dyn Fn() -> Client + Sync)) -> Tally {
        while self.tally.calls < calls && self.tally.faults.len() < 5 {
            while self.open.len() < WINDOW && self.tally.calls < calls {
                self.call();
            }
            self.listen();
            if self.dice.one_in(120) {
                self.vanish(connect);
            }
        }
        self.depart();
        self.tally
    }

    fn arrive(&mut self) {
        self.tally.connections += 1;
        if self.era == Era::Legacy {
            self.client.greet();
        }
        // The same small numbers on every connection.
        self.next = 0;
        self.open.clear();
        self.cancelled.clear();
    }

    /// One more call: at once or late, with progress or without, to be cancelled or not.
    fn call(&mut self) {
        self.next += 1;
        self.nonce += 1;
        self.tally.calls += 1;
        let (nonce, who) = (self.nonce, self.who());
        // A number and the same number as text are different ids.
        let number = self.next / 2;
        let id =
            if self.next.is_multiple_of(2) { number.to_string() } else { format!("\"{number}\"") };
        let late = if self.dice.one_in(6) { 1 + self.dice.below(20) } else { 0 };
        let steps = if self.dice.one_in(6) { 1 + self.dice.below(3) } else { 0 };
        let token = (steps > 0 || self.dice.one_in(20)).then(|| {
            if self.dice.one_in(2) { format!("\"t{}\"", self.next % 7) } else { id.clone() }
        });
        // In use is in use, also here.
        let token =
            token.filter(|token| self.open.values().all(|o| o.token.as_ref() != Some(token)));
        let is_cancelled = self.dice.one_in(20);
        let is_held = is_cancelled && self.dice.one_in(2);
        let mut meta =
            token.iter().map(|token| format!(r#""progressToken":{token}"#)).collect::<Vec<_>>();
        if self.era == Era::Modern {
            let modern = crate::checker::modern_meta().to_string();
            meta.push(modern[1..modern.len() - 1].to_owned());
        }
        let tool = if is_held { "hold" } else { "whoami" };
        let late = if is_cancelled && !is_held { 30 } else { late };
        let arguments =
            format!(r#"{{"who":"{who}","nonce":{nonce},"late":{late},"progress":{steps}}}"#);
        let sent = self.client.say(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"_meta":{{{}}},"name":"{tool}","arguments":{arguments}}}}}"#,
            meta.join(",")
        ));
        if !sent {
            self.fault("nobody reads what is said");
        }
        let wanted = if token.is_some() && !is_held { steps } else { 0 };
        let call = Open { nonce, token, wanted, steps: 0, is_cancelled, is_held };
        self.open.insert(id.clone(), call);
        if is_cancelled {
            self.cancel(&id);
        } else if self.dice.one_in(40) {
            // Of a call that only others may have: nobody is to notice. In the pool's own numbers
            // this may be anybody's.
            let foreign = self.next + 100 + self.dice.below(1000);
            self.cancel(&foreign.to_string());
        }
    }

    /// A call that is never answered.
    fn hold(&mut self) {
        let params = if self.era == Era::Modern {
            format!(r#"{{"_meta":{},"name":"hold"}}"#, crate::checker::modern_meta())
        } else {
            r#"{"name":"hold"}"#.to_owned()
        };
        let line = r#"{"jsonrpc":"2.0","id":"for ever","method":"tools/call","params":"#;
        self.client.say(&format!("{line}{params}}}"));
    }

    fn cancel(&mut self, id: &str) {
        self.client.say(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"changed my mind"}}}}"#
        ));
    }

    /// Takes at least one answer, if anybody is waited for.
    fn listen(&mut self) {
        let owed = |open: &BTreeMap<String, Open>| open.values().any(|call| !call.is_cancelled);
        if !owed(&self.open) {
            self.settle_cancelled();
            return;
        }
        let before = self.tally.answered;
        let deadline = Instant::now() + self.patience;
        while self.tally.answered == before && owed(&self.open) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(line) = self.client.hear(left) else {
                let lost: Vec<&String> = self
                    .open
                    .iter()
                    .filter(|(_, call)| !call.is_cancelled)
                    .map(|(id, _)| id)
                    .collect();
                let how = if self.client.is_over() { "hung up on" } else { "lost" };
                let what = format!("{how}: {} calls: {lost:?}", lost.len());
                self.fault(&what);
                self.open.clear();
                return;
            };
            self.take(&line);
        }
        self.settle_cancelled();
    }

    /// A cancelled call leaves room for others.
    fn settle_cancelled(&mut self) {
        let (cancelled, open) =
            std::mem::take(&mut self.open).into_iter().partition(|(_, call)| call.is_cancelled);
        self.open = open;
        let cancelled: BTreeMap<String, Open> = cancelled;
        self.tally.cancelled += cancelled.len();
        self.cancelled.extend(cancelled);
    }

    fn take(&mut self, line: &[u8]) {
        let text = String::from_utf8_lossy(line).into_owned();
        let Ok(line) = serde_json::from_str::<Line>(&text) else {
            return self.fault(&format!("not for us: {text}"));
        };
        let id = line.id.as_ref().map(ToString::to_string);
        match (line.method.as_deref(), id, line.result) {
            (Some("notifications/progress"), None, _) => match line.params {
                Some(step) => self.take_step(&step, &text),
                None => self.fault(&text),
            },
            (None, Some(id), Some(answer)) => self.take_answer(&id, &answer, &text),
            _ => self.fault(&format!("nobody asked for {text}")),
        }
    }

    fn take_answer(&mut self, id: &str, answer: &Answer, text: &str) {
        let Some(told) = &answer.structured_content else { return self.fault(text) };
        // The answer to a cancelled call may have been on its way.
        let (call, is_late) = match self.open.remove(id) {
            Some(call) => (call, false),
            None => match self.cancelled.remove(id) {
                Some(call) => (call, true),
                None => return self.fault(&format!("twice or not ours: {text}")),
            },
        };
        if told.who.as_deref() != Some(&self.who()) || told.nonce != Some(call.nonce) {
            self.fault(&format!("wrong: call {} was answered {text}", call.nonce));
        }
        if call.is_held {
            self.fault(&format!("answered what is never answered: {text}"));
        }
        if call.steps != call.wanted && !call.is_cancelled {
            let (steps, wanted) = (call.steps, call.wanted);
            self.fault(&format!("{steps} steps of {wanted} before {text}"));
        }
        self.tally.servers.extend(told.pid);
        self.tally.answered += usize::from(!is_late);
    }

    fn take_step(&mut self, step: &Step, text: &str) {
        let token = step.progress_token.as_ref().map(ToString::to_string);
        let ours = step.told.who.as_deref() == Some(&self.who());
        let calls = self.open.values_mut().chain(self.cancelled.values_mut());
        let call = calls
            .filter(|call| call.token.is_some() && call.token == token)
            .find(|call| step.told.nonce == Some(call.nonce));
        match call {
            Some(call) if ours => {
                call.steps += 1;
                let in_order = step.progress == Some(call.steps) || call.is_cancelled;
                self.tally.steps += 1;
                if !in_order {
                    self.fault(&format!("a step is lost or came twice: {text}"));
                }
            }
            _ => self.fault(&format!("somebody else's progress: {text}")),
        }
    }

    /// Goes without a word, in one of several ways, and comes back as somebody else.
    fn vanish(&mut self, connect: &(dyn Fn() -> Client + Sync)) {
        match self.dice.below(3) {
            0 => self.depart(),
            way => {
                // One of them would wait for ever, unless somebody takes it back.
                self.hold();
                self.tally.abandoned += self.open.len();
                if way == 1 {
                    self.client.kill();
                }
            }
        }
        std::mem::replace(&mut self.client, connect()).leave();
        self.generation += 1;
        self.arrive();
    }

    /// Says nothing more, and hears every answer that is owed; then nothing but the end.
    fn depart(&mut self) {
        self.client.close_stdin();
        while self.open.values().any(|call| !call.is_cancelled) {
            self.listen();
        }
        self.settle_cancelled();
        let deadline = Instant::now() + self.patience;
        while let Some(line) = self.client.hear(deadline.saturating_duration_since(Instant::now()))
        {
            self.take(&line);
        }
        if !self.client.is_over() {
            self.fault("the end of input is not answered by the end of output");
        }
    }
}

/// splitmix64: the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}
