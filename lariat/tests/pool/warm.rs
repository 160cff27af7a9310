//! `lariat daemon --warm`: a process is there before anybody comes.

use crate::stage::{PATIENCE, Stage, trial};
use libtest_mimic::Trial;
use std::fs;
use trials::until;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial("warm::is_there_before_anybody", is_there_before_anybody),
        trial("warm::what_is_not_offered", what_is_not_offered),
    ]
}

/// A file that offers the checker under two names.
fn offer(stage: &Stage) -> String {
    let path = stage.path("lariat.toml");
    let text: String = ["one", "other"]
        .map(|name| {
            let words = stage.checker(&[name]);
            let args = serde_json::to_string(&words[1..]).expect("text");
            format!("[servers.{name}]\ncommand = '{}'\nargs = {args}\nshare = true\n", words[0])
        })
        .concat();
    fs::write(&path, text).expect("a file");
    path.display().to_string()
}

fn is_there_before_anybody() {
    let mut stage = Stage::without_daemon();
    let file = offer(&stage);
    stage.start_daemon(&["--http", "127.0.0.1:0", "--config", &file, "--warm", "one"]);
    let listed = || -> Vec<_> {
        let ready = stage.listed().into_iter().filter(|one| one["state"] == "ready");
        ready.map(|one| one["server"].clone()).collect()
    };
    assert!(until(PATIENCE, || listed() == ["one"]), "{:#?}", stage.listed());
    assert_eq!(stage.servers().len(), 1);
    stage.close();
}

fn what_is_not_offered() {
    let stage = Stage::without_daemon();
    let file = offer(&stage);
    let mut daemon = stage.lariat("daemon");
    daemon.args(["--http", "127.0.0.1:0", "--config", &file, "--warm", "another"]);
    assert_eq!(daemon.status().expect("a program").code(), Some(1));
    let said = fs::read_to_string(stage.path("stderr")).expect("text");
    assert!(said.contains("no server `another`") && said.contains("one, other"), "{said}");
    stage.assert_gone();
}
