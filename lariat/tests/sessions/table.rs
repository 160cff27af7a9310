//! The table of misbehaviours and deaths against an owner that has a manager.

use crate::kit::{self, RUNG};
use lariat::contain::{Backend, Choice};
use lariat::session::Manager;
use lariat::spec::{Restart, ServerSpec};
use libtest_mimic::{Failed, Trial};
use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::time::Duration;
use trials::{Misbehaviour, Subject};

/// An ordinary user that owns nothing.
const ORDINARY: u32 = 61_359;

/// Of misbehaviours that ignore the protocol to the end, these say enough.
const SAMPLE: &[Misbehaviour] = &[
    Misbehaviour::Polite,
    Misbehaviour::IgnoresEofAndTerm,
    Misbehaviour::SpinsOnEof,
    Misbehaviour::ShellWrapper,
    Misbehaviour::SetsidChild,
    Misbehaviour::DoubleFork,
    Misbehaviour::EmptyEnv,
    Misbehaviour::ForksDuringKill,
    Misbehaviour::TermForksAndExits,
    Misbehaviour::FloodsStderr,
];

pub(crate) fn tests() -> Vec<Trial> {
    let program = std::env::current_exe().unwrap_or_default();
    let root = rustix::process::geteuid().is_root();
    let mut tests = Vec::new();
    for user in [None, Some(ORDINARY)] {
        for backend in ["cgroup", "descent", "pidns"] {
            if (user.is_none() || backend == "cgroup") && !(user.is_none() && root) {
                continue;
            }
            // The kernel does the same for everybody there.
            if user.is_some() && backend == "pidns" && kit::rounds() <= 3 {
                continue;
            }
            let owner = [program.clone().into(), "__own-manager".into(), OsString::from(backend)];
            let mut subject = Subject::owner(&program, owner);
            subject.guardian = true;
            subject.user = user.filter(|_| root);
            subject.patience = 2 * RUNG + Duration::from_millis(1250);
            let name =
                format!("table::{}::{backend}", if user.is_none() { "root" } else { "user" });
            tests.extend(cells(&name, &subject));
        }
    }
    tests
}

fn cells(name: &str, subject: &Subject) -> Vec<Trial> {
    let wanted = |misbehaviour: &Misbehaviour| match kit::rounds() {
        1 => *misbehaviour == Misbehaviour::DoubleFork,
        2..=3 => SAMPLE.contains(misbehaviour),
        _ => true,
    };
    let cells = trials::list(subject).into_iter().filter(|(misbehaviour, _)| wanted(misbehaviour));
    let test = |(misbehaviour, death)| {
        let subject = subject.clone();
        Trial::test(format!("{name}::{misbehaviour}::{death}"), move || {
            trials::run_at_every_moment(misbehaviour, death, &subject).map_err(Failed::from)
        })
    };
    cells.map(test).collect()
}

/// Plays the owner if asked: `EXE __own-manager BACKEND -- SERVER…`.
pub(crate) fn own_if_asked() -> bool {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|verb| verb != "__own-manager") {
        return false;
    }
    let backend = args.next().and_then(|b| Backend::named(b.to_str()?)).map(Choice::Named);
    let words = args.skip_while(|word| word != "--").skip(1);
    let mut words = words.map(|word| word.into_string().expect("text"));
    let mut spec = ServerSpec::new(words.next().unwrap_or_default()).args(words);
    spec.restart = Restart::Never;
    // The trial's own, which it clears away.
    let home = std::env::current_dir().expect("a place");
    let mut config = kit::config(&home, [("one".to_owned(), spec)].into());
    config.backend = backend.unwrap_or(Choice::Auto);
    let runtime = kit::runtime();
    let mut manager = Some(runtime.block_on(async { Manager::open(config) }).expect("it opens"));
    runtime.block_on(up(manager.as_ref().expect("a manager")));
    let mut out = std::io::stdout();
    out.write_all(b"up\n").and_then(|()| out.flush()).expect("the runner reads");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match line.as_str() {
            "close" => {
                let manager = manager.take().expect("closed once");
                runtime.block_on(manager.close()).expect("nobody survives");
            }
            "drop" => drop(manager.take()),
            "panic" => panic!("as asked, with the manager on the stack"),
            _ => {}
        }
    }
    true
}

/// Waits until there is a process, or will be none.
async fn up(manager: &Manager) {
    loop {
        let servers = manager.session().snapshot().await;
        let there = servers.iter().any(|server| !server.processes.is_empty());
        let failed = servers.iter().all(|server| server.state == "failed");
        if there || failed {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
