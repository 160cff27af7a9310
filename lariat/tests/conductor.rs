//! `examples/conductor.py` and the daemon: agent turns from Python of which nothing is left, however
//! the Python or the daemon ends; and a session that is refreshed again and again, as in
//! openai/codex #18881.
//!
//! Each test has a daemon of its own in a directory of its own. What lives is seen in `/proc`, by a
//! word in the arguments or the environment of everything that a test starts. `LARIAT_TRIALS=full`
//! plays each end fifty times instead of a few.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stderr, reason = "a test runner says what it skips")]

#[path = "conductor/ends.rs"]
mod ends;
#[expect(dead_code, reason = "the tests of sessions use more of it")]
#[path = "sessions/kit.rs"]
mod kit;
#[path = "conductor/refreshes.rs"]
mod refreshes;
#[path = "conductor/stage.rs"]
mod stage;
#[path = "conductor/turns.rs"]
mod turns;
#[expect(dead_code, reason = "the tests of clients use more of it")]
#[path = "clients/witness.rs"]
mod witness;

use kit::PROMISE;
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::{Command, ExitCode, Stdio};

fn main() -> ExitCode {
    let missing = no_python();
    let mut tests = Vec::new();
    for (name, test) in turns::TESTS.iter().chain(ends::TESTS) {
        if let Some(reason) = &missing {
            eprintln!("skipped conductor {name}: {reason}");
        }
        tests.push(trial(name, *test).with_ignored_flag(missing.is_some()));
    }
    tests.extend(refreshes::TESTS.iter().map(|(name, test)| trial(name, *test)));
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || std::panic::catch_unwind(test).map_err(|_| Failed::from("see above")))
}

/// Why there is no Python that can run the example.
fn no_python() -> Option<String> {
    let recent = "import sys; sys.exit(sys.version_info < (3, 9))";
    let mut python = Command::new("python3");
    python.args(["-c", recent]).stdin(Stdio::null()).stderr(Stdio::null());
    match python.status() {
        Ok(status) if status.success() => None,
        Ok(_) => Some("python3 is older than 3.9".into()),
        Err(error) => Some(format!("python3: {error}")),
    }
}
