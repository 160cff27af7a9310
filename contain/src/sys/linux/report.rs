//! What a report says in words that only Linux has: wait statuses, states of `/proc`, cgroups.

use super::procfs;
use crate::member::Member;
use crate::report::{Exit, Kind, Survivor};

impl Exit {
    pub(crate) fn from_wait(status: rustix::process::WaitStatus) -> Option<Exit> {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(Exit::Code(code)),
            (_, Some(signal)) => Some(Exit::Signal(signal)),
            _ => None,
        }
    }
}

impl Survivor {
    /// A process with what the kernel can say about it.
    pub(crate) fn unkilled(member: Member) -> Survivor {
        let state = procfs::stat(member.pid).map_or('?', |s| s.state);
        let why = match state {
            'D' => "in uninterruptible sleep; it ends when its I/O does".into(),
            'Z' | 'X' => "it is dead, and whoever traces it has not let go of it".into(),
            other => format!("killed but still there (state {other})"),
        };
        Survivor { kind: Kind::Process, member, name: procfs::name(member.pid), why }
    }

    /// Somebody of whom only the kernel knows.
    pub(crate) fn unseen() -> Survivor {
        Survivor {
            kind: Kind::Process,
            member: Member { pid: 0, start: 0 },
            name: "unknown".into(),
            why: "the kernel says that somebody is left, but /proc could not be read".into(),
        }
    }

    /// A leaf that would not go.
    pub(crate) fn leaf(why: std::io::Error) -> Survivor {
        Survivor::cgroup(format!("the cgroup is empty but could not be removed: {why}"))
    }

    /// A leaf of which nobody knows who is in it.
    pub(crate) fn closed_leaf(why: std::io::Error) -> Survivor {
        Survivor::cgroup(format!("the cgroup is there but could not be opened: {why}"))
    }

    fn cgroup(why: String) -> Survivor {
        let member = Member { pid: 0, start: 0 };
        Survivor { kind: Kind::Cgroup, member, name: "cgroup".into(), why }
    }
}
