//! The witness: finds every process of a cell with its own eyes.
//!
//! It believes nobody. A process belongs to the cell if the cell's token is in its command line
//! (which survives fork, setsid, an empty environment, closed descriptors and namespaces), if it
//! was seen with the token before, or if it descended from the host when that was looked at. Where
//! an owner program may be gone before it has begun, its helpers are known by their environment too.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use super::cgroup::{self, Mount};
use super::{Process, Stat, living_threads, pids, until};

/// Watches the processes of one cell.
#[derive(Debug)]
pub struct Witness {
    token: Vec<u8>,
    /// How the command line of the wrapper itself begins; empty without one.
    wrap: Vec<u8>,
    spared: HashSet<Process>,
    /// Whether the token counts in an environment as well.
    by_environment: bool,
    /// Everybody ever seen, and whether it belonged to the server's own tree.
    known: BTreeMap<Process, bool>,
    /// Those alive when last looked.
    last: Vec<Process>,
    peak: usize,
    own_cgroup: Option<String>,
    cgroups: BTreeSet<String>,
}

impl Witness {
    /// A witness for the processes whose command line holds `token`; those whose command line
    /// begins with `wrap` are the wrapper's and do not count as the server's tree.
    #[must_use]
    pub fn new(token: &str, wrap: &[OsString]) -> Self {
        let mut prefix = Vec::new();
        for word in wrap {
            prefix.extend_from_slice(word.as_bytes());
            prefix.push(0);
        }
        Self {
            token: token.as_bytes().to_vec(),
            wrap: prefix,
            spared: HashSet::new(),
            by_environment: false,
            known: BTreeMap::new(),
            last: Vec::new(),
            peak: 0,
            own_cgroup: cgroup::of("/proc/self"),
            cgroups: BTreeSet::new(),
        }
    }

    /// Leaves a process out that carries the token by right, such as a bystander.
    pub fn spare(&mut self, process: Process) {
        self.spared.insert(process);
    }

    /// From now on also knows those who have the token in their environment only: what helps an owner need not
    /// have the server's command line in its own.
    pub fn know_by_environment(&mut self) {
        self.by_environment = true;
    }

    /// Looks through the whole of `/proc` once; returns who is alive.
    pub fn look(&mut self) -> Vec<Process> {
        let mut alive = Vec::new();
        let mut crew = 0;
        for pid in pids().chain(newest()) {
            let Some((process, stat, in_tree)) = self.recognise(pid) else {
                continue;
            };
            if self.spared.contains(&process) || alive.contains(&process) || !stat.is_alive(pid) {
                continue;
            }
            // Read anew each time: a member may be moved after its birth.
            self.cgroups.extend(cgroup_of(pid));
            self.known.insert(process, in_tree);
            crew += usize::from(in_tree);
            alive.push(process);
        }
        self.peak = self.peak.max(crew);
        self.last.clone_from(&alive);
        alive
    }

    /// Also counts everybody who descends from this process now, token or not.
    pub fn adopt_descendants(&mut self, ancestor: Process) {
        let parents: Vec<(Process, i32)> = pids()
            .filter_map(|pid| {
                let stat = Stat::of(pid)?;
                Some((Process { pid, start: stat.start }, stat.parent))
            })
            .collect();
        let mut family = HashSet::from([ancestor.pid]);
        loop {
            let before = family.len();
            for &(process, parent) in &parents {
                if family.contains(&parent) && !self.spared.contains(&process) {
                    family.insert(process.pid);
                }
            }
            if family.len() == before {
                break;
            }
        }
        for (process, _) in parents {
            if family.contains(&process.pid) && process != ancestor {
                self.known.entry(process).or_insert(false);
            }
        }
    }

    /// Whether nobody is left in `passes` looks in a row: a process that hops from pid to pid can
    /// be missed by one. Cheap while somebody seen last time still lives.
    pub fn nobody_in(&mut self, passes: usize) -> bool {
        if self.last.iter().any(|process| process.is_alive()) {
            return false;
        }
        (0..passes).all(|_| self.look().is_empty())
    }

    /// How many different processes of the server's own tree have been seen.
    #[must_use]
    pub fn seen(&self) -> usize {
        self.known.values().filter(|&&in_tree| in_tree).count()
    }

    /// The most processes of the server's own tree that one look has shown.
    #[must_use]
    pub fn peak(&self) -> usize {
        self.peak
    }

    /// The cgroups in which members were seen and which exist still, other than the runner's own.
    #[must_use]
    pub fn left_cgroups(&self) -> Vec<String> {
        let (Some(mount), Some(own)) = (Mount::find(), &self.own_cgroup) else {
            return Vec::new();
        };
        let foreign = self.cgroups.iter().filter(|path| !cgroup::contains(path, own));
        foreign.filter(|path| mount.directory(path).is_dir()).cloned().collect()
    }

    /// Removes cgroups that [`left_cgroups`](Self::left_cgroups) named, as far as they are empty.
    pub fn remove_cgroups(&self, left: &[String]) {
        if let Some(mount) = Mount::find() {
            for path in left {
                // Best effort: the verdict has named it already.
                fs::remove_dir(mount.directory(path)).ok();
            }
        }
    }

    /// Pid, name, state, age and command of a process, for people.
    #[must_use]
    pub fn describe(&self, process: Process) -> String {
        let pid = process.pid;
        let Some(stat) = process.stat() else {
            return format!("{pid} (just gone)");
        };
        let age = age(process).map_or_else(|| "?".to_owned(), |age| format!("{age:.1?}"));
        let words: Vec<String> = command_line(pid)
            .split(|&byte| byte == 0)
            .filter(|word| !word.is_empty())
            .take(3)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        let (comm, state) = (stat.comm, stat.state);
        format!("{pid} ({comm}) state {state}, {age} old: {}", words.join(" "))
    }

    /// Ends everybody who is left, each by identity, until nobody is found; returns who remains.
    pub fn end_all(&mut self) -> Vec<Process> {
        let mut calm = 0;
        until(Duration::from_secs(5), || {
            let left = self.look();
            for process in &left {
                self.end(*process);
            }
            calm = if left.is_empty() { calm + 1 } else { 0 };
            calm >= 3
        });
        self.look()
    }

    fn end(&self, process: Process) {
        // The identity is compared under an open pidfd. That it is ours was established by look():
        // by its token, or by its descent from our host.
        if process.stat().is_some() && !self.spared.contains(&process) {
            process.signal(libc::SIGKILL).ok();
        }
    }

    /// Who has this pid, if it belongs to the cell, and whether it is of the server's own tree.
    fn recognise(&self, pid: i32) -> Option<(Process, Stat, bool)> {
        let line = command_line(pid);
        let marked = self.marks(pid, &line);
        if !marked && !self.known.range(all_with(pid)).any(|_| true) {
            return None;
        }
        let stat = Stat::of(pid)?;
        let process = Process { pid, start: stat.start };
        if let Some(&in_tree) = self.known.get(&process) {
            // What began as a fork of the wrapper may have become the server since.
            return Some((process, stat, in_tree || (marked && self.in_tree(&line))));
        }
        // Between the two reads the pid may have changed hands. Read again: if the token is still
        // there, what lies between belonged to the cell too.
        let line = command_line(pid);
        self.marks(pid, &line).then(|| (process, stat, self.in_tree(&line)))
    }

    /// Whether the process with this command line carries the token.
    fn marks(&self, pid: i32, line: &[u8]) -> bool {
        self.has_token(line)
            || self.by_environment
                && fs::read(format!("/proc/{pid}/environ")).is_ok_and(|text| self.has_token(&text))
    }

    fn has_token(&self, text: &[u8]) -> bool {
        text.windows(self.token.len()).any(|part| part == self.token)
    }

    /// An owner's helper that is known by its environment alone has no command line of the server's.
    fn in_tree(&self, line: &[u8]) -> bool {
        self.has_token(line) && (self.wrap.is_empty() || !line.starts_with(&self.wrap))
    }
}

/// The pids given out last, asked for again and again. A listing of `/proc` is old by the time it
/// is read, and whoever hops is then somewhere else; here is where it must be.
fn newest() -> impl Iterator<Item = i32> {
    (0..10)
        .flat_map(|_| {
            let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
            let last = load.split_whitespace().nth(4).and_then(|pid| pid.parse::<i32>().ok());
            last.into_iter().flat_map(|last| (last - 4..=last + 1).rev())
        })
        .filter(|pid| is_process(*pid))
}

/// Threads are numbered with the processes, and found under their number though no listing has them.
fn is_process(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    group.and_then(|group| group.trim().parse().ok()) == Some(pid)
}

fn all_with(pid: i32) -> std::ops::RangeInclusive<Process> {
    Process { pid, start: 0 }..=Process { pid, start: u64::MAX }
}

/// The command line of a process. While it executes another program there is none for a moment, which is
/// waited for; once the main thread has exited it is empty there, but another thread still has it.
pub(crate) fn command_line(pid: i32) -> Vec<u8> {
    let read = || fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut line = read();
    if line.is_empty() && has_memory(pid) {
        until(EXECUTING, || {
            line = read();
            !line.is_empty() || !has_memory(pid)
        });
    }
    if !line.is_empty() || !Stat::of(pid).is_some_and(|stat| stat.state == 'Z' && stat.threads > 1)
    {
        return line;
    }
    living_threads(pid)
        .filter_map(|tid| fs::read(format!("/proc/{pid}/task/{tid}/cmdline")).ok())
        .find(|line| !line.is_empty())
        .unwrap_or_default()
}

/// How long somebody may have no command line before that is how it is.
const EXECUTING: Duration = Duration::from_millis(20);

/// Whether a process has memory of its own: the kernel's threads and the dead have none.
fn has_memory(pid: i32) -> bool {
    let pages = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    pages.split(' ').next().is_some_and(|total| !total.is_empty() && total != "0")
}

/// The cgroup of a process, asked of a living thread: a dead main thread is shown in the root.
fn cgroup_of(pid: i32) -> Option<String> {
    let tid = living_threads(pid).next()?;
    cgroup::of(&format!("/proc/{pid}/task/{tid}"))
}

fn age(process: Process) -> Option<Duration> {
    let uptime: f64 =
        fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()?;
    // SAFETY: sysconf reads a constant and touches no memory of ours.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let ticks = u64::try_from(ticks).ok().filter(|&ticks| ticks > 0)?;
    let born = Duration::from_millis(process.start * 1000 / ticks);
    Some(Duration::try_from_secs_f64(uptime).ok()?.saturating_sub(born))
}
