//! `lariat ps`: who lives.

mod table;

use crate::{env, shelf, show};
use lariat::books::{Books, Onlooker};
use lariat::contain;
use lariat::duration;
use lariat::snapshot::Living;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub(super) use table::{cpu, host, share, time};

/// How long engines may take to say which containers there are, all together.
pub(super) const ENGINES: Duration = Duration::from_secs(2);

/// Lists every living session: server, host, state, what it costs.
///
/// The books say which sessions there are; no daemon is needed. Processes, memory and CPU time are the
/// server's own. A session that nobody has used for long can be `asleep`: its processes are gone, and
/// the next message of its host starts them again. `superseded`: the same host has started the same
/// server again since. `survivors`: it has ended, and somebody is left whom nobody here may end.
///
/// `busy` and the idle time are known where somebody looks at the messages: `lariat run --idle`,
/// `--call-timeout` and their kin, the daemon, and hosts that embed the library. A server that has its
/// host's own streams is `ready`. Engines are
/// asked for containers only if a session has started some, for two seconds at most.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat ps
  lariat ps --watch
  lariat ps --pss
  lariat ps --json | jq '.[] | select(.evidence | index(\"superseded\"))'")]
pub(crate) struct Args {
    /// Print them as JSON: every field, and with --watch one list a line
    #[arg(long)]
    json: bool,
    /// Look again every so often, until interrupted [default: 2s]
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", value_parser = duration::some)]
    watch: Option<Duration>,
    /// Divide memory by the number of those who share it; takes the kernel longer
    #[arg(long)]
    pss: bool,
    /// Where the books are [default: ~/.local/state/lariat]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// Looks and prints.
pub(crate) fn run(args: &Args) -> ExitCode {
    let (mut onlooker, mut first) = (None, true);
    loop {
        let due = args.watch.map(|every| Instant::now() + every);
        // Who watches may be there before the first session is.
        if onlooker.is_none() {
            onlooker = match shelf::find(args.state_dir.as_ref()) {
                Ok((_, books)) => books.map(|books| open(&books, args)),
                Err(code) => return code,
            };
        }
        let living = onlooker.as_mut().map(|one| look(one, first)).unwrap_or_default();
        first = false;
        let written = show::out(&text(living, args));
        match due.filter(|_| written) {
            Some(due) => contain::wait(&mut [], Some(due)),
            None => return ExitCode::from(u8::from(!written)),
        };
    }
}

fn open(books: &Books, args: &Args) -> Onlooker {
    let onlooker = Onlooker::new(books);
    if args.pss { onlooker.with_shares() } else { onlooker }
}

/// Whatever crashed is finished first; by who looks again and again, once.
fn look(onlooker: &mut Onlooker, first: bool) -> Vec<Living> {
    let mut living = if first { onlooker.sweep_and_look() } else { onlooker.look() };
    onlooker.ask_engines(&mut living, ENGINES);
    living
}

fn text(mut living: Vec<Living>, args: &Args) -> String {
    let terminal = std::io::stdout().is_terminal();
    match (args.json, args.watch) {
        (true, None) => json(&living),
        (true, Some(_)) => serde_json::to_string(&living).unwrap_or_default() + "\n",
        (false, watch) => {
            living.sort_by_cached_key(order);
            let table = table::table(&living, &table::Shape { pss: args.pss, totals: terminal });
            match watch {
                // From the top of the screen, over what was there before.
                Some(_) if terminal && env::terminal_can_draw() => {
                    format!("\x1b[H\x1b[2J{table}")
                }
                Some(_) => table + "\n",
                None => table,
            }
        }
    }
}

/// Those of one host together, oldest first.
fn order(one: &Living) -> (Option<(String, i32)>, u64) {
    let host = one.host.as_ref().map(|host| (host.name.clone().unwrap_or_default(), host.pid));
    (host, u64::MAX - (one.age_s * 1000.0) as u64)
}

/// As scripts read it.
pub(super) fn json(living: &[Living]) -> String {
    let mut text = serde_json::to_string_pretty(living).unwrap_or_default();
    text.push('\n');
    text
}
