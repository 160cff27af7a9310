//! The table against the library: an owner that embeds it and closes, drops, panics or is killed.
//!
//! Where root and an ordinary user are held in the same way, each has every second cell of every row,
//! and between them they have all, each at two of the three moments in turn; `LARIAT_TRIALS=full` has
//! everything.

use lariat_contain::{Backend, Choice, Ladder, Spec, Tree};
use libtest_mimic::{Arguments, Failed, Trial};
use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use trials::Subject;

/// An ordinary user that owns nothing.
const ORDINARY: u32 = 61_358;

const RUNG: Duration = Duration::from_millis(150);

pub(crate) fn main() {
    trials::misbehave_if_asked();
    lariat_contain::main_if_asked();
    if own_if_asked() {
        return;
    }
    let arguments = Arguments::from_args();
    #[expect(clippy::disallowed_methods, reason = "a runner of tests is told so by its caller")]
    let full = std::env::var_os("LARIAT_TRIALS").is_some_and(|how_much| how_much == "full");
    let subjects = subjects().into_iter();
    let tests = subjects.flat_map(|(name, subject)| tests(&name, &subject, full)).collect();
    libtest_mimic::run(&arguments, tests).exit();
}

fn subjects() -> Vec<(String, Subject)> {
    let program = std::env::current_exe().unwrap_or_default();
    let root = rustix::process::geteuid().is_root();
    let mut subjects = Vec::new();
    for user in [None, Some(ORDINARY)] {
        for backend in ["cgroup", "descent", "pidns"] {
            if (user.is_none() || backend == "cgroup") && !(user.is_none() && root) {
                continue;
            }
            let owner = [program.clone().into(), "__own".into(), OsString::from(backend)];
            let mut subject = Subject::owner(&program, owner);
            subject.guardian = true;
            subject.user = user.filter(|_| root);
            subject.patience = 2 * RUNG + Duration::from_millis(1250);
            let name = if user.is_none() { "root" } else { "user" };
            subjects.push((format!("{name}::{backend}"), subject));
        }
    }
    subjects
}

fn tests(name: &str, subject: &Subject, full: bool) -> Vec<Trial> {
    let mut tests = Vec::new();
    let list = trials::list(subject);
    let row = list.iter().take_while(|(misbehaviour, _)| *misbehaviour == list[0].0).count();
    let alone = name == "root::cgroup" || subject.user.is_none() && !name.starts_with("root");
    for (index, (misbehaviour, death)) in list.into_iter().enumerate() {
        // Like the squares of a board, so that no death and no misbehaviour is left out.
        let is_black = (index + index / row.max(1)).is_multiple_of(2);
        if !full && !alone && is_black != name.starts_with("root") {
            continue;
        }
        let subject = subject.clone();
        tests.push(Trial::test(format!("{name}::{misbehaviour}::{death}"), move || {
            let tried = match full {
                true => trials::run_at_every_moment(misbehaviour, death, &subject),
                false => {
                    let turn = index + index / row.max(1);
                    trials::run_at_some_moments(turn, 2, misbehaviour, death, &subject)
                }
            };
            tried.map_err(Failed::from)
        }));
    }
    tests
}

/// Plays the owner if asked: `EXE __own BACKEND -- SERVER…`.
fn own_if_asked() -> bool {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|verb| verb != "__own") {
        return false;
    }
    let backend = args.next().and_then(|b| Backend::named(b.to_str()?)).map(Choice::Named);
    let mut server = args.skip_while(|word| word != "--").skip(1);
    // The writing end stays open to the last: nothing here may depend on end-of-file.
    let (stdin, _open) = std::io::pipe().expect("a pipe");
    let spec = Spec {
        holder: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe")),
        program: server.next().unwrap_or_default(),
        args: server.collect(),
        env: None,
        cwd: None,
        stdin: stdin.into(),
        stdout: Stdio::null(),
        stderr: Stdio::null(),
        backend: backend.unwrap_or(Choice::Auto),
        ladder: Ladder { grace: RUNG, term_grace: RUNG, ..Ladder::default() },
    };
    let mut tree = Some(Tree::spawn(spec).expect("the tree starts"));
    let mut out = std::io::stdout();
    out.write_all(b"up\n").and_then(|()| out.flush()).expect("the runner reads");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
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
