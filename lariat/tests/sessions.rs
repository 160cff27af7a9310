//! The manager under hosts that refresh, forget, panic, drop and die: what it started is gone, each
//! time, and nothing else is touched.
//!
//! The binary is its own host (`__act`), its own holder and its own server. `LARIAT_TRIALS=full`
//! plays each end fifty times instead of a few.
#![cfg(target_os = "linux")]

#[path = "sessions/ends.rs"]
mod ends;
#[path = "sessions/kit.rs"]
mod kit;
#[cfg(feature = "rmcp")]
#[path = "sessions/peer.rs"]
mod peer;
#[path = "sessions/shared.rs"]
mod shared;
#[path = "sessions/speech.rs"]
mod speech;
#[path = "sessions/table.rs"]
mod table;
#[path = "sessions/turnover.rs"]
mod turnover;

use libtest_mimic::{Arguments, Trial};

fn main() {
    trials::misbehave_if_asked();
    lariat::main_if_asked();
    if table::own_if_asked() || ends::act_if_asked() {
        return;
    }
    let arguments = Arguments::from_args();
    let mut tests: Vec<Trial> = table::tests();
    tests.extend(ends::tests());
    tests.extend(turnover::tests());
    tests.extend(shared::tests());
    tests.extend(speech::tests());
    #[cfg(feature = "rmcp")]
    tests.extend(peer::tests());
    libtest_mimic::run(&arguments, tests).exit();
}
