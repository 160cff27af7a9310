//! The kernel says no, at each system call in turn: `strace` makes the Nth call of one kind fail,
//! or kills the caller there. Whatever fails, the run ends with a clear error or a clean end, and
//! nobody is left. A test's name is its fact: `cgroup-relay::guardian::open::EMFILE`.
//!
//! A fault goes to one process of a run and spares the others: the wrapper, the guardian, or the
//! command between fork and exec. strace counts calls per process but injects into all that it
//! follows, so the latter two are caught first: one strace follows everybody and stops them at a
//! call that only they make; it dies, and another, which follows nobody, brings the fault.
//!
//! `LARIAT_FAULTS=full` tries every call there is, every error and every column; otherwise a sample.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stderr, reason = "a test runner says what it skips")]

#[path = "faults/table.rs"]
mod table;

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use table::Target::{Child as Born, Guardian, Wrapper};
use table::{CALLS, COLUMNS, Call, Column, Fault, Target};
use trials::{Bystander, Process, Witness, until};

const LARIAT: &str = env!("CARGO_BIN_EXE_lariat");

/// How long a server may take to be up, or a run to say that it will not be.
const START: Duration = Duration::from_secs(10);
/// The ladder here is 0.4 s; then the holder waits a second for its guardian, then it looks for
/// five. The rest is for a busy machine.
const END: Duration = Duration::from_secs(12);
/// After a crash perhaps nobody is at work any more: the ladder, and some.
const CRASHED: Duration = Duration::from_secs(2);
/// How long a process that was stopped may ignore that it was told to go on.
const NUDGE: Duration = Duration::from_millis(500);

/// One test: the same fault at one call after the other.
#[derive(Clone, Copy)]
struct Case {
    column: Column,
    target: Target,
    /// The other of wrapper and guardian is killed once the server is up.
    alone: bool,
    call: &'static Call,
    fault: Fault,
}

#[expect(clippy::disallowed_methods, reason = "the one switch of this test")]
fn main() -> ExitCode {
    trials::misbehave_if_asked();
    let full = std::env::var_os("LARIAT_FAULTS").is_some_and(|how| how == "full");
    let missing = unable();
    if let Some(reason) = &missing {
        eprintln!("skipped faults: {reason}");
    }
    let playground = own_cgroup();
    if let Err(reason) = &playground {
        eprintln!("skipped faults::cgroup-*: {reason}");
    }
    let possible = |case: &Case| case.column.backend != "cgroup" || playground.is_ok();
    let trials = cases()
        .filter(|case| full || case.is_sample())
        .map(|case| {
            let skip = missing.is_some() || !possible(&case);
            Trial::test(case.name(), move || case.play(full)).with_ignored_flag(skip)
        })
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn cases() -> impl Iterator<Item = Case> {
    let pairs = CALLS.iter().flat_map(|call| call.by.iter().map(move |target| (call, *target)));
    pairs
        .flat_map(|(call, target)| {
            let once = call.errors.iter().map(|error| Fault::Once(error));
            let faults = once.chain([Fault::Lasting(call.errors[0]), Fault::Kill]);
            // No kernel interrupts for ever.
            let faults = faults.filter(|fault| *fault != Fault::Lasting("EINTR"));
            faults.flat_map(move |fault| {
                COLUMNS.iter().flat_map(move |&column| {
                    [false, true].map(|alone| Case { column, target, alone, call, fault })
                })
            })
        })
        .filter(|case| !(case.alone && case.target == Born))
        // Bytes pass through the wrapper alone; the others are the same in every mode.
        .filter(|case| case.target == Wrapper || case.column.main)
}

impl Case {
    fn name(&self) -> String {
        let Column { backend, mode, .. } = self.column;
        let target = match self.target {
            Born => "child".into(),
            other => format!("{other:?}").to_lowercase(),
        };
        let alone = if self.alone { "-alone" } else { "" };
        let fault = match self.fault {
            Fault::Once(error) => error.into(),
            Fault::Lasting(error) => format!("{error}-from-then-on"),
            Fault::Kill => "SIGKILL".into(),
        };
        format!("{backend}-{mode}::{target}{alone}::{}::{fault}", self.call.name)
    }

    fn is_sample(&self) -> bool {
        let sample = self.call.sample;
        let chosen = match self.fault {
            Fault::Once(error) => error == self.call.errors[0],
            Fault::Lasting(_) => sample.contains('l'),
            Fault::Kill => sample.contains('k'),
        };
        self.column.main && chosen && (!self.alone || sample.contains('a'))
    }

    /// Whether wrapper and guardian may both be dead, or the one before it had the other.
    fn is_crash(&self) -> bool {
        self.fault == Fault::Kill && (self.alone || self.target == Wrapper)
    }

    /// Injects at one call after the other, until there is none left.
    fn play(&self, full: bool) -> Result<(), Failed> {
        // A sample is dense where a run sets up and thin where it looks around.
        let step = |n: u32| if full || n < 3 { n + 1 } else { 2 * n - 1 };
        let mut n = 1;
        loop {
            let reached = self
                .attempt(n)
                .map_err(|what| format!("at call {n} of {}: {what}", self.call.set))?;
            n = step(n);
            if !reached || (!full && n > MANY) {
                return Ok(());
            }
        }
    }
}

impl Case {
    /// Plays one run. Handing a process from one strace to another can fail before any fault was
    /// injected; that says nothing about the wrapper, so the stage is set again, a few times.
    fn attempt(&self, n: u32) -> Result<bool, String> {
        for _ in 1..HANDOVERS {
            match Run::play(self, n) {
                Err(what) if what.starts_with(NOT_HANDED_OVER) => {}
                verdict => return verdict,
            }
        }
        Run::play(self, n)
    }
}

/// Calls after which a sample has seen enough: who makes so many looks again and again until its time
/// is over, and each look is like the one before.
const MANY: u32 = 1000;

/// How a hand-over that failed is reported, and how often it may.
const NOT_HANDED_OVER: &str = "no hand-over: ";
const HANDOVERS: u32 = 5;

/// One run of the wrapper with one fault, and everything that has to be cleaned up after it.
struct Run<'a> {
    case: &'a Case,
    token: String,
    dir: PathBuf,
    /// The cgroup the wrapper starts in: what it leaves there is its own.
    playground: Option<PathBuf>,
    witness: Witness,
    bystander: Option<Bystander>,
    wrapper: Option<Child>,
    tracer: Option<Child>,
}

impl<'a> Run<'a> {
    /// Plays it; says whether there was such a call at all, or what went wrong.
    fn play(case: &'a Case, n: u32) -> Result<bool, String> {
        let mut run = Run::set_up(case).map_err(|e| format!("the stage: {e}"))?;
        let verdict = run.act(n);
        let why = run.tear_down();
        match (verdict, why) {
            (Ok(reached), None) => Ok(reached),
            (Ok(_), Some(why)) => Err(why),
            (Err(why), _) => Err(why),
        }
    }

    fn set_up(case: &'a Case) -> io::Result<Run<'a>> {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let token = format!("faults-{}-{run}-x", std::process::id());
        let dir = std::env::temp_dir().join(&token);
        fs::create_dir(&dir)?;
        File::create(dir.join("roll"))?;
        let playground = match (case.column.backend, own_cgroup()) {
            ("cgroup", Ok(own)) => Some(own.join(&token)),
            _ => None,
        };
        playground.as_ref().map_or(Ok(()), fs::create_dir)?;
        let mut witness = Witness::new(&token, &[]);
        let mut run = Run {
            case,
            dir,
            playground,
            bystander: None,
            wrapper: None,
            tracer: None,
            witness: Witness::new(&token, &[]),
            token,
        };
        let mut command = Command::new(LARIAT);
        command.args(&run.server()[1..]);
        let bystander = Bystander::start(command, "look-alike")?;
        witness.spare(bystander.process());
        (run.bystander, run.witness) = (Some(bystander), witness);
        Ok(run)
    }

    /// A server with a deaf child in a session of its own.
    fn server(&self) -> Vec<String> {
        let roll = self.dir.join("roll").display().to_string();
        [LARIAT, "__misbehave", "setsid-child", &self.token, &roll].map(String::from).into()
    }

    fn act(&mut self, n: u32) -> Result<bool, String> {
        let Case { call, fault, target, .. } = *self.case;
        let inject = format!("inject={}:{}", call.set, fault.inject(n));
        let trace = format!("trace={}", call.set);
        let record = self.dir.join("trace").display().to_string();
        let with_fault = ["-q", "-o", &record, "-e", &trace, "-e", &inject];
        match target.snare() {
            None => self.start(&[&with_fault[..], &["-D"]].concat())?,
            // Nobody else makes this call, so everybody can be followed.
            Some(snare) if snare == call.set => {
                self.start(&[&with_fault[..], &["-D", "-f", "-b", "execve"]].concat())?;
            }
            Some(snare) => {
                let (trace, stop) =
                    (format!("trace={snare}"), format!("inject={snare}:signal=STOP:when=1"));
                let quiet = ["-q", "-o", "/dev/null", "-D", "-f", "-b", "execve"];
                self.start(&[&quiet[..], &["-e", &trace, "-e", &stop]].concat())?;
                self.hand_over(&with_fault)?;
            }
        }
        let started = self.await_server();
        let up = started.as_ref().is_ok_and(|up| *up);
        if self.case.alone && up {
            self.kill_the_other();
        }
        let ended = self.end();
        let reached = self.reached();
        started?;
        self.judge(ended?, reached)?;
        Ok(reached)
    }

    /// Starts the wrapper as our own child, under a strace that is not its parent (`-D`): it must
    /// not take the end of strace for the end of its host.
    fn start(&mut self, strace: &[&str]) -> Result<(), String> {
        let mut words: Vec<String> = Vec::new();
        if let Some(playground) = &self.playground {
            let enter = "echo $$ > \"$0\"/cgroup.procs && exec \"$@\"";
            words.extend(["sh", "-c", enter, &playground.display().to_string()].map(String::from));
        }
        words.push("strace".into());
        words.extend(strace.iter().map(ToString::to_string));
        words.extend(["--", LARIAT, "run"].map(String::from));
        words.extend(["--backend", self.case.column.backend].map(String::from));
        words.extend(["--grace", "100ms", "--term-grace", "50ms"].map(String::from));
        words.extend(["--state-dir".into(), self.state().display().to_string()]);
        let mode: &[&str] = match self.case.column.mode {
            "relay" => &["--relay"],
            "watched" => &["--idle", "1h"],
            _ => &[],
        };
        words.extend(mode.iter().map(ToString::to_string));
        words.push("--".into());
        words.extend(self.server());
        let stderr = File::create(self.dir.join("stderr")).map_err(|e| e.to_string())?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        self.wrapper = Some(command.spawn().map_err(|e| format!("{}: {e}", words[0]))?);
        Ok(())
    }

    /// Waits until the target is caught, and passes it from the strace that caught it to the one
    /// with the fault.
    fn hand_over(&mut self, with_fault: &[&str]) -> Result<(), String> {
        let wrapper = self.wrapper_pid();
        let mut caught = None;
        until(START, || {
            for process in self.witness.look() {
                let (state, parent) = state(process.pid).unwrap_or_default();
                if !is_ours(process) || process.pid == wrapper || state != 't' {
                    continue;
                }
                if (parent == wrapper) == (self.case.target == Guardian) {
                    caught = Some(process);
                } else {
                    // The guardian makes the same call before its child does.
                    signal(process, Signal::CONT);
                }
            }
            caught.is_some()
        });
        let caught = caught.ok_or_else(|| format!("{NOT_HANDED_OVER}the target was not caught"))?;
        // A stop that strace was about to deliver dies with it; this one does not.
        signal(caught, Signal::STOP);
        if let Some(first) = Process::now(tracer_of(caught.pid)) {
            signal(first, Signal::KILL);
        }
        let is = |mark: char| state(caught.pid).is_some_and(|(state, _)| state == mark);
        if !until(START, || tracer_of(caught.pid) == 0 && is('T')) {
            return Err(format!("{NOT_HANDED_OVER}the first strace did not let go"));
        }
        let mut strace = Command::new("strace");
        strace.args(with_fault).args(["-b", "execve", "-p", &caught.pid.to_string()]);
        strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let tracer = strace.spawn().map_err(|e| e.to_string())?;
        let id = tracer.id() as i32;
        self.tracer = Some(tracer);
        // Traced and at rest: from here on no call is missed.
        if !until(START, || tracer_of(caught.pid) == id && is('t')) {
            return Err(format!("{NOT_HANDED_OVER}the second strace did not take hold"));
        }
        let mut told = Instant::now();
        signal(caught, Signal::CONT);
        until(START, || {
            // strace may be in the middle of taking note of the stop.
            if told.elapsed() > NUDGE {
                told = Instant::now();
                signal(caught, Signal::CONT);
            }
            !is('T') && !is('t')
        });
        Ok(())
    }

    /// True once the server is up, false if the wrapper ended before that.
    fn await_server(&mut self) -> Result<bool, String> {
        let roll = self.dir.join("roll");
        let up = || fs::read_to_string(&roll).unwrap_or_default().matches("up").count() >= 2;
        let mut over = false;
        until(START, || {
            over = self.wrapper_status().is_some();
            over || up()
        });
        match (up(), over) {
            (true, _) => Ok(true),
            (false, true) => Ok(false),
            (false, false) => Err(format!("neither up nor over after {START:?}: {}", self.crowd())),
        }
    }

    fn kill_the_other(&mut self) {
        let wrapper = self.wrapper_pid();
        let is_other = |process: &Process| {
            let name = fs::read_to_string(format!("/proc/{}/comm", process.pid));
            match self.case.target {
                Wrapper => name.is_ok_and(|name| name.trim_end() == "lariat-guardian"),
                _ => process.pid == wrapper,
            }
        };
        if let Some(other) = self.witness.look().into_iter().find(is_other) {
            signal(other, Signal::KILL);
        }
    }

    /// The host closes its end and waits.
    fn end(&mut self) -> Result<ExitStatus, String> {
        drop(self.wrapper.as_mut().and_then(|wrapper| wrapper.stdin.take()));
        if !until(END, || self.wrapper_status().is_some()) {
            return Err(format!("no end {END:?} after stdin was closed: {}", self.crowd()));
        }
        let status = self.wrapper_status().ok_or("no status")?;
        let patience = if self.case.is_crash() { CRASHED } else { END };
        // Where nobody of ours is left, those who are stay until the next command.
        until(patience, || self.witness.nobody_in(2) || (0..2).all(|_| self.is_abandoned()));
        Ok(status)
    }

    /// Whether neither the wrapper nor its guardian is there, nor the strace that follows them and
    /// leaves after them.
    fn is_abandoned(&mut self) -> bool {
        !self.witness.look().into_iter().any(|process| is_ours(process) || is_strace(process))
    }

    /// Whether the target made that call, by strace's own record.
    fn reached(&mut self) -> bool {
        if let Some(tracer) = &mut self.tracer {
            until(END, || !matches!(tracer.try_wait(), Ok(None)));
        }
        let record = fs::read_to_string(self.dir.join("trace")).unwrap_or_default();
        match self.case.fault {
            Fault::Kill => record.contains("+++ killed by SIGKILL"),
            _ => record.contains("(INJECTED)"),
        }
    }

    /// What must hold after every run.
    fn judge(&mut self, status: ExitStatus, reached: bool) -> Result<(), String> {
        let said = fs::read_to_string(self.dir.join("stderr")).unwrap_or_default();
        let killed = self.case.alone && self.case.target == Guardian
            || self.case.fault == Fault::Kill && self.case.target == Wrapper;
        match status.code() {
            // The server's own code, also if it was asked to leave or killed.
            Some(0 | 137 | 143) => {}
            Some(125..=127) if explains(&said) || self.is_gagged() => {}
            None if killed => {}
            _ => return Err(format!("{status}, saying {said:?}")),
        }
        let left = self.witness.look();
        let (pages, leaves) = (self.pages(), self.leaves());
        if pages.is_empty() && !(left.is_empty() && leaves.is_empty()) {
            let crowd = self.crowd();
            let told = fs::read_to_string(self.state().join("events.jsonl")).unwrap_or_default();
            return Err(format!(
                "left, and not in the books: {crowd} {leaves:?}; {status}, {said:?}, \
                 fault met: {reached}, {told}"
            ));
        }
        let crashed = reached && self.case.is_crash();
        let nothing_left = left.is_empty() && leaves.is_empty();
        if !crashed && nothing_left && !pages.is_empty() && self.case.call.name != "unlink" {
            return Err(format!(
                "nobody is left, but in the books are {pages:?}; {status}, {said:?}"
            ));
        }
        self.judge_sweep()
    }

    /// Whatever was left, the next command finishes it.
    fn judge_sweep(&mut self) -> Result<(), String> {
        let mut next = Command::new(LARIAT);
        next.args(["run", "--state-dir"]).arg(self.state()).args(["--", "true"]);
        next.stdin(Stdio::null());
        let output = next.output().map_err(|e| e.to_string())?;
        if !output.status.success() {
            return Err(format!("the next command: {output:?}"));
        }
        until(START, || self.witness.nobody_in(2));
        let pages: Vec<_> = self.pages().into_iter().filter(|p| p.ends_with(".json")).collect();
        let (crowd, leaves) = (self.crowd(), self.leaves());
        if !(crowd.is_empty() && pages.is_empty() && leaves.is_empty()) {
            return Err(format!("left after the next command: {crowd} {pages:?} {leaves:?}"));
        }
        self.bystander.as_ref().and_then(Bystander::harm).map_or(Ok(()), Err)
    }

    /// Nobody can say why if saying is what fails.
    fn is_gagged(&self) -> bool {
        self.case.call.name == "write" && matches!(self.case.fault, Fault::Lasting(_))
    }

    fn wrapper_pid(&self) -> i32 {
        self.wrapper.as_ref().map_or(0, |wrapper| wrapper.id() as i32)
    }

    fn wrapper_status(&mut self) -> Option<ExitStatus> {
        self.wrapper.as_mut()?.try_wait().ok()?
    }

    fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// The books' files.
    fn pages(&self) -> Vec<String> {
        names(&self.state().join("sessions"))
    }

    /// The cgroups that are left.
    fn leaves(&self) -> Vec<String> {
        let inside = self.playground.as_deref().map(names).unwrap_or_default();
        inside.into_iter().filter(|name| name.starts_with("lariat-")).collect()
    }

    fn crowd(&mut self) -> String {
        let left = self.witness.look();
        let lines: Vec<_> = left.iter().map(|process| self.witness.describe(*process)).collect();
        lines.join("; ")
    }

    /// Ends everything of this run, each process by its identity; says what would not go.
    fn tear_down(&mut self) -> Option<String> {
        let remaining = self.witness.end_all();
        for mut child in [self.wrapper.take(), self.tracer.take()].into_iter().flatten() {
            // The tracer follows its tracee; where that is not so it is ours to end.
            if !until(NUDGE, || !matches!(child.try_wait(), Ok(None))) {
                child.kill().ok();
                child.wait().ok();
            }
        }
        if let Some(bystander) = self.bystander.take() {
            bystander.end();
        }
        if let Some(playground) = &self.playground {
            for leaf in self.leaves() {
                fs::remove_dir(playground.join(leaf)).ok();
            }
            // The last member may be a zombie for a moment.
            until(NUDGE, || fs::remove_dir(playground).is_ok());
        }
        fs::remove_dir_all(&self.dir).ok();
        (!remaining.is_empty()).then(|| format!("cannot be ended: {remaining:?}"))
    }
}

/// Whether an error message says what failed. Before `main` it is the loader's to say.
fn explains(said: &str) -> bool {
    said.starts_with("lariat: ") || said.contains("error while loading shared libraries")
}

/// What is in a directory, if it is there. Whoever cannot look has seen nothing, which is no verdict.
fn names(dir: &Path) -> Vec<String> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Vec::new(),
        entries => entries.expect("the directory can be read"),
    };
    let entries = entries.map(|entry| entry.expect("all of it can be read"));
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Sends a signal to this very process and to no successor of its pid.
/// Whether it is a wrapper or a guardian.
fn is_ours(process: Process) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
    line.starts_with(format!("{LARIAT}\0run\0").as_bytes())
}

fn is_strace(process: Process) -> bool {
    let name = fs::read_to_string(format!("/proc/{}/comm", process.pid)).unwrap_or_default();
    name.trim_end() == "strace"
}

fn signal(process: Process, signal: Signal) {
    let pidfd =
        Pid::from_raw(process.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    if let Some(pidfd) = pidfd.filter(|_| Process::now(process.pid) == Some(process)) {
        // Gone in between is as good.
        pidfd_send_signal(pidfd, signal).ok();
    }
}

/// A process's state, as one letter, and its parent.
fn state(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Who traces a process; 0 for nobody.
fn tracer_of(pid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    field.and_then(|pid| pid.trim().parse().ok()).unwrap_or(0)
}

/// Why faults cannot be injected here.
fn unable() -> Option<String> {
    let mut strace = Command::new("strace");
    strace.args(["-q", "-D", "-o", "/dev/null", "-b", "execve"]);
    strace.args(["-e", "inject=?fork,getrandom:error=ENOSYS:when=1000", "--", "true"]);
    match strace.output() {
        Err(e) => return Some(format!("strace: {e}")),
        Ok(done) if !done.status.success() => {
            return Some(format!("strace: {}", String::from_utf8_lossy(&done.stderr).trim()));
        }
        Ok(_) => {}
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let free = scope.trim().is_empty() || scope.trim() == "0";
    (!free && !rustix::process::geteuid().is_root())
        .then(|| format!("only root may trace a process that is not its child ({})", scope.trim()))
}

/// The directory of our own cgroup, if we may make others in it.
fn own_cgroup() -> Result<PathBuf, String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let mut fields = mount.ok_or("no cgroup v2 is mounted")?.split(' ').skip(3);
    let (root, point) = (fields.next().unwrap_or("/"), fields.next().unwrap_or("/"));
    let groups = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::")).ok_or("in no cgroup v2")?;
    let inside = Path::new(own).strip_prefix(root).map_err(|e| e.to_string())?;
    let own = Path::new(point).join(inside);
    let writable = rustix::fs::access(own.join("cgroup.procs"), rustix::fs::Access::WRITE_OK);
    writable.map_err(|e| format!("{}: {e}", own.display()))?;
    Ok(own)
}
