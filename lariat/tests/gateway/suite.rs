//! A conformance suite: running it against an address, what it found, and comparing two findings.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;

use super::house::Room;
use super::{Outcome, PATIENCE};
use crate::witness::wait_until;

/// A generation of the suite, and a revision of the protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
    pub(crate) revision: &'static str,
    /// How many checks pass on the fixture by itself, at least: one that finds nothing proves nothing.
    pub(crate) checks: usize,
}

/// What one check said, the worst first: one that is made several times is as good as its worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mark {
    Failure,
    Warning,
    /// It did not apply.
    Skipped,
    Success,
}

/// A scenario and one of its checks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Check {
    pub(crate) scenario: String,
    pub(crate) id: String,
    pub(crate) name: String,
}

/// What a directory's name ends with.
const TIME: &str = "-2026-07-28T12-00-00-000Z";

/// What a suite found, with its words for what did not pass.
#[derive(Debug, Default)]
pub(crate) struct Found(pub(crate) BTreeMap<Check, (Mark, String)>);

/// Checks that are different through the gateway, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Except {
    /// All of a scenario's checks, or one.
    pub(crate) scenario: &'static str,
    pub(crate) check: Option<&'static str>,
    /// Whether it is so every time.
    pub(crate) always: bool,
    pub(crate) why: &'static str,
}

impl Suite {
    /// Runs it all.
    pub(crate) fn run(&self, room: &Room, url: &str, into: &str) -> Outcome<Found> {
        let into = room.path(into);
        fs::create_dir(&into)?;
        let mut child = self.start(room, url, &into)?;
        if !wait_until(PATIENCE, || Ok(child.try_wait()?.is_some()))? {
            child.kill()?;
            child.wait()?;
            return Err(format!("{}: no end of it at {url}", self.name).into());
        }
        // How it ends says whether a check failed. That is for us to judge.
        child.wait()?;
        Found::read(&into)
    }

    fn start(&self, room: &Room, url: &str, into: &Path) -> Outcome<Child> {
        let script = format!("gateway/node_modules/{}/dist/index.js", self.package);
        let mut command = room.program("node")?;
        command.arg(room.home().join(script)).args(["server", "--suite", "all", "--url", url]);
        command.args(["--spec-version", self.revision]).arg("-o").arg(into);
        let log = File::create(into.with_extension("log"))?;
        command.stdin(Stdio::null()).stderr(log.try_clone()?).stdout(log);
        Ok(command.spawn()?)
    }
}

impl Found {
    /// One directory for each scenario: `server-NAME-TIME`.
    fn read(from: &Path) -> Outcome<Found> {
        let mut found = Found::default();
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let scenario = name.split_at_checked(name.len().saturating_sub(TIME.len()));
            let scenario = scenario.and_then(|(scenario, _)| scenario.strip_prefix("server-"));
            let scenario = scenario.ok_or_else(|| format!("no scenario: {name}"))?;
            let checks = fs::read(entry.path().join("checks.json"))?;
            for check in serde_json::from_slice::<Vec<Value>>(&checks)? {
                found.add(scenario, &check);
            }
        }
        Ok(found)
    }

    fn add(&mut self, scenario: &str, check: &Value) {
        let word = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
        let mark = match word("status").as_str() {
            "SUCCESS" => Mark::Success,
            "WARNING" => Mark::Warning,
            "SKIPPED" => Mark::Skipped,
            // What was seen, without a judgement.
            "INFO" => return,
            _ => Mark::Failure,
        };
        let key = Check { scenario: scenario.to_owned(), id: word("id"), name: word("name") };
        let found = (mark, word("errorMessage"));
        match self.0.get(&key) {
            Some((before, _)) if *before <= mark => {}
            _ => drop(self.0.insert(key, found)),
        }
    }

    pub(crate) fn passed(&self) -> usize {
        self.0.values().filter(|(mark, _)| *mark == Mark::Success).count()
    }

    /// Everything that is worse here than it is directly, but for the exceptions. An exception that
    /// is none any more is a complaint too.
    pub(crate) fn worse_than(&self, direct: &Found, except: &[Except]) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut needed = vec![false; except.len()];
        for (check, (mark, _)) in &direct.0 {
            let here = self.0.get(check);
            if *mark != Mark::Success || here.is_some_and(|(here, _)| *here == Mark::Success) {
                continue;
            }
            let argued = except.iter().position(|except| except.covers(check));
            match argued {
                Some(number) => needed[number] = true,
                None => complaints.push(format!("{check}: {here:?}")),
            }
        }
        for (check, (mark, why)) in &self.0 {
            let new = !direct.0.contains_key(check) && *mark == Mark::Failure;
            if new && !except.iter().any(|except| except.covers(check)) {
                complaints.push(format!("{check}: fails, and is not made directly: {why}"));
            }
        }
        for (Except { scenario, check, always, why }, needed) in except.iter().zip(needed) {
            if *always && !needed {
                let what = "passes, and need not be argued away";
                complaints.push(format!("{scenario} {check:?} {what}: {why}"));
            }
        }
        complaints
    }
}

impl Except {
    fn covers(&self, check: &Check) -> bool {
        self.scenario == check.scenario && self.check.is_none_or(|id| id == check.id)
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.scenario, self.id, self.name)
    }
}
