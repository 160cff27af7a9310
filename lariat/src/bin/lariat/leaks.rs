//! Servers of hosts that nobody holds: who runs them, and which of them are leaks.
//!
//! A decision and nothing else: from a picture of the processes and the hosts' own configurations to
//! findings that say what speaks for each of them. A process is a server only if a host's own
//! configuration says so, and a leak only if its ties (parent, pipes) say so as well. Whatever has
//! one kind of evidence alone is nobody's business. `look` makes the picture.

mod command;
pub(crate) mod look;
mod sockets;

use crate::hosts::Configured;
use command::{last_part, runs};
use lariat::contain::Member;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

/// A host, and how its processes are known.
#[derive(Debug, Clone)]
pub(crate) struct KnownHost {
    /// Its name in the configurations.
    pub(crate) name: String,
    /// Names of its programs.
    pub(crate) programs: Vec<String>,
}

/// All processes at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Picture {
    /// Who looks: only processes of the same user count.
    pub(crate) uid: u32,
    /// The process that looks.
    pub(crate) own: i32,
    /// Clock ticks since boot, as start times are.
    pub(crate) now: u64,
    /// Clock ticks in a second.
    pub(crate) ticks: u64,
    /// Everyone.
    pub(crate) processes: Vec<Process>,
}

/// One process, as far as it could be seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Process {
    /// Its number and start.
    pub(crate) pid: i32,
    pub(crate) start: u64,
    pub(crate) parent: i32,
    pub(crate) uid: u32,
    /// True for one that has ended and that nobody has waited for.
    pub(crate) is_dead: bool,
    /// True for one that Lariat holds, and for Lariat.
    pub(crate) is_held: bool,
    /// True in another pid namespace: somebody's container.
    pub(crate) is_elsewhere: bool,
    /// True in another mount, network or user namespace: nobody can tell from here who speaks to it.
    pub(crate) is_apart: bool,
    /// True if it waits for others on the network: somebody may use it there, whatever has become of
    /// its host. Told of servers and of whoever is below them.
    pub(crate) listens: bool,
    /// Its command line; one word with blanks in it is a title.
    pub(crate) argv: Vec<String>,
    /// The file that it executes.
    pub(crate) program: String,
    /// The script that an interpreter executes, without links.
    pub(crate) script: Option<String>,
    /// What is told of a configured server only: its directory and its environment, as one number.
    pub(crate) setting: u64,
    pub(crate) stdin: Stream,
    pub(crate) stdout: Stream,
    /// What is told of a host only: the ends of pipes and sockets that it holds.
    pub(crate) ends: BTreeSet<End>,
    pub(crate) rss_bytes: u64,
    pub(crate) cpu_ms: u64,
}

/// Where a standard stream leads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Nobody may look, or nobody has.
    #[default]
    Unseen,
    /// A file, a terminal, nothing.
    Plain,
    /// To whoever holds this end.
    To(End),
    /// To nobody: the kernel says that the other end is closed.
    Closed,
}

/// One end of a pipe or of a pair of sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// The end into which is written.
    Writing(u64),
    /// The end from which is read.
    Reading(u64),
    /// A socket.
    Socket(u64),
}

/// What speaks for a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Evidence {
    /// The host's own configuration has this very command.
    Config,
    /// The host is its parent.
    ChildOfHost,
    /// The host holds the other end of its stdin or stdout.
    PipeToHost,
    /// Its parent has died: init, or whoever stands in for it, has taken it over.
    Orphaned,
    /// Nobody holds the other end of its stdin.
    StdinClosed,
    /// The same host has started the same server again, in the same place, since.
    Superseded,
    /// Nobody holds the other end of its stdout: nobody can hear it.
    StdoutClosed,
}

/// What a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// A leak: its host is gone.
    Orphaned,
    /// A leak: its host lives and has closed its stdin.
    Forgotten,
    /// A leak: its host lives and has started it again.
    Superseded,
    /// In use, as far as anybody can tell.
    Running,
    /// Runs what a host has configured, and too little says whose it is, or that nobody uses it.
    Unsure,
}

impl Kind {
    /// True for what may be ended after a confirmation.
    pub(crate) fn is_leak(self) -> bool {
        match self {
            Kind::Orphaned | Kind::Forgotten | Kind::Superseded => true,
            Kind::Running | Kind::Unsure => false,
        }
    }

    /// Its name, as it is in JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Orphaned => "orphaned",
            Kind::Forgotten => "forgotten",
            Kind::Superseded => "superseded",
            Kind::Running => "running",
            Kind::Unsure => "unsure",
        }
    }
}

impl Evidence {
    /// Its name, as it is in JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Evidence::Config => "config",
            Evidence::ChildOfHost => "child-of-host",
            Evidence::PipeToHost => "pipe-to-host",
            Evidence::Orphaned => "orphaned",
            Evidence::StdinClosed => "stdin-closed",
            Evidence::Superseded => "superseded",
            Evidence::StdoutClosed => "stdout-closed",
        }
    }
}

/// A server that was found, with its tree.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Finding {
    pub(crate) kind: Kind,
    /// The host, or those whose configurations have it if it is nobody's any more.
    pub(crate) hosts: Vec<String>,
    /// What it is called there.
    pub(crate) server: String,
    pub(crate) evidence: Vec<Evidence>,
    /// Why it is not called a leak, although it looks like one.
    pub(crate) doubt: Option<&'static str>,
    pub(crate) pid: i32,
    pub(crate) start: u64,
    /// The living host.
    pub(crate) host_pid: Option<i32>,
    /// Which one it is of those that this host has started of this server, from 1, and of how many.
    pub(crate) generation: [usize; 2],
    pub(crate) age_s: u64,
    pub(crate) processes: usize,
    pub(crate) rss_bytes: u64,
    /// The same with what they share counted once, where there was time to add it up.
    pub(crate) pss_bytes: Option<u64>,
    pub(crate) cpu_ms: u64,
    /// Who its processes are.
    #[serde(skip)]
    pub(crate) tree: Vec<Member>,
    /// How often all its processes together were given a CPU, where that was counted: whether it has
    /// done anything between two looks.
    #[serde(skip)]
    pub(crate) turns: Option<u64>,
}

impl Finding {
    /// The root of its tree, by identity.
    pub(crate) fn root(&self) -> Member {
        Member { pid: self.pid, start: self.start }
    }
}

/// Finds them. An older copy counts as superseded, one whose host has closed its stdin as forgotten, and
/// an orphan as one, only `after` that much time: before that, somebody may be at work.
pub(crate) fn find(
    picture: &Picture,
    configured: &[Configured],
    hosts: &[KnownHost],
    after: Duration,
) -> Vec<Finding> {
    let search = Search::new(picture, configured, hosts);
    let after = after.as_millis() as u64 * picture.ticks / 1000;
    let mut found: Vec<(Finding, Option<Copies>)> =
        search.roots().into_iter().filter_map(|root| search.judge(root, after)).collect();
    let mut copies: BTreeMap<Copies, Vec<u64>> = BTreeMap::new();
    for (finding, key) in &found {
        if let Some(key) = key {
            copies.entry(key.clone()).or_default().push(finding.start);
        }
    }
    copies.values_mut().for_each(|starts| starts.sort_unstable());
    for (finding, key) in &mut found {
        let Some(starts) = key.as_ref().and_then(|key| copies.get(key)) else { continue };
        let older = starts.iter().filter(|start| **start < finding.start).count();
        finding.generation = [older + 1, starts.len()];
        let newest = starts.last().copied().unwrap_or_default();
        if newest > finding.start && newest - finding.start >= after {
            finding.kind = Kind::Superseded;
            finding.evidence.push(Evidence::Superseded);
        }
    }
    let mut found: Vec<Finding> = found.into_iter().map(|(finding, _)| finding).collect();
    for finding in found.iter_mut().filter(|f| f.kind.is_leak()) {
        let tree = || finding.tree.iter().filter_map(|one| search.by_pid.get(&one.pid));
        let apart = tree().any(|process| process.is_apart).then_some(APART);
        if let Some(why) = apart.or(tree().any(|process| process.listens).then_some(LISTENS)) {
            (finding.kind, finding.doubt) = (Kind::Unsure, Some(why));
        }
    }
    // Whoever looks does not saw off the branch that it sits on.
    let above: HashSet<i32> = search.above(picture.own).collect();
    for finding in found.iter_mut().filter(|f| f.kind.is_leak()) {
        if above.contains(&finding.pid) || finding.pid == picture.own {
            finding.kind = Kind::Running;
        }
    }
    found.sort_by(|a, b| {
        let key = |f: &Finding| (f.kind, f.hosts.clone(), f.server.clone(), f.start, f.pid);
        key(a).cmp(&key(b))
    });
    found
}

/// Why one in another namespace is left alone.
const APART: &str = "it is in another mount, network or user namespace";

/// Why one is left alone that serves somebody else perhaps.
const LISTENS: &str = "it listens on the network";

/// Those of which one supersedes another: the same server of the same host process, started in the
/// same way, in the same directory, with the same environment.
type Copies = (i32, String, bool, u64);

struct Search<'a> {
    picture: &'a Picture,
    configured: &'a [Configured],
    by_pid: HashMap<i32, &'a Process>,
    children: HashMap<i32, Vec<&'a Process>>,
    /// Host processes, with the names of the hosts that they may be.
    hosts: Vec<(&'a Process, Vec<&'a str>)>,
}

impl<'a> Search<'a> {
    fn new(picture: &'a Picture, configured: &'a [Configured], hosts: &'a [KnownHost]) -> Self {
        let alive = || picture.processes.iter().filter(|p| !p.is_dead);
        let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
        alive().for_each(|p| children.entry(p.parent).or_default().push(p));
        children.values_mut().for_each(|of_one| of_one.sort_by_key(|p| (p.start, p.pid)));
        let of_host = |p: &'a Process| {
            let names = is_host(p, hosts);
            (p.uid == picture.uid && !p.is_elsewhere && !names.is_empty()).then_some((p, names))
        };
        let mut hosts: Vec<_> = alive().filter_map(of_host).collect();
        hosts.sort_by_key(|(host, _)| (host.start, host.pid));
        Search {
            picture,
            configured,
            by_pid: alive().map(|p| (p.pid, p)).collect(),
            children,
            hosts,
        }
    }

    /// The ancestors of a process, nearest first.
    fn above(&self, pid: i32) -> impl Iterator<Item = i32> {
        let parent = |pid: &i32| Some(self.by_pid.get(pid)?.parent).filter(|parent| *parent > 0);
        // A picture is not taken in one moment: a circle in it must not be endless.
        std::iter::successors(parent(&pid), parent).take(256)
    }

    fn is_host(&self, pid: i32) -> bool {
        self.hosts.iter().any(|(host, _)| host.pid == pid)
    }

    /// The topmost processes that run something configured, with what that may be.
    fn roots(&self) -> Vec<(&'a Process, Vec<&'a Configured>)> {
        let ours = |p: &&Process| {
            p.uid == self.picture.uid && !p.is_dead && !p.is_elsewhere && !self.is_held(p)
        };
        let matches = |p: &'a Process| {
            let which: Vec<&Configured> = self.configured.iter().filter(|c| runs(c, p)).collect();
            (!which.is_empty()).then_some((p, which))
        };
        let all: Vec<_> = self.picture.processes.iter().filter(ours).filter_map(matches).collect();
        let servers: HashSet<i32> = all.iter().map(|(p, _)| p.pid).collect();
        // Below another server it is part of that one's tree, unless a host is in between.
        let is_root = |p: &Process| {
            let mut above = self.above(p.pid).take_while(|pid| !self.is_host(*pid));
            !above.any(|pid| servers.contains(&pid))
        };
        let roots = all.into_iter().filter(|(p, _)| is_root(p));
        roots.map(|(p, which)| (self.lifted(p), which)).collect()
    }

    fn is_held(&self, process: &Process) -> bool {
        process.is_held
            || self.above(process.pid).any(|pid| self.by_pid.get(&pid).is_some_and(|p| p.is_held))
    }

    /// A shell that only waits for an orphan's command belongs to it: a launcher left it.
    fn lifted(&self, process: &'a Process) -> &'a Process {
        let shell = self.by_pid.get(&process.parent).copied().filter(|shell| {
            is_launchers_shell(shell)
                && shell.uid == process.uid
                && self.children.get(&shell.pid).is_some_and(|children| children.len() == 1)
                && self.is_adopted(shell)
        });
        shell.unwrap_or(process)
    }

    /// True if whoever takes over orphans is its parent.
    fn is_adopted(&self, process: &Process) -> bool {
        const REAPERS: [&str; 6] =
            ["systemd", "tini", "dumb-init", "docker-init", "catatonit", "init"];
        let reaps = |parent: &&Process| {
            let name = parent.argv.first().map(|word| last_part(word));
            parent.pid == 1 || name.is_some_and(|name| REAPERS.contains(&name))
        };
        !self.is_host(process.parent)
            && (process.parent == 1 || self.by_pid.get(&process.parent).is_some_and(reaps))
    }

    /// What one of them is, and whose copies it is one of, if it belongs to a living host.
    fn judge(
        &self,
        (root, which): (&'a Process, Vec<&'a Configured>),
        after: u64,
    ) -> Option<(Finding, Option<Copies>)> {
        let of = |host: &Process, names: &[&str]| -> Option<(&Configured, i32)> {
            let which = which.iter().find(|c| names.contains(&c.host))?;
            Some((*which, host.pid))
        };
        let holds = |host: &Process, stream: Stream| match stream {
            Stream::To(end) => host.ends.contains(&end),
            Stream::Unseen | Stream::Plain | Stream::Closed => false,
        };
        let others = || self.hosts.iter().filter(|(host, _)| host.pid != root.pid);
        let one_of = |is: &dyn Fn(&Process) -> bool| {
            others().filter(|(host, _)| is(host)).find_map(|(host, names)| of(host, names))
        };
        let is_parent = |host: &Process| host.pid == root.parent;
        let parent = one_of(&is_parent);
        // Several processes of a host can hold the same end: the parent is the one that uses it.
        let at_end = |stream| {
            one_of(&|host| is_parent(host) && holds(host, stream))
                .or_else(|| one_of(&|host| holds(host, stream)))
        };
        let (speaks, hears) = (at_end(root.stdin), at_end(root.stdout));
        let closed = root.stdin == Stream::Closed;
        let adopted = self.is_adopted(root);
        let old = self.picture.now.saturating_sub(root.start) >= after;

        let doubt = (parent.is_none() && speaks.is_none() && adopted && closed)
            .then(|| doubt(root.stdout, old))
            .flatten();

        let mut evidence = vec![Evidence::Config];
        evidence.extend(parent.map(|_| Evidence::ChildOfHost));
        evidence.extend(speaks.or(hears).map(|_| Evidence::PipeToHost));
        evidence.extend(adopted.then_some(Evidence::Orphaned));
        evidence.extend(closed.then_some(Evidence::StdinClosed));
        evidence.extend((root.stdout == Stream::Closed).then_some(Evidence::StdoutClosed));
        let (kind, owner) = match (parent, speaks) {
            // Its host talks to it.
            (_, Some(host)) => (Kind::Running, Some(host)),
            (Some(host), None) if closed && old => (Kind::Forgotten, Some(host)),
            (Some(host), None) if closed => (Kind::Running, Some(host)),
            (None, None) if adopted && closed && doubt.is_none() => (Kind::Orphaned, None),
            (_, None) => (Kind::Unsure, None),
        };
        let copies = owner.filter(|_| kind == Kind::Running && speaks.is_some());
        let copies = copies
            .map(|(server, host)| (host, server.server.clone(), parent.is_some(), root.setting));
        let mut names: Vec<String> = match owner.or(parent) {
            Some((server, _)) => vec![server.host.into()],
            None => which.iter().map(|c| c.host.into()).collect(),
        };
        names.sort();
        names.dedup();
        let server = owner.or(parent).map(|(server, _)| server).or(which.first().copied())?;
        let tree = self.tree(root);
        let sum = |part: fn(&Process) -> u64| tree.iter().map(|p| part(p)).sum::<u64>();
        let age = self.picture.now.saturating_sub(root.start) / self.picture.ticks.max(1);
        let finding = Finding {
            kind,
            hosts: names,
            server: server.server.clone(),
            evidence,
            doubt,
            pid: root.pid,
            start: root.start,
            host_pid: owner.or(parent).map(|(_, pid)| pid),
            generation: [1, 1],
            age_s: age,
            processes: tree.len(),
            rss_bytes: sum(|p| p.rss_bytes),
            pss_bytes: None,
            cpu_ms: sum(|p| p.cpu_ms),
            tree: tree.iter().map(|p| Member { pid: p.pid, start: p.start }).collect(),
            turns: None,
        };
        Some((finding, copies))
    }

    /// The process and everyone below it.
    fn tree(&self, root: &'a Process) -> Vec<&'a Process> {
        let (mut tree, mut next) = (vec![root], 0);
        let mut seen = HashSet::from([root.pid]);
        while let Some(process) = tree.get(next) {
            let children = self.children.get(&process.pid).into_iter().flatten();
            let children: Vec<_> = children.filter(|child| seen.insert(child.pid)).collect();
            tree.extend(children);
            next += 1;
        }
        tree
    }
}

/// A shell that was told one command, as launchers start servers.
fn is_launchers_shell(process: &Process) -> bool {
    let name = process.argv.first().map(|word| last_part(word));
    matches!(name, Some("sh" | "bash" | "dash"))
        && process.argv.get(1).is_some_and(|flag| flag == "-c")
}

/// Why an orphan that nobody speaks to may be in use all the same. A script that has ended leaves such
/// a process too, and whoever reads what it says, a terminal or a file as well, still wants it.
fn doubt(stdout: Stream, old: bool) -> Option<&'static str> {
    match stdout {
        Stream::Closed if old => None,
        Stream::Closed => Some("it is too young"),
        Stream::Plain => Some("its stdout is a file, a terminal or nothing"),
        Stream::To(_) => Some("somebody may read its stdout"),
        Stream::Unseen => Some("its stdout cannot be looked at"),
    }
}

/// The hosts that a process may be, by the names of its program and of the script that it runs.
fn is_host<'a>(process: &Process, hosts: &'a [KnownHost]) -> Vec<&'a str> {
    let stem = |path: &str| {
        let name = last_part(path);
        let plain = [".js", ".mjs", ".cjs", ".py"].iter().find_map(|ext| name.strip_suffix(ext));
        plain.unwrap_or(name).to_string()
    };
    let mut names: Vec<String> = vec![stem(&process.program)];
    names.extend(process.argv.first().map(|word| stem(word)));
    // `node /usr/bin/codex`, and the package that the script is in.
    let scripts = process.script.iter().chain(process.argv.get(1).filter(|_| {
        let interpreter = process.argv.first().map(|word| last_part(word));
        matches!(interpreter, Some("node" | "bun" | "deno" | "python" | "python3"))
    }));
    for script in scripts {
        names.push(stem(script));
        if let Some((_, inside)) = script.rsplit_once("/node_modules/") {
            let parts: Vec<&str> = inside.split('/').take(2).collect();
            names.push(parts[0].to_string());
            names.push(parts.join("/"));
        }
    }
    let known = |host: &&KnownHost| host.programs.iter().any(|p| names.contains(p));
    hosts.iter().filter(known).map(|host| host.name.as_str()).collect()
}

#[cfg(test)]
mod tests;
