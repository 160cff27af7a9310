//! Processes as libproc shows them.
//!
//! There are no pidfds here. A signal goes by number, after the start time has been compared; what
//! is left between the two is a few microseconds in which the process would have to leave, be
//! waited for, and the numbers go once around.

use crate::kin::{Row, kin};
use crate::member::Member;
use crate::report::Exit;
use crate::sys::macos::mark::Search;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::MaybeUninit;

/// Tells `proc_pidinfo` to find those who have ended and were not waited for as well.
const ZOMBIES_TOO: u64 = 1;

/// Somebody debugs it.
const PROC_FLAG_TRACED: u32 = 2;

/// Processes that may appear between the counting and the listing.
const MORE: usize = 64;

/// One process, as the kernel describes it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) member: Member,
    parent: i32,
    pub(crate) group: i32,
    status: u32,
    /// As `wait` has it; says something only about the dead.
    exit_status: i32,
    /// The kernel's short name for it.
    pub(crate) name: String,
}

impl Seen {
    pub(crate) fn is_alive(&self) -> bool {
        self.status != libc::SZOMB
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.status == libc::SSTOP
    }

    pub(crate) fn exit(&self) -> Option<Exit> {
        (!self.is_alive()).then(|| exit(self.exit_status))
    }
}

/// What a wait status says.
pub(crate) fn exit(status: i32) -> Exit {
    if libc::WIFSIGNALED(status) {
        Exit::Signal(libc::WTERMSIG(status))
    } else {
        Exit::Code(libc::WEXITSTATUS(status))
    }
}

/// A structure of numbers that `proc_pidinfo` fills in.
///
/// # Safety
/// The type must be what the kernel writes for this flavour, and all zeros must be a value of it.
unsafe trait Info: Sized {
    const FLAVOUR: i32;

    fn read(pid: i32) -> Option<Self> {
        let mut info = MaybeUninit::<Self>::zeroed();
        let size = size_of::<Self>() as i32;
        // SAFETY: the buffer is `size` bytes long and valid for writes.
        let filled = unsafe {
            libc::proc_pidinfo(pid, Self::FLAVOUR, ZOMBIES_TOO, info.as_mut_ptr().cast(), size)
        };
        // SAFETY: zeros are a value, and the kernel has filled in the whole of it.
        (filled == size).then(|| unsafe { info.assume_init() })
    }
}

// SAFETY: `sys/proc_info.h` pairs this structure with this flavour. It is integers throughout.
unsafe impl Info for libc::proc_bsdinfo {
    const FLAVOUR: i32 = libc::PROC_PIDTBSDINFO;
}

// SAFETY: as above.
unsafe impl Info for libc::proc_bsdshortinfo {
    const FLAVOUR: i32 = libc::PROC_PIDT_SHORTBSDINFO;
}

/// The process that has this number now. Another user's is shown without its start time.
pub(crate) fn look(pid: i32) -> Option<Seen> {
    if let Some(info) = libc::proc_bsdinfo::read(pid) {
        return Some(Seen {
            member: Member { pid, start: info.pbi_start_tvsec * 1_000_000 + info.pbi_start_tvusec },
            parent: parent(info.pbi_ppid, info.pbi_flags),
            group: info.pbi_pgid.cast_signed(),
            status: info.pbi_status,
            exit_status: info.pbi_xstatus.cast_signed(),
            name: text(&info.pbi_comm),
        });
    }
    let info = libc::proc_bsdshortinfo::read(pid)?;
    Some(Seen {
        member: Member { pid, start: 0 },
        parent: parent(info.pbsi_ppid, info.pbsi_flags),
        group: info.pbsi_pgid.cast_signed(),
        status: info.pbsi_status,
        exit_status: 0,
        name: text(&info.pbsi_comm),
    })
}

/// Whose child a process is. A debugger that has attached to one is its parent for as long, which makes
/// nobody a child of the debugger's.
fn parent(pid: u32, flags: u32) -> i32 {
    if flags & PROC_FLAG_TRACED == 0 { pid.cast_signed() } else { 0 }
}

/// The kernel's short name for a process; none if it is gone.
pub fn name(member: Member) -> Option<String> {
    look(member.pid).filter(|seen| seen.member == member).map(|seen| seen.name)
}

/// Everyone who descends from this process or is in a session with one who does, itself included. Who
/// has left both is known to the tree's guardian alone. Nobody if the processes cannot be listed.
pub fn around(leader: Member) -> Vec<Member> {
    let me = rustix::process::getpid().as_raw_pid();
    let rows = picture(None, |_| {}).unwrap_or_default();
    let alive: HashSet<Member> =
        rows.iter().filter(|row| row.alive).map(|row| row.member).collect();
    let found = kin(&rows, Some(leader), &HashMap::new(), me);
    found.into_keys().filter(|member| alive.contains(member)).collect()
}

fn text(name: &[libc::c_char]) -> String {
    let bytes: Vec<u8> = name.iter().take_while(|c| **c != 0).map(|c| c.cast_unsigned()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The numbers of all processes.
fn pids() -> io::Result<Vec<i32>> {
    // SAFETY: without a buffer the call only says how many there are.
    let many = unsafe { libc::proc_listallpids(std::ptr::null_mut(), 0) };
    let many = usize::try_from(many).map_err(|_| io::Error::last_os_error())?;
    let mut pids = vec![0i32; many + MORE];
    let size = (pids.len() * size_of::<i32>()) as i32;
    // SAFETY: the buffer is `size` bytes long and valid for writes; numbers are what goes into it.
    let filled = unsafe { libc::proc_listallpids(pids.as_mut_ptr().cast(), size) };
    let filled = usize::try_from(filled).map_err(|_| io::Error::last_os_error())?;
    pids.truncate(filled);
    pids.retain(|pid| *pid > 0);
    Ok(pids)
}

/// A picture of all processes. With a search, it says who carries the mark, and calls `on_sight` for
/// each of those at once: who hops from number to number is gone before the picture is done.
///
/// Not a moment's picture: one is read after the other, and whoever looks must look again.
pub(crate) fn picture(
    mut search: Option<Search>,
    on_sight: impl Fn(Member),
) -> io::Result<Vec<Row>> {
    let me = rustix::process::getpid().as_raw_pid();
    let mut rows = Vec::new();
    // The newest first, as long as they are new.
    let mut pids = pids()?;
    pids.sort_unstable_by(|a, b| b.cmp(a));
    for seen in pids.into_iter().filter_map(look) {
        let Seen { member, parent, group, .. } = seen;
        let alive = seen.is_alive();
        let session = if alive { session(member.pid) } else { 0 };
        // The environment of another user's process is not shown.
        let marked = alive
            && member.start != 0
            && search.as_mut().is_some_and(|search| search.finds(member.pid));
        if marked && member.pid != me {
            on_sight(member);
        }
        rows.push(Row { member, parent, group, session, alive, marked });
    }
    // Nobody there at all is not the truth but a list that could not be read.
    if !rows.iter().any(|row| row.member.pid == me) {
        return Err(io::Error::other("the list of processes lacks this one"));
    }
    Ok(rows)
}

/// The session of a living process; zero or less where the kernel does not say.
fn session(pid: i32) -> i32 {
    // SAFETY: getsid(2) takes a plain number and only looks.
    unsafe { libc::getsid(pid) }
}

impl Member {
    /// The process that has this pid now, if there is one.
    pub fn of(pid: i32) -> Option<Member> {
        look(pid).map(|seen| seen.member)
    }

    /// This process.
    pub fn current() -> Option<Member> {
        Member::of(rustix::process::getpid().as_raw_pid())
    }

    /// True while the same process is there and not merely a zombie.
    pub fn is_alive(&self) -> bool {
        look(self.pid).is_some_and(|seen| seen.member == *self && seen.is_alive())
    }

    /// Sends a signal to this process and to nobody else, as far as a comparison just before can
    /// tell. `Ok(false)` means that it was already gone.
    pub fn signal(&self, signal: Signal) -> Result<bool, Errno> {
        let Some(pid) = Pid::from_raw(self.pid).filter(|pid| !pid.is_init()) else {
            return Ok(false);
        };
        if self.start == 0 {
            // Another user's: whether it is still the same cannot be known.
            return Err(Errno::PERM);
        }
        if !self.is_alive() {
            return Ok(false);
        }
        match rustix::process::kill_process(pid, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}
