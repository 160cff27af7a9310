//! A cgroup v2 leaf per tree: the command is born in it and the kernel can kill it whole.
//!
//! The hierarchy is found through `mountinfo`: on hybrid systems it is not at `/sys/fs/cgroup`. The
//! leaf hangs below our own cgroup, so whoever ends the host's cgroup ends the leaf too. No
//! controller is needed; `bounds` knows those.

use super::mark::Mark;
use super::{bounds, procfs};
use crate::limits::{Breach, Enforced, Limits};
use crate::member::Member;
use crate::sys::wait::wait;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A leaf of our own.
#[derive(Debug)]
pub struct Leaf {
    path: PathBuf,
    /// `cgroup.kill` and `cgroup.events`, open from the start: neither the kill nor the look may
    /// need a free descriptor.
    kill: fs::File,
    events: fs::File,
}

/// How long a leaf that was just emptied may refuse to be removed.
const REMOVAL: Duration = Duration::from_millis(200);

impl Leaf {
    /// Where the leaf for this mark would be, or why there cannot be one.
    pub fn plan(mark: Mark) -> Result<PathBuf, String> {
        let own = own_cgroup()?;
        let writable = |file: &str| {
            let path = own.join(file);
            rustix::fs::access(&path, rustix::fs::Access::WRITE_OK)
                .map_err(|e| format!("{} is not ours to write ({e})", path.display()))
        };
        // Being born into the leaf also needs the right to move out of where we are.
        writable("")?;
        writable("cgroup.procs")?;
        Ok(own.join(leaf_name(mark)))
    }

    /// Makes the leaf at a planned path.
    pub(crate) fn create(path: &Path) -> io::Result<Leaf> {
        match fs::create_dir(path) {
            // Its name is the session's random number: an earlier life of the server had it, and it would not go.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let leaf = Leaf::open_at(path)?;
                return if leaf.populated() { Err(e) } else { Ok(leaf) };
            }
            made => made?,
        }
        // Pressure accounting costs at every switch between host and server (a hundredth of a
        // round trip), and nobody reads ours. Before Linux 6.1 it cannot be turned off.
        let _stays_on = fs::write(path.join("cgroup.pressure"), "0");
        Leaf::open_at(path).inspect_err(|_| {
            // cgroup.kill came with Linux 5.14; without it there is no use for a leaf.
            let _busy = fs::remove_dir(path);
        })
    }

    /// The same for another process, with descriptors of its own.
    pub(crate) fn again(&self) -> io::Result<Leaf> {
        Leaf::open_at(&self.path)
    }

    /// A leaf that an earlier session left, if it is still there and the path really is the leaf of this mark.
    pub(crate) fn existing(path: &Path, mark: Mark) -> io::Result<Option<Leaf>> {
        if path.file_name().is_none_or(|name| name != leaf_name(mark).as_str()) {
            return Ok(None);
        }
        match Leaf::open_at(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    fn open_at(path: &Path) -> io::Result<Leaf> {
        Ok(Leaf {
            kill: fs::OpenOptions::new().write(true).open(path.join("cgroup.kill"))?,
            events: fs::File::open(path.join("cgroup.events"))?,
            path: path.into(),
        })
    }

    /// Which limits the kernel would hold a leaf at this planned path to.
    pub(crate) fn would_limit(planned: &Path) -> Enforced {
        let has = |name| planned.parent().is_some_and(|above| bounds::reaches_below(above, name));
        Enforced { memory: has("memory"), processes: has("pids"), cpu: has("cpu") }
    }

    /// Limits it, before anyone lives in it.
    pub(crate) fn limit(&self, limits: &Limits) -> Enforced {
        bounds::set(&self.path, limits)
    }

    /// Memory charged to it, where that is counted.
    pub(crate) fn memory(&self) -> Option<u64> {
        bounds::memory(&self.path)
    }

    /// CPU time of all who ever lived in it.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        bounds::cpu(&self.path)
    }

    /// What the kernel had to do because of a limit; unknown once the leaf is removed.
    pub(crate) fn breach(&self) -> Option<Breach> {
        bounds::breach(&self.path)
    }

    /// Its directory, for being born into.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        Ok(fs::File::open(&self.path)?.into())
    }

    /// Its list of processes, for moving in before exec.
    pub(crate) fn open_procs(&self) -> io::Result<OwnedFd> {
        let file = fs::OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))?;
        Ok(file.into())
    }

    /// Kills everyone in it and below it.
    pub(crate) fn kill(&self) -> io::Result<()> {
        Ok(rustix::io::write(&self.kill, b"1").map(drop)?)
    }

    /// True while anyone lives in it or below it. A leaf that cannot be read counts as empty only
    /// if it is gone.
    pub(crate) fn populated(&self) -> bool {
        let mut buffer = [0u8; 256];
        match rustix::io::pread(&self.events, &mut buffer, 0) {
            Ok(n) => String::from_utf8_lossy(&buffer[..n]).lines().any(|l| l == "populated 1"),
            Err(e) => e != rustix::io::Errno::NODEV,
        }
    }

    /// Who lives in it or below it.
    pub(crate) fn members(&self) -> Vec<Member> {
        let mut found = Vec::new();
        let mut queue = vec![self.path.clone()];
        while let Some(dir) = queue.pop() {
            let list = || {
                let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
                text.lines().filter_map(|l| l.parse::<i32>().ok()).collect::<HashSet<i32>>()
            };
            let here = list().into_iter().filter_map(|pid| {
                let stat = procfs::stat(pid).filter(procfs::Stat::is_alive)?;
                Some(Member { pid, start: stat.start })
            });
            let here: Vec<Member> = here.collect();
            // A number that was given to a stranger between the list and the look at it is not in the list any more.
            let still = list();
            found.extend(here.into_iter().filter(|member| still.contains(&member.pid)));
            queue.extend(children(&dir));
        }
        found
    }

    /// The descriptors that kill and look need.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.kill.as_fd(), self.events.as_fd()]
    }

    /// Removes the leaf and whatever cgroups the server made below it. Tries for a moment: a
    /// cgroup that was just emptied can be busy.
    pub(crate) fn remove(&self) -> io::Result<()> {
        fn remove_below(dir: &Path) -> io::Result<()> {
            for child in children(dir) {
                match remove_below(&child) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                    _ => {}
                }
            }
            fs::remove_dir(dir)
        }
        let deadline = Instant::now() + REMOVAL;
        loop {
            match remove_below(&self.path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(_) if !self.populated() && Instant::now() < deadline => {
                    wait(&mut [], Some(Instant::now() + Duration::from_millis(2)));
                }
                other => return other,
            }
        }
    }
}

fn leaf_name(mark: Mark) -> String {
    format!("lariat-{:015x}", mark.number() & ((1 << 60) - 1))
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .map(|e| e.path())
        .collect()
}

/// The directory of the cgroup this process is in.
fn own_cgroup() -> Result<PathBuf, String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
    let (root, mount) = parse_mount(&mounts).ok_or("no cgroup v2 hierarchy is mounted")?;
    let lines = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
    let own = lines.lines().find_map(|l| l.strip_prefix("0::")).ok_or("not in a v2 cgroup")?;
    let relative = Path::new(own)
        .strip_prefix(&root)
        .map_err(|_| "our cgroup is outside the mounted hierarchy".to_string())?;
    if relative.components().any(|c| c == std::path::Component::ParentDir) {
        return Err("our cgroup is outside the cgroup namespace".into());
    }
    Ok(mount.join(relative))
}

/// Root and mount point of the first cgroup2 mount.
fn parse_mount(mountinfo: &str) -> Option<(PathBuf, PathBuf)> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        if right.split(' ').next()? != "cgroup2" {
            return None;
        }
        let mut fields = left.split(' ').skip(3);
        Some((unescape(fields.next()?).into(), unescape(fields.next()?).into()))
    })
}

/// `mountinfo` writes blanks and backslashes as three octal digits.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4).and_then(|d| u8::from_str_radix(d, 8).ok());
        match code {
            Some(byte) => {
                out.push(byte as char);
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found_where_it_is() {
        let hybrid = "31 25 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      40 25 0:36 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(parse_mount(hybrid), Some(("/".into(), "/sys/fs/cgroup/unified".into())));
        let nested = "40 25 0:36 /docker/abc /mnt/my\\040cg rw - cgroup2 none rw";
        assert_eq!(parse_mount(nested), Some(("/docker/abc".into(), "/mnt/my cg".into())));
        assert_eq!(parse_mount("31 25 0:27 / /x rw - cgroup cgroup rw"), None);
    }

    #[test]
    fn a_foreign_directory_is_never_taken_for_a_leaf() {
        let mark = Mark::random().unwrap();
        for path in ["/sys/fs/cgroup", "/"] {
            assert!(Leaf::existing(Path::new(path), mark).unwrap().is_none());
        }
    }
}
