//! Where things sit: in a cgroup, as hosts do.
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
        let root = here().filter(|(_, in_root)| *in_root)?.0;
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

/// A cgroup below ours with nobody in it, as Lariat makes one for a server. Goes when that has left.
pub(crate) struct Leaf(pub(crate) PathBuf);

impl Leaf {
    /// Makes one, if we may.
    pub(crate) fn make() -> Option<Leaf> {
        let leaf = here()?.0.join(format!("lariat-bench-leaf-{}", std::process::id()));
        fs::create_dir(&leaf).ok()?;
        Some(Leaf(leaf))
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        let _busy = fs::remove_dir(&self.0);
    }
}

/// The directory of the cgroup that we are in, and whether that is the root.
fn here() -> Option<(PathBuf, bool)> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let unified = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    let root = PathBuf::from(unified.split(' ').nth(4)?);
    Some((root.join(own), own.is_empty()))
}
