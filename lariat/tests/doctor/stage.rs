//! A machine with leaks on it: stand-ins for hosts, their real configuration files, and servers that
//! are shells. Everything that is planted carries the stage's name in its environment, is known by
//! pid and start time, and goes when the stage does.

use crate::place::{PATIENCE, Place};
use lariat::contain::Member;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use trials::until;

/// The variable that everything planted carries.
pub(crate) const STAGE: &str = "LARIAT_STAGE";
/// What a stand-in is to do.
const PART: &str = "LARIAT_PART";

/// A server that hears nothing and says nothing. It has a child, perhaps in a session of its own; one
/// in five is deaf to SIGTERM, with its children. The busy one has something to do all the time, and
/// the deep one waits for a child that has. Nobody else stays longer than two minutes, and the stage
/// ends them all.
const SERVER: &str = r#"
case "$1" in
  *-deep-busy)
    echo "$1 $$" >> "$LARIAT_STAGE/roll"
    sh -c 'while :; do sleep 0.05; done' deep-busy & wait;;
  *-busy) echo "$1 $$" >> "$LARIAT_STAGE/roll"; while :; do sleep 0.05; done;;
  *1|*5) trap '' TERM;;
esac
case "$1" in
  *2|*5) setsid sleep 120 & ;;
  *) sleep 120 & ;;
esac
echo "$1 $$" >> "$LARIAT_STAGE/roll"
wait
wait
"#;

#[expect(clippy::disallowed_methods, reason = "a stand-in is told its part, and its place")]
fn told(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// True if this process is to play a part.
pub(crate) fn is_asked() -> bool {
    told(PART).is_some()
}

/// Plays a host: starts and forgets servers as its part says, then waits to be ended.
///
/// `+name` starts a server on a pipe, `*name` on a pair of sockets, `-name` closes the stdin of the
/// one that was started last, and `.` lets the clock go on.
pub(crate) fn play() {
    let stage = PathBuf::from(told(STAGE).unwrap());
    let part = told(PART).unwrap();
    let mut servers: BTreeMap<String, (Child, Option<OwnedFd>)> = BTreeMap::new();
    let (mut forgotten, mut heard) = (Vec::new(), Vec::new());
    let mut started = String::new();
    for word in part.split(' ') {
        let (what, name) = word.split_at(1);
        match what {
            "+" | "*" => {
                let mut command = Command::new("sh");
                command.arg(stage.join("serve.sh")).arg(name).env_remove(PART);
                let (theirs, ours): (OwnedFd, OwnedFd) = if what == "+" {
                    let (reader, writer) = std::io::pipe().unwrap();
                    let (hears, says) = std::io::pipe().unwrap();
                    command.stdout(says);
                    heard.push(OwnedFd::from(hears));
                    (reader.into(), writer.into())
                } else {
                    let (hears, says) = UnixStream::pair().unwrap();
                    command.stdout(OwnedFd::from(says));
                    heard.push(OwnedFd::from(hears));
                    let (one, other) = UnixStream::pair().unwrap();
                    (one.into(), other.into())
                };
                command.stdin(theirs).stderr(Stdio::null());
                let child = command.spawn().unwrap();
                started += &format!("{name} {}\n", child.id());
                let before = servers.insert(name.into(), (child, Some(ours)));
                forgotten.extend(before);
            }
            "-" => drop(servers.get_mut(name).unwrap().1.take()),
            _ => drop(until(Duration::from_millis(30), || false)),
        }
    }
    let draft = stage.join(format!("told-{}.new", std::process::id()));
    fs::write(&draft, started).unwrap();
    fs::rename(&draft, stage.join(format!("told-{}", std::process::id()))).unwrap();
    // Its stdin closes with the test, and nobody needs it after that.
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// The stage.
pub(crate) struct Stage {
    pub(crate) place: Place,
    hosts: Vec<Child>,
    children: Vec<Child>,
    /// Ends that somebody holds.
    kept: Vec<OwnedFd>,
    expected: usize,
}

impl Stage {
    pub(crate) fn new() -> Stage {
        let place = Place::new();
        fs::write(place.path("serve.sh"), SERVER).unwrap();
        fs::write(place.path("roll"), "").unwrap();
        fs::create_dir_all(place.path("home/.codex")).unwrap();
        fs::create_dir_all(place.path("home/.cursor")).unwrap();
        Stage { place, hosts: vec![], children: vec![], kept: vec![], expected: 0 }
    }

    /// Writes the hosts' own files, each with its own servers.
    pub(crate) fn configure(&self, servers: impl Fn(&str) -> Vec<String>) {
        let script = self.place.path("serve.sh");
        let script = script.to_str().unwrap();
        let mut toml = String::from("model = \"x\" # mine\n");
        for name in servers("codex") {
            toml += &format!(
                "[mcp_servers.{name}]\ncommand = \"sh\"\nargs = [\"{script}\", \"{name}\"]\n"
            );
        }
        fs::write(self.place.path("home/.codex/config.toml"), toml).unwrap();
        for (host, file) in [("claude", "home/.claude.json"), ("cursor", "home/.cursor/mcp.json")] {
            let entry = |name: String| {
                let launch = serde_json::json!({"command": "sh", "args": [script, name]});
                (name, launch)
            };
            let servers: serde_json::Map<_, _> = servers(host).into_iter().map(entry).collect();
            let text = serde_json::json!({ "mcpServers": servers }).to_string();
            fs::write(self.place.path(file), text).unwrap();
        }
    }

    /// A host that plays this part; its number, and the servers that it has started, in order.
    pub(crate) fn host(&mut self, program: &str, part: &[String]) -> (usize, Vec<(String, i32)>) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg0(program).args(["--exact", "a_part", "--ignored"]);
        command.env(STAGE, self.place.path("")).env(PART, part.join(" "));
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let host = command.spawn().unwrap();
        let told = self.place.path(&format!("told-{}", host.id()));
        self.hosts.push(host);
        assert!(until(PATIENCE, || told.exists()), "{program} has not played its part");
        let told = fs::read_to_string(told).unwrap();
        let one = |line: &str| {
            let (name, pid) = line.split_once(' ').unwrap();
            (name.to_string(), pid.parse().unwrap())
        };
        let started: Vec<_> = told.lines().map(one).collect();
        self.expected += started.len();
        (self.hosts.len() - 1, started)
    }

    /// Kills a host, as the kernel does when memory is out.
    pub(crate) fn kill_host(&mut self, number: usize) {
        self.hosts[number].kill().unwrap();
        self.hosts[number].wait().unwrap();
    }

    /// The same command, started by the test itself: not by a host.
    pub(crate) fn own(&mut self, name: &str, keep: bool) {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut command = Command::new("sh");
        command.arg(self.place.path("serve.sh")).arg(name).env(STAGE, self.place.path(""));
        let child = command.stdin(reader).stdout(Stdio::null()).spawn().unwrap();
        self.children.push(child);
        self.kept.extend(keep.then(|| writer.into()));
        self.expected += 1;
    }

    /// The same command from a shell of somebody's, which stays or leaves. `script` is what it does
    /// with `$SERVE`; its stdin is a pipe that the test keeps, if `keep` says so.
    pub(crate) fn shell(&mut self, name: &str, script: &str, keep: bool, uid: Option<u32>) {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).env(STAGE, self.place.path(""));
        command.env("SERVE", self.place.path("serve.sh")).env("NAME", name);
        if let Some(uid) = uid {
            command.uid(uid);
        }
        let child = command.stdin(reader).stdout(Stdio::null()).spawn().unwrap();
        self.children.push(child);
        self.kept.extend(keep.then(|| writer.into()));
        self.expected += 1;
    }

    /// Waits until everybody is there, and asleep.
    pub(crate) fn await_all(&mut self) {
        let roll = self.place.path("roll");
        let there = || fs::read_to_string(&roll).unwrap().lines().count();
        assert!(
            until(PATIENCE * 2, || there() >= self.expected),
            "{} of {}",
            there(),
            self.expected
        );
        // Shells that have left are waited for: they are nobody's any more.
        let gone = |child: &mut Child| child.try_wait().unwrap().is_some();
        self.children.retain_mut(|child| !gone(child));
        let is_busy = |pid: &i32| state(*pid) == 'R' && !is_named(*pid, "-busy");
        let idle = || !self.planted().keys().any(is_busy);
        assert!(until(PATIENCE, idle), "somebody is at work");
    }

    /// Every living process of the stage, with its parent.
    pub(crate) fn planted(&self) -> BTreeMap<i32, (trials::Process, i32)> {
        let token = format!("{STAGE}={}", self.place.path("").display());
        let mut planted = BTreeMap::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
            let carries = environ.split(|byte| *byte == 0).any(|word| word == token.as_bytes());
            let process = trials::Process::now(pid).filter(|process| process.is_alive());
            if let (true, Some(process)) = (carries, process) {
                planted.insert(pid, (process, parent(pid)));
            }
        }
        planted
    }

    /// These and everyone of the stage below them.
    pub(crate) fn trees(&self, roots: &BTreeSet<i32>) -> Vec<trials::Process> {
        let planted = self.planted();
        let is_below = |pid: i32| {
            let up = |pid: &i32| planted.get(pid).map(|(_, parent)| *parent);
            std::iter::successors(Some(pid), up).any(|pid| roots.contains(&pid))
        };
        planted
            .iter()
            .filter(|(pid, _)| is_below(**pid))
            .map(|(_, (process, _))| *process)
            .collect()
    }

    /// `lariat VERB` for a person who lives here.
    pub(crate) fn lariat(&self, verb: &str) -> Command {
        self.at_home(self.place.lariat(verb))
    }

    /// `lariat hosts`, which looks for no books; if it did, it would find ours at home.
    pub(crate) fn hosts(&self) -> Command {
        let state = self.place.path("home/.local/state");
        fs::create_dir_all(&state).unwrap();
        std::os::unix::fs::symlink(self.place.path("state"), state.join("lariat")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_lariat"));
        command.arg("hosts");
        command.current_dir(self.place.path(""));
        self.at_home(command)
    }

    fn at_home(&self, mut command: Command) -> Command {
        command.env("HOME", self.place.path("home"));
        for name in ["XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"] {
            command.env_remove(name);
        }
        command
    }
}

fn stat(pid: i32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let (_, fields) = text.rsplit_once(')').unwrap_or_default();
    fields.split_whitespace().map(String::from).collect()
}

fn parent(pid: i32) -> i32 {
    stat(pid).get(1).and_then(|parent| parent.parse().ok()).unwrap_or(0)
}

fn is_named(pid: i32, part: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).contains(part)
}

fn state(pid: i32) -> char {
    stat(pid).first().and_then(|state| state.chars().next()).unwrap_or('?')
}

impl Drop for Stage {
    fn drop(&mut self) {
        let everyone_gone = || {
            for (process, _) in self.planted().into_values() {
                let member = Member { pid: process.pid, start: process.start };
                let _gone = member.signal(Signal::KILL);
            }
            for child in self.hosts.iter_mut().chain(&mut self.children) {
                // Not waiting would leave zombies.
                let _gone = child.try_wait();
            }
            self.planted().is_empty()
        };
        let gone = until(PATIENCE, everyone_gone);
        for child in self.hosts.iter_mut().chain(&mut self.children) {
            let _gone = child.wait();
        }
        if !gone && !std::thread::panicking() {
            let mut stderr = std::io::stderr();
            let _closed = writeln!(stderr, "the stage could not be cleared");
        }
    }
}
