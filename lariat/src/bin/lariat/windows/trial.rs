//! `lariat trial` on Windows: the kit against any wrapper, so that peers can be measured with it too.

use crate::show;
use lariat::duration;
use std::ffi::OsString;
use std::time::Duration;
use trials::{Around, Death, Misbehaviour, Moment, Subject};

/// Tries any wrapper with children that misbehave, and counts the survivors.
///
/// Each cell starts a host, the wrapper and a server that misbehaves in one way, lets the session
/// end in one way, and looks for who is left. Look-alike bystanders must stay untouched. Exit code 0
/// if every cell passed, 1 if not.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The wrapper's command line, split at blanks; the server's command is added to it
    /// [default: this program's `run`]
    #[arg(long, value_name = "COMMAND")]
    wrap: Option<String>,
    /// Only this misbehaviour (repeatable); another word shows them
    #[arg(long, value_name = "NAME", value_parser = misbehaviour)]
    misbehaviour: Vec<Misbehaviour>,
    /// Only this death (repeatable); another word shows them
    #[arg(long, value_name = "NAME", value_parser = death)]
    death: Vec<Death>,
    /// Only this moment (repeatable); another word shows them
    #[arg(long, value_name = "NAME", value_parser = moment)]
    moment: Vec<Moment>,
    /// What is around the host
    #[arg(long, value_name = "NAME", default_value = "console", value_parser = around)]
    around: Around,
    /// How long after the death everything must be gone
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    patience: Duration,
}

fn misbehaviour(name: &str) -> Result<Misbehaviour, String> {
    Misbehaviour::from_name(name).ok_or_else(|| one_of(Misbehaviour::ALL, Misbehaviour::name))
}

fn death(name: &str) -> Result<Death, String> {
    Death::from_name(name).ok_or_else(|| one_of(Death::ALL, Death::name))
}

fn moment(name: &str) -> Result<Moment, String> {
    Moment::from_name(name).ok_or_else(|| one_of(Moment::ALL, Moment::name))
}

fn around(name: &str) -> Result<Around, String> {
    Around::from_name(name).ok_or_else(|| one_of(Around::ALL, Around::name))
}

fn one_of<T: Copy>(all: &[T], name: fn(T) -> &'static str) -> String {
    let names: Vec<&str> = all.iter().map(|one| name(*one)).collect();
    format!("one of {}", names.join(", "))
}

/// Runs the table.
pub(super) fn run(args: &Args) -> i32 {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(e) => {
            show::failure("cannot find this program's own file", Some(&e), "");
            return 125;
        }
    };
    let own = || {
        let ladder = ["run", "--grace", "200ms", "--term-grace", "200ms", "--"];
        let own = std::iter::once(OsString::from(&program));
        own.chain(ladder.map(OsString::from)).collect::<Vec<_>>()
    };
    let given = |wrap: &String| wrap.split_whitespace().map(OsString::from).collect();
    let wrap: Vec<OsString> = args.wrap.as_ref().map_or_else(own, given);
    let (around, patience) = (args.around, args.patience);
    let subject = Subject { around, patience, ..Subject::wrapped(&program, wrap) };
    let (mut passed, mut failed) = (0, 0);
    for cell in trials::cells(&subject) {
        let wanted = (args.misbehaviour.is_empty()
            || args.misbehaviour.contains(&cell.misbehaviour))
            && (args.death.is_empty() || args.death.contains(&cell.death))
            && (args.moment.is_empty() || args.moment.contains(&cell.moment));
        if !wanted {
            continue;
        }
        let verdict = trials::run(&cell, &subject);
        let word = if verdict.passed() { "pass" } else { "FAIL" };
        *if verdict.passed() { &mut passed } else { &mut failed } += 1;
        if !show::out(&format!("{word} {} {verdict}\n", cell.name())) {
            break;
        }
    }
    show::out(&format!("{passed} passed, {failed} failed\n"));
    i32::from(failed > 0)
}
