//! The table against the real binary: misbehaviour × death × backend × mode × user, one named test
//! per cell, each at one or two of the three moments in turn. A test's name is its fact:
//! `direct::root::cgroup::setsid-child::sigkill-host`.
//!
//! `LARIAT_TRIALS` chooses how much of it: `quick` (a sample), `full` (everything at every moment), otherwise the
//! middle way that `./test` takes.
#![cfg(target_os = "linux")]

use libtest_mimic::{Arguments, Failed, Trial};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use trials::{Death, Misbehaviour, Subject};

/// An ordinary user that owns nothing; no entry in the user database is needed.
const ORDINARY: u32 = 61_357;

/// How many deaths a row of the table has, or about that.
const DEATHS: usize = 12;

/// Both rungs of the ladder in the trials, and the second that the promise adds.
const RUNG: Duration = Duration::from_millis(150);
const PATIENCE: Duration = Duration::from_millis(2 * 150 + 250 + 1000);

fn main() {
    trials::misbehave_if_asked();
    let arguments = Arguments::from_args();
    #[expect(clippy::disallowed_methods, reason = "a runner of tests is told so by its caller")]
    let how_much = std::env::var_os("LARIAT_TRIALS").unwrap_or_default();
    let tests = columns()
        .into_iter()
        .flat_map(|column| column.tests(how_much.to_str().unwrap_or_default()))
        .collect();
    libtest_mimic::run(&arguments, tests).exit();
}

/// One column of the table: a way to run the wrapper.
struct Column {
    name: String,
    subject: Subject,
    share: Share,
}

/// How much of a column there is in a run that is not a full one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    /// Everything, and a sample in a quick run.
    All,
    /// Every second cell of each row, and a sample in a quick run.
    Half,
    /// The cells that are not in that half, and the same sample.
    OtherHalf,
    /// Every second cell, at one moment.
    HalfOnce,
    /// A third of it, at one moment.
    Third,
    /// Nothing.
    None,
}

impl Share {
    /// Bytes take a different way in each mode, but whether a tree ends does not depend on the way:
    /// the mode of most hosts is tried whole with every backend and user, the others in part.
    fn of(mode: &str, user: &str, backend: &str) -> Share {
        let only_user = !rustix::process::geteuid().is_root();
        match (mode, user, backend) {
            ("direct", "root", "cgroup") => Share::All,
            ("direct", "user", "descent") if only_user => Share::All,
            // Root and an ordinary user walk the same way: between them they have every cell.
            ("direct", "root", "descent") => Share::Half,
            ("direct", "user", "descent") => Share::OtherHalf,
            // It is there by choice, and the kernel does the work.
            ("direct", "root", "pidns") => Share::HalfOnce,
            ("relay", "root", "descent") | ("watched", "user", "descent") if !only_user => {
                Share::Third
            }
            ("watched", "user", "descent") => Share::All,
            // Where there is no root, it has nowhere else to be tried.
            ("relay", "user", "descent") if only_user => Share::All,
            ("direct", "user", "pidns") | ("watched", "root", "cgroup") => Share::Third,
            _ => Share::None,
        }
    }

    /// At how many moments each cell is played in a run that is not a full one.
    fn moments(self) -> usize {
        match self {
            Share::All | Share::Half | Share::OtherHalf => 2,
            Share::HalfOnce | Share::Third | Share::None => 1,
        }
    }
}

fn columns() -> Vec<Column> {
    let lariat = PathBuf::from(env!("CARGO_BIN_EXE_lariat"));
    let root = rustix::process::geteuid().is_root();
    let mut columns = Vec::new();
    let modes: [(&str, &[&str]); 3] =
        [("direct", &[]), ("relay", &["--relay"]), ("watched", &["--idle", "1h"])];
    for (mode, flags) in modes {
        for user in ["root", "user"] {
            for backend in ["cgroup", "descent", "pidns"] {
                // Without delegation an ordinary user has no cgroup of its own; an ordinary user
                // running the tests cannot become root.
                let possible = match (user, backend) {
                    ("root", _) => root,
                    (_, "cgroup") => false,
                    _ => true,
                };
                if !possible {
                    continue;
                }
                let rung = format!("{}ms", RUNG.as_millis());
                let mut wrap: Vec<OsString> = vec![lariat.clone().into(), "run".into()];
                wrap.extend(["--backend", backend].map(OsString::from));
                wrap.extend(["--grace", &rung, "--term-grace", &rung].map(OsString::from));
                wrap.extend(flags.iter().map(OsString::from));
                wrap.push("--".into());
                let mut subject = Subject::wrapped(&lariat, wrap);
                subject.guardian = true;
                // One host may run every cell, each with a sweep.
                let sweep = ["run", "--max-starts", "off", "--", "true"].map(OsString::from);
                subject.sweep = Some([lariat.clone().into()].into_iter().chain(sweep).collect());
                subject.user = (user == "user" && root).then_some(ORDINARY);
                subject.patience = PATIENCE;
                // The streams a host gives differ too: alternate, so that both are everywhere.
                subject.socketpair = mode == "direct" && backend == "descent";
                subject.drains_stderr = backend != "descent";
                let share = Share::of(mode, user, backend);
                columns.push(Column { name: format!("{mode}::{user}::{backend}"), subject, share });
            }
        }
    }
    columns
}

/// Like the squares of a board, so that no death and no misbehaviour is left out.
fn is_black(index: usize) -> bool {
    (index + index / DEATHS).is_multiple_of(2)
}

impl Column {
    fn tests(&self, how_much: &str) -> Vec<Trial> {
        trials::list(&self.subject)
            .into_iter()
            .enumerate()
            .filter(|(index, pair)| match (how_much, self.share) {
                ("full", _) => true,
                ("quick", Share::All | Share::Half | Share::OtherHalf | Share::HalfOnce) => {
                    is_sample(*pair)
                }
                ("quick", _) => false,
                (_, Share::All) => true,
                (_, Share::Half | Share::HalfOnce) => is_black(*index),
                (_, Share::OtherHalf) => !is_black(*index),
                // A different third in each.
                (_, Share::Third) => (index + self.name.len()).is_multiple_of(3),
                (_, Share::None) => false,
            })
            .map(|(index, (misbehaviour, death))| {
                let turn = (how_much != "full").then_some(index + index / DEATHS);
                self.test(turn, misbehaviour, death)
            })
            .collect()
    }

    /// At every moment, or in turn at some of them.
    fn test(&self, turn: Option<usize>, misbehaviour: Misbehaviour, death: Death) -> Trial {
        let (subject, moments) = (self.subject.clone(), self.share.moments());
        let name = format!("{}::{misbehaviour}::{death}", self.name);
        Trial::test(name, move || {
            let tried = match turn {
                Some(turn) => {
                    trials::run_at_some_moments(turn, moments, misbehaviour, death, &subject)
                }
                None => trials::run_at_every_moment(misbehaviour, death, &subject),
            };
            tried.map_err(Failed::from)
        })
    }
}

/// A sample for a quick run: what escaped every peer, and each death at least twice.
fn is_sample((misbehaviour, death): (Misbehaviour, Death)) -> bool {
    use Misbehaviour as M;
    let escapes = matches!(misbehaviour, M::DoubleFork | M::EmptyEnvLeaderExits | M::Rabbit);
    let telling = matches!(
        death,
        Death::SigkillWrapper | Death::SigkillHost | Death::SigkillBoth | Death::StdinEof
    );
    escapes || (misbehaviour == M::IgnoresEofAndTerm && telling)
}
