//! A room for an engine, kept by `room.sh`: whatever happens in it, to it or to the test, nothing of
//! it stays. That is looked at when it ends.

use crate::PATIENCE;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use trials::until;

const KEEPER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/engine/room.sh");

/// A directory, namespaces of its own, and an engine in them that can be started and stopped.
pub(crate) struct Room {
    dir: PathBuf,
    group: String,
    keeper: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Room {
    /// A room in which `engine` will be started; it gives the command line, knowing the directory
    /// and the name of the control groups that are removed with the room.
    pub(crate) fn new(engine: impl FnOnce(&Path, &str) -> Vec<String>) -> Room {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let group = format!("lariat-engine-{}-{number}", std::process::id());
        let name = format!("room-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().canonicalize().unwrap().join(name);
        fs::create_dir(&dir).unwrap();
        fs::create_dir(dir.join("scratch")).unwrap();
        let command = engine(&dir, &group);
        let mut keeper = Command::new("sh");
        keeper.arg(KEEPER).arg("keep").arg(&dir).arg(&group).args(command);
        // A group of its own: who kills the test's group must leave somebody to clear up.
        keeper.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let errors = fs::File::create(dir.join("errors")).unwrap();
        let mut keeper = keeper.stderr(errors).spawn().unwrap();
        let answers = BufReader::new(keeper.stdout.take().unwrap());
        let orders = keeper.stdin.take();
        let mut room = Room { dir, group, keeper, orders, answers };
        room.hear("up");
        room
    }

    /// A path in it. Sockets below it are reached from everywhere.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Starts the engine; that it answers is for others to see.
    pub(crate) fn start(&mut self) {
        self.tell("start");
    }

    /// Asks the engine to leave, and waits until it has.
    pub(crate) fn stop(&mut self) {
        self.tell("stop");
        self.hear("left");
    }

    /// Kills the engine. Its containers live on, as after a crash.
    pub(crate) fn kill(&mut self) {
        self.tell("kill");
        self.hear("left");
    }

    /// A process in the room, by its pid out here.
    pub(crate) fn inside(&self) -> u32 {
        let outer = child_of(self.keeper.id()).expect("the keeper has its room");
        child_of(outer).expect("a room has its first process")
    }

    fn tell(&mut self, word: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{word}").unwrap();
    }

    /// The keeper's pipe ends when the keeper does, so this cannot wait for ever.
    #[track_caller]
    fn hear(&mut self, word: &str) {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), word, "{}{}", self.said("errors"), self.said("log"));
    }

    /// The end of what the engine wrote, for people.
    pub(crate) fn said(&self, file: &str) -> String {
        let text = fs::read(self.path(file)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// What is left of it: processes, mounts, control groups, the directory.
    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let dir = self.dir.to_str().unwrap();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if line.contains(dir) {
                left.push(format!("process {}: {line}", entry.file_name().display()));
            }
        }
        for mount in fs::read_to_string("/proc/self/mounts").unwrap().lines() {
            let mut words = mount.split(' ').skip(1);
            let (place, kind) = (words.next().unwrap(), words.next().unwrap());
            if place.contains(dir) {
                left.push(format!("mount {place}"));
            }
            let group = Path::new(place).join(&self.group);
            if kind.starts_with("cgroup") && group.exists() {
                left.push(format!("control group {}", group.display()));
            }
        }
        if self.dir.exists() {
            left.push(format!("directory {dir}"));
        }
        left
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the engine said at last:\n{}\n{}", self.said("errors"), self.said("log"));
        }
        self.orders = None;
        let ended = until(PATIENCE, || self.keeper.try_wait().unwrap().is_some());
        let left = self.left();
        // A second panic would hide the first.
        if !thread::panicking() {
            assert!(ended, "the room's keeper does not leave");
            assert!(left.is_empty(), "left of the room: {left:#?}");
        } else if !left.is_empty() {
            eprintln!("left of the room: {left:#?}");
        }
    }
}

/// The only child of a process.
fn child_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
