//! Every way in which a conversation can go, up to a bound, and what must hold in all of them.
//!
//! Worlds are explored breadth first, so the first one that breaks a rule does so after as few
//! steps as possible. What may go wrong is counted in each setting; what has to go right by itself
//! is not, so the bound is on misfortune and not on depth.

mod ledger;
mod script;
mod world;

use super::{Idle, Policy, Signs};
use crate::relay::cache::Key;
use ledger::{Broken, Rule};
use script::{Manners, Says};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};
use world::{Budget, Flaw, Setting, Step, World};

/// More worlds than this in one setting are too many for a test.
const MOST: usize = 400_000;

/// Whoever is not through after so many steps turns in circles.
const PATIENCE: usize = 300;

/// How it came to pass.
#[derive(Debug)]
struct Found {
    broken: Broken,
    steps: Vec<Step>,
}

/// What was seen on the way.
#[derive(Debug)]
struct Seen {
    worlds: usize,
    /// Of one server, one after the other.
    lives: u32,
}

/// Goes everywhere. What there is, or the shortest way to one that breaks a rule.
fn explore(setting: Setting) -> Result<Seen, Found> {
    let first = World::new(setting, Instant::now());
    let (mut seen, mut fine) = (HashSet::from([first.key()]), HashSet::new());
    // By which step, and after which other one.
    let mut way: Vec<(usize, Step)> = Vec::new();
    let mut lives = 0;
    let mut frontier = vec![(usize::MAX, first)];
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for (at, world) in frontier {
            let found = |broken, last: &[Step]| Found { broken, steps: back(&way, at, last) };
            goes_on(&world, &mut fine).map_err(|(broken, last)| found(broken, &last))?;
            lives = lives.max(world.lives());
            let mut more = Vec::new();
            for step in world.steps() {
                let mut then = world.clone();
                then.take(step).map_err(|broken| found(broken, &[step]))?;
                if seen.insert(then.key()) {
                    more.push((step, then));
                }
            }
            for (step, then) in more {
                way.push((at, step));
                next.push((way.len() - 1, then));
            }
            assert!(seen.len() <= MOST, "too many worlds: {setting:?}");
        }
        frontier = next;
    }
    Ok(Seen { worlds: seen.len(), lives })
}

/// The steps that have led somewhere, and some more.
fn back(way: &[(usize, Step)], mut at: usize, last: &[Step]) -> Vec<Step> {
    let mut steps = Vec::new();
    while let Some((before, step)) = way.get(at) {
        steps.push(*step);
        at = *before;
    }
    steps.reverse();
    steps.extend(last);
    steps
}

/// Whoever waits gets what they wait for, if from here on nothing goes wrong.
fn goes_on(world: &World, fine: &mut HashSet<u64>) -> Result<(), (Broken, Vec<Step>)> {
    let (mut world, mut taken, mut keys) = (world.clone(), Vec::new(), Vec::new());
    loop {
        let step = world.fair_step().map_err(|broken| (broken, taken.clone()))?;
        let key = world.key();
        keys.push(key);
        let Some(step) = step.filter(|_| !fine.contains(&key)) else { break };
        taken.push(step);
        world.take(step).map_err(|broken| (broken, taken.clone()))?;
        if taken.len() > PATIENCE {
            return Err(((Rule::Progress, "in circles".into()), taken));
        }
    }
    fine.extend(keys);
    Ok(())
}

const LEGACY: &[Says] =
    &[Says::Initialize, Says::Initialized, Says::Tools, Says::Call, Says::Ping, Says::Note];
const CANCELS: &[Says] =
    &[Says::Initialize, Says::Initialized, Says::Call, Says::Cancel(2), Says::Call];
const WATCHES: &[Says] = &[
    Says::Initialize,
    Says::Initialized,
    Says::Level("info"),
    Says::Subscribe("a"),
    Says::Level("error"),
    Says::Call,
    Says::Unsubscribe("a"),
    Says::Call,
];
const TASKS: &[Says] = &[
    Says::Initialize,
    Says::Initialized,
    Says::Task(10_000),
    Says::Task(90_000),
    Says::Call,
    Says::TaskState(3),
];
const MODERN: &[Says] =
    &[Says::ModernCall, Says::Listen, Says::ModernCall, Says::Cancel(1), Says::ModernCall];

const IDLE: Duration = Duration::from_secs(30);
const NO_SIGNS: Signs = Signs {
    superseded: false,
    host_orphaned: false,
    ends_closed: false,
    stateless: false,
    asked: false,
};
const SUPERSEDED: Signs = Signs { superseded: true, ..NO_SIGNS };

/// Of no server in particular.
fn key() -> Key {
    Key::new(OsStr::new("server"), &[], [], None, Path::new("/"))
}

fn setting(script: &'static [Says], idle: Idle) -> Setting {
    Setting {
        script,
        policy: Policy {
            idle,
            lazy: None,
            init_timeout: Some(Duration::from_secs(60)),
            call_timeout: None,
            spin_limit: None,
        },
        signs: NO_SIGNS,
        manners: Manners { declares: true, ..Manners::default() },
        budget: Budget { ticks: 4, tells: 1, asks: 1, hangs: 0, crashes: 1, fails: 2 },
        remembers: false,
        flaw: None,
    }
}

/// Nothing is broken, and there was occasion: a server came back more than once.
fn holds(setting: Setting) {
    let Seen { worlds, lives } = seen(setting);
    assert!(worlds > 500 && lives > 2, "{worlds} worlds, {lives} lives: {setting:?}");
}

fn seen(setting: Setting) -> Seen {
    match explore(setting) {
        Ok(seen) => {
            println!("{seen:?}");
            seen
        }
        Err(Found { broken: (rule, how), steps }) => {
            panic!("{rule:?}: {how}\nafter {steps:?}\nin {setting:?}")
        }
    }
}

#[test]
fn a_legacy_server_may_sleep_at_any_time() {
    holds(setting(LEGACY, Idle::After(IDLE)));
}

#[test]
fn a_legacy_server_sleeps_only_with_signs() {
    let orphaned = Signs { host_orphaned: true, ..NO_SIGNS };
    for signs in [SUPERSEDED, orphaned] {
        holds(Setting { signs, ..setting(LEGACY, Idle::Auto(IDLE)) });
    }
    for idle in [Idle::Auto(IDLE), Idle::Off] {
        assert_eq!(seen(setting(LEGACY, idle)).lives, 1, "{idle:?}");
    }
}

#[test]
fn what_is_in_force_is_in_force_again() {
    for (signs, asks) in [(NO_SIGNS, 1), (SUPERSEDED, 0)] {
        let plain = setting(WATCHES, Idle::After(IDLE));
        let budget = Budget { ticks: 3, asks, tells: 0, ..plain.budget };
        holds(Setting { signs, budget, ..plain });
    }
}

#[test]
fn what_was_taken_back_may_be_answered_or_not() {
    for ignores_cancel in [true, false] {
        let manners = Manners { ignores_cancel, ..Manners::default() };
        holds(Setting { manners, ..setting(CANCELS, Idle::After(IDLE)) });
    }
}

#[test]
fn whoever_is_late_is_not_heard() {
    for ignores_cancel in [true, false] {
        for call in [1, 90] {
            let plain = setting(CANCELS, Idle::After(IDLE));
            let policy = Policy { call_timeout: Some(Duration::from_secs(call)), ..plain.policy };
            let manners = Manners { ignores_cancel, ..Manners::default() };
            let budget = Budget { ticks: 4, hangs: 1, asks: 0, tells: 0, ..plain.budget };
            holds(Setting { policy, manners, budget, ..plain });
        }
    }
}

#[test]
fn a_task_is_waited_for() {
    holds(setting(TASKS, Idle::After(IDLE)));
}

#[test]
fn a_modern_server_sleeps_without_signs() {
    for signs in [NO_SIGNS, SUPERSEDED] {
        holds(Setting { signs, ..setting(MODERN, Idle::Auto(IDLE)) });
    }
}

#[test]
fn a_server_may_come_back_another_or_not_at_all() {
    let plain = setting(LEGACY, Idle::After(IDLE));
    for (refuses_return, changes, declares) in
        [(true, false, false), (false, true, true), (false, true, false)]
    {
        let manners = Manners { refuses_return, changes, declares, ..Manners::default() };
        let budget = Budget { fails: 2, asks: 0, ..plain.budget };
        holds(Setting { manners, budget, ..plain });
    }
}

#[test]
fn a_server_need_not_be_there_before_it_is_needed() {
    for (script, remembers, changes) in [
        (LEGACY, true, true),
        (WATCHES, true, false),
        (LEGACY, false, false),
        (MODERN, false, false),
    ] {
        let plain = setting(script, Idle::After(IDLE));
        let policy = Policy { lazy: Some(key()), ..plain.policy };
        let manners = Manners { changes, ..plain.manners };
        let budget = Budget { ticks: 3, tells: 0, asks: 0, ..plain.budget };
        holds(Setting { policy, manners, budget, remembers, ..plain });
    }
}

#[test]
fn every_rule_can_be_broken() {
    let plain = Setting { signs: SUPERSEDED, ..setting(WATCHES, Idle::After(IDLE)) };
    let plain = Setting { budget: Budget { tells: 0, asks: 0, ..plain.budget }, ..plain };
    let lazy = Policy { lazy: Some(key()), idle: Idle::Off, ..plain.policy };
    let lazy = Setting { policy: lazy, ..plain };
    let patient = Policy { init_timeout: None, ..plain.policy };
    let patient = Setting { policy: patient, ..plain };
    for (plain, flaw, rule) in [
        (plain, Flaw::StuttersToHost, Rule::Answers),
        (plain, Flaw::StuttersToServer, Rule::Order),
        (plain, Flaw::Hurries, Rule::Replay),
        (plain, Flaw::RestsAtOnce, Rule::Sleep),
        (plain, Flaw::Forgets, Rule::Replay),
        (plain, Flaw::Invents, Rule::Order),
        (plain, Flaw::StartsTwice, Rule::Trees),
        (plain, Flaw::NeverEnds, Rule::Progress),
        (lazy, Flaw::NeverRefuses, Rule::Progress),
        (plain, Flaw::Leaks, Rule::Answers),
        (patient, Flaw::Gossips, Rule::Silence),
        (plain, Flaw::MissesTime, Rule::Clock),
    ] {
        let found = explore(Setting { flaw: Some(flaw), ..plain });
        let seen = found.as_ref().is_err_and(|found| found.broken.0 == rule);
        assert!(seen, "{flaw:?} breaks {rule:?}, not {found:?}");
    }
}
