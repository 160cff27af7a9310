//! Trees that want more than they may have, and whether what they use is what is said of them.
//!
//! The holder is this binary again: it must have one thread, and a test runner has several. It says
//! on its standard output what it sees, one line each, and so does the command that it holds.

#[path = "bounded.rs"]
mod bounded;

use bounded::{Act, BACKENDS, Held, Seen};
use lariat_contain::{Backend, Choice, Limits, Mark, probe};
use libtest_mimic::{Arguments, Failed, Trial};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// How long anything here may take on a machine that has the time.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the kernel needs to have for the limits to hold.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

const ALL: Limits = Limits { memory: Some(512 * MIB), processes: Some(64), cpu: Some(4.0) };

type Verdict = Result<(), Failed>;

pub(crate) fn main() -> ExitCode {
    bounded::play_if_asked();
    let mut tests = Vec::new();
    for backend in BACKENDS {
        let possible = possible(backend);
        if let Err(why) = &possible {
            eprintln!("skipped {}::*: {why}", backend.name());
        }
        let mut add = |name: &str, test: fn(Backend) -> Verdict| {
            let name = format!("{}::{name}", backend.name());
            let test = Trial::test(name, move || test(backend));
            tests.push(test.with_ignored_flag(possible.is_err()));
        };
        add("usage-adds-up", usage_adds_up);
        add("the-time-of-the-dead-counts", the_time_of_the_dead_counts);
        add("shared-pages-are-counted-once", shared_pages_are_counted_once);
        if backend != Backend::Cgroup {
            add("nothing-is-enforced", nothing_is_enforced);
        }
    }
    let lived_in = possible(Backend::Cgroup).and_then(|()| top());
    let test = Trial::test("cgroup::a-place-where-others-live-is-left-alone", || {
        others_are_left_alone(&top()?)
    });
    tests.push(test.with_ignored_flag(lived_in.is_err()));
    let place = Place::find();
    if let Err(why) = &place {
        eprintln!("skipped enforced::*: {why}");
    }
    let mut add = |name: &str, test: fn(&Place) -> Verdict| {
        let test = Trial::test(format!("enforced::{name}"), move || test(&Place::find()?));
        tests.push(test.with_ignored_flag(place.is_err()));
    };
    add("memory-ends-the-tree-whole", memory_ends_the_tree_whole);
    add("another-process-is-refused", another_process_is_refused);
    add("cpu-is-shared-out", cpu_is_shared_out);
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Whether this machine has the backend.
fn possible(backend: Backend) -> Result<(), String> {
    let mark = Mark::random().map_err(|e| e.to_string())?;
    probe(Choice::Named(backend), mark).map_err(|e| e.to_string())?;
    match backend {
        Backend::Pidns if !rustix::process::geteuid().is_root() => Err("needs root".into()),
        _ => Ok(()),
    }
}

/// The cgroup that we are in.
fn own() -> Result<PathBuf, String> {
    let planned = lariat_contain::Leaf::plan(Mark::random().map_err(|e| e.to_string())?)?;
    Ok(planned.parent().ok_or("a leaf without a parent")?.into())
}

/// The root of all cgroups, as far up as we can see.
fn top() -> Result<PathBuf, String> {
    let own = own()?;
    let above = own.ancestors().take_while(|dir| dir.join("cgroup.procs").exists());
    above.last().map(Path::to_owned).ok_or_else(|| "not in a cgroup".into())
}

fn names(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// A cgroup below which the kernel holds trees to their limits.
struct Place {
    dir: PathBuf,
    made: bool,
}

impl Place {
    fn find() -> Result<Place, String> {
        let (own, top) = (own()?, top()?);
        let lacks = |file: &str| {
            let there = names(&top.join(file));
            let has = |name: &str| there.split_ascii_whitespace().any(|word| word == name);
            CONTROLLERS.into_iter().find(|name| !has(name))
        };
        if let Some(missing) = lacks("cgroup.controllers") {
            return Err(format!("{} has no {missing} controller", top.display()));
        }
        if own == top && !top.join("cgroup.type").exists() {
            return Ok(Place { dir: top, made: false });
        }
        if let Some(missing) = lacks("cgroup.subtree_control") {
            return Err(format!("{} hands down no {missing}", top.display()));
        }
        Place::make(&top, "empty")
    }

    /// A new cgroup in which nobody lives.
    fn make(top: &Path, name: &str) -> Result<Place, String> {
        let number = Mark::random().map_err(|e| e.to_string())?.number();
        let dir = top.join(format!("lariat-limits-{name}-{number:x}"));
        fs::create_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(Place { dir, made: true })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.made {
            let removed = trials::until(PATIENCE, || fs::remove_dir(&self.dir).is_ok());
            assert!(removed || std::thread::panicking(), "{} stays", self.dir.display());
        }
    }
}

fn check(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(what().into()) }
}

/// Looks until what is seen is right, or says what was seen last.
fn sees(held: &mut Held, right: impl Fn(&Seen) -> bool) -> Result<Seen, Failed> {
    let mut last = None;
    let found = trials::until(PATIENCE, || {
        last = held.look();
        last.as_ref().is_none_or(&right)
    });
    match last {
        Some(seen) if found => Ok(seen),
        other => Err(format!("never seen; last was {other:?}").into()),
    }
}

fn usage_adds_up(backend: Backend) -> Verdict {
    let mut held = Held::start(backend, None, Limits::default(), Act::Eaters(3, 20 * MIB));
    held.expect("ready")?;
    let seen = sees(&mut held, |seen| seen.processes == 4)?;
    check(seen.tasks == 4, || format!("{} tasks", seen.tasks))?;
    // The programs themselves have a few more.
    let fair = 60 * MIB..120 * MIB;
    check(fair.contains(&seen.memory), || format!("{} bytes", seen.memory))?;
    held.end().map(drop)
}

fn the_time_of_the_dead_counts(backend: Backend) -> Verdict {
    let began = Instant::now();
    let mut held = Held::start(backend, None, Limits::default(), Act::Burnt(300));
    // One child was waited for by the command, an orphan by the guardian; none is there any more.
    held.expect("ready")?;
    let seen = sees(&mut held, |seen| seen.processes == 1)?;
    let most = began.elapsed() * 2;
    // Each of the two, and each kind of its time, may be a clock tick short.
    let fair = Duration::from_millis(550)..most.max(Duration::from_millis(900));
    check(fair.contains(&seen.cpu), || format!("{:?} of {most:?}", seen.cpu))?;
    held.end().map(drop)
}

fn shared_pages_are_counted_once(backend: Backend) -> Verdict {
    // Four processes share 40 MiB. Only where it matters is that looked at closely.
    for (limit, fair) in [(None, 150 * MIB..300 * MIB), (Some(100 * MIB), 40 * MIB..100 * MIB)] {
        let limits = Limits { memory: limit, ..Limits::default() };
        let mut held = Held::start(backend, None, limits, Act::Sharers(3, 40 * MIB));
        let enforced = held.expect("ready")?.enforced;
        let seen = sees(&mut held, |seen| seen.processes == 4)?;
        // What the kernel charges for is shared in any case.
        let charged = enforced.starts_with('1') && seen.memory < 100 * MIB;
        check(charged || fair.contains(&seen.memory), || format!("{} bytes", seen.memory))?;
        held.end()?;
    }
    Ok(())
}

fn nothing_is_enforced(backend: Backend) -> Verdict {
    let mut held = Held::start(backend, None, ALL, Act::Eaters(0, 0));
    let begun = held.expect("ready")?;
    check(begun.enforced == "000", || begun.enforced.clone())?;
    let end = held.end()?;
    check(end.breach == "none", || end.breach.clone())
}

/// A cgroup in which somebody lives keeps its children as they were, and the tree is held in it.
fn others_are_left_alone(top: &Path) -> Verdict {
    let place = Place::make(top, "lived-in")?;
    let control = place.dir.join("cgroup.subtree_control");
    let before = names(&control);
    let mut held = Held::start_within(&place.dir, ALL, Act::Eaters(1, MIB));
    let begun = held.expect("ready")?;
    check(begun.backend == "cgroup", || begun.backend.clone())?;
    check(begun.enforced == "000", || format!("enforced: {}", begun.enforced))?;
    sees(&mut held, |seen| seen.processes == 2)?;
    check(names(&control) == before, || format!("{} now", names(&control)))?;
    held.end().map(drop)
}

fn memory_ends_the_tree_whole(place: &Place) -> Verdict {
    let limits = Limits { memory: Some(48 * MIB), ..Limits::default() };
    // It is a child that eats; the command itself only waits.
    let mut held =
        Held::start(Backend::Cgroup, Some(&place.dir), limits, Act::Eaters(1, 200 * MIB));
    let (begun, end) = held.until_it_ends()?;
    check(begun.enforced == "100", || format!("enforced: {}", begun.enforced))?;
    check(end.exit == "signal:9", || format!("the command ended by {}", end.exit))?;
    check(end.breach == "memory", || format!("breach: {}", end.breach))
}

fn another_process_is_refused(place: &Place) -> Verdict {
    let limits = Limits { processes: Some(12), ..Limits::default() };
    let mut held = Held::start(Backend::Cgroup, Some(&place.dir), limits, Act::Eaters(40, 0));
    let begun = held.expect("refused")?;
    check(begun.enforced == "010", || format!("enforced: {}", begun.enforced))?;
    let seen = sees(&mut held, |seen| seen.breach == "processes")?;
    check((2..=12).contains(&seen.tasks), || format!("{} tasks", seen.tasks))?;
    let end = held.end()?;
    check(end.breach == "processes", || format!("in the end: {}", end.breach))
}

fn cpu_is_shared_out(place: &Place) -> Verdict {
    let limits = Limits { cpu: Some(0.25), ..Limits::default() };
    let mut held = Held::start(Backend::Cgroup, Some(&place.dir), limits, Act::Spinners(2));
    let begun = held.expect("ready")?;
    check(begun.enforced == "001", || format!("enforced: {}", begun.enforced))?;
    let (began, first) = (Instant::now(), held.look().ok_or("it ended")?.cpu);
    // Enough periods for the ends not to matter.
    let later = sees(&mut held, |seen| seen.cpu > first + Duration::from_millis(400))?.cpu;
    let share = (later - first).as_secs_f64() / began.elapsed().as_secs_f64();
    check(share < 0.35, || format!("{share:.2} CPUs"))?;
    held.end().map(drop)
}
