//! Containers end with their session: real engines, the docker command, an SDK, and the report as it
//! was written. A test's name is its fact: `report::podman`, `abuse::a-flood-of-headers`.
//!
//! Every test has an engine of its own, in a room that is gone when the test is. What an engine has
//! is asked at its own socket; nothing of Lariat's is believed. Without root, without Debian's
//! `docker.io`, `busybox-static` and so on, the tests are skipped, and the reason is printed.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stderr, reason = "a test runner says what it skips")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "engine/engine.rs"]
mod engine;
#[path = "engine/eyes.rs"]
mod eyes;
#[path = "engine/machine.rs"]
mod machine;
#[path = "host/place.rs"]
mod place;
#[path = "containers/report.rs"]
mod report;
#[path = "engine/room.rs"]
mod room;
#[path = "engine/session.rs"]
mod session;

use engine::Kind;
use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;
use std::time::Duration;

/// How long anything may take that is not promised to be quick: npm, on a busy machine.
const PATIENCE: Duration = place::PATIENCE.saturating_mul(6);
/// How long after the last process of a session its last container is gone.
const PROMISE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for kind in Kind::ALL {
        let name = format!("{kind:?}").to_lowercase();
        let missing = kind.missing().or_else(|| report::missing_bare(kind));
        trials.push(trial(format!("bare::{name}"), &missing, move || report::bare(kind)));
        let missing = kind.missing().or_else(report::missing);
        trials.push(trial(format!("report::{name}"), &missing, move || report::report(kind)));
    }
    trials
}

/// A test, or the word that it is skipped and why.
fn trial(name: String, missing: &Option<String>, play: impl FnOnce() + Send + 'static) -> Trial {
    if let Some(reason) = missing {
        eprintln!("skipped containers::{name}: {reason}");
    }
    let play = move || {
        play();
        Ok(())
    };
    Trial::test(name, play).with_ignored_flag(missing.is_some())
}
