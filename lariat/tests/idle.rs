//! Hosts that live and forget: what they started is put to sleep while their pipes stay open, and
//! they cannot tell.
//!
//! The host is in this file's binary and sees the tree in `/proc` with its own eyes. Servers are real
//! ones, from the directory that `LARIAT_CLIENTS` names (see `./test`; without it they are skipped by
//! name), and one of our own (`__serve`) for what real ones do not offer. `LARIAT_TRIALS=full` has a
//! thousand conversations and all the generations of openai/codex #18881.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "a test runner says what it skips")]

#[path = "idle/bounds.rs"]
mod bounds;
#[path = "idle/deaths.rs"]
mod deaths;
#[path = "idle/evidence.rs"]
mod evidence;
#[path = "idle/eyes.rs"]
mod eyes;
#[path = "idle/generations.rs"]
mod generations;
#[path = "idle/host.rs"]
mod host;
#[path = "idle/kept.rs"]
mod kept;
#[path = "idle/kit.rs"]
mod kit;
#[path = "idle/lazy.rs"]
mod lazy;
#[path = "idle/packages.rs"]
mod packages;
#[path = "idle/playwright.rs"]
mod playwright;
#[path = "idle/server.rs"]
mod server;
#[path = "idle/talk.rs"]
mod talk;
#[path = "idle/transcript.rs"]
mod transcript;
#[path = "idle/wakes.rs"]
mod wakes;

use libtest_mimic::{Arguments, Trial};

fn main() {
    if server::serve_if_asked() || host::stand_between_if_asked() {
        return;
    }
    let arguments = Arguments::from_args();
    let mut tests: Vec<Trial> = transcript::tests();
    tests.extend(kept::tests());
    tests.extend(wakes::tests());
    tests.extend(generations::tests());
    tests.extend(playwright::tests());
    tests.extend(bounds::tests());
    tests.extend(deaths::tests());
    tests.extend(lazy::tests());
    tests.extend(evidence::tests());
    libtest_mimic::run(&arguments, tests).exit();
}
