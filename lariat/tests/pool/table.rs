//! The table's worst rows against servers that the daemon holds: what a wrapper alone ends, a wrapper
//! that shares ends as well.

use crate::stage::{LARIAT, Stage, trial};
use libtest_mimic::Trial;
use std::time::Duration;
use trials::{Death, Misbehaviour, Subject};

/// Both rungs of the daemon's ladder, what else it may wait for, and the second of the promise.
const PATIENCE: Duration = Duration::from_millis(2 * 300 + 250 + 1000);

/// What escapes those who only watch a child, or waits for the last moment.
const ROWS: [&str; 8] = [
    "ignores-eof-and-term",
    "setsid-child",
    "double-fork",
    "namespaces",
    "rabbit",
    "term-forks-and-stays",
    "term-forks-and-exits",
    "stopped-members",
];

const DEATHS: [&str; 6] = [
    "stdin-eof",
    "host-closes-pipes",
    "sigterm",
    "sigterm-then-sigkill",
    "sigkill-wrapper",
    "sigkill-host",
];

pub(crate) fn tests() -> Vec<Trial> {
    let deaths = Death::ALL.iter().copied().filter(|death| DEATHS.contains(&death.name()));
    deaths.map(|death| trial(format!("table::{death}"), move || column(death))).collect()
}

fn column(death: Death) {
    let stage = Stage::new();
    let state = stage.path("state").display().to_string();
    let wrap = [LARIAT, "run", "--share", "--state-dir", &state, "--"];
    let mut subject = Subject::wrapped(LARIAT, wrap);
    subject.patience = PATIENCE;
    let rows: Vec<Misbehaviour> =
        Misbehaviour::ALL.iter().copied().filter(|row| ROWS.contains(&row.name())).collect();
    assert_eq!(rows.len(), ROWS.len(), "the table has other names");
    for row in rows {
        let tried = trials::run_at_every_moment(row, death, &subject);
        tried.unwrap_or_else(|what| panic!("{row}: {what}"));
    }
    stage.close();
}
