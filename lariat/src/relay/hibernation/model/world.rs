//! Everything around the machine, as far as it can be told apart from inside: a host with its
//! script, a server that answers in order, a tree, a clock. What the relay's loop does with the
//! machine is done here, step by step.

use super::super::{Act, Hibernation};
use super::super::{Idle, Policy, Signs};
use super::ledger::{Broken, Ledger, Rule};
use super::script::{Manners, Says, replies};
use crate::mcp::conversation::{Conversation, Known};
use crate::mcp::lookout::Sight;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

/// Something that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    HostSays,
    HostAnswers,
    HostCloses,
    ServerTakes,
    ServerSays,
    ServerTells,
    ServerAsks,
    ServerHangs,
    ServerCrashes,
    TimePasses,
    TreeStarts,
    TreeFails,
    TreeGone,
}

impl Step {
    /// What comes by itself if it is only waited for, the nearest first.
    const FAIR: [Step; 7] = [
        Step::TreeStarts,
        Step::ServerTakes,
        Step::ServerSays,
        Step::TreeGone,
        Step::HostAnswers,
        Step::HostSays,
        Step::TimePasses,
    ];

    const ALL: [Step; 13] = [
        Step::HostSays,
        Step::HostAnswers,
        Step::HostCloses,
        Step::ServerTakes,
        Step::ServerSays,
        Step::ServerTells,
        Step::ServerAsks,
        Step::ServerHangs,
        Step::ServerCrashes,
        Step::TimePasses,
        Step::TreeStarts,
        Step::TreeFails,
        Step::TreeGone,
    ];
}

/// A way in which the machine, or what is made of its words, could be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    /// It answers everything twice that it answers itself.
    StuttersToHost,
    /// It passes on twice what woke the server.
    StuttersToServer,
    /// It does not wait for the handshake.
    Hurries,
    /// It takes silence for the end.
    RestsAtOnce,
    /// It forgets what was in force.
    Forgets,
    /// It repeats what was never in force.
    Invents,
    /// It starts two at once.
    StartsTwice,
    /// It forgets to end.
    NeverEnds,
    /// It forgets to say no.
    NeverRefuses,
    /// It lets everything through.
    Gossips,
    /// It lets everything through while awake.
    Leaks,
    /// It does not see that it was late.
    MissesTime,
}

/// What may happen, and how often.
#[derive(Debug, Clone, Copy, Default, Hash)]
pub(super) struct Budget {
    pub(super) ticks: u8,
    pub(super) tells: u8,
    pub(super) asks: u8,
    pub(super) hangs: u8,
    pub(super) crashes: u8,
    pub(super) fails: u8,
}

/// What a world is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    pub(super) script: &'static [Says],
    pub(super) policy: Policy,
    pub(super) signs: Signs,
    pub(super) manners: Manners,
    pub(super) budget: Budget,
    /// A server that is started late is known from before.
    pub(super) remembers: bool,
    pub(super) flaw: Option<Flaw>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Tree {
    None,
    Starting,
    Running,
    /// It was told to go, and the host is not to notice.
    Resting,
    /// It was told to go, and the session with it.
    Ending,
}

/// The state of everything.
#[derive(Debug, Clone)]
pub(super) struct World {
    setting: Setting,
    machine: Hibernation,
    now: Instant,
    budget: Budget,
    tree: Tree,
    host_closed: bool,
    pub(super) over: bool,
    ledger: Ledger,
    /// What the server has not taken yet.
    input: VecDeque<String>,
    /// What it is going to say.
    output: VecDeque<String>,
    hung: bool,
}

impl World {
    pub(super) fn new(setting: Setting, now: Instant) -> World {
        let (machine, tree) = if setting.policy.lazy.is_some() {
            let known = if setting.remembers { remembered(now) } else { Known::default() };
            (Hibernation::asleep(setting.policy, known, now), Tree::None)
        } else {
            (Hibernation::awake(setting.policy, now), Tree::Starting)
        };
        World {
            setting,
            machine,
            now,
            budget: setting.budget,
            tree,
            host_closed: false,
            over: false,
            ledger: Ledger::new(setting.script.len()),
            input: VecDeque::new(),
            output: VecDeque::new(),
            hung: false,
        }
    }

    /// Servers that there have been.
    pub(super) fn lives(&self) -> u32 {
        self.ledger.lives
    }

    /// Equal for worlds that cannot be told apart.
    pub(super) fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let happened = (self.now, self.budget, self.tree, self.host_closed, self.over, self.hung);
        (&self.machine, happened, &self.ledger).hash(&mut hasher);
        (&self.input, &self.output).hash(&mut hasher);
        hasher.finish()
    }

    /// What can happen now.
    pub(super) fn steps(&self) -> impl Iterator<Item = Step> {
        Step::ALL.into_iter().filter(|step| self.can(*step))
    }

    fn can(&self, step: Step) -> bool {
        let Budget { ticks, tells, asks, hangs, crashes, fails } = self.budget;
        let there = matches!(self.tree, Tree::Running | Tree::Resting | Tree::Ending);
        let able = there && !self.hung && !self.over;
        let knows_host = self.ledger.lives > 1 || self.ledger.said > 1;
        !self.over
            && match step {
                Step::HostSays => {
                    let (script, at) = (self.setting.script, self.ledger.said);
                    let more = at < script.len() && self.ledger.may_say(script, at);
                    more && !self.host_closed && self.tree != Tree::Ending
                }
                Step::HostAnswers => {
                    self.ledger.wanted && !self.host_closed && self.tree != Tree::Ending
                }
                Step::HostCloses => !self.host_closed,
                Step::ServerTakes => able && !self.input.is_empty(),
                Step::ServerSays => able && !self.output.is_empty(),
                Step::ServerTells => able && knows_host && tells > 0,
                Step::ServerAsks => able && knows_host && asks > 0 && !self.ledger.wanted,
                Step::ServerHangs => able && hangs > 0,
                Step::ServerCrashes => self.tree == Tree::Running && crashes > 0,
                Step::TimePasses => {
                    let flawed = self.setting.flaw == Some(Flaw::RestsAtOnce);
                    ticks > 0 && (flawed || self.machine.deadline().is_some())
                }
                Step::TreeStarts => self.tree == Tree::Starting,
                Step::TreeFails => self.tree == Tree::Starting && fails > 0,
                Step::TreeGone => matches!(self.tree, Tree::Resting | Tree::Ending),
            }
    }

    /// What happens next if nothing goes wrong any more. `None` if everybody has what they want.
    pub(super) fn fair_step(&mut self) -> Result<Option<Step>, Broken> {
        let script = self.setting.script;
        let settled = !self.host_closed
            && self.ledger.has_said_all(script)
            && !self.ledger.host_waits(script);
        if self.over || settled && self.tree != Tree::Ending {
            return Ok(None);
        }
        // Time does not run out.
        self.budget.ticks = self.setting.budget.ticks.max(1);
        match Step::FAIR.into_iter().find(|step| self.can(*step)) {
            Some(step) => Ok(Some(step)),
            None => Err((Rule::Progress, format!("nothing happens any more: {:?}", self.tree))),
        }
    }

    pub(super) fn take(&mut self, step: Step) -> Result<(), Broken> {
        let script = self.setting.script;
        match step {
            Step::HostSays => {
                let says = script[self.ledger.said];
                let line = says.line(self.ledger.said);
                self.ledger.host_says(says);
                self.host_says(line)?;
            }
            Step::HostAnswers => {
                self.ledger.wanted = false;
                self.host_says("{\"id\":\"s\",\"result\":{}}\n".into())?;
            }
            Step::HostCloses => {
                self.host_closed = true;
                self.machine.host_closed();
            }
            Step::ServerTakes => {
                let line = self.input.pop_front().unwrap_or_default();
                self.server_takes(&line);
            }
            Step::ServerSays => {
                let line = self.output.pop_front().unwrap_or_default();
                self.server_says(&line)?;
            }
            Step::ServerTells => {
                self.budget.tells -= 1;
                self.server_says("{\"method\":\"notifications/message\",\"params\":{}}\n")?;
            }
            Step::ServerAsks => {
                self.budget.asks -= 1;
                self.server_says("{\"id\":\"s\",\"method\":\"roots/list\"}\n")?;
            }
            Step::ServerHangs => {
                self.budget.hangs -= 1;
                self.hung = true;
            }
            Step::ServerCrashes => {
                self.budget.crashes -= 1;
                self.gone("it crashed");
            }
            Step::TimePasses => self.time_passes()?,
            Step::TreeStarts => {
                self.tree = Tree::Running;
                self.machine.started(self.now);
            }
            Step::TreeFails => {
                self.budget.fails -= 1;
                self.gone("it did not start");
            }
            Step::TreeGone => self.gone("it left"),
        }
        self.attend()?;
        let ghost = self.machine.is_asleep() && self.tree != Tree::None;
        if ghost && !self.over && self.tree != Tree::Ending {
            return Err((Rule::Trees, format!("asleep, and the tree is {:?}", self.tree)));
        }
        Ok(())
    }

    fn host_says(&mut self, line: String) -> Result<(), Broken> {
        // What goes through has gone before it is looked at.
        let through = self.machine.host_is_heard();
        if through {
            self.say_to_server(&line)?;
        }
        self.machine.hear_host(&Sight::Line(line.as_bytes()), self.now);
        Ok(())
    }

    /// Whatever a world cannot survive is over; else the machine is told.
    fn gone(&mut self, why: &str) {
        let rests = self.tree == Tree::Resting;
        let ends = self.tree == Tree::Ending;
        self.tree = Tree::None;
        self.input.clear();
        self.output.clear();
        if !ends && (rests || self.machine.is_waking()) {
            self.machine.ended(why, self.now);
        } else {
            self.over = true;
        }
    }

    fn time_passes(&mut self) -> Result<(), Broken> {
        self.budget.ticks -= 1;
        let due = self.machine.deadline().unwrap_or(self.now);
        self.now = self.now.max(due);
        let signs = self.setting.signs;
        if self.setting.flaw != Some(Flaw::MissesTime) {
            self.machine.tick(self.now, || signs);
        }
        if self.setting.flaw == Some(Flaw::RestsAtOnce) && self.machine.acts.is_empty() {
            self.machine.acts.push_back(Act::Rest { failed: false });
        }
        match self.machine.deadline() {
            Some(again) if again <= self.now => {
                Err((Rule::Clock, "what was waited for has come, and is waited for".into()))
            }
            _ => Ok(()),
        }
    }

    fn server_takes(&mut self, line: &str) {
        let said: Value = serde_json::from_str(line).unwrap_or_default();
        let manners = self.setting.manners;
        if said["method"] == "notifications/cancelled" && !manners.ignores_cancel {
            let id = &said["params"]["requestId"];
            let of = |line: &String| serde_json::from_str::<Value>(line).unwrap_or_default();
            self.output.retain(|line| of(line)["id"] != *id);
        }
        self.output.extend(replies(&said, manners, self.ledger.lives));
    }

    fn server_says(&mut self, line: &str) -> Result<(), Broken> {
        let script = self.setting.script;
        let through = self.machine.server_is_heard();
        let repeated = self.ledger.server_says(script, line);
        let passes = self.machine.hear_server(&Sight::Line(line.as_bytes()), self.now);
        if through && !passes {
            return Err((Rule::Answers, format!("it has passed already: {line}")));
        }
        let flawed = match self.setting.flaw {
            Some(Flaw::Gossips) => true,
            Some(Flaw::Leaks) => self.machine.host_is_heard() && !repeated,
            _ => false,
        };
        if passes || flawed {
            if self.tree == Tree::Resting || repeated {
                return Err((Rule::Silence, format!("between two lives: {line}")));
            }
            self.ledger.reaches_host(script, line, None, self.now)?;
        }
        Ok(())
    }

    fn say_to_server(&mut self, line: &str) -> Result<(), Broken> {
        let at = self.tree;
        if matches!(at, Tree::None | Tree::Resting) {
            return Err((Rule::Order, format!("said to nobody ({at:?}): {line}")));
        }
        // An answer to the server's own question.
        if !line.starts_with("{\"id\":\"s\"") {
            self.ledger.reaches_server(self.setting.script, line, self.now)?;
        }
        self.input.push_back(line.to_owned());
        Ok(())
    }

    /// Does what the machine asks for.
    fn attend(&mut self) -> Result<(), Broken> {
        while let Some(act) = self.machine.act() {
            for act in self.distorted(act) {
                self.perform(act)?;
            }
        }
        Ok(())
    }

    fn perform(&mut self, act: Act) -> Result<(), Broken> {
        let script = self.setting.script;
        match act {
            Act::Start => {
                if self.tree != Tree::None {
                    return Err((Rule::Trees, format!("a second tree beside one {:?}", self.tree)));
                }
                (self.tree, self.hung) = (Tree::Starting, false);
                self.ledger.begins();
            }
            Act::Rest { failed } => {
                if !failed {
                    self.ledger.rests(script, self.signs(), self.host_closed, self.now)?;
                }
                if !matches!(self.tree, Tree::Starting | Tree::Running) {
                    return Err((Rule::Trees, format!("to leave, while {:?}", self.tree)));
                }
                self.tree = Tree::Resting;
                self.input.clear();
            }
            Act::End(_) if self.tree == Tree::None => self.over = true,
            Act::End(_) | Act::CloseInput => self.tree = Tree::Ending,
            // The ladder's clock runs; until it has, nothing is different.
            Act::Hurry => {}
            Act::ToServer(line) => {
                let line = String::from_utf8(line).unwrap_or_default();
                self.say_to_server(&line)?;
            }
            Act::ToHost(line) => {
                let line = String::from_utf8(line).unwrap_or_default();
                self.ledger.reaches_host(script, &line, Some(self.setting.manners), self.now)?;
            }
            Act::Tell(_) => {}
        }
        Ok(())
    }

    fn signs(&self) -> Signs {
        Signs {
            stateless: !self.setting.script.contains(&Says::Initialize),
            asked: matches!(self.setting.policy.idle, Idle::After(_)),
            ..self.setting.signs
        }
    }

    /// What a machine with a flaw would have asked for.
    fn distorted(&self, act: Act) -> Vec<Act> {
        let Some(flaw) = self.setting.flaw else { return vec![act] };
        let repeats = |line: &[u8]| line.windows(7).any(|part| part == b"lariat:");
        match (flaw, act) {
            (Flaw::StuttersToServer, Act::ToServer(line)) if line == self.news() => {
                vec![Act::ToServer(line.clone()), Act::ToServer(line)]
            }
            (Flaw::StuttersToHost, act @ Act::ToHost(_))
            | (Flaw::StartsTwice, act @ Act::Start) => vec![act.clone(), act],
            (Flaw::Forgets, Act::ToServer(line)) if repeats(&line) => Vec::new(),
            (Flaw::Hurries, Act::ToServer(line))
                if line == self.greeting() && line != self.news() =>
            {
                vec![Act::ToServer(line), Act::ToServer(self.news())]
            }
            (Flaw::Invents, Act::ToServer(line))
                if line == self.greeting() && line != self.news() =>
            {
                let invented = json!({
                    "id": "lariat:9", "method": "logging/setLevel", "params": { "level": "x" },
                });
                vec![Act::ToServer(format!("{invented}\n").into_bytes()), Act::ToServer(line)]
            }
            (Flaw::NeverEnds, Act::End(_) | Act::CloseInput) => Vec::new(),
            (Flaw::NeverRefuses, Act::ToHost(line)) if line.windows(5).any(|p| p == b"error") => {
                Vec::new()
            }
            (_, act) => vec![act],
        }
    }

    fn greeting(&self) -> Vec<u8> {
        Says::Initialize.line(0).into_bytes()
    }

    /// What the host said last.
    fn news(&self) -> Vec<u8> {
        let at = self.ledger.said - 1;
        self.setting.script[at].line(at).into_bytes()
    }
}

/// What another host has been told by a first life of the server.
fn remembered(now: Instant) -> Known {
    let mut talk = Conversation::new(now);
    let manners = Manners { declares: true, ..Manners::default() };
    for (at, says) in [Says::Initialize, Says::Tools].into_iter().enumerate() {
        let line = says.line(at);
        talk.host_said(&Sight::Line(line.as_bytes()), now);
        let asked = serde_json::from_str(&line).unwrap_or_default();
        for line in replies(&asked, manners, 1) {
            talk.server_said(&Sight::Line(line.as_bytes()), now);
        }
    }
    std::mem::take(talk.known_mut())
}
