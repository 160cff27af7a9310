//! The world as the witness sees it: processes by identity, waiting, and nothing it was told.
//!
//! Everything here reads `/proc` and cgroupfs anew. `until` is the one place in which the runner
//! waits for something.

pub(crate) mod bystander;
pub(crate) mod cgroup;
pub(crate) mod grip;
pub(crate) mod lines;
pub(crate) mod witness;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Waits until the condition holds, looking often; says whether it did before the deadline.
///
/// The deadline is in time that the machine had to give: moments in which somebody wanted a CPU and
/// got none do not count, so that a promise is not judged by what else is running. On a quiet
/// machine that is the clock on the wall; on the busiest one it is four times as much.
///
/// The condition is looked at once more when the time is over, so that a machine that slept
/// through the deadline is not mistaken for a failure.
#[expect(clippy::disallowed_methods, reason = "this is what others use instead of sleeping")]
pub fn until(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let watch = Watch::start();
    let mut pause = Duration::from_micros(200);
    loop {
        if condition() {
            return true;
        }
        let left = deadline.saturating_sub(watch.elapsed());
        if left.is_zero() {
            return condition();
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(5));
    }
}

/// A watch that goes as the deadline of [`until`] does: moments in which somebody wanted a CPU and got none
/// do not count.
#[derive(Debug)]
pub struct Watch {
    began: Instant,
    starved: Duration,
}

impl Watch {
    /// Begins now.
    #[must_use]
    pub fn start() -> Self {
        Self { began: Instant::now(), starved: starved() }
    }

    /// What the machine has had to give since.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        given(self.began.elapsed(), starved().saturating_sub(self.starved))
    }
}

/// How much longer than its deadline anything waits on a machine that has no CPU to spare.
const AT_MOST: u32 = 4;

/// What counts of a wait during which the machine was starved that long.
fn given(waited: Duration, starved: Duration) -> Duration {
    waited.saturating_sub(starved).max(waited / AT_MOST)
}

/// For how long, since the machine started, there was somebody who waited for a CPU. Nothing, where
/// the kernel does not count it.
fn starved() -> Duration {
    let pressure = fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    Duration::from_micros(total(&pressure).unwrap_or_default())
}

/// The total of the line that counts whenever anybody waits.
fn total(pressure: &str) -> Option<u64> {
    let line = pressure.lines().find(|line| line.starts_with("some "))?;
    line.rsplit_once("total=")?.1.parse().ok()
}

/// One process by identity: a pid alone names a stranger once it is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// The pid as the runner's PID namespace numbers it.
    pub pid: i32,
    /// The start time in clock ticks since boot.
    pub start: u64,
}

impl Process {
    /// The process that has this pid now, dead or alive, if there is one.
    #[must_use]
    pub fn now(pid: i32) -> Option<Self> {
        Stat::of(pid).map(|stat| Self { pid, start: stat.start })
    }

    /// What `/proc` says of it, if it still is the same process.
    pub(crate) fn stat(self) -> Option<Stat> {
        Stat::of(self.pid).filter(|stat| stat.start == self.start)
    }

    /// Whether it runs, sleeps or is stopped. A zombie is not alive unless a thread of it is.
    #[must_use]
    pub fn is_alive(self) -> bool {
        self.stat().is_some_and(|stat| stat.is_alive(self.pid))
    }

    /// Sends a signal to this very process, or fails; never to a successor of its pid.
    pub(crate) fn signal(self, signal: i32) -> io::Result<()> {
        let pidfd = pidfd_open(self.pid)?;
        // Opened first and compared afterwards: if the identity still matches now, the descriptor
        // cannot mean a later process.
        if self.stat().is_none() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        pidfd_signal(&pidfd, signal)
    }
}

/// The fields of `/proc/PID/stat` that matter here.
#[derive(Clone, Debug)]
pub(crate) struct Stat {
    pub(crate) comm: String,
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) threads: u32,
    pub(crate) start: u64,
}

impl Stat {
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses a stat line. The name may hold spaces and parentheses, so the last one counts.
    fn parse(line: &[u8]) -> Option<Self> {
        let line = String::from_utf8_lossy(line);
        let (open, close) = (line.find('(')?, line.rfind(')')?);
        let rest: Vec<&str> = line.get(close + 1..)?.split_whitespace().collect();
        // The manual counts from 1 and `rest` begins with field 3.
        let field = |number: usize| rest.get(number - 3).copied();
        Some(Self {
            comm: line.get(open + 1..close)?.to_owned(),
            state: field(3)?.chars().next()?,
            parent: field(4)?.parse().ok()?,
            group: field(5)?.parse().ok()?,
            threads: field(20)?.parse().ok()?,
            start: field(22)?.parse().ok()?,
        })
    }

    /// Whether the process lives. The state is the main thread's, which may be dead before others.
    pub(crate) fn is_alive(&self, pid: i32) -> bool {
        !is_dead(self.state) || (self.threads > 1 && living_threads(pid).next().is_some())
    }
}

fn is_dead(state: char) -> bool {
    matches!(state, 'Z' | 'X' | 'x')
}

/// The threads of a process that are not dead.
pub(crate) fn living_threads(pid: i32) -> impl Iterator<Item = i32> {
    numbers(&format!("/proc/{pid}/task")).filter(move |tid| {
        fs::read(format!("/proc/{pid}/task/{tid}/stat"))
            .ok()
            .and_then(|line| Stat::parse(&line))
            .is_some_and(|stat| !is_dead(stat.state))
    })
}

/// All pids that there are now.
pub(crate) fn pids() -> impl Iterator<Item = i32> {
    numbers("/proc")
}

fn numbers(directory: &str) -> impl Iterator<Item = i32> + use<> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn pidfd_signal(pidfd: &OwnedFd, signal: i32) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open for the whole call, and a null siginfo is allowed.
    let done = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, no_info, 0)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_spaces_and_parentheses_do_not_shift_the_fields() {
        let line = b"42 (a) b) (c) S 7 42 42 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 3 0 777 1 1";
        let stat = Stat::parse(line).expect("a stat line");
        assert_eq!(stat.comm, "a) b) (c");
        let fields = (stat.state, stat.parent, stat.threads, stat.start);
        assert_eq!(fields, ('S', 7, 3, 777));
    }

    #[test]
    fn a_process_is_itself_and_not_a_namesake() {
        let pid = i32::try_from(std::process::id()).expect("a pid");
        let me = Process::now(pid).expect("myself");
        assert!(me.is_alive());
        let earlier = Process { start: me.start - 1, ..me };
        assert!(!earlier.is_alive());
        assert!(earlier.signal(0).is_err());
        assert!(me.signal(0).is_ok());
    }

    #[test]
    fn time_that_the_machine_did_not_have_does_not_count() {
        let second = Duration::from_secs(1);
        assert_eq!(given(second, Duration::ZERO), second);
        assert_eq!(given(second, second / 2), second / 2);
        assert_eq!(given(second, second * 2), second / AT_MOST, "every wait ends");
        let pressure = "some avg10=2.58 avg60=10.62 avg300=45.63 total=16047238499\n\
                        full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(total(pressure), Some(16_047_238_499));
        assert_eq!(total(""), None);
    }

    #[test]
    fn until_looks_once_more_at_the_end() {
        let mut looks = 0;
        assert!(!until(Duration::ZERO, || {
            looks += 1;
            false
        }));
        assert_eq!(looks, 2);
    }
}
