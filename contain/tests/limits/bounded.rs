//! The parts of these tests that are played by other processes: the holder, and commands that use
//! what they are told to. None of them lives longer than [`LIFETIME`], whatever happens.

use lariat_contain::{
    Ask, Backend, Choice, Command, Event, Exit, Hold, Ladder, Leaf, Limits, Mark, Options, Signals,
    leave, probe, signal,
};
use libtest_mimic::Failed;
use rustix::time::{ClockId, clock_gettime};
use std::env;
use std::ffi::OsString;
use std::hint::black_box;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

pub(crate) const BACKENDS: [Backend; 3] = [Backend::Cgroup, Backend::Descent, Backend::Pidns];

/// In seconds.
const LIFETIME: u32 = 40;

const HOLD: &str = "__bounded";
const ACT: &str = "__act";

/// What the command does. It says `ready` when it has become that.
#[derive(Clone, Copy)]
pub(crate) enum Act {
    /// Has so many children with so much memory each; says `refused` if it may not.
    Eaters(u32, u64),
    /// Has so much memory, and so many children that share it.
    Sharers(u32, u64),
    /// Has so many children that never rest.
    Spinners(u32),
    /// Had a child and an orphan that each used so many milliseconds of CPU time and ended.
    Burnt(u64),
}

impl Act {
    fn words(self) -> [String; 3] {
        let (name, number, amount) = match self {
            Act::Eaters(number, bytes) => ("eaters", number, bytes),
            Act::Sharers(number, bytes) => ("sharers", number, bytes),
            Act::Spinners(number) => ("spinners", number, 0),
            Act::Burnt(ms) => ("burnt", 1, ms),
        };
        [name.into(), number.to_string(), amount.to_string()]
    }
}

/// What the holder said at the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct Begun {
    pub(crate) backend: String,
    /// A digit each for memory, processes and CPU.
    pub(crate) enforced: String,
}

/// What the holder saw.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) memory: u64,
    pub(crate) cpu: Duration,
    pub(crate) processes: usize,
    pub(crate) tasks: usize,
    pub(crate) breach: String,
}

/// What the holder said in the end.
#[derive(Debug, Clone)]
pub(crate) struct End {
    pub(crate) exit: String,
    pub(crate) breach: String,
    survivors: String,
}

/// A holder, as the test sees it. Dropping it ends its tree.
pub(crate) struct Held {
    holder: Child,
    orders: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
    begun: Begun,
    said: Vec<String>,
    end: Option<End>,
}

impl Held {
    /// Has a tree held; its leaf goes into `place`, or where it would go by itself.
    pub(crate) fn start(backend: Backend, place: Option<&Path>, limits: Limits, act: Act) -> Held {
        Held::spawn(backend, [place, None], limits, act)
    }

    /// Has a tree held by a holder that lives in this cgroup.
    pub(crate) fn start_within(place: &Path, limits: Limits, act: Act) -> Held {
        Held::spawn(Backend::Cgroup, [None, Some(place)], limits, act)
    }

    fn spawn(backend: Backend, places: [Option<&Path>; 2], limits: Limits, act: Act) -> Held {
        let mut command = process::Command::new(env::current_exe().expect("this binary"));
        command.args([HOLD, backend.name()]);
        command.args(places.map(|place| place.unwrap_or(Path::new(""))));
        command.arg(limits.memory.map_or(String::new(), |n| n.to_string()));
        command.arg(limits.processes.map_or(String::new(), |n| n.to_string()));
        command.arg(limits.cpu.map_or(String::new(), |n| n.to_string()));
        command.args(act.words());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = command.spawn().expect("a holder");
        Held {
            orders: holder.stdin.take(),
            lines: BufReader::new(holder.stdout.take().expect("a pipe")),
            holder,
            begun: Begun::default(),
            said: Vec::new(),
            end: None,
        }
    }

    /// Takes in the next line; false when there is none any more. What was seen is returned.
    fn hear(&mut self) -> (bool, Option<Seen>) {
        let mut line = String::new();
        if self.lines.read_line(&mut line).unwrap_or(0) == 0 {
            return (false, None);
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        let mut word = || words.next().unwrap_or_default();
        match word().as_str() {
            "begun" => self.begun = Begun { backend: word(), enforced: word() },
            "ended" => self.end = Some(End { exit: word(), breach: word(), survivors: word() }),
            "seen" => {
                let mut number = || word().parse::<u64>().expect("a number");
                let (memory, cpu) = (number(), Duration::from_micros(number()));
                let (processes, tasks) = (number() as usize, number() as usize);
                return (true, Some(Seen { memory, cpu, processes, tasks, breach: word() }));
            }
            _ => self.said.push(line.trim_end().into()),
        }
        (true, None)
    }

    /// Waits until the tree has begun and the command has said this.
    pub(crate) fn expect(&mut self, word: &str) -> Result<Begun, Failed> {
        while self.begun.backend.is_empty() || !self.said.iter().any(|said| said == word) {
            if !self.hear().0 || self.end.is_some() {
                return Err(format!("no {word}: {:?}, {:?}", self.said, self.end).into());
            }
        }
        Ok(self.begun.clone())
    }

    /// What the holder sees now; `None` if the tree has ended.
    pub(crate) fn look(&mut self) -> Option<Seen> {
        self.orders.as_mut()?.write_all(b"\n").ok()?;
        loop {
            match self.hear() {
                (true, None) if self.end.is_none() => {}
                (_, seen) => return seen,
            }
        }
    }

    /// Waits for an end that nobody asks for.
    pub(crate) fn until_it_ends(&mut self) -> Result<(Begun, End), Failed> {
        while self.end.is_none() && self.hear().0 {}
        let end = self.end.clone().ok_or_else(|| format!("no end: {:?}", self.said))?;
        match end.survivors.as_str() {
            "0" => Ok((self.begun.clone(), end)),
            many => Err(format!("{many} survivors").into()),
        }
    }

    /// Ends the tree.
    pub(crate) fn end(&mut self) -> Result<End, Failed> {
        self.orders = None;
        self.until_it_ends().map(|(_, end)| end)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.orders = None;
        // The holder leaves when its tree has.
        let _reaped = self.holder.wait();
    }
}

/// Plays a part and never returns, if the command line says so.
pub(crate) fn play_if_asked() {
    let mut args = env::args_os().skip(1);
    let part = args.next().unwrap_or_default();
    let words: Vec<String> = args.map(|word| word.to_string_lossy().into_owned()).collect();
    if part == HOLD {
        leave(i32::from(hold(&words).is_none()));
    }
    if part == ACT {
        // SAFETY: alarm takes a number and touches no memory of ours.
        unsafe { libc::alarm(LIFETIME) };
        let played = act(&words).is_ok();
        leave(i32::from(!played));
    }
}

fn say(line: &str) {
    // Whoever listened has gone, and this process goes as well.
    let _unheard = io::stdout().write_all(format!("{line}\n").as_bytes());
}

fn hold(words: &[String]) -> Option<()> {
    let [backend, place, within, memory, processes, cpu, act @ ..] = words else { return None };
    if !within.is_empty() {
        std::fs::write(Path::new(within).join("cgroup.procs"), "0").ok()?;
    }
    let mark = Mark::random().ok()?;
    let machine = probe(Choice::Named(Backend::named(backend)?), mark).ok()?;
    let mut leaf: Option<PathBuf> = machine.leaf;
    if !place.is_empty() {
        leaf = Some(Path::new(place).join(Leaf::plan(mark).ok()?.file_name()?));
    }
    let signals = Signals::block(&[signal::SIGCHLD]).ok()?;
    let (stdin, _open) = io::pipe().ok()?;
    let mut args = vec![OsString::from(ACT)];
    args.extend(act.iter().map(OsString::from));
    let command = Command {
        program: env::current_exe().ok()?.into(),
        args,
        env: Vec::new(),
        stdin: stdin.into(),
        stdout: io::stdout().as_fd().try_clone_to_owned().ok()?,
        stderr: io::stderr().as_fd().try_clone_to_owned().ok()?,
    };
    let options = Options {
        ladder: Ladder::default(),
        backend: machine.backend,
        strict: true,
        mark,
        leaf: leaf.as_deref(),
        keep: &[],
        drain: None,
        host: None,
        signals: &signals,
        limits: Limits {
            memory: memory.parse().ok(),
            processes: processes.parse().ok(),
            cpu: cpu.parse().ok(),
        },
    };
    let mut hold = Hold::spawn(command, &options, |_| {}).ok()?;
    let (input, mut open) = (io::stdin(), true);
    loop {
        while let Some(event) = hold.event() {
            match event {
                Event::Started => {
                    let enforced = hold.enforced();
                    let digits = [enforced.memory, enforced.processes, enforced.cpu]
                        .map(|holds| if holds { "1" } else { "0" });
                    say(&format!("begun {} {}", hold.backend().name(), digits.concat()));
                }
                Event::Failed(error) => {
                    say(&format!("failed {error}"));
                    return None;
                }
                Event::Exited(_) | Event::GuardianDied => {}
                Event::Ended(report) => {
                    let exit = match report.exit {
                        Some(Exit::Code(n)) => format!("code:{n}"),
                        Some(Exit::Signal(n)) => format!("signal:{n}"),
                        None => "unknown".into(),
                    };
                    let same = report.breach == hold.breach();
                    let breach = report.breach.map_or("none", lariat_contain::Breach::name);
                    let breach = if same { breach } else { "forgotten" };
                    say(&format!("ended {exit} {breach} {}", report.survivors.len()));
                    hold.done();
                    return Some(());
                }
            }
        }
        hold.wait(&signals, open.then(|| input.as_fd()), None);
        while signals.next().is_some() {}
        let mut waiting = [rustix::event::PollFd::new(&input, rustix::event::PollFlags::IN)];
        lariat_contain::wait(&mut waiting, Some(std::time::Instant::now()));
        if open && !waiting[0].revents().is_empty() {
            let mut orders = [0; 64];
            let number = rustix::io::read(&input, &mut orders).ok()?;
            if number == 0 {
                open = false;
                hold.ask(Ask::Kill);
            }
            for _ in 0..number {
                let usage = hold.usage();
                let breach = hold.breach().map_or("none", lariat_contain::Breach::name);
                let (memory, cpu) = (usage.memory, usage.cpu.as_micros());
                let (processes, tasks) = (usage.processes, usage.tasks);
                say(&format!("seen {memory} {cpu} {processes} {tasks} {breach}"));
            }
        }
    }
}

fn act(words: &[String]) -> Result<(), io::Error> {
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok()).unwrap_or(0);
    let (number, amount) = (number(1), number(2));
    match words.first().map_or("", String::as_str) {
        "eaters" => {
            let mut children = Vec::new();
            for _ in 0..number {
                match child("eat", amount) {
                    Ok(eater) => children.push(eater),
                    Err(_) => {
                        say("refused");
                        break;
                    }
                }
            }
            if children.len() == number && children.iter_mut().all(has_spoken) {
                say("ready");
            }
            sit()
        }
        "eat" => {
            let eaten = black_box(vec![1u8; amount]);
            say("ate");
            sit()?;
            drop(eaten);
            Ok(())
        }
        "sharers" => {
            let shared = black_box(vec![1u8; amount]);
            for _ in 0..number {
                // SAFETY: this process has one thread, so the child may do whatever it may.
                if unsafe { libc::fork() } == 0 {
                    return sit();
                }
            }
            say("ready");
            sit()?;
            drop(shared);
            Ok(())
        }
        "spinners" => {
            let spinners: Result<Vec<_>, _> = (0..number).map(|_| child("spin", 0)).collect();
            if spinners?.iter_mut().all(has_spoken) {
                say("ready");
            }
            sit()
        }
        "spin" => {
            say("spinning");
            loop {
                black_box(0);
            }
        }
        "burnt" => {
            child("burn", amount)?.wait()?;
            let mut parent = child("orphan", amount)?;
            parent.wait()?;
            // Ends when the orphan does, which has this end too.
            io::copy(parent.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?, &mut io::sink())?;
            say("ready");
            sit()
        }
        "orphan" => {
            let mut command = process::Command::new(env::current_exe()?);
            command.args([ACT, "burn", "1", &amount.to_string()]);
            command.spawn().map(drop)
        }
        "burn" => {
            let used = || {
                let time = clock_gettime(ClockId::ProcessCPUTime);
                Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
            };
            while used() < Duration::from_millis(amount as u64) {
                black_box(0);
            }
            Ok(())
        }
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn child(name: &str, amount: usize) -> Result<Child, io::Error> {
    let mut command = process::Command::new(env::current_exe()?);
    command.args([ACT, name, "1", &amount.to_string()]).stdout(Stdio::piped());
    command.spawn()
}

fn has_spoken(child: &mut Child) -> bool {
    let mut byte = [0];
    child.stdout.as_mut().is_some_and(|stdout| stdout.read_exact(&mut byte).is_ok())
}

/// Waits for the end of input, which is the holder's.
fn sit() -> Result<(), io::Error> {
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}
