//! What Lariat costs: `cargo bench --bench run [-- options]`.
//!
//! Everything runs on one CPU, in interleaved rounds, against servers and a relay in C that do as
//! little as possible, so that the ratios are Lariat's and not the machine's. Each table gives medians;
//! each bar says PASS or MISS. A miss is a number to look at, not an error: the exit code is 0
//! unless something broke.
//!
//! ```text
//! --json           one JSON object instead of tables
//! --quick          a few rounds, to see that it works
//! --rounds N       rounds of each comparison (15)
//! --pings N        round trips per round (2000)
//! --idle TIME      how long to watch the idle processes (10s)
//! --only A,B       some of: speed, ends, wake, teardown, cost; and person (`ps` and `top` with 500
//!                  servers and 3,000 processes), which runs only if it is named
//! --also "CMD"     one more wrapper to compare, by the command that goes before the server
//! --backend NAME   what Lariat holds with (auto)
//! --cpu N          where to run (0); --cpu any leaves it to the kernel
//! --seat           from a cgroup of its own, as a login session has one; see `seat.rs`
//! ```
//!
//! `LARIAT_BIN` names another `lariat` to measure, `LARIAT_CLIENTS` where `./test` put real servers.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench prints")]

mod cost;
mod ends;
mod peer;
mod person;
mod report;
mod seat;
mod speed;
mod teardown;
mod wake;

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use peer::Workshop;
use report::Report;

/// What was asked for.
pub(crate) struct Options {
    json: bool,
    rounds: usize,
    pings: usize,
    idle: Duration,
    only: Vec<String>,
    also: Vec<String>,
    backend: String,
    cpu: Option<usize>,
    seat: bool,
    clients: Option<PathBuf>,
}

fn main() -> ExitCode {
    match options(std::env::args().skip(1)).and_then(|options| bench(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(options: &Options) -> io::Result<()> {
    let _seat = options.seat.then(seat::Seat::take);
    if let Some(cpu) = options.cpu {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set)?;
    }
    let mut report = Report::new(options.json);
    let shop = Workshop::open(lariat(), options, &mut report)?;
    type Section = fn(&Workshop, &Options, &mut Report) -> io::Result<()>;
    let sections: [(&str, bool, Section); 6] = [
        ("speed", true, speed::measure),
        ("ends", true, ends::measure),
        ("wake", true, wake::measure),
        ("teardown", false, teardown::measure),
        ("cost", true, cost::measure),
        ("person", false, person::measure),
    ];
    for (name, needs_stub, measure) in sections {
        let named = options.only.iter().any(|one| one == name);
        if !named && (!options.only.is_empty() || name == "person") {
            continue;
        }
        if needs_stub && shop.stub.is_none() {
            report.skip(format!("{name}: no C compiler, so no server to measure with"));
            continue;
        }
        eprintln!("{name} …");
        measure(&shop, options, &mut report)?;
    }
    report.finish();
    Ok(())
}

/// The binary to measure.
#[expect(clippy::disallowed_methods, reason = "a bench is told what to compare by its environment")]
fn lariat() -> PathBuf {
    let named = std::env::var_os("LARIAT_BIN");
    named.as_deref().unwrap_or(OsStr::new(env!("CARGO_BIN_EXE_lariat"))).into()
}

/// Where real servers are.
#[expect(clippy::disallowed_methods, reason = "a bench is told what to compare by its environment")]
fn clients() -> Option<PathBuf> {
    std::env::var_os("LARIAT_CLIENTS").map(PathBuf::from)
}

fn options(mut words: impl Iterator<Item = String>) -> io::Result<Options> {
    let mut options = Options {
        json: false,
        rounds: 15,
        pings: 2000,
        idle: Duration::from_secs(10),
        only: vec![],
        also: vec![],
        backend: "auto".into(),
        cpu: Some(0),
        seat: false,
        clients: clients(),
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| io::Error::other(format!("{word} what?")));
        match word.as_str() {
            // Cargo's own.
            "--bench" => {}
            "--json" => options.json = true,
            "--quick" => {
                (options.rounds, options.pings, options.idle) = (3, 300, Duration::from_secs(2));
            }
            "--rounds" => options.rounds = number(&value()?)?,
            "--pings" => options.pings = number(&value()?)?,
            "--idle" => options.idle = Duration::from_secs(number(value()?.trim_end_matches('s'))?),
            "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
            "--also" => options.also.push(value()?),
            "--backend" => options.backend = value()?,
            "--seat" => options.seat = true,
            "--cpu" => {
                let cpu = value()?;
                options.cpu = if cpu == "any" { None } else { Some(number(&cpu)?) };
            }
            _ => return Err(io::Error::other(format!("unknown option {word}"))),
        }
    }
    Ok(options)
}

fn number<N: std::str::FromStr>(text: &str) -> io::Result<N> {
    text.parse().map_err(|_| io::Error::other(format!("not a number: {text}")))
}
