//! Makes the picture: reads `/proc`, everyone shallowly, and those that matter closely.
//!
//! Looking changes nothing. Whether anybody is left at the other end of a pipe is asked of the kernel:
//! the pipe is opened for a moment for reading, as the server itself has it, and polled.

use super::sockets::{self, Other};
use super::{End, Finding, KnownHost, Picture, Process, Stream, command};
use super::{is_host, is_launchers_shell};
use crate::hosts::Configured;
use lariat::contain::process;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::time::Timespec;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// How long may be spent on adding up shared memory: the kernel looks at every page.
const WEIGHING: Duration = Duration::from_millis(300);

/// Looks at everyone.
pub(crate) fn look(configured: &[Configured], hosts: &[KnownHost]) -> Picture {
    let uid = rustix::process::geteuid().as_raw();
    let ticks = rustix::param::clock_ticks_per_second();
    let mut processes: Vec<Process> =
        process::pids().into_iter().filter_map(|pid| shallow(pid, uid)).collect();
    let ours = |p: &&Process| p.uid == uid && !p.is_dead;
    let is_server = |p: &&Process| configured.iter().any(|c| command::runs(c, p));
    let servers: Vec<&Process> = processes.iter().filter(ours).filter(is_server).collect();
    // A launcher's shell that waits for a server is judged in its place.
    let parents: HashSet<i32> = servers.iter().map(|p| p.parent).collect();
    let shells = processes.iter().filter(|p| parents.contains(&p.pid) && is_launchers_shell(p));
    let matter: HashSet<i32> = servers.iter().copied().chain(shells).map(|p| p.pid).collect();
    let (mut sockets, own_pids) = (None, link("/proc/self/ns/pid"));
    let own_rooms = rooms("self");
    for process in processes.iter_mut().filter(|p| p.uid == uid && !p.is_dead) {
        if !is_host(process, hosts).is_empty() {
            process.ends = ends(process.pid);
        }
        if matter.contains(&process.pid) {
            let sockets = sockets.get_or_insert_with(sockets::all);
            close(process, sockets, &own_pids);
            // Where nobody may look, it is not known to be where we are.
            let room = rooms(&process.pid.to_string());
            process.is_apart = room != own_rooms || room.contains(&String::new());
        }
    }
    mark_listeners(&mut processes, matter);
    Picture {
        uid,
        own: rustix::process::getpid().as_raw_pid(),
        now: since_boot(ticks),
        ticks,
        processes,
    }
}

/// Finds out who of these, and of those below them, waits for others on the network.
fn mark_listeners(processes: &mut [Process], mut of: HashSet<i32>) {
    if of.is_empty() {
        return;
    }
    // Parents are mostly before their children, but numbers begin anew: until nobody is new.
    loop {
        let below = |p: &&Process| of.contains(&p.parent) && !of.contains(&p.pid);
        let more: Vec<i32> = processes.iter().filter(below).map(|p| p.pid).collect();
        if more.is_empty() {
            break;
        }
        of.extend(more);
    }
    let listening = sockets::listening();
    for process in processes.iter_mut().filter(|p| of.contains(&p.pid)) {
        process.listens = sockets_of(process.pid).any(|inode| listening.contains(&inode));
    }
}

/// Adds up what each of them takes, with shared pages divided, for as long as there is time.
pub(crate) fn weigh(findings: &mut [Finding]) {
    let until = Instant::now() + WEIGHING;
    for finding in findings.iter_mut().take_while(|_| Instant::now() < until) {
        finding.pss_bytes = finding.tree.iter().map(|one| process::proportional(one.pid)).sum();
    }
}

/// Counts how often the processes of each of them were given a CPU, those below the server too: a
/// script can wait for the one that works.
pub(crate) fn count(findings: &mut [Finding]) {
    for finding in findings {
        finding.turns = Some(finding.tree.iter().map(|one| turns(one.pid)).sum());
    }
}

/// Clock ticks since boot. Taken after the look, so that nobody is from the future.
fn since_boot(ticks: u64) -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * ticks + now.tv_nsec as u64 * ticks / 1_000_000_000
}

/// What anybody may know, and of our own processes what they run.
fn shallow(pid: i32, uid: u32) -> Option<Process> {
    let owner = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let stat = process::stat(pid)?;
    let mut found = Process {
        pid,
        start: stat.start,
        parent: stat.ppid,
        uid: owner,
        is_dead: !stat.is_alive(),
        cpu_ms: process::time(stat.cpu_ticks + stat.reaped_ticks).as_millis() as u64,
        ..Process::default()
    };
    if owner == uid && !found.is_dead {
        found.argv = argv(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default());
        let program = link(&format!("/proc/{pid}/exe"));
        found.program = program.strip_suffix(" (deleted)").unwrap_or(&program).to_string();
        found.script = script(&found.argv);
        found.rss_bytes = process::resident(pid).unwrap_or(0);
        found.is_held = is_lariat(&found);
    }
    Some(found)
}

/// The words of a command line. One that was written over by a title ends in empty ones.
fn argv(bytes: &[u8]) -> Vec<String> {
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
    // Where the last words are empty, nobody can tell them from the rest of a title.
    let words = bytes[..end].split(|b| *b == 0);
    let words: Vec<String> = words.map(|w| String::from_utf8_lossy(w).into_owned()).collect();
    if end == 0 { Vec::new() } else { words }
}

/// Where a script really is: launchers start it through a link.
fn script(argv: &[String]) -> Option<String> {
    let path = argv.get(1).filter(|word| word.contains("/node_modules/"))?;
    let real = fs::canonicalize(path).ok()?;
    Some(real.to_string_lossy().into_owned())
}

/// A wrapper or a guardian: whatever is below it is held.
fn is_lariat(process: &Process) -> bool {
    let verb = process.argv.get(1).map(String::as_str);
    command::last_part(&process.program) == "lariat"
        && verb.is_some_and(|verb| {
            verb.starts_with("__") || matches!(verb, "run" | "daemon" | "connect" | "probe")
        })
}

fn link(path: &str) -> String {
    fs::read_link(path).map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Every end of a pipe or socket that a process holds.
fn ends(pid: i32) -> BTreeSet<End> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut ends = BTreeSet::new();
    for path in files.map(|file| file.path()) {
        let Ok(target) = fs::read_link(&path) else { continue };
        match inode(&target.to_string_lossy()) {
            Some(("socket", inode)) => {
                ends.insert(End::Socket(inode));
            }
            Some((_, inode)) => {
                // The link's own permissions say how the file was opened.
                let mode = fs::symlink_metadata(&path).map_or(0, |meta| meta.mode());
                ends.extend((mode & 0o200 != 0).then_some(End::Writing(inode)));
                ends.extend((mode & 0o400 != 0).then_some(End::Reading(inode)));
            }
            None => {}
        }
    }
    ends
}

/// The sockets that a process holds.
fn sockets_of(pid: i32) -> impl Iterator<Item = u64> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
    targets.filter_map(|target| match inode(target.to_str()?)? {
        ("socket", inode) => Some(inode),
        _ => None,
    })
}

/// `pipe:[123]` or `socket:[123]`.
fn inode(target: &str) -> Option<(&str, u64)> {
    let (kind, rest) = target.split_once(":[")?;
    let inode = rest.strip_suffix(']')?.parse().ok()?;
    matches!(kind, "pipe" | "socket").then_some((kind, inode))
}

/// The namespaces that decide what a process can see and who can reach it.
fn rooms(pid: &str) -> [String; 3] {
    ["mnt", "net", "user"].map(|kind| link(&format!("/proc/{pid}/ns/{kind}")))
}

/// Looks closely at one that runs something configured, or waits for it.
fn close(process: &mut Process, sockets: &HashMap<u64, Other>, own_pids: &str) {
    let pid = process.pid;
    process.stdin = stream(pid, 0, sockets);
    process.stdout = stream(pid, 1, sockets);
    process.is_held |= process::mark(pid).is_some();
    process.is_elsewhere = link(&format!("/proc/{pid}/ns/pid")) != *own_pids;
    // The environment is compared, never kept: it can hold secrets.
    let mut hasher = DefaultHasher::new();
    link(&format!("/proc/{pid}/cwd")).hash(&mut hasher);
    fs::read(format!("/proc/{pid}/environ")).unwrap_or_default().hash(&mut hasher);
    process.setting = hasher.finish();
}

fn stream(pid: i32, number: i32, sockets: &HashMap<u64, Other>) -> Stream {
    let path = format!("/proc/{pid}/fd/{number}");
    let target = match fs::read_link(&path) {
        Ok(target) => target.to_string_lossy().into_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Stream::Plain,
        Err(_) => return Stream::Unseen,
    };
    match inode(&target) {
        None => Stream::Plain,
        Some(("socket", inode)) => match sockets.get(&inode) {
            // One that is shut for one direction only may still be read from.
            Some(other) if other.is_closed && (number == 0 || other.peer.is_none()) => {
                Stream::Closed
            }
            Some(Other { peer: Some(peer), .. }) => Stream::To(End::Socket(*peer)),
            // A socket to another machine, or one that the kernel tells nothing of.
            _ => Stream::Plain,
        },
        Some((_, inode)) if number != 0 => match is_unheard(&path) {
            Some(true) => Stream::Closed,
            Some(false) => Stream::To(End::Reading(inode)),
            None => Stream::Unseen,
        },
        Some((_, inode)) => match is_abandoned(&path) {
            Some(true) => Stream::Closed,
            Some(false) => Stream::To(End::Writing(inode)),
            None => Stream::Unseen,
        },
    }
}

/// Whether nobody can write into this pipe any more; the kernel knows, also of other users.
fn is_abandoned(path: &str) -> Option<bool> {
    polled(path, OFlags::RDONLY, PollFlags::HUP)
}

/// Whether nobody can read from this pipe any more.
fn is_unheard(path: &str) -> Option<bool> {
    polled(path, OFlags::WRONLY, PollFlags::ERR)
}

/// Opens this end for a moment, as its holder has it, and asks for one answer.
fn polled(path: &str, mode: OFlags, answer: PollFlags) -> Option<bool> {
    let flags = mode | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let pipe = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let mut fds = [PollFd::new(&pipe, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).ok()?;
    Some(fds[0].revents().contains(answer))
}

/// How often a process was given a CPU, all its threads together.
fn turns(pid: i32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let lines = text.lines().filter(|line| line.contains("ctxt_switches:"));
        let numbers = lines.filter_map(|l| l.rsplit(['\t', ' ']).next()?.parse::<u64>().ok());
        numbers.sum::<u64>()
    };
    tasks.map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_one_word() {
        assert_eq!(argv(b"npm exec a b\0\0\0\0"), ["npm exec a b"]);
        assert_eq!(argv(b"node\0a.js\0"), ["node", "a.js"]);
        assert_eq!(argv(b"a\0\0b\0"), ["a", "", "b"]);
        assert_eq!(argv(b""), [""; 0]);
        assert_eq!(argv(b"\0\0"), [""; 0]);
    }

    #[test]
    fn only_pipes_and_sockets_have_other_ends() {
        assert_eq!(inode("pipe:[12]"), Some(("pipe", 12)));
        assert_eq!(inode("socket:[7]"), Some(("socket", 7)));
        for plain in ["/dev/null", "anon_inode:[eventpoll]", "pipe:[x]", "/tmp/pipe:[12]"] {
            assert_eq!(inode(plain), None, "{plain}");
        }
    }

    #[test]
    fn we_are_in_the_picture_and_hold_both_ends() {
        let (reader, writer) = std::io::pipe().unwrap();
        let hosts = [KnownHost { name: "h".into(), programs: vec![own_name()] }];
        let picture = look(&[], &hosts);
        let own = picture.processes.iter().find(|p| p.pid == picture.own).unwrap();
        assert!(!own.ends.is_empty() && own.start <= picture.now);
        use std::os::fd::AsRawFd;
        let number = inode(&link(&format!("/proc/self/fd/{}", reader.as_raw_fd()))).unwrap().1;
        let now = ends(picture.own);
        assert!(now.contains(&End::Reading(number)) && now.contains(&End::Writing(number)));
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        assert_eq!(is_abandoned(&path), Some(false));
        drop(writer);
        assert_eq!(is_abandoned(&path), Some(true));
    }

    #[test]
    fn a_pipe_is_unheard_when_its_last_reader_goes() {
        use std::os::fd::AsRawFd;
        let (reader, writer) = std::io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
        assert_eq!(is_unheard(&path), Some(false));
        drop(reader);
        assert_eq!(is_unheard(&path), Some(true));
    }

    #[test]
    fn whoever_waits_for_others_is_marked_also_below_a_server() {
        let own = std::process::id() as i32;
        let parent = process::stat(own).unwrap().ppid;
        let marked = |of: i32| {
            let mut all = vec![shallow(own, rustix::process::geteuid().as_raw()).unwrap()];
            mark_listeners(&mut all, HashSet::from([of]));
            all[0].listens
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(marked(own) && marked(parent), "as a server, and below one");
        assert!(!marked(-1), "nobody's");
        drop(listener);
        assert!(!marked(own));
    }

    fn own_name() -> String {
        let exe = std::env::current_exe().unwrap();
        exe.file_name().unwrap().to_string_lossy().into_owned()
    }
}
