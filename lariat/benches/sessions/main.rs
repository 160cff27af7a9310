//! What a session of the daemon's costs: `cargo bench --bench sessions [-- options]`.
//!
//! Sessions of one light server are opened and closed, many at once, through the daemon; in
//! interleaved rounds the same server is started, greeted, asked for its tools and ended bare, by
//! `lariat run`, and by the SDKs of other languages. Each bar says PASS or MISS. A miss is a number to
//! look at, not an error: the exit code is 0 unless something broke or was left.
//!
//! ```text
//! --sessions N   through the daemon, in all rounds together (1000)
//! --others N     by each of the others (200)
//! --at-once N    at the same time (50)
//! --rounds N     (4)
//! --quick        a few, to see that it works
//! --json         one JSON object instead of tables
//! ```
//!
//! `LARIAT_BIN` names another `lariat` to measure, `LARIAT_CLIENTS` where `./test` put the SDKs.
//! Whatever ends the bench, nothing stays: the daemon's sessions are the bench's, the daemon leaves
//! when it is idle, and the others see their standard input end.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench prints")]
#![expect(clippy::unwrap_used, reason = "a bench has nothing to recover")]

mod contender;
mod daemon;
#[expect(dead_code, reason = "the other bench uses more of it")]
#[path = "../run/report.rs"]
mod report;
#[path = "../../tests/clients/witness.rs"]
mod witness;

use contender::{Contender, Round};
use daemon::Daemon;
use report::{Report, median, quantile};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How long whatever is left may take to be gone: both rungs of the ladder, and a second.
pub(crate) const PROMISE: Duration = Duration::from_secs(5);

/// The memory that the daemon may have: so much, and so much more for each session. In KiB.
const MEMORY: (f64, f64) = (20.0 * 1024.0, 50.0);

struct Options {
    sessions: usize,
    others: usize,
    at_once: usize,
    rounds: usize,
    json: bool,
}

/// A directory and a word for one run. Dropped, everything that has the word is ended.
pub(crate) struct Room {
    pub(crate) dir: PathBuf,
    pub(crate) token: String,
    pub(crate) lariat: String,
    pub(crate) clients: Option<PathBuf>,
}

impl Room {
    #[expect(clippy::disallowed_methods, reason = "a bench is told so by its environment")]
    fn new() -> io::Result<Room> {
        let named = std::env::var_os("LARIAT_BIN");
        let lariat = named.as_deref().unwrap_or(OsStr::new(env!("CARGO_BIN_EXE_lariat")));
        let lariat = fs::canonicalize(lariat)?.display().to_string();
        let clients = std::env::var_os("LARIAT_CLIENTS").map(PathBuf::from);
        let token = witness::token();
        let dir = std::env::temp_dir().join(&token);
        fs::create_dir(&dir)?;
        Ok(Room { dir, token, lariat, clients })
    }

    /// The server that all of them start.
    pub(crate) fn server(&self) -> [&str; 4] {
        [&self.lariat, "__misbehave", "polite", &self.token]
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        witness::sweep(&self.token);
        fs::remove_dir_all(&self.dir).ok();
    }
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let outcome = options(std::env::args().skip(1)).and_then(|options| {
        runtime.block_on(async {
            let [mut int, mut term, mut hup] =
                [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
                    .map(|kind| signal(kind).unwrap());
            // Dropped in the middle, it ends what it started like at its end.
            tokio::select! {
                outcome = bench(&options) => outcome,
                _ = int.recv() => Err(io::Error::other("interrupted")),
                _ = term.recv() => Err(io::Error::other("terminated")),
                _ = hup.recv() => Err(io::Error::other("hung up")),
            }
        })
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn bench(options: &Options) -> io::Result<()> {
    let room = Room::new()?;
    let mut report = Report::new(options.json);
    let mut rivals = Vec::new();
    for contender in Contender::ALL {
        match contender.missing(&room) {
            None => rivals.push((contender, Vec::new())),
            Some(why) => report.skip(format!("{}: {why}", contender.name())),
        }
    }
    let daemon = Daemon::start(&room)?;
    // The daemon is not idle while others have their turn: a connection that has said something stays.
    let mut held = contender::connect(&room).await?;
    held.list().await.map_err(io::Error::other)?;
    // What is there once and for all is there after the first session.
    contender::session(&room).await?;
    let before = daemon.calm();
    let live_before = live(&room, &daemon, options).await?;
    for round in 0..options.rounds {
        eprintln!("round {} of {} …", round + 1, options.rounds);
        let count = rivals.len();
        // Nobody is always first.
        for at in (0..count).map(|n| (n + round) % count) {
            let (contender, rounds) = &mut rivals[at];
            let of =
                if *contender == Contender::Daemon { options.sessions } else { options.others };
            let sessions = of.div_ceil(options.rounds).max(options.at_once);
            rounds.push(contender.round(&room, sessions, options.at_once).await?);
        }
    }
    let live_after = live(&room, &daemon, options).await?;
    let after = daemon.calm();
    let left = daemon.others(&room);
    compare(&rivals, options, &mut report);
    together(&room, &rivals, options, &mut report).await?;
    alone(&room, &rivals, options, &mut report).await?;
    memory(options, &mut report, [before, live_before, live_after, after]);
    report.bar("processes left", left.len() as f64, 0.0, "");
    report.finish();
    drop((held, daemon));
    if left.is_empty() { Ok(()) } else { Err(io::Error::other(format!("left: {left:?}"))) }
}

/// The daemon's descriptors and KiB while so many sessions are there.
async fn live(room: &Room, daemon: &Daemon, options: &Options) -> io::Result<[f64; 2]> {
    let sessions = contender::many(room, options.at_once).await?;
    let footprint = daemon.footprint();
    for (mut client, id) in sessions {
        client.close(&id).await.map_err(io::Error::other)?;
    }
    Ok(footprint)
}

/// Who does how many a second, and how long each takes.
fn compare(rivals: &[(Contender, Vec<Round>)], options: &Options, report: &mut Report) {
    let row = |(contender, rounds): &(Contender, Vec<Round>)| {
        let rates: Vec<f64> = rounds.iter().map(Round::rate).collect();
        let opens: Vec<f64> = rounds.iter().flat_map(|round| round.opens.clone()).collect();
        let ends: Vec<f64> = rounds.iter().flat_map(|round| round.ends.clone()).collect();
        let [open, end] = [opens, ends].map(|of| [median(&of), quantile(&of, 0.99)]);
        (contender.name().to_owned(), vec![median(&rates), open[0], open[1], end[0], end[1]])
    };
    let rows: Vec<_> = rivals.iter().map(row).collect();
    let title =
        format!("sessions of one server, {} at once, {} rounds", options.at_once, options.rounds);
    let columns = ["sessions/s", "open p50 ms", "p99", "end p50 ms", "p99"];
    report.table(&title, &columns, &rows);
    let p99 = |contender: Contender| {
        rows.iter().find(|(name, _)| name == contender.name()).map_or(f64::NAN, |(_, row)| row[4])
    };
    let [daemon, bare, run] = [Contender::Daemon, Contender::Bare, Contender::Run].map(p99);
    report.bar("end of a session, p99, × bare", daemon / bare, 2.0, "");
    report.bar("end of a session, p99, × lariat run", daemon / run, 2.0, "");
}

/// Ends that come at once, while nobody is being started.
async fn together(
    room: &Room,
    rivals: &[(Contender, Vec<Round>)],
    options: &Options,
    report: &mut Report,
) -> io::Result<()> {
    let mut found: Vec<(Contender, Vec<f64>)> = Vec::new();
    for _ in 0..options.rounds {
        for (contender, _) in rivals {
            let Some(ends) = contender.ends(room, options.at_once).await? else { continue };
            match found.iter_mut().find(|(other, _)| other == contender) {
                Some((_, all)) => all.extend(ends),
                None => found.push((*contender, ends)),
            }
        }
    }
    let row = |(contender, ends): &(Contender, Vec<f64>)| {
        (contender.name().to_owned(), vec![median(ends), quantile(ends, 0.99)])
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    let title = format!("{} that end at once, nothing else", options.at_once);
    report.table(&title, &["end p50 ms", "p99"], &rows);
    Ok(())
}

/// The same, with nobody else about: the ladder's own time.
async fn alone(
    room: &Room,
    rivals: &[(Contender, Vec<Round>)],
    options: &Options,
    report: &mut Report,
) -> io::Result<()> {
    let mut rows = Vec::new();
    for (contender, _) in rivals {
        let round = contender.round(room, options.at_once, 1).await?;
        let [open, end] = [round.opens, round.ends].map(|of| [median(&of), quantile(&of, 0.99)]);
        rows.push((contender.name().to_owned(), vec![open[0], open[1], end[0], end[1]]));
    }
    let title = format!("one at a time, {} of each", options.at_once);
    report.table(&title, &["open p50 ms", "p99", "end p50 ms", "p99"], &rows);
    Ok(())
}

fn memory(options: &Options, report: &mut Report, found: [[f64; 2]; 4]) {
    let [before, live_before, live_after, after] = found;
    let sessions = options.at_once as f64;
    let row = |name: &str, [descriptors, kib]: [f64; 2], none: Option<[f64; 2]>| {
        let each = none.map_or(f64::NAN, |none| (kib - none[1]) / sessions);
        (name.to_owned(), vec![descriptors, kib, each])
    };
    let rows = [
        row("before", before, None),
        row("with all of them live, before", live_before, Some(before)),
        row("with all of them live, after", live_after, Some(after)),
        row("after", after, None),
    ];
    let columns = ["descriptors", "RSS KiB", "KiB each"];
    report.table(&format!("the daemon, {sessions} live sessions"), &columns, &rows);
    let limit = MEMORY.0 + MEMORY.1 * sessions;
    report.bar("memory with live sessions", live_before[1].max(live_after[1]), limit, "KiB");
    report.bar("memory after", after[1], MEMORY.0, "KiB");
    report.bar("descriptors more than before", after[0] - before[0], 0.0, "");
}

fn options(mut words: impl Iterator<Item = String>) -> io::Result<Options> {
    let mut options = Options { sessions: 1000, others: 200, at_once: 50, rounds: 4, json: false };
    while let Some(word) = words.next() {
        let mut number = || {
            let number = words.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
            number.ok_or_else(|| io::Error::other(format!("{word} how many?")))
        };
        match word.as_str() {
            "--sessions" => options.sessions = number()?,
            "--others" => options.others = number()?,
            "--at-once" => options.at_once = number()?,
            "--rounds" => options.rounds = number()?,
            "--quick" => {
                (options.sessions, options.others, options.at_once, options.rounds) =
                    (20, 10, 5, 2);
            }
            "--json" => options.json = true,
            // Cargo says so to every bench.
            "--bench" => {}
            _ => return Err(io::Error::other(format!("unknown option {word}"))),
        }
    }
    Ok(options)
}
