//! The kit as a program of its own, for its own tests and for trying a wrapper by hand.
//!
//! `misbehave [FILTER] [-- WRAPPER…]` plays every cell whose name contains the filter, bare or
//! behind the wrapper, and prints one line for each.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use trials::{Subject, cells, misbehave_if_asked, run};

fn main() -> io::Result<ExitCode> {
    misbehave_if_asked();
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let mut parts = arguments.splitn(2, |word| word == "--");
    let filter = parts.next().and_then(|words| words.first());
    let filter = filter.map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let program = env::current_exe()?;
    let subject = match parts.next() {
        Some(wrap) => Subject::wrapped(program, wrap),
        None => Subject::bare(program),
    };
    let mut failed = false;
    for cell in cells(&subject).into_iter().filter(|cell| cell.name().contains(&filter)) {
        let began = Instant::now();
        let verdict = run(&cell, &subject);
        failed |= !verdict.passed();
        let word = if verdict.passed() { "pass" } else { "FAIL" };
        let (name, took) = (cell.name(), began.elapsed().as_millis());
        writeln!(io::stdout(), "{word} {name} [{took} ms] {verdict}")?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
