//! Cgroups as a stranger reads them: where a process is, and whether a directory still exists.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the version 2 hierarchy is mounted, and the cgroup that is the root of that mount.
#[derive(Clone, Debug)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    root: String,
}

impl Mount {
    /// The first cgroup2 mount; on hybrid systems it is not at the usual place.
    pub(crate) fn find() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/self/mountinfo").ok()?)
    }

    fn parse(mountinfo: &str) -> Option<Self> {
        mountinfo.lines().find_map(|line| {
            // Optional fields stand between the mount point and the lone hyphen.
            let (before, after) = line.split_once(" - ")?;
            if after.split(' ').next()? != "cgroup2" {
                return None;
            }
            let mut fields = before.split(' ').skip(3);
            let (root, point) = (fields.next()?, fields.next()?);
            // Blanks in a path are octal escapes; a cgroup mount with blanks is not worth more.
            Some(Self { point: point.replace("\\040", " ").into(), root: root.to_owned() })
        })
    }

    /// The directory of a cgroup path as `/proc/PID/cgroup` gives it.
    pub(crate) fn directory(&self, path: &str) -> PathBuf {
        let below = path.strip_prefix(self.root.trim_end_matches('/')).unwrap_or(path);
        self.point.join(below.trim_start_matches('/'))
    }
}

/// The version 2 cgroup of a process, which lives in `/proc/PID` or `/proc/PID/task/TID`.
pub(crate) fn of(proc_directory: &str) -> Option<String> {
    let text = fs::read_to_string(format!("{proc_directory}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    // The kernel appends this when the directory was removed under a zombie.
    Some(path.trim_end_matches(" (deleted)").to_owned())
}

/// Whether `other` is this cgroup or one above it: neither was made for a session below it.
pub(crate) fn contains(other: &str, own: &str) -> bool {
    Path::new(own).starts_with(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
24 22 0:21 / /sys/fs/cgroup ro,nosuid shared:4 - tmpfs tmpfs ro,mode=755
25 24 0:22 / /sys/fs/cgroup/pids rw shared:5 - cgroup cgroup rw,pids
26 24 0:23 /box /sys/fs/cgroup/unified rw shared:6 master:1 - cgroup2 cgroup2 rw
";

    #[test]
    fn finds_a_hybrid_mount_that_shows_a_part_of_the_hierarchy() {
        let mount = Mount::parse(HYBRID).expect("a mount");
        assert_eq!(mount.directory("/box/a"), Path::new("/sys/fs/cgroup/unified/a"));
        assert_eq!(mount.directory("/box"), Path::new("/sys/fs/cgroup/unified/"));
    }

    #[test]
    fn the_own_cgroup_and_those_above_are_not_left_behind() {
        assert!(contains("/", "/user/a"));
        assert!(contains("/user/a", "/user/a"));
        assert!(!contains("/user/a/leaf", "/user/a"));
        assert!(!contains("/user/ab", "/user/a"));
    }
}
