//! Everyone below a process, found by walking down `/proc`.
//!
//! Below a subreaper nobody gets away: an orphan's new parent is the nearest subreaper above it,
//! whatever session, group, environment or descriptors it gave up. A walk can miss a process that
//! is being born or handed over at that moment, so callers freeze and walk again, and in the end
//! ask the kernel whether they have any child left.

use super::procfs;
use crate::member::Member;
use rustix::io::Errno;
use rustix::process::Signal;
use std::collections::{HashMap, HashSet};

/// How often a freeze looks for new members before it settles for those it has.
const ROUNDS: usize = 64;

/// All living processes below `root`, without it, and without those in or below `except`, as far as they
/// can be read.
pub(crate) fn below(root: i32, except: &[Member]) -> Vec<Member> {
    members_below(root, except, |_| true)
}

/// The same, without those who are not `ours`. Whoever is below one of ours is ours, whatever it says itself.
pub(crate) fn members_below(
    root: i32,
    except: &[Member],
    ours: impl Fn(&Member) -> bool,
) -> Vec<Member> {
    let mut found = Vec::new();
    let _as_far_as_it_went = walk(root, except, |member, stat, inherits| {
        let is_ours = inherits || ours(&member);
        if is_ours && stat.is_alive() {
            found.push(member);
        }
        is_ours
    });
    found
}

/// All processes below `root` that are or may be `ours`, also the dead whom nobody has waited for; an error if one
/// of them could not be read. This is for callers that conclude something from a process being absent.
///
/// The dead count because a walk cannot see what becomes of their children: a process that dies after its parent's
/// list was read hands its children to a parent whose list was read before.
pub(crate) fn everyone_below(
    root: i32,
    except: &[Member],
    ours: impl Fn(&Member) -> bool,
) -> Result<Vec<Member>, Errno> {
    let mut found = Vec::new();
    walk(root, except, |member, _, inherits| {
        let is_ours = inherits || ours(&member);
        if is_ours {
            found.push(member);
        }
        is_ours
    })?;
    Ok(found)
}

/// What those below `root` use, as far as `/proc` tells.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Who lives.
    pub(crate) members: Vec<Member>,
    /// Their threads.
    pub(crate) tasks: usize,
    /// CPU time in clock ticks, with that of the dead whom somebody has waited for.
    pub(crate) ticks: u64,
}

/// Adds up everyone below `root`. Whom `root` itself has waited for counts, its own time does not.
pub(crate) fn account(root: i32, except: &[Member]) -> Account {
    let ticks = procfs::stat(root).map_or(0, |stat| stat.reaped_ticks);
    let mut account = Account { ticks, ..Account::default() };
    let _as_far_as_it_went = walk(root, except, |member, stat, _| {
        account.ticks += stat.cpu_ticks + stat.reaped_ticks;
        if stat.is_alive() {
            account.members.push(member);
            account.tasks += stat.threads as usize;
        }
        true
    });
    account
}

/// Stops everyone below `root` for whom `ours` holds, and whoever is below those, until a walk finds nobody new,
/// and returns them all. Each is stopped before its children are listed: a stopped process cannot fork, so what
/// a kill then reaches is everyone.
pub(crate) fn freeze(root: i32, except: &[Member], ours: impl Fn(&Member) -> bool) -> Vec<Member> {
    let mut frozen: Vec<Member> = Vec::new();
    let mut known = HashSet::new();
    for _ in 0..ROUNDS {
        let before = frozen.len();
        // What it misses the next kill finds.
        let _as_far_as_it_went = walk(root, except, |member, stat, inherits| {
            let is_ours = inherits || ours(&member);
            if is_ours && stat.is_alive() && known.insert(member) {
                // A refusal (another user's process) shows up later, when the kill fails too.
                let _refused = member.signal(Signal::STOP);
                frozen.push(member);
            }
            is_ours
        });
        if frozen.len() == before {
            break;
        }
    }
    frozen
}

/// One whose children are to be listed.
struct Parent {
    pid: i32,
    /// When it started; nothing for the one at which the walk starts.
    start: Option<u64>,
    threads: u32,
    /// What the visitor said of it.
    is_ours: bool,
}

impl Parent {
    /// False if somebody else may have been given its number before its children were listed.
    fn is_still_itself(&self) -> bool {
        self.start.is_none_or(|start| procfs::stat(self.pid).is_some_and(|s| s.start == start))
    }
}

/// Visits every process below `root`, dead ones that nobody has waited for too, each before its
/// children are listed. Goes on where somebody cannot be read, and says so in the end. The visitor is told what
/// it said of the parent; of `root` nothing was said.
fn walk(
    root: i32,
    except: &[Member],
    mut visit: impl FnMut(Member, &procfs::Stat, bool) -> bool,
) -> Result<(), Errno> {
    let mut whole = Ok(());
    let mut seen = HashSet::new();
    let threads = procfs::stat(root).map_or(1, |s| s.threads);
    let mut queue = vec![Parent { pid: root, start: None, threads, is_ours: false }];
    // Kernels built without `children` files: one pass over all processes gives the same.
    let mut by_parent: Option<HashMap<i32, Vec<i32>>> = None;
    while let Some(parent) = queue.pop() {
        let Parent { pid, threads, is_ours, .. } = parent;
        let children = match &by_parent {
            Some(map) => map.get(&pid).cloned().unwrap_or_default(),
            None => match procfs::children(pid, threads) {
                Ok(children) => children,
                Err(e) => {
                    if !procfs::is_final(e) {
                        whole = Err(e);
                    }
                    if pid != root {
                        continue;
                    }
                    let map = parents().unwrap_or_else(|e| {
                        whole = Err(e);
                        HashMap::new()
                    });
                    by_parent.insert(map).get(&pid).cloned().unwrap_or_default()
                }
            },
        };
        // Who has gone has left its children to `root`, where the next walk meets them.
        if !children.is_empty() && !parent.is_still_itself() {
            continue;
        }
        for child in children {
            let stat = match procfs::read_stat(child) {
                Ok(stat) => stat,
                Err(e) => {
                    if !procfs::is_final(e) {
                        whole = Err(e);
                    }
                    continue;
                }
            };
            // Either its parent is still the one that listed it, or that one has died and the subreaper has it now.
            // Anything else may be a stranger who was given the number meanwhile; a child is met by the next walk.
            if stat.ppid != pid && stat.ppid != root {
                continue;
            }
            let member = Member { pid: child, start: stat.start };
            if except.contains(&member) || !seen.insert(child) {
                continue;
            }
            let is_ours = visit(member, &stat, is_ours);
            // A zombie that leads living threads says so by their number.
            let (start, threads) = (Some(stat.start), stat.threads);
            queue.push(Parent { pid: child, start, threads, is_ours });
        }
    }
    whole
}

fn parents() -> Result<HashMap<i32, Vec<i32>>, Errno> {
    let mut map: HashMap<i32, Vec<i32>> = HashMap::new();
    for pid in procfs::read_pids()? {
        match procfs::read_stat(pid) {
            Ok(stat) => map.entry(stat.ppid).or_default().push(pid),
            Err(e) if procfs::is_final(e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::wait::wait;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn the_dead_are_no_members_and_are_there_all_the_same() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        let deadline = Instant::now() + Duration::from_secs(10);
        while procfs::stat(pid).is_some_and(|stat| stat.is_alive()) {
            assert!(Instant::now() < deadline, "it does not end");
            wait(&mut [], Some(Instant::now() + Duration::from_millis(1)));
        }
        let me = rustix::process::getpid().as_raw_pid();
        let has = |members: Vec<Member>| members.iter().any(|member| member.pid == pid);
        assert!(!has(below(me, &[])));
        assert!(has(everyone_below(me, &[], |_| true).unwrap()));
        child.wait().unwrap();
        assert!(!has(everyone_below(me, &[], |_| true).unwrap()));
    }
}
