//! A pid namespace whose first process is the guardian: the kernel itself ends every member when
//! it dies.
//!
//! Strongest, and only by choice: a server inside sees other pids and another `/proc`.

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use std::fs;
use std::io;

/// The clone flags for a guardian in its own namespace, with or without a user namespace.
pub(crate) fn flags(user: bool) -> u64 {
    let base = libc::CLONE_NEWPID | libc::CLONE_NEWNS;
    (if user { base | libc::CLONE_NEWUSER } else { base }) as u64
}

/// Who we are, read before entering a user namespace: inside, nobody is anybody yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ids {
    uid: u32,
    gid: u32,
}

impl Ids {
    pub(crate) fn current() -> Ids {
        Ids { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }
}

/// Furnishes the namespace, from its first process: maps the user to itself and mounts a `/proc`
/// that shows it. Without that `/proc` the guardian would look at strangers.
pub(crate) fn furnish(user: Option<Ids>) -> io::Result<()> {
    if let Some(Ids { uid, gid }) = user {
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
        fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    }
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM)?;
    mount(
        "proc",
        "/proc",
        "proc",
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        None,
    )?;
    Ok(())
}
