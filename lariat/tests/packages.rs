//! What comes with the binary: completions, manual pages, the unit, the Debian and the npm package.
//! Each is tried with the program it is for. Where that is missing the test is skipped, and the
//! reason is printed.
//!
//! Nothing here needs the network, and nothing is installed outside a directory of the test's own.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stderr, reason = "a test runner says what it skips")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "packages/debian.rs"]
mod debian;
#[path = "packages/npm.rs"]
mod npm;
#[expect(dead_code, reason = "other tests use more of it")]
#[path = "host/place.rs"]
mod place;
#[path = "packages/words.rs"]
mod words;

use libtest_mimic::{Arguments, Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// A test, and the programs that it needs.
type Test = (&'static str, &'static [&'static str], fn());

fn main() -> ExitCode {
    let tests = words::TESTS.iter().chain(debian::TESTS).chain(npm::TESTS);
    let tests = tests.map(|(name, needs, test)| {
        let missing: Vec<&str> =
            needs.iter().copied().filter(|program| !is_here(program)).collect();
        if !missing.is_empty() {
            eprintln!("skipped packages {name}: {} is not here", missing.join(", "));
        }
        trial(name, *test).with_ignored_flag(!missing.is_empty())
    });
    libtest_mimic::run(&Arguments::from_args(), tests.collect()).exit_code()
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || std::panic::catch_unwind(test).map_err(|_| Failed::from("see above")))
}

fn is_here(program: &str) -> bool {
    let mut look = Command::new("sh");
    look.args(["-c", "command -v \"$0\"", program]).stdout(Stdio::null());
    look.status().is_ok_and(|status| status.success())
}

/// What a command says, if it succeeds and has nothing to complain about.
#[track_caller]
fn said(command: &mut Command) -> String {
    let (text, complaints) = heard(command);
    assert_eq!(complaints, "", "{command:?}");
    text
}

/// What a command says on both streams, if it succeeds.
#[track_caller]
fn heard(command: &mut Command) -> (String, String) {
    let output = command.output().unwrap();
    let [text, complaints] = [output.stdout, output.stderr].map(|s| String::from_utf8(s).unwrap());
    assert!(output.status.success(), "{command:?}: {}\n{text}{complaints}", output.status);
    (text, complaints)
}

/// A file of the repository.
fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path)
}

/// The binary that is packed.
fn lariat() -> Command {
    Command::new(env!("CARGO_BIN_EXE_lariat"))
}

/// The verbs that a person is shown, as `lariat-VERB`, from the manual pages.
fn pages(place: &place::Place) -> Vec<PathBuf> {
    said(lariat().arg("man").arg(place.path("man")));
    let entries = std::fs::read_dir(place.path("man")).unwrap();
    let mut pages: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    pages.sort();
    assert!(pages.len() > 8, "{pages:?}");
    pages
}
