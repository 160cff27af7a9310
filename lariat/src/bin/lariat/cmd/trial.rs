//! `lariat trial`: the kit against any wrapper, so that peers can be measured with it too.

use crate::show;
use lariat::duration;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use trials::{Cell, Death, Misbehaviour, Moment, Subject, Verdict};

/// Tries any wrapper with children that misbehave, and counts the survivors.
///
/// Each cell starts a host, the wrapper and a server that misbehaves in one way, lets the session
/// end in one way, and looks at /proc for who is left. Look-alike bystanders must stay untouched.
/// Exit code 0 if every cell passed, 1 if not.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat trial                                   Lariat itself
  lariat trial --wrap \"\"                         no wrapper at all
  lariat trial --wrap \"bwrap --die-with-parent --unshare-pid --dev-bind / / --proc /proc --\"
  lariat trial --misbehaviour setsid-child --death sigkill-host")]
pub(crate) struct Args {
    /// The wrapper's command line, split at blanks; the server's command is added to it
    /// [default: this program's `run`]
    #[arg(long, value_name = "COMMAND")]
    wrap: Option<String>,
    /// Only this misbehaviour (repeatable); `list` shows them
    #[arg(long, value_name = "NAME")]
    misbehaviour: Vec<String>,
    /// Only this death (repeatable); `list` shows them
    #[arg(long, value_name = "NAME")]
    death: Vec<String>,
    /// Only this moment (repeatable); `list` shows them
    #[arg(long, value_name = "NAME")]
    moment: Vec<String>,
    /// How long after the death everything must be gone
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration::parse)]
    patience: Duration,
    /// Run host, wrapper and server as this user id (needs root)
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    /// Sockets instead of pipes as stdin and stdout
    #[arg(long)]
    socketpair: bool,
    /// How many cells at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    jobs: usize,
    /// One JSON object per cell
    #[arg(long)]
    json: bool,
}

/// Runs the table.
pub(crate) fn run(args: Args) -> ExitCode {
    if let Some(listed) = listed(&args) {
        show::out(&listed);
        return ExitCode::SUCCESS;
    }
    let Some(filter) = Filter::new(&args) else {
        return ExitCode::from(2);
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(e) => {
            show::failure("cannot find this program's own file", Some(&e), "");
            return ExitCode::from(125);
        }
    };
    let subject = subject(&args, program);
    let cells: Vec<Cell> =
        trials::cells(&subject).into_iter().filter(|c| filter.admits(c)).collect();
    let results = play(&cells, &subject, &args);
    let failed = results.iter().filter(|(_, v)| !v.passed()).count();
    if !args.json {
        show::progress("");
        show::out(&summary(&results));
    }
    ExitCode::from(u8::from(failed > 0))
}

fn subject(args: &Args, program: PathBuf) -> Subject {
    let own = OsString::from(&program);
    let mut subject = match &args.wrap {
        Some(wrap) => Subject::wrapped(&program, wrap.split_whitespace()),
        None => {
            let ladder = ["run", "--grace", "200ms", "--term-grace", "200ms", "--"];
            let wrap = std::iter::once(own.clone()).chain(ladder.map(OsString::from));
            let mut subject = Subject::wrapped(&program, wrap);
            subject.guardian = true;
            // We are one host, and sweep as often as there are trials.
            let sweep = ["run", "--max-starts", "off", "--", "true"].map(OsString::from);
            subject.sweep = Some([own].into_iter().chain(sweep).collect());
            subject
        }
    };
    subject.patience = args.patience;
    subject.user = args.user;
    subject.socketpair = args.socketpair;
    subject
}

/// Which cells were asked for.
struct Filter {
    misbehaviours: Vec<Misbehaviour>,
    deaths: Vec<Death>,
    moments: Vec<Moment>,
}

impl Filter {
    fn new(args: &Args) -> Option<Filter> {
        Some(Filter {
            misbehaviours: named(
                "misbehaviour",
                &args.misbehaviour,
                Misbehaviour::ALL,
                Misbehaviour::name,
            )?,
            deaths: named("death", &args.death, Death::ALL, Death::name)?,
            moments: named("moment", &args.moment, Moment::ALL, Moment::name)?,
        })
    }

    fn admits(&self, cell: &Cell) -> bool {
        self.misbehaviours.contains(&cell.misbehaviour)
            && self.deaths.contains(&cell.death)
            && self.moments.contains(&cell.moment)
    }
}

/// The names there are, if that was asked for.
fn listed(args: &Args) -> Option<String> {
    fn names<T: Copy>(all: &[T], name_of: fn(T) -> &'static str) -> String {
        all.iter().map(|one| name_of(*one).to_owned() + "\n").collect()
    }
    let is_list = |names: &[String]| names == ["list"];
    if is_list(&args.misbehaviour) {
        Some(names(Misbehaviour::ALL, Misbehaviour::name))
    } else if is_list(&args.death) {
        Some(names(Death::ALL, Death::name))
    } else {
        is_list(&args.moment).then(|| names(Moment::ALL, Moment::name))
    }
}

/// Those that were named, or all; `None` after saying which names there are.
fn named<T: Copy>(
    what: &str,
    names: &[String],
    all: &[T],
    name_of: fn(T) -> &'static str,
) -> Option<Vec<T>> {
    if names.is_empty() {
        return Some(all.to_vec());
    }
    let find = |name: &String| all.iter().copied().find(|one| name_of(*one) == name);
    let found: Option<Vec<T>> = names.iter().map(find).collect();
    if found.is_none() {
        let known: Vec<&str> = all.iter().map(|one| name_of(*one)).collect();
        let problem = format!("no such {what} among: {}", names.join(", "));
        show::failure(&problem, None, &format!("choose from: {}", known.join(", ")));
    }
    found
}

/// Plays the cells, several at a time, and returns their verdicts in order.
fn play(cells: &[Cell], subject: &Subject, args: &Args) -> Vec<(Cell, Verdict)> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.clamp(1, 64) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(cell) = cells.get(index) else {
                        return;
                    };
                    let verdict = trials::run(cell, subject);
                    if args.json {
                        show::out(&format!("{}\n", as_json(cell, &verdict)));
                    } else {
                        show::progress(&format!("{}/{} {}", index + 1, cells.len(), cell.name()));
                    }
                    if let Ok(mut results) = results.lock() {
                        results.insert(index, (*cell, verdict));
                    }
                }
            });
        }
    });
    results.into_inner().map(|r| r.into_values().collect()).unwrap_or_default()
}

fn as_json(cell: &Cell, verdict: &Verdict) -> serde_json::Value {
    json!({
        "misbehaviour": cell.misbehaviour.name(),
        "death": cell.death.name(),
        "moment": cell.moment.name(),
        "passed": verdict.passed(),
        "survivors": verdict.survivors,
        "harmed": verdict.harmed,
        "hung": verdict.hung,
        "unbuilt": verdict.unbuilt,
        "skipped": verdict.skipped,
        "left_cgroups": verdict.left_cgroups,
        "cluttered": verdict.cluttered,
        "gone_ms": verdict.gone_ms,
        "peak": verdict.peak,
        "wrapper_exit": verdict.wrapper_exit,
    })
}

/// A grid of misbehaviours and deaths: the most survivors of any moment, `!` for anything else that
/// went wrong, `.` for clean.
fn summary(results: &[(Cell, Verdict)]) -> String {
    let mut text = String::new();
    let deaths: Vec<Death> =
        Death::ALL.iter().copied().filter(|d| results.iter().any(|(c, _)| c.death == *d)).collect();
    for (number, death) in deaths.iter().enumerate() {
        text += &format!("{:>4} {death}\n", number + 1);
    }
    text += &format!("{:26}", "survivors");
    for number in 1..=deaths.len() {
        text += &format!("{number:>4}");
    }
    text.push('\n');
    for misbehaviour in Misbehaviour::ALL {
        let row: Vec<_> = results.iter().filter(|(c, _)| c.misbehaviour == *misbehaviour).collect();
        if row.is_empty() {
            continue;
        }
        text += &format!("{:26}", misbehaviour.name());
        for death in &deaths {
            let cell = row.iter().filter(|(c, _)| c.death == *death);
            let (mut most, mut wrong, mut any, mut skipped) = (0, false, false, true);
            for (_, verdict) in cell {
                any = true;
                skipped &= verdict.skipped.is_some();
                most = most.max(verdict.survivors.len());
                wrong |= !verdict.passed();
            }
            let mark = match (any, skipped, most, wrong) {
                (false, ..) => String::new(),
                (_, true, ..) => "-".into(),
                (_, _, 0, false) => ".".into(),
                (_, _, 0, true) => "!".into(),
                (_, _, n, _) => n.to_string(),
            };
            text += &format!("{mark:>4}");
        }
        text.push('\n');
    }
    let failed: Vec<_> = results.iter().filter(|(_, v)| !v.passed()).collect();
    for (cell, verdict) in failed.iter().take(20) {
        text += &format!("{}: {verdict}\n", cell.name());
    }
    if failed.len() > 20 {
        text += &format!("and {} more cells that failed\n", failed.len() - 20);
    }
    let survivors: usize = results.iter().map(|(_, v)| v.survivors.len()).sum();
    let harmed: usize = results.iter().map(|(_, v)| v.harmed.len()).sum();
    let skipped = results.iter().filter(|(_, v)| v.skipped.is_some()).count();
    text += &format!(
        "{} cells: {} passed, {} failed, {skipped} skipped; {survivors} survivors, {harmed} \
         bystanders harmed\n",
        results.len(),
        results.len() - failed.len() - skipped,
        failed.len(),
    );
    text
}
