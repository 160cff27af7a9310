//! A host gone wild: it starts the same server again and again. The one too many is refused in words
//! that the host can show, at little cost; nobody else notices.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host/books.rs"]
mod books;
#[path = "host/finish.rs"]
mod finish;
#[path = "host/place.rs"]
mod place;

use books::{assert_nothing_left, events};
use finish::finish;
use place::{PATIENCE, Place};
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::Instant;
use trials::until;

#[test]
fn the_thirty_first_start_within_a_minute_is_refused_and_nobody_else() {
    let place = Place::new();
    let wild = ["--", "sh", "-c", "exit 7", "hunter2"];
    for _ in 0..30 {
        assert_eq!(finish(place.lariat("run").args(wild)).status.code(), Some(7));
    }
    let before = events(&place).len();
    let begun = Instant::now();
    let refused = ask(place.lariat("run").args(wild), r#"{"id":"a\u0062","method":"initialize"}"#);
    println!("a refusal took {:?}", begun.elapsed());
    assert_eq!(refused.status.code(), Some(125));
    let said = String::from_utf8_lossy(&refused.stderr);
    let answer = String::from_utf8_lossy(&refused.stdout);
    for part in ["started this server 30 times within a minute", "--max-starts"] {
        assert!(said.contains(part) && answer.contains(part), "{said}{answer}");
    }
    assert!(!said.contains("hunter2") && !answer.contains("hunter2"), "{said}{answer}");
    assert!(answer.starts_with(r#"{"jsonrpc":"2.0","id":"a\u0062","error":"#), "{answer}");
    assert!(answer.ends_with('\n'));
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["error"]["code"], -32000);
    assert!(answer["error"]["message"].as_str().unwrap().starts_with("lariat: "), "{answer}");
    assert_eq!(events(&place).len(), before, "something was started");
    // A host that asks nothing is told on stderr alone.
    let silent = finish(place.lariat("run").args(wild));
    assert_eq!((silent.status.code(), silent.stdout.len()), (Some(125), 0));
    // Another command of this host, the same command of another host, and one who wants no limit.
    let other = ["--", "sh", "-c", "exit 7", "other"];
    assert_eq!(finish(place.lariat("run").args(other)).status.code(), Some(7));
    let mut host = Command::new("sh");
    let run = place.lariat("run");
    host.args(["-c", "\"$@\"; exit $?", "sh"]).arg(run.get_program()).args(run.get_args());
    assert_eq!(finish(host.args(wild)).status.code(), Some(7));
    let mut unlimited = place.lariat("run");
    assert_eq!(finish(unlimited.args(["--max-starts", "off"]).args(wild)).status.code(), Some(7));
    assert_nothing_left(&place);
}

#[test]
fn who_keeps_trying_comes_through() {
    let place = Place::new();
    let run = || {
        let mut run = place.lariat("run");
        finish(run.args(["--max-starts", "1/s", "--", "true"])).status.code()
    };
    // However slow the machine: of starts as fast as can be, one is refused sooner or later.
    assert!(until(PATIENCE, || run() == Some(125)), "never refused");
    assert!(until(PATIENCE, || run() == Some(0)), "still refused");
}

#[test]
fn a_rate_that_makes_no_sense_is_125() {
    let place = Place::new();
    for rate in ["", "30", "30/day", "0/min", "-1/s"] {
        let mut run = place.lariat("run");
        let output = finish(run.arg(format!("--max-starts={rate}")).args(["--", "true"]));
        assert_eq!(output.status.code(), Some(125), "{rate}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("--max-starts"), "{rate}");
    }
    assert_eq!(json!(events(&place)), json!([]));
}

/// What a command answers to a host that says this and stays.
#[track_caller]
fn ask(command: &mut Command, said: &str) -> Output {
    let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = streams.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{said}").unwrap();
    if !until(PATIENCE, || child.try_wait().unwrap().is_some()) {
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("no end of {command:?}");
    }
    child.wait_with_output().unwrap()
}
