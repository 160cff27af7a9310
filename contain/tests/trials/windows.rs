//! The Windows column, and what only a system of that kind can show about the library. Each cell once, or
//! three times with `LARIAT_TRIALS=full`, as in `./test windows`.

#[path = "receipts.rs"]
mod receipts;

use lariat_contain::{Choice, Ladder, Spec, Stream, Tree};
use libtest_mimic::{Arguments, Failed, Trial};
use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::time::Duration;
use trials::{Around, Cell, Death, Misbehaviour, Moment, Subject};

const RUNG: Duration = Duration::from_millis(300);

/// What is tried wherever a host may be. The rest is tried under a console only.
const EVERYWHERE: [Misbehaviour; 4] = [
    Misbehaviour::CmdChain,
    Misbehaviour::Detached,
    Misbehaviour::Breakaway,
    Misbehaviour::IgnoresBreak,
];

pub(crate) fn main() {
    trials::misbehave_if_asked();
    receipts::play_if_asked();
    if own_if_asked() {
        return;
    }
    let arguments = Arguments::from_args();
    #[expect(clippy::disallowed_methods, reason = "a runner of tests is told so by its caller")]
    let everything = std::env::var_os("LARIAT_TRIALS").is_some_and(|how_much| how_much == "full");
    let columns = Around::ALL.iter().flat_map(|around| column(*around, everything));
    let mut tests: Vec<Trial> = columns.collect();
    tests.extend([Misbehaviour::CmdChain, Misbehaviour::CmdStarts].map(leak));
    tests.extend(receipts::tests());
    libtest_mimic::run(&arguments, tests).exit();
}

fn column(around: Around, everything: bool) -> Vec<Trial> {
    let program = std::env::current_exe().unwrap_or_default();
    let owner = [program.clone().into(), OsString::from("__own")];
    let subject = Subject { around, ..Subject::owner(&program, owner) };
    let wanted = |misbehaviour: &Misbehaviour| {
        around == Around::Console || EVERYWHERE.contains(misbehaviour)
    };
    // Two hundred processes take their time, and so does every place to be in; dropping and panicking
    // are the owner's death to all of them.
    let too_much = |misbehaviour, death| {
        (misbehaviour == Misbehaviour::WideTree || around != Around::Console)
            && matches!(death, Death::Drop | Death::Panic)
    };
    let pairs = trials::list(&subject)
        .into_iter()
        .filter(|(misbehaviour, death)| wanted(misbehaviour) && !too_much(*misbehaviour, *death));
    pairs
        .map(|(misbehaviour, death)| {
            let subject = subject.clone();
            Trial::test(format!("{around}::{misbehaviour}::{death}"), move || {
                trials::run_in_turn(everything, misbehaviour, death, &subject).map_err(Failed::from)
            })
        })
        .collect()
}

/// Without us the same tree must leave somebody, and be seen to: the table can fail.
fn leak(misbehaviour: Misbehaviour) -> Trial {
    Trial::test(format!("bare::{misbehaviour}::is-a-leak"), move || {
        let subject = Subject::bare(std::env::current_exe()?);
        let cell = Cell { misbehaviour, death: Death::HostKilled, moment: Moment::Ready };
        let verdict = trials::run(&cell, &subject);
        if verdict.survivors.is_empty() || verdict.hung.is_some() {
            return Err(format!("no survivor was seen: {verdict}").into());
        }
        Ok(())
    })
}

/// Plays the owner if asked: `EXE __own -- SERVER…`.
fn own_if_asked() -> bool {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|verb| verb != "__own") {
        return false;
    }
    let mut server = args.skip_while(|word| word != "--").skip(1);
    let mut lines = std::io::stdin().lock().lines().map_while(Result::ok);
    if lines.next().is_none_or(|line| line != "go") {
        return true;
    }
    // The writing end stays open to the last: nothing here may depend on end-of-file.
    let (stdin, _open) = std::io::pipe().expect("a pipe");
    let spec = Spec {
        program: server.next().unwrap_or_default(),
        args: server.collect(),
        env: None,
        cwd: None,
        stdin: stdin.into(),
        stdout: Stream::null(),
        stderr: Stream::null(),
        backend: Choice::Auto,
        ladder: Ladder { grace: RUNG, term_grace: RUNG, ..Ladder::default() },
    };
    let mut tree = Some(Tree::spawn(spec).expect("the tree starts"));
    let mut out = std::io::stdout();
    out.write_all(b"up\n").and_then(|()| out.flush()).expect("the runner reads");
    for line in lines {
        match line.as_str() {
            "close" => {
                let emptied = tree.take().expect("closed once").close().expect("nobody survives");
                assert!(emptied.report().survivors.is_empty());
            }
            "drop" => drop(tree.take()),
            "panic" => panic!("as asked, with the tree on the stack"),
            _ => {}
        }
    }
    true
}
