//! As in openai/codex #18881: one host, one generation of servers after the other, none closed, all pipes
//! open. Only the newest live; what is left of the others costs next to nothing, and answers.

use crate::eyes;
use crate::host::Host;
use crate::kit::{Dice, Much, PATIENCE, Place, how_much, let_pass, trial};
use libtest_mimic::Trial;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;
use trials::{Process, until};

/// Servers of one generation.
const SERVERS: usize = 4;
/// What a wrapper and its helpers may have to themselves.
const PRIVATE: u64 = 1 << 20;
/// How long nothing happens.
const CALM: Duration = Duration::from_secs(2);
/// What all of them together may use of a CPU in that time, in ticks of ten milliseconds.
const TICKS: u64 = 2;
/// How often one of them may turn over in its sleep.
const TURNS: u64 = 1;

pub(crate) fn tests() -> Vec<Trial> {
    let generations = match how_much() {
        Much::Quick => 8,
        Much::Middle => 30,
        Much::Full => 123,
    };
    vec![trial(format!("generations::only_the_newest_of_{generations}_live"), move || {
        play(generations);
    })]
}

fn play(generations: usize) {
    // Two pipes each, and some.
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
    let place = Place::new();
    let mut hosts: Vec<Host> = Vec::new();
    for _ in 0..generations {
        for name in ["a", "b", "c", "d"] {
            hosts.push(start(&place, name));
        }
    }
    let newest = hosts.len() - SERVERS;
    let mut live = Vec::new();
    let settled = until(PATIENCE * 2, || {
        live = with_trees(&hosts);
        live.len() <= SERVERS
    });
    assert!(settled, "{} trees are alive", live.len());
    assert_eq!(live, (newest..hosts.len()).collect::<Vec<usize>>(), "not the newest ones");

    let crews: Vec<Vec<Process>> = hosts[..newest].iter().map(Host::crew).collect();
    for crew in &crews {
        let private: u64 = crew.iter().map(|one| eyes::private(*one)).sum();
        assert!(private <= PRIVATE, "{private} bytes are private to {crew:?}");
    }
    let everybody: Vec<Process> = crews.iter().flatten().copied().collect();
    let efforts = || everybody.iter().map(|one| eyes::effort(*one)).collect::<Vec<_>>();
    let before = efforts();
    let_pass(CALM);
    let after = efforts();
    let spent: u64 = before.iter().zip(&after).map(|(then, now)| now.ticks - then.ticks).sum();
    assert!(spent <= TICKS, "{spent} ticks in {CALM:?} with nothing to do");
    let restless = before.iter().zip(&after).filter(|(then, now)| now.turns - then.turns > TURNS);
    assert_eq!(restless.count(), 0, "wrappers wake up with nothing to do");

    let mut dice = Dice(123);
    for turn in 0..SERVERS * 2 {
        let old = dice.below(newest);
        let said = format!("{turn} to {old}");
        assert_eq!(hosts[old].call(1000 + turn as u64, "echo", &json!({"text": said})), said);
    }
    // Those fall asleep again: they are as old as before.
    let settled = until(PATIENCE, || with_trees(&hosts).len() == SERVERS);
    assert!(settled, "{:?} are alive", with_trees(&hosts));
    hosts.into_iter().for_each(|host| drop(host.hang_up().wait()));
    place.assert_gone(PATIENCE);
    place.assert_accounted();
}

/// Starts a server of this name: the same command in every generation.
fn start(place: &Place, name: &str) -> Host {
    let options =
        ["--idle", "auto", "--idle-after", "300ms", "--max-starts", "off", "--name", name];
    let mut server = place.server("plain");
    // Each has notes of its own; the report's servers were different programs.
    let notes = place.path(&format!("notes-{name}"));
    fs::create_dir_all(&notes).unwrap();
    *server.last_mut().unwrap() = notes.display().to_string();
    let mut host = Host::start(place, &place.wrapped(&options, &server), &[]);
    host.shake_hands(&json!({}));
    assert_eq!(host.call(1, "echo", &json!({"text": name})), name);
    host
}

/// Which of them have a server that lives. One look at `/proc` is enough for all.
fn with_trees(hosts: &[Host]) -> Vec<usize> {
    let parents = eyes::parents();
    let wrappers: BTreeMap<i32, usize> =
        hosts.iter().enumerate().map(|(number, host)| (host.first.pid, number)).collect();
    let ours = std::env::current_exe().unwrap();
    let mut live = BTreeSet::new();
    for pid in parents.keys() {
        let server = Process::now(*pid).filter(|one| one.is_alive());
        if server.and_then(eyes::program).is_some_and(|program| program == ours) {
            let ancestors = std::iter::successors(Some(*pid), |pid| parents.get(pid).copied());
            live.extend(ancestors.filter_map(|pid| wrappers.get(&pid).copied()));
        }
    }
    live.into_iter().collect()
}
