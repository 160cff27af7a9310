//! `lariat reap`: ends what is ours without asking, and what doctor found after a yes.

use super::doctor::Patience;
use super::doctor::servers::{cost, search, table};
use crate::leaks::{Finding, Kind};
use crate::shelf::{self, unreadable};
use crate::show;
use lariat::books::Books;
use lariat::contain::signal::{SIGHUP, SIGINT, SIGTERM};
use lariat::contain::{self, Ladder, Report, Signals};
use lariat::receipt::{Processes, Receipt, Survivor};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between the two looks at least: whoever does something meanwhile is in use.
const BETWEEN: Duration = Duration::from_millis(500);

/// How the leaked are asked to leave.
const LADDER: Ladder = Ladder {
    grace: Duration::ZERO,
    term_grace: Duration::from_secs(2),
    linger: Duration::ZERO,
    look: Duration::from_secs(5),
};

/// Ends servers that hosts have leaked, with their whole trees.
///
/// First, without asking, what is proven to be Lariat's own: crashed sessions are finished, and those
/// that left survivors are tried again. Then what `lariat doctor` calls a leak: it is shown, and ended
/// only after a yes. Right before that everything is looked at again; whatever is not the same any
/// more is left alone, and so is a superseded one that has done something meanwhile. Processes are
/// signalled by identity, never by name or group: SIGTERM, two seconds, SIGKILL. There is a receipt for
/// each in the event log.
///
/// Exit code 0 if nothing is left, 1 if something is: it survived, was left alone, or was only looked
/// at (--dry-run). 2 if nobody said yes.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat reap --dry-run
  lariat reap
  lariat reap --yes --only orphaned      # never what a living host may still use")]
pub(crate) struct Args {
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Show what would be ended, and end nothing of it
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Only leaks of this kind
    #[arg(long, value_name = "KIND", value_parser = ["orphaned", "forgotten", "superseded"])]
    only: Option<String>,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    patience: Patience,
    /// Where the books are [default: ~/.local/state/lariat]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// What became of it all.
#[derive(Default, Serialize)]
struct Outcome {
    /// Receipts of crashed sessions that were finished.
    finished: Vec<Receipt>,
    /// What was found; with `--dry-run`, or without a yes, all that there is to say.
    found: Vec<Finding>,
    /// What was ended, and how.
    reaped: Vec<Reaped>,
    /// What was found and was not the same any more.
    left_alone: Vec<Finding>,
}

impl Outcome {
    /// True if somebody is still there who should not be.
    fn is_work_left(&self) -> bool {
        !self.left_alone.is_empty()
            || self.reaped.iter().any(|one| !one.survivors.is_empty())
            || self.finished.iter().any(|receipt| !receipt.survivors.is_empty())
    }
}

/// The receipt of a server that was ended.
#[derive(Debug, Serialize)]
struct Reaped {
    kind: Kind,
    hosts: Vec<String>,
    server: String,
    evidence: Vec<crate::leaks::Evidence>,
    pid: i32,
    start: u64,
    age_s: u64,
    /// How long it took to end them all.
    teardown_ms: u64,
    processes: Processes,
    survivors: Vec<Survivor>,
}

/// Looks, asks, ends.
pub(crate) fn run(args: &Args) -> ExitCode {
    // Where nothing was ever run there are no books, and they are made only for a receipt.
    let (dir, finished) = match shelf::find(args.state_dir.as_ref()) {
        Ok((dir, books)) => (dir, books.map(|books| books.sweep()).unwrap_or_default()),
        Err(code) => return code,
    };
    let mut outcome = Outcome { finished, ..Outcome::default() };
    let looked = Instant::now();
    outcome.found = leaks(args);
    let mut heard = args.json || show::out(&before(&outcome));
    if !heard && !args.yes {
        // Whoever is asked has to have seen what for.
        return ExitCode::FAILURE;
    }
    let mut refused = false;
    if !args.dry_run && !outcome.found.is_empty() {
        let question = format!("End {}?", cost(&outcome.found));
        match args.yes.then_some(true).or_else(|| show::ask(&question)) {
            Some(true) => match Books::open(&dir) {
                Ok(books) => end(args, &books, looked, &mut outcome),
                Err(error) => return unreadable(&dir, &error),
            },
            Some(false) => refused = true,
            None => {
                refused = true;
                let advice = "look at them, then say --yes";
                show::failure("nothing was ended: there is nobody to ask", None, advice);
            }
        }
    }
    heard &= show::out(&match args.json {
        true => serde_json::to_string_pretty(&outcome).unwrap_or_default() + "\n",
        false => after(&outcome),
    });
    let left = !heard || (args.dry_run && !outcome.found.is_empty()) || outcome.is_work_left();
    match (left, refused) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => ExitCode::from(2),
        (false, false) => ExitCode::SUCCESS,
    }
}

fn leaks(args: &Args) -> Vec<Finding> {
    let (_, servers) = search(args.patience.after);
    let wanted = |leak: &Finding| args.only.as_deref().is_none_or(|only| only == leak.kind.word());
    servers.leaks.into_iter().filter(wanted).collect()
}

/// Ends those that are still what they were.
fn end(args: &Args, books: &Books, looked: Instant, outcome: &mut Outcome) {
    contain::wait(&mut [], Some(looked + BETWEEN));
    let again = leaks(args);
    let (same, other): (Vec<Finding>, Vec<Finding>) =
        outcome.found.iter().cloned().partition(|leak| is_same(leak, &again));
    outcome.left_alone = other;
    let roots: Vec<_> = same.iter().map(Finding::root).collect();
    show::progress(&format!("ending {} …", cost(&same)));
    // Nobody interrupts between a stop and the kill: the stopped would stay so.
    let _deaf = Signals::block(&[SIGINT, SIGTERM, SIGHUP]);
    let begun = Instant::now();
    let reports = contain::end_strangers(&roots, &LADDER);
    let took = begun.elapsed();
    show::progress("");
    for (leak, report) in same.into_iter().zip(reports) {
        let reaped = reaped(leak, &report, took);
        // It has ended either way; an unwritable log is no reason to stop.
        let _unlogged = books.log("reaped", &reaped);
        outcome.reaped.push(reaped);
    }
}

/// True if it is found again, is what it was, and has done nothing in between.
fn is_same(leak: &Finding, again: &[Finding]) -> bool {
    again.iter().any(|now| {
        // A child that came or went is something that was done, too.
        let moved = now.turns != leak.turns || now.tree != leak.tree;
        let idle = leak.kind != Kind::Superseded || (leak.turns.is_some() && !moved);
        now.root() == leak.root() && now.kind == leak.kind && now.server == leak.server && idle
    })
}

fn reaped(leak: Finding, report: &Report, took: Duration) -> Reaped {
    let survivor = |one: &contain::Survivor| Survivor {
        kind: one.kind.name().into(),
        pid: one.member.pid,
        start: one.member.start,
        id: None,
        command: one.name.clone(),
        why: one.why.clone(),
    };
    Reaped {
        kind: leak.kind,
        hosts: leak.hosts,
        server: leak.server,
        evidence: leak.evidence,
        pid: leak.pid,
        start: leak.start,
        age_s: leak.age_s,
        teardown_ms: took.as_millis() as u64,
        processes: Processes {
            seen: report.seen,
            left: report.left,
            asked: report.asked,
            killed: report.killed,
        },
        survivors: report.survivors.iter().map(survivor).collect(),
    }
}

fn before(outcome: &Outcome) -> String {
    let mut text = String::new();
    for receipt in &outcome.finished {
        let line = format!("finished {} ({}), which had crashed", receipt.session, receipt.server);
        text += &format!("{}\n", show::plain(&line));
        text += &survivors(&receipt.survivors);
    }
    if outcome.found.is_empty() {
        return text + "no leaks\n";
    }
    text + &table(&outcome.found)
}

fn after(outcome: &Outcome) -> String {
    let mut text = String::new();
    if !outcome.left_alone.is_empty() {
        text += &format!(
            "left alone, for they have changed meanwhile: {}\n",
            cost(&outcome.left_alone)
        );
    }
    if !outcome.reaped.is_empty() {
        let sum = |part: fn(&Processes) -> u32| {
            outcome.reaped.iter().map(|one| part(&one.processes)).sum::<u32>()
        };
        text += &format!(
            "ended {}, {}: {} left by themselves, {} when asked, {} killed\n",
            show::count(outcome.reaped.len(), "server"),
            show::count(sum(|p| p.seen) as usize, "process"),
            sum(|p| p.left),
            sum(|p| p.asked),
            sum(|p| p.killed)
        );
        for one in &outcome.reaped {
            text += &survivors(&one.survivors);
        }
        text += "receipts: lariat events --json | jq 'select(.event == \"reaped\")'\n";
    }
    text
}

fn survivors(survivors: &[Survivor]) -> String {
    let line =
        |one: &Survivor| format!("  {}\n", show::plain(&format!("{one} SURVIVED: {}", one.why)));
    survivors.iter().map(line).collect()
}
