//! What sharing costs and saves: `cargo bench --bench pool [-- options]`.
//!
//! Over pipes, the pool (`lariat run --share`) is beside the bare server and beside `lariat run
//! --relay`; over HTTP, the gateway is beside those that others use, with the same client, the same
//! server and in the same run. The server is the C program of the other bench, which does as little as
//! possible. Each table gives medians of interleaved rounds; each bar says PASS or MISS. A miss is a
//! number to look at, not an error: the exit code is 0 unless something broke.
//!
//! ```text
//! --json           one JSON object instead of tables
//! --quick          a few rounds, to see that it works
//! --rounds N       rounds of each comparison (15)
//! --pings N        round trips per round (2000)
//! --sessions N     sessions of four servers each, for memory (50; 200 was promised)
//! --only A,B       some of: latency, throughput, memory, fronts
//! --fetch          installs the other gateways below LARIAT_CLIENTS, if they are not there
//! --cpu N          where to measure latency (0); --cpu any leaves it to the kernel
//! ```
//!
//! `LARIAT_BIN` names another `lariat` to measure, `LARIAT_CLIENTS` where `./test` put real servers.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench prints")]

#[expect(dead_code, reason = "the trials need the rest")]
#[path = "../../tests/pool/checker.rs"]
mod checker;
mod daemon;
mod fronts;
mod http;
mod memory;
#[expect(dead_code, reason = "the other bench needs the rest")]
#[path = "../run/peer.rs"]
mod peer;
mod pipes;
#[path = "../run/report.rs"]
mod report;

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use peer::Workshop;
use report::Report;

/// What was asked for.
pub(crate) struct Options {
    json: bool,
    rounds: usize,
    pings: usize,
    sessions: usize,
    only: Vec<String>,
    fetch: bool,
    cpu: Option<usize>,
    /// These are the workshop's.
    also: Vec<String>,
    backend: String,
    clients: Option<PathBuf>,
}

fn main() -> ExitCode {
    if checker::check_if_asked() {
        return ExitCode::SUCCESS;
    }
    match options(std::env::args().skip(1)).and_then(|options| bench(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(options: &Options) -> io::Result<()> {
    let mut report = Report::new(options.json);
    let shop = Workshop::open(lariat(), options, &mut report)?;
    type Section = fn(&Workshop, &Options, &mut Report) -> io::Result<()>;
    let sections: [(&str, Section); 4] = [
        ("latency", pipes::latency),
        ("throughput", pipes::throughput),
        ("memory", memory::measure),
        ("fronts", fronts::measure),
    ];
    for (name, measure) in sections {
        if !options.only.is_empty() && !options.only.iter().any(|one| one == name) {
            continue;
        }
        if shop.stub.is_none() {
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

/// Where real servers and the other gateways are.
#[expect(clippy::disallowed_methods, reason = "a bench is told what to compare by its environment")]
fn clients() -> Option<PathBuf> {
    std::env::var_os("LARIAT_CLIENTS").map(PathBuf::from)
}

fn options(mut words: impl Iterator<Item = String>) -> io::Result<Options> {
    let mut options = Options {
        json: false,
        rounds: 15,
        pings: 2000,
        sessions: 50,
        only: vec![],
        fetch: false,
        cpu: Some(0),
        also: vec![],
        backend: "auto".into(),
        clients: clients(),
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| io::Error::other(format!("{word} what?")));
        match word.as_str() {
            // Cargo's own.
            "--bench" => {}
            "--json" => options.json = true,
            "--quick" => (options.rounds, options.pings, options.sessions) = (3, 300, 10),
            "--rounds" => options.rounds = number(&value()?)?,
            "--pings" => options.pings = number(&value()?)?,
            "--sessions" => options.sessions = number(&value()?)?,
            "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
            "--fetch" => options.fetch = true,
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
