//! Who is there, as libproc and sysctl say it.

use crate::member::Member;
use std::collections::HashSet;
use std::ffi::CStr;
use std::io;

/// The variable that every member inherits unless it clears its environment.
pub(crate) const MARK: &str = "LARIAT_MARK";

/// One process at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) member: Member,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    pub(crate) name: String,
    is_zombie: bool,
    is_ours: bool,
}

impl Seen {
    /// The process that has this number now, if it can be looked at.
    pub(crate) fn of(pid: i32) -> Option<Seen> {
        // SAFETY: plain numbers and characters; all zeros are a value of it.
        let mut info: libc::proc_bsdinfo = unsafe { std::mem::zeroed() };
        let size = size_of_val(&info) as i32;
        // SAFETY: the structure is of the kind that the flavour names and as large as it is said to be.
        let got = unsafe {
            libc::proc_pidinfo(pid, libc::PROC_PIDTBSDINFO, 0, (&raw mut info).cast(), size)
        };
        if got != size {
            return None;
        }
        // SAFETY: takes a number and touches no memory of ours.
        let (session, own) = unsafe { (libc::getsid(pid), libc::getuid()) };
        // SAFETY: the kernel ends the name with a zero within its array, which was all zeros before.
        let name = unsafe { CStr::from_ptr(info.pbi_comm.as_ptr()) };
        Some(Seen {
            member: Member { pid, start: info.pbi_start_tvsec * 1_000_000 + info.pbi_start_tvusec },
            parent: info.pbi_ppid.cast_signed(),
            group: info.pbi_pgid.cast_signed(),
            session,
            name: name.to_string_lossy().into_owned(),
            is_zombie: info.pbi_status == libc::SZOMB,
            is_ours: info.pbi_uid == own,
        })
    }

    /// Whether the mark is in the environment that it was started with.
    fn carries(&self, mark: &str) -> bool {
        let mut name = [libc::CTL_KERN, libc::KERN_PROCARGS2, self.member.pid];
        let mut size = 0;
        // SAFETY: without a buffer the call only says how large it has to be.
        let asked = unsafe {
            let null = std::ptr::null_mut();
            libc::sysctl(name.as_mut_ptr(), 3, null, &mut size, null, 0)
        };
        let mut text = vec![0_u8; if asked == 0 { size } else { 0 }];
        // SAFETY: the buffer is as large as it is said to be.
        let read = unsafe {
            let null = std::ptr::null_mut();
            libc::sysctl(name.as_mut_ptr(), 3, text.as_mut_ptr().cast(), &mut size, null, 0)
        };
        text.truncate(size);
        let wanted = format!("{MARK}={mark}");
        read == 0 && text.split(|byte| *byte == 0).any(|word| word == wanted.as_bytes())
    }
}

/// Everybody who is there.
pub(crate) fn everybody() -> Vec<Seen> {
    // SAFETY: without a buffer the call only says how many there are.
    let there = unsafe { libc::proc_listallpids(std::ptr::null_mut(), 0) };
    // Some may come while we look.
    let mut pids = vec![0_i32; usize::try_from(there).unwrap_or(0) + 64];
    let size = size_of_val(pids.as_slice()) as i32;
    // SAFETY: the buffer is as large as it is said to be.
    let listed = unsafe { libc::proc_listallpids(pids.as_mut_ptr().cast(), size) };
    pids.truncate(usize::try_from(listed).unwrap_or(0));
    pids.into_iter().filter_map(Seen::of).collect()
}

/// Finds a tree's members, and remembers who is none.
#[derive(Debug)]
pub(crate) struct Search {
    leader: Member,
    mark: String,
    /// All who ever were.
    pub(crate) known: HashSet<Member>,
    strangers: HashSet<Member>,
}

impl Search {
    pub(crate) fn new(leader: Member, mark: &str) -> Search {
        let known = HashSet::from([leader]);
        Search { leader, mark: mark.to_owned(), known, strangers: HashSet::new() }
    }

    /// The members who are alive now: of the session, of the group, children of members, and who
    /// carries the mark.
    pub(crate) fn look(&mut self) -> Vec<Seen> {
        let everybody = everybody();
        let mut alive: Vec<Seen> = Vec::new();
        loop {
            let before = alive.len();
            for seen in &everybody {
                let listed = alive.iter().any(|other| other.member == seen.member);
                if !listed && self.is_member(seen, &alive) {
                    alive.push(seen.clone());
                }
            }
            if alive.len() == before {
                break;
            }
        }
        alive.retain(|seen| !seen.is_zombie);
        alive
    }

    fn is_member(&mut self, seen: &Seen, alive: &[Seen]) -> bool {
        if self.known.contains(&seen.member) {
            return true;
        }
        // The leader's number is kept for its session and group while anybody is in them.
        let of_leader = seen.member.start >= self.leader.start
            && [seen.group, seen.session].contains(&self.leader.pid);
        let by_birth = alive.iter().any(|parent| {
            parent.member.pid == seen.parent && parent.member.start <= seen.member.start
        });
        let unknown = !self.strangers.contains(&seen.member);
        if of_leader || by_birth || (unknown && seen.is_ours && seen.carries(&self.mark)) {
            self.known.insert(seen.member);
            return true;
        }
        self.strangers.insert(seen.member);
        false
    }
}

impl Member {
    /// The process that has this pid now, if there is one.
    pub fn of(pid: i32) -> Option<Member> {
        Seen::of(pid).map(|seen| seen.member)
    }

    /// This process.
    pub fn current() -> Option<Member> {
        Member::of(std::process::id().cast_signed())
    }

    /// True while the same process is there and not merely a zombie.
    pub fn is_alive(&self) -> bool {
        Seen::of(self.pid).is_some_and(|seen| seen.member == *self && !seen.is_zombie)
    }

    /// Sends a signal to this process, looked at just before: there are no pidfds here.
    ///
    /// One by one, and never to a group: `killpg` fails as a whole if one member is a zombie or
    /// somebody else's.
    pub(crate) fn signal(&self, signal: i32) -> io::Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        // SAFETY: takes two numbers and touches no memory of ours.
        match unsafe { libc::kill(self.pid, signal) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
