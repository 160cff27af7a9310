//! Looking at the demo's processes in procfs, and ending them by identity.
//!
//! A process belongs to the demo, or to one half of it, if its argv carries the random token of that
//! and it runs this very executable; it is known by pid and start time. Wrappers (`lariat run` and
//! its guardian) carry the token too, because the server's argv is part of theirs; they are kept
//! apart, never hidden. The look is independent: it uses nothing that Lariat knows of its trees.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::process::{Signal, pidfd_send_signal};

use super::identity::{Identity, Stat};
use super::pause;

/// How long a wrapper may use to end by itself before a clean-up ends it too.
const WRAPPER_PATIENCE: Duration = Duration::from_secs(2);

/// How long a clean-up looks before it calls what is left a survivor.
const CLEANUP_PATIENCE: Duration = Duration::from_secs(6);

/// What a process of the demo is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The host, which starts servers, and the janitor.
    Stage,
    /// Any process of a server's tree: launcher, server, browser, daemon.
    Server,
    /// `lariat run` or its guardian.
    Wrapper,
}

/// One process of the demo, as it was at the moment of the look.
#[derive(Debug)]
pub(super) struct Member {
    identity: Identity,
    kind: Kind,
    role: String,
    memory: u64,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.role, self.identity.pid)
    }
}

/// A number of processes and the memory that they hold, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) processes: usize,
    pub(super) memory: u64,
}

impl Tally {
    /// The larger of each number, which need not have been seen in the same look.
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            processes: self.processes.max(other.processes),
            memory: self.memory.max(other.memory),
        }
    }
}

/// All processes of one scope at one moment.
#[derive(Debug)]
pub(super) struct Look {
    members: Vec<Member>,
}

impl Look {
    /// Number and memory of one kind of process.
    pub(super) fn tally(&self, kind: Kind) -> Tally {
        self.members.iter().filter(|m| m.kind == kind).fold(Tally::default(), |sum, m| Tally {
            processes: sum.processes + 1,
            memory: sum.memory + m.memory,
        })
    }

    /// The processes in words, for a report on what should not be there.
    pub(super) fn names(&self) -> Vec<String> {
        self.members.iter().map(Member::to_string).collect()
    }
}

/// What a clean-up did.
#[derive(Debug, Default)]
pub(super) struct Cleanup {
    /// How many processes were ended by it.
    pub(super) ended: usize,
    /// What it could not end.
    pub(super) survivors: Vec<String>,
}

/// The demo's view of procfs.
#[derive(Debug)]
pub(super) struct Eyes {
    executable: (u64, u64),
    /// The process that looks, which never counts or ends itself.
    myself: u32,
}

impl Eyes {
    /// Opens the eyes, or says why this machine cannot be looked at.
    pub(super) fn open() -> io::Result<Self> {
        let executable = executable_of("self").ok_or_else(|| {
            io::Error::other("cannot read /proc, and everything here is counted there")
        })?;
        Ok(Self { executable, myself: std::process::id() })
    }

    /// The measure of memory that this kernel gives: shared pages divided by their users, or not.
    pub(super) fn measure(&self) -> &'static str {
        if proportional("self").is_some() { "PSS" } else { "RSS" }
    }

    /// All processes whose argv carries `token`.
    pub(super) fn look(&self, token: &str) -> io::Result<Look> {
        let mut found = HashMap::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            if pid.unsigned_abs() == self.myself {
                continue;
            }
            if let Some(seen) = self.examine(pid, token) {
                found.insert(pid, seen);
            }
        }
        // Between fork and exec a child still shows its parent's argv. It is no process of its own
        // yet, and may share its parent's memory. A wrapper's guardian is such a fork for good.
        let in_flight = |seen: &Seen| {
            let parent = found.get(&seen.parent);
            seen.kind == Kind::Server && parent.is_some_and(|parent| parent.argv == seen.argv)
        };
        let mut members: Vec<Member> = found
            .values()
            .filter(|seen| !in_flight(seen))
            .map(|seen| Member {
                identity: seen.identity,
                kind: seen.kind,
                role: seen.role(),
                memory: memory(&seen.identity.pid.to_string()),
            })
            .collect();
        // Parents first: a clean-up should end a launcher, not see it leave with its server.
        members.sort_by_key(|member| (member.identity.start, member.identity.pid));
        Ok(Look { members })
    }

    /// Ends everything that carries `token`, and looks until nothing is there twice in a row.
    ///
    /// Twice, because a listing of `/proc` may miss a process born while it was read. Wrappers are
    /// left to end by themselves for a while: what they held is gone, and they have books to close.
    pub(super) fn clean(&self, token: &str) -> io::Result<Cleanup> {
        let begun = Instant::now();
        let mut cleanup = Cleanup::default();
        let mut ended = HashSet::new();
        let mut empty_looks = 0;
        while empty_looks < 2 {
            let look = self.look(token)?;
            empty_looks = if look.members.is_empty() { empty_looks + 1 } else { 0 };
            if begun.elapsed() > CLEANUP_PATIENCE {
                cleanup.survivors = look.names();
                break;
            }
            for member in &look.members {
                let patient = member.kind == Kind::Wrapper && begun.elapsed() < WRAPPER_PATIENCE;
                if !patient && self.kill(member, token) {
                    ended.insert(member.identity);
                }
            }
            pause(Duration::from_millis(20));
        }
        cleanup.ended = ended.len();
        Ok(cleanup)
    }

    /// Kills one process if it still is the one that was looked at.
    fn kill(&self, member: &Member, token: &str) -> bool {
        let Some(process) = member.identity.open() else {
            return false;
        };
        let same = self
            .examine(member.identity.pid, token)
            .is_some_and(|seen| seen.identity == member.identity);
        same && pidfd_send_signal(&process, Signal::KILL).is_ok()
    }

    /// Reads one process, if it is one of ours.
    ///
    /// A zombie has an empty argv: it holds no memory, cannot be ended, and is not counted.
    fn examine(&self, pid: i32, token: &str) -> Option<Seen> {
        let name = pid.to_string();
        let argv = fs::read(format!("/proc/{name}/cmdline")).ok()?;
        let carries = argv.windows(token.len()).any(|part| part == token.as_bytes());
        // The executable too, so that somebody's `pgrep -f token` is neither counted nor ended.
        if !carries || executable_of(&name)? != self.executable {
            return None;
        }
        let stat = Stat::of(&name).ok()?;
        let kind = match words(&argv).get(1..3) {
            Some(["__demo", "host" | "janitor"]) => Kind::Stage,
            Some(["__demo", _]) => Kind::Server,
            _ => Kind::Wrapper,
        };
        Some(Seen {
            identity: Identity { pid, start: stat.start },
            parent: stat.parent,
            kind,
            argv,
        })
    }
}

/// A process of ours before its memory is read.
struct Seen {
    identity: Identity,
    parent: i32,
    kind: Kind,
    argv: Vec<u8>,
}

impl Seen {
    fn role(&self) -> String {
        match self.kind {
            Kind::Wrapper => "lariat run".to_owned(),
            Kind::Stage | Kind::Server => {
                words(&self.argv).get(2).map_or_else(String::new, |role| (*role).to_owned())
            }
        }
    }
}

/// The words of an argv as procfs gives it.
fn words(argv: &[u8]) -> Vec<&str> {
    argv.split(|byte| *byte == 0).filter_map(|word| str::from_utf8(word).ok()).collect()
}

/// Device and inode of what a process executes.
fn executable_of(process: &str) -> Option<(u64, u64)> {
    fs::metadata(format!("/proc/{process}/exe")).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// The memory of a process in KiB: PSS, RSS where the kernel has no PSS, nothing once it ended.
fn memory(process: &str) -> u64 {
    proportional(process)
        .or_else(|| kib_in(&format!("/proc/{process}/status"), "VmRSS:"))
        .unwrap_or_default()
}

fn proportional(process: &str) -> Option<u64> {
    kib_in(&format!("/proc/{process}/smaps_rollup"), "Pss:")
}

/// The number after `key` in a file of `key: number kB` lines.
fn kib_in(path: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_the_token_is_not_ours() {
        let eyes = Eyes::open().expect("/proc is there");
        let look = eyes.look("no argv carries this").expect("/proc is readable");
        assert_eq!(look.tally(Kind::Server), Tally::default());
    }
}
