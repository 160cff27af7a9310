//! `lariat demo` on Windows: the leak and the cure, on this machine.

use crate::show;
use std::ffi::OsString;
use std::time::Duration;
use trials::{Cell, Death, Misbehaviour, Moment, Subject, Verdict};

/// Shows the leak and the cure on this machine, with no set-up.
///
/// A host starts a server by way of two shells, as `cmd /c npx` does, and is ended by the task
/// manager: first without Lariat, then with it. Nothing is left of either.
#[derive(clap::Args)]
pub(super) struct Args {}

/// Plays both; 0 if the cure was one.
pub(super) fn run(_: &Args) -> i32 {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(e) => {
            show::failure("cannot find this program's own file", Some(&e), "");
            return 125;
        }
    };
    let ladder = ["run", "--grace", "200ms", "--term-grace", "200ms", "--"].map(OsString::from);
    let wrap = std::iter::once(OsString::from(&program)).chain(ladder);
    let patience = Duration::from_secs(3);
    let bare = Subject { patience, ..Subject::bare(&program) };
    let held = Subject { patience, ..Subject::wrapped(&program, wrap) };
    show::out("A host starts a server through cmd /c, which runs cmd /c, and is ended.\n\n");
    let leak = play(&bare);
    show::out(&told("without Lariat", &leak));
    let cure = play(&held);
    show::out(&told("with `lariat run --`", &cure));
    show::out("\nWhat the first one left has been ended, too.\n");
    i32::from(!cure.passed())
}

fn play(subject: &Subject) -> Verdict {
    let (misbehaviour, death) = (Misbehaviour::CmdChain, Death::HostKilled);
    trials::run(&Cell { misbehaviour, death, moment: Moment::Ready }, subject)
}

fn told(how: &str, verdict: &Verdict) -> String {
    let left = verdict.survivors.len();
    let mut text = format!("{how}: {left} of {} processes are left\n", verdict.peak);
    text.extend(verdict.survivors.iter().map(|one| format!("  {one}\n")));
    // Whatever else went wrong is said as well.
    if left == 0 && !verdict.passed() {
        text += &format!("  {verdict}\n");
    }
    text
}
