//! What a cgroup limits and counts: the files of its controllers, and whether it has any.
//!
//! A controller reaches a leaf only if the cgroup above hands it down. That is asked for where it
//! takes nothing from anyone: in the root, or where no process lives. Elsewhere the kernel refuses
//! memory outright, and would grant processes and CPU at the price that every cgroup beside the
//! leaf, and the leaf, can hold nobody any more. What was handed down is never taken back: others
//! may have come to rely on it.

use crate::limits::{Breach, Enforced, Limits};
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// The period in which a share of the CPU is counted, in microseconds; the kernel's own default.
const PERIOD: f64 = 100_000.0;

/// The smallest share that the kernel takes, in microseconds of a period.
const SMALLEST_SHARE: f64 = 1000.0;

/// Sets the limits of a leaf in which nobody lives yet. Says which of them hold.
pub(crate) fn set(leaf: &Path, limits: &Limits) -> Enforced {
    let wanted = [
        ("memory", limits.memory.is_some()),
        ("pids", limits.processes.is_some()),
        ("cpu", limits.cpu.is_some()),
    ];
    for (controller, _) in wanted.into_iter().filter(|(_, wanted)| *wanted) {
        hand_down(leaf, controller);
    }
    let write = |file: &str, value: String| write(&leaf.join(file), &value).is_ok();
    Enforced {
        memory: limits.memory.is_some_and(|bytes| {
            // Without swap a limit on memory is one; without memory.swap.max there is no swap.
            let _no_swap = write("memory.swap.max", "0".into());
            // A tree that lost one member at random is of no use to anyone.
            let _one_by_one = write("memory.oom.group", "1".into());
            write("memory.max", bytes.to_string())
        }),
        processes: limits.processes.is_some_and(|most| write("pids.max", most.to_string())),
        cpu: limits.cpu.is_some_and(|cores| {
            let share = (cores * PERIOD).max(SMALLEST_SHARE);
            write("cpu.max", format!("{share:.0} {PERIOD:.0}"))
        }),
    }
}

/// Sees to it that the leaf has a controller, if that harms nobody.
fn hand_down(leaf: &Path, controller: &str) {
    let Some(above) = leaf.parent() else { return };
    if !has_controller(leaf, controller) && harms_nobody(above) {
        // Not there to hand down: an older hierarchy has it, or whoever made this one kept it.
        let _not_ours = write(&above.join("cgroup.subtree_control"), &format!("+{controller}"));
    }
}

/// Whether a leaf below this cgroup would have a controller. Looks only.
pub(crate) fn reaches_below(above: &Path, controller: &str) -> bool {
    let handed_down = fs::read_to_string(above.join("cgroup.subtree_control")).unwrap_or_default();
    handed_down.split_ascii_whitespace().any(|name| name == controller)
        || (has_controller(above, controller) && harms_nobody(above))
}

fn has_controller(cgroup: &Path, controller: &str) -> bool {
    let controllers = fs::read_to_string(cgroup.join("cgroup.controllers")).unwrap_or_default();
    controllers.split_ascii_whitespace().any(|name| name == controller)
}

/// True for the root, which alone has no type, and for a cgroup in which no process lives.
fn harms_nobody(cgroup: &Path) -> bool {
    let is_root = matches!(
        fs::metadata(cgroup.join("cgroup.type")),
        Err(e) if e.kind() == io::ErrorKind::NotFound
    );
    is_root || fs::read_to_string(cgroup.join("cgroup.procs")).is_ok_and(|pids| pids.is_empty())
}

/// Memory charged to the leaf and below, in bytes; `None` without the controller.
pub(crate) fn memory(leaf: &Path) -> Option<u64> {
    fs::read_to_string(leaf.join("memory.current")).ok()?.trim_end().parse().ok()
}

/// CPU time of everyone who ever was in the leaf or below. Needs no controller.
pub(crate) fn cpu(leaf: &Path) -> Option<Duration> {
    value(&leaf.join("cpu.stat"), "usage_usec").map(Duration::from_micros)
}

/// What the kernel had to do because of a limit of this very leaf. Limits above it and those that
/// the tree set itself below it are not ours, and neither is a machine that is out of memory.
pub(crate) fn breach(leaf: &Path) -> Option<Breach> {
    let happened = |file: &str, event| value(&leaf.join(file), event).map(|count| count > 0);
    if happened("memory.events.local", "oom") == Some(true) {
        return Some(Breach::Memory);
    }
    // Before Linux 6.11 the one file is what the other is now.
    let refused = happened("pids.events.local", "max").or_else(|| happened("pids.events", "max"));
    (refused == Some(true)).then_some(Breach::Processes)
}

/// One number of a file that has a name and a number in each line.
fn value(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.parse().ok()
}

/// Writes to a file that is there. Never makes one: what is missing is a controller.
fn write(file: &Path, text: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const ALL: Limits = Limits { memory: Some(1 << 20), processes: Some(7), cpu: Some(1.5) };

    /// A directory with files of these names and contents: what a cgroup looks like from here.
    struct Fake(PathBuf);

    impl Fake {
        fn new(name: &str, files: &[(&str, &str)]) -> Fake {
            let name = format!("lariat-bounds-{name}-{}", std::process::id());
            let fake = Fake(std::env::temp_dir().join(name));
            for (file, text) in files {
                let path = fake.0.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            fake
        }

        fn read(&self, file: &str) -> String {
            fs::read_to_string(self.0.join(file)).unwrap()
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _gone = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_limit_is_written_as_the_kernel_wants_it() {
        let files = ["memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max"];
        let fake = Fake::new("all", &files.map(|file| (file, "")));
        let all = Enforced { memory: true, processes: true, cpu: true };
        assert_eq!(set(&fake.0, &ALL), all);
        let written = files.map(|file| fake.read(file));
        assert_eq!(written, ["1048576", "0", "1", "7", "150000 100000"]);
    }

    #[test]
    fn a_share_too_small_for_the_kernel_becomes_its_smallest() {
        let fake = Fake::new("share", &[("cpu.max", "")]);
        set(&fake.0, &Limits { cpu: Some(0.001), ..Limits::default() });
        assert_eq!(fake.read("cpu.max"), "1000 100000");
    }

    #[test]
    fn what_has_no_file_is_not_enforced_and_gets_none() {
        let fake = Fake::new("some", &[("pids.max", "")]);
        let some = Enforced { processes: true, ..Enforced::default() };
        assert_eq!(set(&fake.0, &ALL), some);
        assert!(!fake.0.join("memory.max").exists());
        assert_eq!(set(&fake.0, &Limits::default()), Enforced::default(), "nothing was asked for");
    }

    #[test]
    fn a_controller_is_asked_for_in_the_root_and_where_nobody_lives() {
        let above = |name, extra: &[(&str, &str)]| {
            let mut files =
                vec![("cgroup.subtree_control", ""), ("leaf/cgroup.controllers", "cpu")];
            files.extend(extra);
            let fake = Fake::new(name, &files);
            hand_down(&fake.0.join("leaf"), "pids");
            fake.read("cgroup.subtree_control")
        };
        assert_eq!(above("root", &[("cgroup.procs", "1\n2\n")]), "+pids");
        assert_eq!(above("empty", &[("cgroup.type", "domain\n"), ("cgroup.procs", "")]), "+pids");
        let lived_in = [("cgroup.type", "domain\n"), ("cgroup.procs", "1\n")];
        assert_eq!(above("lived-in", &lived_in), "");
        assert_eq!(above("unreadable", &[("cgroup.type", "domain\n")]), "");
        assert_eq!(above("there", &[("leaf/cgroup.controllers", "cpu pids\n")]), "");
    }

    #[test]
    fn only_a_limit_of_the_leaf_itself_is_a_breach() {
        let seen = |name, files: &[(&str, &str)]| {
            let fake = Fake::new(name, &[&[("cpu.stat", "")], files].concat());
            breach(&fake.0)
        };
        let quiet = ("memory.events.local", "low 0\nhigh 0\nmax 9\noom 0\noom_kill 3\n");
        assert_eq!(seen("machine", &[quiet]), None, "the machine ran out, not the tree");
        let oom = ("memory.events.local", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 3\n");
        assert_eq!(seen("oom", &[oom]), Some(Breach::Memory));
        assert_eq!(seen("pids", &[quiet, ("pids.events", "max 2\n")]), Some(Breach::Processes));
        let below = [("pids.events", "max 2\n"), ("pids.events.local", "max 0\n")];
        assert_eq!(seen("pids-below", &below), None);
        assert_eq!(seen("none", &[]), None);
    }

    #[test]
    fn what_was_used_is_read() {
        let files = [("cpu.stat", "usage_usec 1500\nuser_usec 1\n"), ("memory.current", "4096\n")];
        let fake = Fake::new("used", &files);
        assert_eq!(cpu(&fake.0), Some(Duration::from_micros(1500)));
        assert_eq!(memory(&fake.0), Some(4096));
        assert_eq!(memory(Path::new("/proc")), None);
    }
}
