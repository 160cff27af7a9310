//! The macOS column, small: what a tree does wrong, and how it ends.
//!
//! The witness is a pipe. Every process of a tree has its writing end as standard output, so its end
//! of file is the kernel's word that nobody is left. This binary is the owner, the server and the
//! bystander: the environment of a program of the system could not be read.

use lariat_contain::{Choice, Event, Ladder, Mark, Spec, Tree, wait};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const RUNG: Duration = Duration::from_millis(300);

/// How long anything here may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(20);

const LEAVES: usize = 40;

/// What is wrong with a tree, and how many leaves it has.
const SINS: [(&str, usize); 8] = [
    ("plain", 1),
    ("ignores-term", 1),
    ("own-group", 1),
    ("own-session", 1),
    // Its parent has left, its session is the command's.
    ("orphan", 1),
    // Both are gone; it is known by its mark.
    ("daemon", 1),
    ("leader-leaves", 1),
    ("wide", LEAVES),
];

const DEATHS: [&str; 7] = [
    "close",
    "kill",
    "drop",
    "panic",
    "owner-killed",
    "guardian-killed",
    // Nobody asks what has happened.
    "guardian-killed-unheard",
];

pub(crate) fn main() {
    lariat_contain::main_if_asked();
    let mut words = std::env::args().skip(1);
    match (words.next().as_deref(), words.next()) {
        (Some("__own"), Some(sin)) => return own(&sin),
        (Some("__sin"), Some(sin)) => return misbehave(&sin),
        _ => {}
    }
    let arguments = Arguments::from_args();
    let pairs = SINS.iter().flat_map(|sin| DEATHS.map(|death| (*sin, death)));
    // A command that leaves by itself ends its tree; there is nobody to ask.
    let pairs = pairs.filter(|((sin, _), death)| *sin != "leader-leaves" || *death == "close");
    let mut tests: Vec<Trial> = pairs
        .map(|((sin, leaves), death)| {
            Trial::test(format!("{sin}::{death}"), move || {
                (0..3).try_for_each(|_| run(sin, leaves, death)).map_err(Failed::from)
            })
        })
        .collect();
    tests.push(Trial::test("bare::is-a-leak", || leak().map_err(Failed::from)));
    tests.push(Trial::test("not-found::is-an-error", || not_found().map_err(Failed::from)));
    tests.push(Trial::test("kept::as-long-as-the-tree", || kept().map_err(Failed::from)));
    libtest_mimic::run(&arguments, tests).exit();
}

fn this(verb: &str, what: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args([verb, what]).stdin(Stdio::null());
    command
}

/// The reading end of the witness.
struct Witness {
    pipe: std::io::PipeReader,
    heard: Vec<u8>,
}

impl Witness {
    /// Reads until `enough`, or to the end of file, which is `None`.
    fn hear<T>(&mut self, enough: impl Fn(&str) -> Option<T>) -> Result<Option<T>, String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = String::from_utf8_lossy(&self.heard);
            if let Some(found) = enough(&text) {
                return Ok(Some(found));
            }
            let mut fds = [PollFd::new(&self.pipe, PollFlags::IN)];
            wait(&mut fds, Some(deadline));
            if fds[0].revents().is_empty() {
                return Err(format!("waited in vain after {text:?}"));
            }
            let mut buffer = [0u8; 4096];
            match self.pipe.read(&mut buffer).map_err(|e| e.to_string())? {
                0 => return Ok(None),
                n => self.heard.extend_from_slice(&buffer[..n]),
            }
        }
    }

    /// Waits for every leaf, and returns the number of the command's parent.
    fn until_ready(&mut self, leaves: usize) -> Result<i32, String> {
        let ready = self.hear(|text| {
            let parent = text.lines().find_map(|line| line.strip_prefix("parent "))?;
            let here = text.lines().filter(|line| line.starts_with("leaf ")).count();
            (here >= leaves).then(|| parent.parse().ok())?
        })?;
        ready.ok_or_else(|| "the tree left before it was ready".into())
    }
}

fn run(sin: &str, leaves: usize, death: &str) -> Result<(), String> {
    let said = |e: std::io::Error| e.to_string();
    let mut bystander = this("__sin", "leaf").stdout(Stdio::null()).spawn().map_err(said)?;
    let (pipe, writer) = std::io::pipe().map_err(said)?;
    let mut witness = Witness { pipe, heard: Vec::new() };
    let mut owner =
        this("__own", sin).stdin(Stdio::piped()).stdout(writer).spawn().map_err(said)?;
    let verdict = play(&mut owner, &mut witness, leaves, death);
    let unharmed = bystander.try_wait().map_err(said)?.is_none();
    for child in [&mut owner, &mut bystander] {
        let _gone = child.kill();
        let _waited = child.wait();
    }
    verdict?;
    if unharmed { Ok(()) } else { Err("the bystander was harmed".into()) }
}

fn play(
    owner: &mut Child,
    witness: &mut Witness,
    leaves: usize,
    death: &str,
) -> Result<(), String> {
    let guardian = witness.until_ready(leaves)?;
    // Not before the owner knows of its tree: ending it during the start is another matter.
    witness.hear(|text| text.lines().any(|line| line == "up").then_some(()))?;
    let signal = |pid: i32| {
        let pid = Pid::from_raw(pid).ok_or("no number of a process")?;
        kill_process(pid, Signal::KILL).map_err(|e| e.to_string())
    };
    let mut tell = |word: &str| {
        let pipe = owner.stdin.as_mut().ok_or("no way to the owner")?;
        writeln!(pipe, "{word}").map_err(|e| e.to_string())
    };
    match death {
        "owner-killed" => signal(owner.id().cast_signed())?,
        "guardian-killed" => {
            signal(guardian)?;
            tell("await")?;
        }
        "guardian-killed-unheard" => signal(guardian)?,
        word => tell(word)?,
    }
    // Nobody says more than they have said; the end of file is what is waited for.
    match witness.hear(|_| None::<()>)? {
        None => {}
        Some(()) => unreachable!("nothing is enough"),
    }
    drop(owner.stdin.take());
    let left = owner.wait().map_err(|e| e.to_string())?;
    let should = !matches!(death, "panic" | "owner-killed");
    if left.success() == should { Ok(()) } else { Err(format!("the owner left with {left}")) }
}

/// Without us the same tree must leave somebody, and be seen to: the table can fail.
fn leak() -> Result<(), String> {
    let said = |e: std::io::Error| e.to_string();
    let (pipe, writer) = std::io::pipe().map_err(said)?;
    let mut witness = Witness { pipe, heard: Vec::new() };
    let mut server = this("__sin", "daemon").stdout(writer).spawn().map_err(said)?;
    witness.until_ready(1)?;
    server.kill().and_then(|()| server.wait()).map_err(said)?;
    // Whoever is left has the pipe.
    let mut fds = [PollFd::new(&witness.pipe, PollFlags::IN)];
    wait(&mut fds, Some(Instant::now() + RUNG));
    if !fds[0].revents().is_empty() {
        return Err("no survivor was seen".into());
    }
    let leaf = |text: &str| text.lines().find_map(|line| line.strip_prefix("leaf ")?.parse().ok());
    let leaf = witness.hear(leaf)?.and_then(Pid::from_raw).ok_or("a leaf without a number")?;
    kill_process(leaf, Signal::KILL).map_err(|e| e.to_string())
}

fn not_found() -> Result<(), String> {
    match Tree::spawn(spec("no-such-program-anywhere")) {
        Err(e) if e.exit_code() == 127 => Ok(()),
        Err(e) => Err(format!("another error: {e}")),
        Ok(_) => Err("it was started".into()),
    }
}

/// What the guardian keeps for its owner closes with the guardian and not before.
fn kept() -> Result<(), String> {
    let said = |e: std::io::Error| e.to_string();
    let (reader, writer) = std::io::pipe().map_err(said)?;
    let mut spec = spec("");
    spec.program = std::env::current_exe().map_err(said)?.into();
    spec.args = ["__sin", "leaf"].map(Into::into).into();
    spec.stdout = Stdio::null();
    let mark = Mark::random().map_err(said)?;
    let tree = Tree::spawn_marked(spec, mark, Some(writer.as_fd())).map_err(|e| e.to_string())?;
    drop(writer);
    let closes_within = |time: Duration| {
        let mut fds = [PollFd::new(&reader, PollFlags::IN)];
        wait(&mut fds, Some(Instant::now() + time));
        !fds[0].revents().is_empty()
    };
    if closes_within(RUNG) {
        return Err("it was not kept".into());
    }
    tree.close().map(drop).map_err(|e| e.to_string())?;
    if closes_within(PATIENCE) { Ok(()) } else { Err("somebody has it still".into()) }
}

fn spec(program: &str) -> Spec {
    Spec {
        holder: std::env::current_exe().expect("this program has a path"),
        program: program.into(),
        args: Vec::new(),
        env: None,
        cwd: None,
        stdin: Stdio::null(),
        stdout: Stdio::inherit(),
        stderr: Stdio::inherit(),
        backend: Choice::Auto,
        ladder: Ladder { grace: RUNG, term_grace: RUNG, ..Ladder::default() },
    }
}

/// Plays the owner: `EXE __own SIN`.
fn own(sin: &str) {
    let this = std::env::current_exe().expect("this program has a path");
    let mut spec = spec("");
    spec.program = this.into();
    spec.args = ["__sin", sin].map(Into::into).into();
    let mut tree = Some(Tree::spawn(spec).expect("the tree starts"));
    say("up");
    // From here on the witness is the tree's alone.
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null").expect("the null device");
    rustix::stdio::dup2_stdout(&null).expect("the witness is let go");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match line.as_str() {
            "close" => {
                let emptied = tree.take().expect("closed once").close().expect("nobody survives");
                let report = emptied.report();
                assert_eq!(report.seen, report.left + report.asked + report.killed, "{report:?}");
                assert!(report.seen > 0, "{report:?}");
            }
            "kill" => {
                let mut tree = tree.take().expect("killed once");
                tree.ask(lariat_contain::Ask::Kill);
                await_end(tree);
            }
            "await" => await_end(tree.take().expect("awaited once")),
            "drop" => drop(tree.take()),
            "panic" => panic!("as asked, with the tree on the stack"),
            _ => {}
        }
    }
}

fn await_end(mut tree: Tree) {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        match tree.event() {
            Some(Event::Ended(report)) => {
                assert!(report.survivors.is_empty(), "{report:?}");
                return;
            }
            Some(_) => {}
            None => {
                let soon = Instant::now() + RUNG;
                wait(&mut [PollFd::new(&tree, PollFlags::IN)], Some(soon));
            }
        }
    }
    panic!("no end was told");
}

/// Plays a server or one of its processes: `EXE __sin SIN`.
fn misbehave(sin: &str) {
    match sin {
        "leaf" => {
            say(&format!("leaf {}", std::process::id()));
            stay();
            return;
        }
        // A process between the command and the leaf, which leaves at once.
        "between" => {
            #[expect(clippy::zombie_processes, reason = "an orphan is what is wanted")]
            let _orphan = this("__sin", "leaf").spawn().expect("a leaf");
            return;
        }
        _ => {}
    }
    let parent = rustix::process::getppid().map_or(0, Pid::as_raw_pid);
    say(&format!("parent {parent}"));
    let mut child =
        this("__sin", if matches!(sin, "orphan" | "daemon") { "between" } else { "leaf" });
    match sin {
        "ignores-term" => {
            // SAFETY: SIG_IGN is no handler, so there is nothing that could run unsafely.
            unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
        }
        "own-group" => {
            child.process_group(0);
        }
        "own-session" | "daemon" => {
            // SAFETY: setsid is async-signal-safe.
            unsafe { child.pre_exec(|| Ok(rustix::process::setsid().map(|_| ())?)) };
        }
        _ => {}
    }
    let many = if sin == "wide" { LEAVES } else { 1 };
    let mut children: Vec<Child> =
        (0..many).map(|_| child.spawn().expect("a child is started")).collect();
    match sin {
        "leader-leaves" => {}
        "orphan" | "daemon" => {
            let _left = children[0].wait();
            stay();
        }
        _ => stay(),
    }
}

fn say(word: &str) {
    let mut out = std::io::stdout();
    let _unheard = out.write_all(format!("{word}\n").as_bytes()).and_then(|()| out.flush());
}

/// Stays until somebody ends it, but not for ever.
fn stay() {
    let deadline = Instant::now() + 3 * PATIENCE;
    while Instant::now() < deadline {
        wait(&mut [], Some(deadline));
    }
}
