//! Where the bench sits: in a cgroup, as hosts do.
//!
//! A login session puts every host into a cgroup, and the kernel accounts for those in one at every
//! switch. In the root cgroup it does not: a bare server measured from there pays less than the same
//! server does under a host.

use std::fs;
use std::path::PathBuf;

/// A cgroup of our own, left again in the end.
pub(crate) struct Seat {
    root: PathBuf,
    own: PathBuf,
}

impl Seat {
    /// Takes one, if we sit in the root and may; else things are as they should be, or cannot be.
    pub(crate) fn take() -> Option<Seat> {
        let in_root = fs::read_to_string("/proc/self/cgroup").ok()?.lines().any(|l| l == "0::/");
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let unified = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
        let root = PathBuf::from(unified.split(' ').nth(4).filter(|_| in_root)?);
        let own = root.join(format!("lariat-bench-{}", std::process::id()));
        fs::create_dir(&own).ok()?;
        let seat = Seat { root, own };
        fs::write(seat.own.join("cgroup.procs"), "0").ok()?;
        Some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Whoever we started has left with us.
        let _stays = fs::write(self.root.join("cgroup.procs"), "0");
        let _busy = fs::remove_dir(&self.own);
    }
}
