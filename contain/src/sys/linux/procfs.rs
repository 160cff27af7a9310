//! Who is there, and how: what `/proc` says of a process. Text in, values out.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::time::Duration;

/// The fields of `/proc/PID/stat` that matter to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// One-letter state: `R`, `S`, `T`, `Z`, …
    pub state: char,
    /// Parent.
    pub ppid: i32,
    /// Process group.
    pub pgrp: i32,
    /// User and system time used, in clock ticks.
    pub cpu_ticks: u64,
    /// The same of the children that it has waited for, and of those they had waited for.
    pub reaped_ticks: u64,
    /// Threads that are left, the leader included.
    pub threads: u32,
    /// Start time in clock ticks since boot.
    pub start: u64,
}

impl Stat {
    /// False for a zombie. A zombie leader whose other threads run on is alive.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x') || self.threads > 1
    }
}

/// Reads the state of a process; `None` if there is none with this pid.
pub fn stat(pid: i32) -> Option<Stat> {
    read_stat(pid).ok()
}

/// Whether a failed read of something about a process is the last word on it: it has gone, or is another user's
/// and hidden from us, who could not signal it either. Any other failure says nothing.
pub(crate) fn is_final(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::SRCH | Errno::ACCESS | Errno::PERM)
}

/// Reads the state of a process, or says why it cannot be read.
pub(crate) fn read_stat(pid: i32) -> Result<Stat, Errno> {
    parse_stat(&short(&format!("/proc/{pid}/stat"))?).ok_or(Errno::SRCH)
}

/// One process as a single look at it shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its number.
    pub pid: i32,
    /// How it is.
    pub stat: Stat,
    /// The kernel's short name of it, without control characters.
    pub name: String,
    /// Resident memory in bytes.
    pub resident: u64,
}

/// Looks at a process once: who looks at thousands cannot afford a file for each thing.
pub fn look(pid: i32) -> Option<Seen> {
    let text = short(&format!("/proc/{pid}/stat")).ok()?;
    let (name, resident) = parse_rest(&text)?;
    let resident = resident * rustix::param::page_size() as u64;
    Some(Seen { pid, stat: parse_stat(&text)?, name: printable(name), resident })
}

/// Reads a file that is shorter than a page, with three system calls: a walk over hundreds of
/// processes that are being killed must not take the time they need to die.
fn short(path: &str) -> Result<String, Errno> {
    let mut buffer = [0u8; 4096];
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let n = rustix::io::read(&file, &mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..n]).into_owned())
}

/// Parses one `stat` line. The command name may contain spaces and parentheses, so the fields are
/// counted from the last `)`.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    let number = |i: usize| fields.get(i)?.parse::<u64>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        ppid: fields.get(1)?.parse().ok()?,
        pgrp: fields.get(2)?.parse().ok()?,
        cpu_ticks: number(11)? + number(12)?,
        reaped_ticks: number(13)? + number(14)?,
        threads: number(17)? as u32,
        start: number(19)?,
    })
}

/// What else a `stat` line has: the name, and resident memory in pages.
fn parse_rest(text: &str) -> Option<(&str, u64)> {
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let pages = text.get(close + 1..)?.split_ascii_whitespace().nth(21)?;
    // The kernel's count can be below nothing for a moment.
    Some((text.get(open + 1..close)?, pages.parse::<i64>().ok()?.max(0) as u64))
}

/// The kernel's short name of a process, without control characters.
pub fn name(pid: i32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    printable(text.trim_end())
}

fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Every pid there is, ascending; nobody where they cannot be read.
pub fn pids() -> Vec<i32> {
    read_pids().unwrap_or_default()
}

/// Every pid there is, ascending, or why they cannot be read.
pub(crate) fn read_pids() -> Result<Vec<i32>, Errno> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").map_err(errno)? {
        found
            .extend(entry.map_err(errno)?.file_name().to_str().and_then(|n| n.parse::<i32>().ok()));
    }
    Ok(found)
}

/// The children of a process with so many threads: a child hangs below the thread that forked it.
/// Fails as for one who has gone if the kernel has no `children` files.
pub(crate) fn children(pid: i32, threads: u32) -> Result<Vec<i32>, Errno> {
    let read = |path: String| -> Result<Vec<i32>, Errno> {
        let text = fs::read_to_string(path).map_err(errno)?;
        Ok(text.split_ascii_whitespace().filter_map(|w| w.parse().ok()).collect())
    };
    if threads <= 1 {
        return read(format!("/proc/{pid}/task/{pid}/children"));
    }
    let mut found = None;
    for task in fs::read_dir(format!("/proc/{pid}/task")).map_err(errno)? {
        let task = task.map_err(errno)?.file_name();
        match read(format!("/proc/{pid}/task/{}/children", task.to_string_lossy())) {
            Ok(children) => found.get_or_insert_with(Vec::new).extend(children),
            // A thread may leave meanwhile.
            Err(e) if is_final(e) => {}
            Err(e) => return Err(e),
        }
    }
    found.ok_or(Errno::NOENT)
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// The soft limits of a process that can carry its mark: on real-time CPU time, and on file locks. `None` for one
/// that is unlimited.
pub(crate) fn carriers(pid: i32) -> Result<[Option<u64>; 2], Errno> {
    let text = short(&format!("/proc/{pid}/limits"))?;
    // So it looks for a moment while a thread other than the first one executes a program.
    if text.is_empty() { Err(Errno::AGAIN) } else { Ok(parse_carriers(&text)) }
}

fn parse_carriers(text: &str) -> [Option<u64>; 2] {
    ["Max realtime timeout", "Max file locks"].map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    })
}

/// The threads of a process; none if it has gone.
pub(crate) fn tasks(pid: i32) -> Vec<i32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// How long a thread has waited for a CPU that others had; `None` if it has gone or the kernel does not count.
pub(crate) fn waited(pid: i32, thread: i32) -> Option<Duration> {
    let text = short(&format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// The pid that was given out last in this pid namespace.
pub(crate) fn newest_pid() -> Result<i32, Errno> {
    let load = short("/proc/loadavg")?;
    load.split_ascii_whitespace().next_back().and_then(|n| n.parse().ok()).ok_or(Errno::IO)
}

/// How many threads there are on this machine: at least as many as processes.
pub fn threads() -> Option<usize> {
    let load = short("/proc/loadavg").ok()?;
    load.split_ascii_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// Whether a process has been killed or is on its way out, and only has yet to be gone.
pub fn is_dying(pid: i32) -> bool {
    const EXITING: u64 = 4;
    const KILLED: u64 = 1 << (9 - 1);
    let leaves = short(&format!("/proc/{pid}/stat")).is_ok_and(|text| {
        let flags =
            text.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(6));
        flags.and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & EXITING != 0)
    });
    leaves || short(&format!("/proc/{pid}/status")).is_ok_and(|text| pending(&text) & KILLED != 0)
}

/// Whether this is the number of a process, and not that of another of its threads.
pub(crate) fn is_process(pid: i32) -> Result<bool, Errno> {
    let status = match short(&format!("/proc/{pid}/status")) {
        Ok(status) => status,
        Err(e) if is_final(e) => return Ok(false),
        Err(e) => return Err(e),
    };
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    Ok(group.is_some_and(|group| group.trim().parse() == Ok(pid)))
}

/// The signals that wait for a process or its first thread.
fn pending(status: &str) -> u64 {
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
    };
    set("SigPnd:") | set("ShdPnd:")
}

/// Resident memory of a process in bytes.
pub fn resident(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Memory of a process in bytes, each page divided by the number of those who share it. Takes the
/// kernel a look at every page, and is not for everyone to see.
pub fn proportional(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("Pss:"))?;
    Some(line.trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

/// Clock ticks as time.
pub fn time(ticks: u64) -> Duration {
    Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second() as u32
}

/// Makes sure that `/proc` can be read and shows our own pid namespace. In another one's `/proc` the
/// same numbers are other processes.
pub(crate) fn check() -> io::Result<()> {
    let me = rustix::process::getpid().as_raw_pid();
    let link = rustix::fs::readlink("/proc/self", Vec::new())?;
    if link.to_bytes() != me.to_string().as_bytes() {
        return Err(io::Error::other("it belongs to another pid namespace"));
    }
    read_stat(me)?;
    Ok(())
}

/// How many threads this process has.
pub(crate) fn own_threads() -> io::Result<usize> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let line = "12 (a) b (c) S 7 8 9 0 -1 4194560 1 2 3 4 50 6 7 8 20 0 3 0 4242 1 2 18446744073709551615";
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.state, stat.ppid, stat.pgrp), ('S', 7, 8));
        assert_eq!((stat.threads, stat.start), (3, 4242));
        assert_eq!((stat.cpu_ticks, stat.reaped_ticks), (56, 15));
    }

    #[test]
    fn one_look_has_the_name_and_the_memory() {
        let line = "12 (a) b (c) S 7 8 9 0 -1 4194560 1 2 3 4 50 6 7 8 20 0 3 0 4242 1 77 18446744073709551615";
        assert_eq!(parse_rest(line), Some(("a) b (c", 77)));
        assert_eq!(parse_rest(&line.replace(" 77 ", " -3 ")), Some(("a) b (c", 0)));
        assert_eq!(parse_rest("12 )a( S 7"), None);
        let pid = std::process::id() as i32;
        let seen = look(pid).unwrap();
        assert_eq!((seen.pid, seen.name), (pid, name(pid)));
        assert!(seen.resident > 0 && seen.stat.start == stat(pid).unwrap().start);
    }

    #[test]
    fn a_zombie_leader_with_running_threads_is_alive() {
        let zombie = |threads| {
            let line = format!("1 (x) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 5 0");
            parse_stat(&line).unwrap().is_alive()
        };
        assert!(!zombie(1));
        assert!(zombie(2));
    }

    #[test]
    fn truncated_lines_give_nothing() {
        let line = "12 (sh) S 7 8 9 0 -1 4194560 1 2 3 4 50 6 7 8 20 0 3 0 4242 1 2";
        for end in 0..line.rfind("4242").unwrap() {
            assert_eq!(parse_stat(&line[..end]), None);
        }
    }

    #[test]
    fn limits_are_read_from_their_lines() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max file locks            unlimited            unlimited            locks     \n\
                    Max realtime priority     0                    0                    \n\
                    Max realtime timeout      2305843009213693953  unlimited            us        \n";
        assert_eq!(parse_carriers(text), [Some(2_305_843_009_213_693_953), None]);
        assert_eq!(parse_carriers("Max realtime timeout  unlimited  unlimited us"), [None, None]);
    }

    #[test]
    fn a_kill_that_is_on_its_way_is_seen() {
        let status = "Threads:\t1\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000001\n";
        assert_eq!(pending(status), 0x101);
        assert_eq!(pending("Name:\tx\n"), 0);
    }

    #[test]
    fn this_process_sees_itself() {
        let pid = std::process::id() as i32;
        assert!(stat(pid).unwrap().is_alive() && !is_dying(pid));
        assert!(pids().contains(&pid));
    }
}
