//! The gateway, judged by others: the conformance suites of both eras, a reference server asked directly
//! and through it, and clients that people use, over HTTP, the unix socket and stdio.
//!
//! Nothing here says what an answer has to be. What is heard through Lariat is compared with what is
//! heard without it; where the two may differ, a table says so and why. After each test nothing is
//! left: no process, and in the daemon no descriptor more than before.
//!
//! `LARIAT_TRIALS=full` also has the suites of the legacy era where a server may be shared but their
//! clients can do too much for that: those have a process of their own, as without.
//!
//! The packages are installed by `./test` into the directory that `LARIAT_CLIENTS` names. Without it
//! every test that needs one is skipped, and the reason is printed.
#![expect(clippy::print_stderr, reason = "a test runner says what it skips")]

#[path = "gateway/clients.rs"]
mod clients;
#[path = "gateway/conformance.rs"]
mod conformance;
#[path = "gateway/differential.rs"]
mod differential;
#[path = "gateway/house.rs"]
mod house;
#[path = "gateway/rust_sdk.rs"]
mod rust_sdk;
#[path = "gateway/suite.rs"]
mod suite;
#[path = "clients/witness.rs"]
mod witness;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

/// Both rungs of the ladder as the daemon here has it, and room for a busy machine.
const PROMISE: Duration = Duration::from_secs(10);
/// How long a client or a suite may take.
const PATIENCE: Duration = Duration::from_secs(120);

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let home = installed();
    let mut trials = conformance::trials(&home);
    trials.extend(differential::trials(&home));
    trials.extend(clients::trials(&home));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A test that is skipped by name where one of these files is missing.
fn trial(
    name: impl Into<String>,
    home: &Result<PathBuf, String>,
    needed: &[&str],
    test: impl FnOnce(PathBuf) -> Outcome + Send + 'static,
) -> Trial {
    let name = name.into();
    let lacks = |home: &PathBuf| {
        let lacking = needed.iter().find(|file| !home.join(file).exists());
        lacking.map(|file| format!("no {file}"))
    };
    let missing = home.as_ref().map_or_else(|why| Some(why.clone()), lacks);
    if let Some(reason) = &missing {
        eprintln!("skipped gateway {name}: {reason}");
    }
    let home = home.clone().unwrap_or_default();
    let run = move || test(home).map_err(|error| Failed::from(error.to_string()));
    Trial::test(name, run).with_ignored_flag(missing.is_some())
}

/// Whether everything is wanted, however long it takes.
#[expect(clippy::disallowed_methods, reason = "how ./test tells how much it wants")]
fn is_full() -> bool {
    std::env::var_os("LARIAT_TRIALS").is_some_and(|how_much| how_much == "full")
}

/// The directory with the packages, or why there is none.
#[expect(clippy::disallowed_methods, reason = "how ./test tells where the packages are")]
fn installed() -> Result<PathBuf, String> {
    let named =
        std::env::var_os("LARIAT_CLIENTS").ok_or("LARIAT_CLIENTS is not set (see ./test)")?;
    let home = PathBuf::from(named);
    if home.is_dir() { Ok(home) } else { Err(format!("{} is not a directory", home.display())) }
}
