//! Everyone below a process, found by walking down `/proc`.
//!
//! Below a subreaper nobody gets away: an orphan's new parent is the nearest subreaper above it,
//! whatever session, group, environment or descriptors it gave up. A walk can miss a process that
//! is being born or handed over at that moment, so callers freeze and walk again, and in the end
//! ask the kernel whether they have any child left.

use super::procfs;
use crate::member::Member;
use rustix::process::Signal;
use std::collections::{HashMap, HashSet};

/// How often a freeze looks for new members before it settles for those it has.
const ROUNDS: usize = 64;

/// All living processes below `root`, without it, and without those in or below `except`.
pub(crate) fn below(root: i32, except: &[Member]) -> Vec<Member> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    let mut queue = vec![root];
    // Kernels built without `children` files: one pass over all processes gives the same.
    let mut by_parent: Option<HashMap<i32, Vec<i32>>> = None;
    while let Some(pid) = queue.pop() {
        let children = match (&by_parent, procfs::children(pid)) {
            (None, Some(children)) => children,
            (None, None) if pid == root => by_parent
                .insert(parents())
                .get(&pid)
                .cloned()
                .unwrap_or_default(),
            (None, None) => continue,
            (Some(map), _) => map.get(&pid).cloned().unwrap_or_default(),
        };
        for child in children {
            let Some(stat) = procfs::stat(child) else {
                continue;
            };
            let member = Member {
                pid: child,
                start: stat.start,
            };
            if except.contains(&member) || !seen.insert(child) {
                continue;
            }
            queue.push(child);
            if stat.is_alive() {
                found.push(member);
            }
        }
    }
    found
}

fn parents() -> HashMap<i32, Vec<i32>> {
    let mut map: HashMap<i32, Vec<i32>> = HashMap::new();
    for pid in procfs::pids() {
        if let Some(stat) = procfs::stat(pid) {
            map.entry(stat.ppid).or_default().push(pid);
        }
    }
    map
}

/// Stops everyone `look` finds until a look finds nobody new, and returns them all.
///
/// A stopped process cannot fork: what a kill then reaches is everyone.
pub(crate) fn freeze(mut look: impl FnMut() -> Vec<Member>) -> Vec<Member> {
    let mut frozen: Vec<Member> = Vec::new();
    let mut known = HashSet::new();
    for _ in 0..ROUNDS {
        let before = frozen.len();
        for member in look() {
            if known.insert(member) {
                // A refusal (another user's process) shows up later, when the kill fails too.
                let _refused = member.signal(Signal::STOP);
                frozen.push(member);
            }
        }
        if frozen.len() == before {
            break;
        }
    }
    frozen
}
