//! `lariat doctor` and `lariat reap` on a machine with planted leaks: all of them are found, and of
//! those that only look alike, nobody is accused, nor harmed.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host/finish.rs"]
mod finish;
#[path = "host/place.rs"]
mod place;
#[path = "doctor/stage.rs"]
mod stage;

use finish::finish;
use serde_json::Value;
use stage::Stage;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// How many servers each host leaks, by kind.
const ORPHANED: usize = 20;
const SUPERSEDED: usize = 10;
const FORGOTTEN: usize = 10;
const HOSTS: [&str; 3] = ["codex", "claude", "cursor"];
/// Somebody else.
const NOBODY: u32 = 65534;

#[test]
#[ignore = "a part that the others play"]
fn a_part() {
    if stage::is_asked() {
        stage::play();
    }
}

#[test]
fn all_leaks_are_found_and_ended_and_no_look_alike() {
    let mut stage = Stage::new();
    let name = |host: &str, n: usize| format!("{host}-{n}");
    stage.configure(|host| (0..ORPHANED).map(|n| name(host, n)).collect());
    let mut guilty: BTreeSet<i32> = BTreeSet::new();
    for host in HOSTS {
        // A host that dies: pipes and sockets in turn, as hosts have them.
        let start =
            |n: usize| format!("{}{}", if n.is_multiple_of(2) { "+" } else { "*" }, name(host, n));
        let part: Vec<String> = (0..ORPHANED).map(start).collect();
        let (number, started) = stage.host(host, &part);
        stage.kill_host(number);
        guilty.extend(started.iter().map(|(_, pid)| pid));
        // One that lives and forgets: closes the stdin of some, and starts others twice.
        let twice = || (0..SUPERSEDED).map(start);
        let closed = SUPERSEDED..SUPERSEDED + FORGOTTEN;
        let close = closed.clone().map(|n| format!("-{}", name(host, n)));
        let pause = || std::iter::once(".".to_string());
        let part: Vec<String> =
            twice().chain(closed.map(start)).chain(close).chain(pause()).chain(twice()).collect();
        let (_, started) = stage.host(host, &part);
        // The last are those in use.
        guilty.extend(started.iter().take(SUPERSEDED + FORGOTTEN).map(|(_, pid)| pid));
    }
    let mut innocent = HOSTS.len() * SUPERSEDED;
    let is_root = rustix::process::geteuid().is_root();
    let other = is_root.then_some(NOBODY);
    if is_root {
        rustix::fs::chmod(stage.place.path("roll"), 0o666.into()).unwrap();
    }
    for n in 0..10 {
        let of = |host: &str| name(host, n);
        // Programs of somebody's, one of which has closed the pipe and waits.
        stage.own(&of("codex"), true);
        stage.own(&of("claude"), true);
        stage.own(&of("cursor"), false);
        // A shell's, in the foreground.
        stage.shell(&of("codex"), "sh $SERVE $NAME </dev/null & wait", true, None);
        // Left by a shell, with nothing on its stdin; with a pipe of somebody's.
        stage.shell(&of("claude"), "sh $SERVE $NAME </dev/null &", true, None);
        stage.shell(&of("cursor"), "exec 3<&0; sh $SERVE $NAME <&3 3<&- &", true, None);
        // Left by a script at the end of its pipe: what it says may go anywhere.
        stage.shell(&of("cursor"), "exec 3<&0; sh $SERVE $NAME <&3 3<&- &", false, None);
        // Another user's leak, where there can be one; else one more of the first kind.
        match other {
            Some(uid) => {
                let orphan = "exec 3<&0; sh $SERVE $NAME <&3 3<&- &";
                stage.shell(&of("codex"), orphan, false, Some(uid));
            }
            None => stage.own(&of("codex"), true),
        }
        innocent += 8;
    }
    assert_eq!((guilty.len(), innocent), (120, 110));
    stage.await_all();

    let report = doctor(&stage, 1);
    let servers = &report["servers"];
    assert_eq!(pids(&servers["leaks"]), guilty, "accused and guilty");
    for (kind, each) in
        [("orphaned", ORPHANED), ("superseded", SUPERSEDED), ("forgotten", FORGOTTEN)]
    {
        let leaks = servers["leaks"].as_array().unwrap();
        let of_kind = leaks.iter().filter(|leak| leak["kind"] == kind);
        assert_eq!(of_kind.count(), each * HOSTS.len(), "{kind}");
    }
    for leak in servers["leaks"].as_array().unwrap() {
        assert!(leak["evidence"].as_array().unwrap().len() >= 2, "{leak}");
        assert!(leak["processes"].as_u64().unwrap() >= 2, "{leak}");
    }
    assert_eq!(pids(&servers["running"]).len(), HOSTS.len() * SUPERSEDED);
    let text = output(stage.lariat("doctor").args(["--after", "0s"]), 1);
    assert!(text.contains("120 servers (") && text.contains("`lariat reap`"), "{text}");
    assert!(!text.contains("serve.sh"), "arguments can hold secrets\n{text}");

    // Nobody is there to say yes.
    let before = stage.planted();
    output(stage.lariat("reap").args(["--after", "0s"]), 2);
    output(stage.lariat("reap").args(["--after", "0s", "--dry-run"]), 1);
    assert_eq!(before.len(), stage.planted().len());

    let doomed = stage.trees(&guilty);
    assert!(doomed.len() >= 240, "{}", doomed.len());
    let outcome = output(stage.lariat("reap").args(["--after", "0s", "--yes", "--json"]), 0);
    let outcome: Value = serde_json::from_str(&outcome).unwrap();
    assert_eq!(pids(&outcome["reaped"]), guilty, "{}", outcome["left_alone"]);
    let left: Vec<i32> = doomed.iter().filter(|p| p.is_alive()).map(|p| p.pid).collect();
    assert_eq!(left, [0; 0], "survivors");
    let doomed: BTreeSet<i32> = doomed.iter().map(|process| process.pid).collect();
    let harmed: Vec<i32> = before
        .values()
        .filter(|(process, _)| !doomed.contains(&process.pid) && !process.is_alive())
        .map(|(process, _)| process.pid)
        .collect();
    assert_eq!(harmed, [0; 0], "the innocent were harmed");

    let events = fs::read_to_string(stage.place.path("state/events.jsonl")).unwrap();
    let receipts = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let receipts: Vec<Value> = receipts.filter(|event| event["event"] == "reaped").collect();
    assert_eq!(receipts.len(), 120);
    let killed = |event: &&Value| event["processes"]["killed"] != 0;
    assert!(receipts.iter().filter(killed).count() >= 12, "nobody was deaf");
    assert!(receipts.iter().all(|event| event["survivors"] == serde_json::json!([])));
    assert_eq!(doctor(&stage, 0)["servers"]["leaks"], serde_json::json!([]));
}

#[test]
fn an_older_copy_that_does_something_is_left_alone() {
    let mut stage = Stage::new();
    // The third is a script that waits, while its child is at work.
    let names = ["codex-3", "codex-busy", "codex-deep-busy"].map(String::from);
    stage.configure(|host| if host == "codex" { names.to_vec() } else { vec![] });
    let start = || names.iter().map(|name| format!("+{name}"));
    let part: Vec<String> = start().chain([".".into()]).chain(start()).collect();
    let (_, started) = stage.host("codex", &part);
    stage.await_all();
    let older: BTreeSet<i32> = started[..3].iter().map(|(_, pid)| *pid).collect();
    assert_eq!(pids(&doctor(&stage, 1)["servers"]["leaks"]), older);
    let only =
        output(stage.lariat("reap").args(["--after", "0s", "--yes", "--only", "orphaned"]), 0);
    assert_eq!(only, "no leaks\n");
    let before = stage.planted();
    let outcome = output(stage.lariat("reap").args(["--after", "0s", "--yes", "--json"]), 1);
    let outcome: Value = serde_json::from_str(&outcome).unwrap();
    assert_eq!(pids(&outcome["reaped"]), BTreeSet::from([started[0].1]));
    let busy = BTreeSet::from([started[1].1, started[2].1]);
    assert_eq!(pids(&outcome["left_alone"]), busy);
    assert!(!before[&started[0].1].0.is_alive());
    assert!(started[1..].iter().all(|(_, pid)| before[pid].0.is_alive()));
}

#[test]
fn what_is_our_own_is_finished_without_asking() {
    let stage = Stage::new();
    let mut run = stage.lariat("run");
    run.args(["--name", "ours", "--", "sh", "-c", "cat \"$0\"/state/sessions/*.json"]);
    let page = finish(run.arg(stage.place.path("")));
    let mut page: Value = serde_json::from_slice(&page.stdout).unwrap();
    // As a crash would leave it: nobody holds it.
    page["session"] = "0123456789abcde".into();
    page["mark"] = (page["mark"].as_u64().unwrap() ^ 1).into();
    page["leaf"] = Value::Null;
    let path = stage.place.path("state/sessions/0123456789abcde.json");
    fs::write(&path, page.to_string()).unwrap();
    // Looking leaves it as it is, and says who finishes it.
    let text = output(&mut stage.lariat("doctor"), 1);
    assert!(text.contains("0123456789abcde crashed and is not finished: `lariat reap`"), "{text}");
    output(&mut stage.hosts(), 0);
    assert!(path.exists());
    // So it does with one from before the machine was started again.
    let mut old = page.clone();
    old["place"]["boot"] = "before".into();
    fs::write(&path, old.to_string()).unwrap();
    let text = output(&mut stage.lariat("doctor"), 1);
    assert!(text.contains("crashed and is not finished"), "{text}");
    fs::write(&path, page.to_string()).unwrap();
    let text = output(&mut stage.lariat("reap"), 0);
    assert_eq!(text, "finished 0123456789abcde (ours), which had crashed\nno leaks\n");
    assert!(!path.exists());
    // Another version's: nobody judges it, and it is said.
    fs::write(&path, r#"{"session":"0123456789abcde"}"#).unwrap();
    let text = output(&mut stage.lariat("doctor"), 1);
    assert!(text.contains("0123456789abcde.json cannot be read"), "{text}");
    assert!(path.exists());
}

#[test]
fn where_nothing_was_ever_run_nothing_is_made() {
    let stage = Stage::new();
    let report = doctor(&stage, 0);
    assert_eq!(report["books"], Value::Null);
    assert!(report["machine"]["backend"].is_string() && report["hosts"].is_object(), "{report}");
    assert!(!stage.place.path("state").exists());
    // Nor is anything added where there is something.
    fs::create_dir(stage.place.path("state")).unwrap();
    assert!(doctor(&stage, 0)["books"].is_object());
    assert_eq!(fs::read_dir(stage.place.path("state")).unwrap().count(), 0);
    let bad = finish(stage.lariat("doctor").args(["--after", "soon"]));
    assert_eq!(bad.status.code(), Some(2));
}

#[test]
fn an_orphan_behind_a_shell_that_waits_for_it_is_one() {
    let mut stage = Stage::new();
    stage.configure(|host| if host == "codex" { vec!["codex-3".into()] } else { vec![] });
    // Whoever read what it says has left, too.
    let script = r#"exec 3<&0; { sh -c "sh $SERVE $NAME; :" <&3 3<&- & } | :"#;
    stage.shell("codex-3", script, false, None);
    stage.await_all();
    let report = doctor(&stage, 1);
    let leaks = &report["servers"]["leaks"];
    assert_eq!((&leaks[0]["kind"], &leaks[0]["processes"]), (&"orphaned".into(), &3.into()));
    let text = output(stage.lariat("reap").args(["--after", "0s", "--yes"]), 0);
    assert!(text.contains("ended 1 server, 3 processes:"), "{text}");
    assert!(stage.planted().is_empty(), "{:?}", stage.planted());
}

#[test]
fn a_config_that_cannot_be_read_is_said_and_every_server_counts() {
    let stage = Stage::new();
    let servers = r#"{"mcpServers": {"near": {"command": "near"}, "far": {"url": "https://x"}}}"#;
    fs::write(stage.place.path("home/.cursor/mcp.json"), servers).unwrap();
    let text = output(&mut stage.lariat("doctor"), 0);
    assert!(text.contains("cursor           2 servers, 0 of them wrapped\n"), "{text}");
    let broken = "model = \"x\"\n[mcp_servers.a\ncommand = \"s3cret\"\n";
    fs::write(stage.place.path("home/.codex/config.toml"), broken).unwrap();
    let text = output(&mut stage.lariat("doctor"), 1);
    assert!(text.contains("codex            cannot be read: ~/.codex/config.toml:2:"), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
    let unreadable = &doctor(&stage, 1)["hosts"]["codex"]["unreadable"];
    assert!(unreadable[0]["file"].as_str().unwrap().ends_with("/.codex/config.toml"));
    assert!(unreadable[0]["error"].as_str().unwrap().starts_with("2:"), "{unreadable}");
}

#[test]
fn where_nobody_reads_nothing_is_asked_and_it_failed() {
    let stage = Stage::new();
    for args in [&["--dry-run"][..], &["--json"], &[]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut reap = stage.lariat("reap");
        let status = reap.args(args).stdin(std::process::Stdio::null()).stdout(writer).status();
        assert_eq!(status.unwrap().code(), Some(1), "{args:?}");
    }
}

#[track_caller]
fn doctor(stage: &Stage, code: i32) -> Value {
    serde_json::from_str(&output(stage.lariat("doctor").args(["--json", "--after", "0s"]), code))
        .unwrap()
}

/// What it prints, which can be more than a pipe holds.
#[track_caller]
fn output(command: &mut Command, code: i32) -> String {
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn pids(findings: &Value) -> BTreeSet<i32> {
    let findings = findings.as_array().unwrap().iter();
    findings.map(|finding| finding["pid"].as_i64().unwrap() as i32).collect()
}
