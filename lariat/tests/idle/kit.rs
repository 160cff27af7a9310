//! What these tests share: a place of its own for each, Lariat set up to keep its books in it, dice.

use crate::eyes;
use libtest_mimic::{Failed, Trial};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use trials::{Process, until};

pub(crate) const LARIAT: &str = env!("CARGO_BIN_EXE_lariat");

/// The variable whose value everything of one place inherits.
pub(crate) const WORD: &str = "LARIAT_IDLE_TOKEN";

/// Both rungs of the ladder, where a test waits for them.
pub(crate) const RUNG: Duration = Duration::from_millis(300);

/// Both rungs, what is left to those that the leader leaves behind, and the second that the promise
/// adds.
pub(crate) const PROMISE: Duration = Duration::from_millis(2 * 300 + 250 + 1000);

/// For what has nothing to do with a promise.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How much is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Much {
    Quick,
    Middle,
    Full,
}

pub(crate) fn how_much() -> Much {
    #[expect(clippy::disallowed_methods, reason = "a runner of tests is told so by its caller")]
    let how_much = std::env::var_os("LARIAT_TRIALS").unwrap_or_default();
    match how_much.to_str() {
        Some("full") => Much::Full,
        Some("quick") => Much::Quick,
        _ => Much::Middle,
    }
}

/// A directory and a word that nobody else has. Who carries the word goes with it.
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    pub(crate) token: String,
}

impl Place {
    pub(crate) fn new() -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let unique = format!("{}-{number}x", std::process::id());
        let dir = std::env::temp_dir().join(format!("lariat-idle-{unique}"));
        fs::create_dir(&dir).unwrap();
        Place { dir: dir.canonicalize().unwrap(), token: format!("idle-token-{unique}") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// `lariat run` with its state in here and short rungs, then the options and the server.
    pub(crate) fn wrapped(&self, options: &[&str], server: &[String]) -> Vec<String> {
        let rung = format!("{}ms", RUNG.as_millis());
        let state = self.path("state").display().to_string();
        let own = [LARIAT, "run", "--grace", &rung, "--term-grace", &rung, "--state-dir", &state];
        let words = own.iter().chain(options).chain(&["--"]).map(ToString::to_string);
        words.chain(server.iter().cloned()).collect()
    }

    /// Our own server, whose notes are in a directory in here.
    pub(crate) fn server(&self, manner: &str) -> Vec<String> {
        let me = std::env::current_exe().unwrap().display().to_string();
        let notes = self.path("notes");
        fs::create_dir_all(&notes).unwrap();
        vec![me, "__serve".into(), manner.into(), notes.display().to_string()]
    }

    /// What the server of ours wrote down in one of its lives, counted from 1.
    pub(crate) fn heard_by_server(&self, life: usize) -> Vec<String> {
        let text = fs::read_to_string(self.path(&format!("notes/heard-{life}")));
        text.unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// How often the server of ours was started.
    pub(crate) fn lives(&self) -> usize {
        self.notes().iter().filter(|note| *note == "born").count()
    }

    /// What the server of ours says of itself.
    pub(crate) fn notes(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("notes/notes")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The event log, or those of one kind.
    pub(crate) fn events(&self, kind: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path("state/events.jsonl")).unwrap_or_default();
        let all = text.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
        all.filter(|event| event["event"] == kind).collect()
    }

    /// Why trees of this place ended, in order.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let ended = self.events("ended");
        ended.iter().map(|event| event["reason"].as_str().unwrap_or("?").to_owned()).collect()
    }

    /// A receipt is written when the last process has left: it may be a moment later.
    #[track_caller]
    pub(crate) fn assert_reasons(&self, reasons: &[&str]) {
        let written = until(PATIENCE, || self.reasons().len() >= reasons.len());
        assert!(written && self.reasons() == reasons, "{:?} and not {reasons:?}", self.reasons());
    }

    /// Everybody of this place has left in time; twice, as nobody is seen for an instant in exec.
    #[track_caller]
    pub(crate) fn assert_gone(&self, patience: Duration) {
        let nobody = || (0..2).all(|_| eyes::carriers(&self.token).is_empty());
        let gone = until(patience, nobody);
        let left: Vec<String> = self.crowd();
        assert!(gone, "left after {patience:?}: {left:#?}");
    }

    /// Everybody of this place, for people.
    pub(crate) fn crowd(&self) -> Vec<String> {
        eyes::carriers(&self.token).into_iter().map(eyes::describe).collect()
    }

    /// Each tree that was started has a receipt, nobody survived, and no page is open.
    #[track_caller]
    pub(crate) fn assert_accounted(&self) {
        let struck = until(PATIENCE, || pages(&self.path("state")).is_empty());
        assert!(struck, "still in the books: {:?}", pages(&self.path("state")));
        let (started, ended) = (self.events("started"), self.events("ended"));
        for life in &started {
            // A session has as many lives as its host woke it; each has a receipt.
            let of_session = |events: &[Value]| {
                events.iter().filter(|event| event["session"] == life["session"]).count()
            };
            let (lives, receipts) = (of_session(&started), of_session(&ended));
            assert!(receipts >= lives, "{receipts} receipts of {lives} lives: {ended:#?}");
        }
        for receipt in ended {
            assert_eq!(receipt["survivors"], serde_json::json!([]), "{receipt}");
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let quiet = until(PATIENCE, || {
            let left: Vec<Process> = eyes::carriers(&self.token);
            left.iter().for_each(|process| eyes::signal(*process, Signal::KILL));
            left.is_empty()
        });
        if !quiet {
            eprintln!("cannot end {:#?}", self.crowd());
        }
        if std::thread::panicking() {
            // What a person wants to know of a failure.
            for name in ["stderr", "notes/notes", "state/events.jsonl"] {
                let text = fs::read_to_string(self.path(name)).unwrap_or_default();
                let from = text.len().saturating_sub(2000);
                let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
                eprintln!("--- {name}\n{}", &text[from..]);
            }
        }
        until(PATIENCE, || fs::remove_dir_all(&self.dir).is_ok() || !self.dir.exists());
    }
}

fn pages(state: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(state.join("sessions")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Lets that much time pass, in which something must not happen.
pub(crate) fn let_pass(time: Duration) {
    until(time, || false);
}

/// One test by name. What it says of its failure is above.
pub(crate) fn trial(
    name: impl Into<String>,
    test: impl FnOnce() + Send + std::panic::UnwindSafe + 'static,
) -> Trial {
    Trial::test(name, move || std::panic::catch_unwind(test).map_err(|_| Failed::from("see above")))
}

/// splitmix64: the same every time.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.roll() % end as u64) as usize
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
