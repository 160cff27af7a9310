//! Whoever ends first, the others see it as with a server of their own.

use crate::books::events;
use crate::kit::{Host, Stage, hello, request};
use crate::place::PATIENCE;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::Write;
use trials::until;

/// A server's part in the handshake.
const GREETS: &str = r#"read -r line; id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/'); printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}\n' "$id"; read -r line"#;

#[test]
fn what_is_the_same_is_one_and_what_is_not_is_another() {
    let stage = Stage::new();
    let mut hosts = [stage.host(), stage.host(), Host::start(stage.share().env("WHO", "me"))];
    let found = hosts.each_mut().map(Host::where_is_it);
    assert_eq!(found[0]["pid"], found[1]["pid"]);
    assert_ne!(found[0]["pid"], found[2]["pid"]);
    assert_eq!(found.each_ref().map(|found| &found["who"]), [&json!(""), &json!(""), &json!("me")]);
    let mut other_mask = std::process::Command::new("sh");
    other_mask.args(["-c", "umask 027; exec \"$0\" \"$@\""]);
    let share = stage.share();
    other_mask.current_dir(stage.place.path("")).arg(share.get_program()).args(share.get_args());
    let found_by_other = Host::start(&mut other_mask).where_is_it();
    assert_ne!(found_by_other["pid"], found[0]["pid"]);
    assert_eq!(found_by_other["umask"], "0027");
    let here = stage.place.path("").canonicalize().unwrap();
    assert_eq!(found[0]["cwd"], here.display().to_string());
}

#[test]
fn what_was_asked_is_answered_after_the_end_of_stdin() {
    let stage = Stage::new();
    let (mut host, mut other) = (stage.host(), stage.host());
    assert_eq!(host.where_is_it()["pid"], other.where_is_it()["pid"]);
    host.say(&request(3, "slow"));
    host.stdin = None;
    assert_eq!(host.hear()["result"], json!({ "slow": true }));
    assert_eq!(host.hear(), Value::Null);
    let (status, said) = host.ended();
    assert!(status.success() && said.is_empty(), "{status} {said}");
}

/// Its only host has closed its end: it hears that at once, with a call in flight, and has the usual
/// time to leave in. What it says in that time and how it leaves are its host's.
#[test]
fn a_server_hears_the_end_of_its_only_hosts_stdin() {
    let stage = Stage::new();
    let mut command = stage.place.lariat("run");
    let last = "printf '{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":\"bye\"}}\\n'";
    let script = format!("{GREETS}; while read -r line; do :; done; {last}; exit 3");
    let mut host = Host::start(command.args(["--share", "--", "sh", "-c", &script]));
    host.ask(&hello());
    host.say(&request(2, "hang"));
    host.stdin = None;
    assert_eq!(host.hear()["params"]["data"], "bye");
    assert_eq!(host.hear(), Value::Null);
    let (status, said) = host.ended();
    assert_eq!((status.code(), said.as_str()), (Some(3), ""));
}

/// Also if that was there before it was started, and it is nobody else's for another reason.
#[test]
fn a_private_server_hears_the_end_that_was_there_first() {
    let stage = Stage::new();
    let script = format!("{GREETS}; while read -r line; do :; done; exit 7");
    let mut command = stage.place.lariat("run");
    let mut host = Host::start(command.args(["--share", "--", "sh", "-c", &script]));
    let mut hello = hello();
    hello["params"]["capabilities"] = json!({ "roots": {} });
    host.say(&hello);
    host.stdin = None;
    assert_eq!(host.hear()["id"], 1);
    assert_eq!(host.hear(), Value::Null);
    assert_eq!(host.ended().0.code(), Some(7));
    assert!(crate::books::pages(&stage.place).is_empty(), "it has outlived its wrapper");
}

/// A wrapper that is told to leave has left when its server has.
#[test]
fn a_signal_ends_a_server_that_is_nobody_elses_before_its_wrapper() {
    let stage = Stage::new();
    let script = format!("trap '' TERM; {GREETS}; while :; do sleep 1; done");
    let mut command = stage.place.lariat("run");
    let mut host = Host::start(command.args(["--share", "--", "sh", "-c", &script]));
    host.ask(&hello());
    kill_process(Pid::from_child(&host.wrapper), Signal::TERM).unwrap();
    assert_eq!(host.ended().0.code(), Some(143));
    assert!(crate::books::pages(&stage.place).is_empty(), "it has outlived its wrapper");
}

/// Neither one that reads nothing nor one that is never ready keeps a host that is gone.
#[test]
fn a_host_that_is_gone_waits_for_no_server() {
    let stage = Stage::new();
    let deaf = [format!("{GREETS}; exec sleep 600"), "exec sleep 600".into()];
    for script in deaf {
        let mut command = stage.place.lariat("run");
        let mut host = Host::start(command.args(["--share", "--", "sh", "-c", &script]));
        host.say(&hello());
        if script.starts_with(GREETS) {
            host.hear();
        }
        let long = "x".repeat(100 << 10);
        let flood = (2..12).map(|id| request(id, &long).to_string() + "\n").collect::<String>();
        let (mut stdin, mut rest, mut refused) = (host.stdin.take().unwrap(), flood.as_bytes(), 0);
        rustix::io::ioctl_fionbio(&stdin, true).unwrap();
        let is_full = until(PATIENCE, || {
            let written = stdin.write(rest).unwrap_or(0);
            rest = &rest[written..];
            refused = if written == 0 { refused + 1 } else { 0 };
            refused > 20
        });
        assert!(is_full, "{} bytes are left", rest.len());
        drop(stdin);
        let (status, said) = host.ended();
        // As it was told to leave.
        assert_eq!((status.code(), said.as_str()), (Some(143), ""));
        assert!(
            until(PATIENCE, || crate::books::pages(&stage.place).is_empty()),
            "it is still there"
        );
    }
}

#[test]
fn a_server_that_leaves_gives_its_code_and_its_last_words() {
    let stage = Stage::new();
    let mut host = stage.host();
    host.where_is_it();
    let answer = host.ask(&request(3, "leave"));
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(3), &json!(-32000)), "{answer}");
    assert_eq!(host.hear(), Value::Null);
    let (status, said) = host.ended();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("I have had enough"), "{said}");
}

/// As one does that was started on demand.
#[test]
fn a_daemon_that_nobody_needs_leaves() {
    let mut stage = Stage::with(&["--idle", "500ms"]);
    let mut host = stage.host();
    host.where_is_it();
    // Longer than that in a call, which is no idleness.
    assert_eq!(host.ask(&request(3, "slow"))["result"], json!({ "slow": true }));
    assert_eq!(host.ask(&request(4, "slow"))["result"], json!({ "slow": true }));
    assert!(stage.daemon_is_there());
    host.stdin = None;
    assert_eq!(host.hear(), Value::Null);
    assert!(host.ended().0.success());
    assert!(stage.daemon_ended().success());
    assert!(crate::books::pages(&stage.place).is_empty());
}

#[test]
fn a_command_that_is_not_there_is_127() {
    let stage = Stage::new();
    let mut command = stage.place.lariat("run");
    let mut host = Host::start(command.args(["--share", "--", "no-such-server"]));
    let answer = host.ask(&hello());
    assert_eq!(answer["id"], 1, "{answer}");
    let (status, said) = host.ended();
    assert_eq!(status.code(), Some(127), "{said}");
    assert!(said.contains("no-such-server"), "{said}");
}

#[test]
fn a_signal_to_one_wrapper_ends_that_one() {
    let stage = Stage::new();
    let (mut one, mut other) = (stage.host(), stage.host());
    let pid = one.where_is_it()["pid"].clone();
    other.where_is_it();
    kill_process(Pid::from_child(&one.wrapper), Signal::TERM).unwrap();
    assert_eq!(one.hear(), Value::Null);
    let (status, said) = one.ended();
    assert_eq!((status.code(), said.as_str()), (Some(143), ""));
    assert_eq!(other.ask(&request(3, "where"))["result"]["pid"], pid);
    let left = || events(&stage.place).iter().filter(|event| event["event"] == "left").count();
    assert!(until(PATIENCE, || left() == 1));
}

#[test]
fn with_the_daemon_everything_ends() {
    let mut stage = Stage::new();
    let mut host = stage.host();
    host.where_is_it();
    stage.kill_daemon();
    assert_eq!(host.hear(), Value::Null);
    let (status, said) = host.ended();
    assert_eq!(status.code(), Some(125), "{said}");
    assert!(said.contains("the daemon has gone"), "{said}");
}
