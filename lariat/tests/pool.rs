//! One server for many: who shares gets the right answers and nobody else's, what must not be shared
//! is not, and whoever dies takes nobody along.
//!
//! This file's binary is also the server (`__check`), which shares no code with Lariat and puts the
//! caller's name in every answer. Real servers come from the directory that `LARIAT_CLIENTS` names
//! (see `./test`; without it they are skipped by name). `LARIAT_TRIALS=full` has as many sessions and
//! calls as were promised.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a test runner says what it saw")]

#[path = "pool/answers.rs"]
mod answers;
#[path = "pool/bounds.rs"]
mod bounds;
#[path = "pool/by_http.rs"]
mod by_http;
#[path = "pool/checker.rs"]
mod checker;
#[path = "pool/client.rs"]
mod client;
#[path = "pool/deaths.rs"]
mod deaths;
#[path = "pool/handed.rs"]
mod handed;
#[path = "pool/handover.rs"]
mod handover;
#[path = "pool/hazards.rs"]
mod hazards;
#[path = "pool/keys.rs"]
mod keys;
#[path = "pool/library.rs"]
mod library;
#[path = "pool/naive.rs"]
mod naive;
#[path = "pool/roots.rs"]
mod roots;
#[path = "pool/slumber.rs"]
mod slumber;
#[path = "pool/stage.rs"]
mod stage;
#[path = "pool/table.rs"]
mod table;
#[path = "pool/trees.rs"]
mod trees;
#[path = "pool/warm.rs"]
mod warm;
#[path = "pool/wire.rs"]
mod wire;

use libtest_mimic::{Arguments, Trial};

fn main() {
    trials::misbehave_if_asked();
    if checker::check_if_asked() || deaths::stand_between_if_asked() {
        return;
    }
    let arguments = Arguments::from_args();
    let mut tests: Vec<Trial> = answers::tests();
    tests.extend(bounds::tests());
    tests.extend(by_http::tests());
    tests.extend(deaths::tests());
    tests.extend(handed::tests());
    tests.extend(handover::tests());
    tests.extend(hazards::tests());
    tests.extend(keys::tests());
    tests.extend(library::tests());
    tests.extend(roots::tests());
    tests.extend(slumber::tests());
    tests.extend(table::tests());
    tests.extend(trees::tests());
    tests.extend(warm::tests());
    libtest_mimic::run(&arguments, tests).exit();
}
