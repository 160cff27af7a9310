//! Containers end with their session: real engines, the docker command, an SDK, and the report as it
//! was written. A test's name is its fact: `report::podman`, `abuse::a-flood-of-headers`.
//!
//! Every test has an engine of its own, in a room that is gone when the test is. What an engine has
//! is asked at its own socket; nothing of Lariat's is believed. Without root, without Debian's
//! `docker.io`, `busybox-static` and so on, the tests are skipped, and the reason is printed.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stderr, reason = "a test runner says what it skips")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "containers/absent.rs"]
mod absent;
#[path = "containers/abuse.rs"]
mod abuse;
#[path = "containers/choices.rs"]
mod choices;
#[path = "containers/down.rs"]
mod down;
#[path = "containers/ends.rs"]
mod ends;
#[path = "engine/engine.rs"]
mod engine;
#[path = "engine/eyes.rs"]
mod eyes;
#[path = "containers/images.rs"]
mod images;
#[path = "containers/kinds.rs"]
mod kinds;
#[path = "engine/machine.rs"]
mod machine;
#[path = "host/place.rs"]
mod place;
#[path = "containers/report.rs"]
mod report;
#[path = "engine/room.rs"]
mod room;
#[path = "containers/same.rs"]
mod same;
#[path = "engine/session.rs"]
mod session;

use ends::Death;
use engine::Kind;
use libtest_mimic::{Arguments, Trial};
use machine::on_path;
use std::process::ExitCode;
use std::time::Duration;

/// How long anything may take that is not promised to be quick: npm, on a busy machine.
const PATIENCE: Duration = place::PATIENCE.saturating_mul(6);
/// How long after the last process of a session its last container is gone.
const PROMISE: Duration = Duration::from_secs(2);

/// How many tests run at once: an engine has many threads, and the promise is in seconds.
const AT_ONCE: usize = 2;

fn main() -> ExitCode {
    lariat::main_if_asked();
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(AT_ONCE).min(AT_ONCE));
    libtest_mimic::run(&arguments, trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for kind in Kind::ALL {
        let name = format!("{kind:?}").to_lowercase();
        let missing = kind.missing().or_else(|| report::missing_bare(kind));
        trials.push(trial(format!("bare::{name}"), missing, move || report::bare(kind)));
        let missing = kind.missing().or_else(report::missing);
        trials.push(trial(format!("report::{name}"), missing, move || report::report(kind)));
        if kind != Kind::Docker {
            let elsewhere = move || same::elsewhere(kind);
            trials.push(trial(format!("same::on-{name}"), kind.missing(), elsewhere));
        }
    }
    let missing = || Kind::Docker.missing();
    let mut docker = |name: &str, play: fn()| trials.push(trial(name.into(), missing(), play));
    docker("report::at-once", || report::at_once(Kind::Docker));
    docker("kinds::eof", || kinds::kinds(Death::Eof));
    docker("kinds::sigkill-wrapper", || kinds::kinds(Death::Wrapper));
    docker("kinds::sigkill-both", || kinds::kinds(Death::Both));
    docker("kinds::docker-run-as-the-server", kinds::direct);
    docker("kinds::born-late", kinds::born_late);
    docker("images::closed-replaced-dropped", images::images);
    docker("choices::kept", choices::kept);
    docker("choices::limit", choices::limit);
    docker("choices::many", choices::many);
    docker("choices::found", choices::found);
    docker("absent::no-engine", absent::no_engine);
    docker("absent::never-used", absent::never_used);
    docker("absent::dead-engine", absent::dead_engine);
    docker("down::at-the-end", || down::at_the_end(Death::Eof));
    docker("down::at-the-end-of-a-killed-wrapper", || down::at_the_end(Death::Wrapper));
    docker("down::in-the-middle", down::in_the_middle);
    docker("abuse::bodies", abuse::bodies);
    docker("abuse::labels", abuse::labels);
    docker("abuse::spellings", abuse::spellings);
    docker("abuse::large-body", abuse::large_body);
    docker("abuse::heads", abuse::heads);
    docker("abuse::slow-clients", abuse::slow_clients);
    docker("abuse::vanishing-clients", abuse::vanishing);
    docker("abuse::ten-thousand-connections", abuse::connections);
    docker("same::load", same::load);
    for (name, script) in same::SCRIPTS {
        trials.push(trial(format!("same::{name}"), missing(), move || same::script(name, script)));
    }
    let python = on_path("python3").is_empty().then(|| "python3 is not installed".into());
    trials.push(trial("same::terminal".into(), missing().or(python), same::terminal));
    let compose = missing().or_else(same::missing_compose);
    trials.push(trial("same::compose".into(), compose, same::compose));
    let buildkit = missing().map_or_else(same::with_buildkit, Err);
    let none = buildkit.as_ref().err().cloned();
    let play = move || same::buildkit(&buildkit.expect("not skipped"));
    trials.push(trial("same::buildkit".into(), none, play));
    trials
}

/// A test, or the word that it is skipped and why.
fn trial(name: String, missing: Option<String>, play: impl FnOnce() + Send + 'static) -> Trial {
    if let Some(reason) = &missing {
        eprintln!("skipped containers::{name}: {reason}");
    }
    let play = move || {
        play();
        Ok(())
    };
    Trial::test(name, play).with_ignored_flag(missing.is_some())
}
