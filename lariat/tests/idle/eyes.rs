//! What this host sees of processes, in `/proc` and nowhere else: who descends from whom, who
//! carries a word, what they cost.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use trials::Process;

/// Every living process below this one.
pub(crate) fn below(ancestor: Process) -> Vec<Process> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (pid, parent) in parents() {
        children.entry(parent).or_default().push(pid);
    }
    let (mut found, mut waiting) = (BTreeSet::new(), vec![ancestor.pid]);
    while let Some(pid) = waiting.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if found.insert(*child) {
                waiting.push(*child);
            }
        }
    }
    found.into_iter().filter_map(Process::now).filter(|process| process.is_alive()).collect()
}

/// Who is whose child now.
pub(crate) fn parents() -> BTreeMap<i32, i32> {
    pids().filter_map(|pid| Some((pid, field(pid, 4)? as i32))).collect()
}

/// Every living process with this word in its environment or its arguments.
pub(crate) fn carriers(word: &str) -> Vec<Process> {
    let holds = |bytes: Vec<u8>| bytes.windows(word.len()).any(|part| part == word.as_bytes());
    let carries = |pid: &i32| {
        ["environ", "cmdline"]
            .iter()
            .any(|file| fs::read(format!("/proc/{pid}/{file}")).is_ok_and(holds))
    };
    let me = std::process::id() as i32;
    let others = pids().filter(|pid| *pid != me).filter(carries);
    others.filter_map(Process::now).filter(|process| process.is_alive()).collect()
}

/// The program that a process runs. Nothing for one that is gone, or not ours to look at.
pub(crate) fn program(process: Process) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{}/exe", process.pid)).ok()
}

/// Pid, name and command line, for people.
pub(crate) fn describe(process: Process) -> String {
    let line = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    format!("{} {}", process.pid, line.chars().take(160).collect::<String>())
}

/// Sends a signal to this very process, or to nobody. One that is gone already is no error.
pub(crate) fn signal(process: Process, signal: Signal) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    if let Ok(held) = pidfd_open(pid, PidfdFlags::empty())
        // Held first, compared afterwards: the descriptor cannot mean a later process then.
        && Process::now(process.pid) == Some(process)
    {
        pidfd_send_signal(&held, signal).ok();
    }
}

/// Memory that a process has to itself, in bytes.
pub(crate) fn private(process: Process) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid));
    let text = text.expect("a living process of ours");
    let lines = text.lines().filter(|line| line.starts_with("Private_"));
    let kilobytes = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kilobytes.sum::<u64>() * 1024
}

/// What a process has done so far: ticks on a CPU, and how often it went to sleep again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effort {
    pub(crate) ticks: u64,
    pub(crate) turns: u64,
}

pub(crate) fn effort(process: Process) -> Effort {
    let ticks = field(process.pid, 14).zip(field(process.pid, 15));
    let (user, system) = ticks.expect("a living process");
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap_or_default();
    let turns = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    let turns = turns.and_then(|number| number.trim().parse().ok()).expect("a living process");
    Effort { ticks: user + system, turns }
}

/// A number of `/proc/PID/stat`, counted as its manual does. The name before may hold anything.
fn field(pid: i32, number: usize) -> Option<u64> {
    let line = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let line = String::from_utf8_lossy(&line).into_owned();
    line.rsplit_once(')')?.1.split_whitespace().nth(number - 3)?.parse().ok()
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
