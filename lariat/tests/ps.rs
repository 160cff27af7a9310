//! `lariat ps`: who lives, without a daemon, in a shape that scripts may rely on.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host/books.rs"]
mod books;
#[path = "host/finish.rs"]
mod finish;
#[path = "host/page.rs"]
mod page;
#[path = "host/place.rs"]
mod place;
#[path = "ps/session.rs"]
mod session;

use books::{assert_nothing_left, events, pages};
use finish::finish;
use page::documented;
use place::{PATIENCE, Place};
use serde_json::{Value, json};
use session::Session;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use trials::until;

const FIELDS: [&str; 18] = [
    "session",
    "within",
    "server",
    "host",
    "wrapper",
    "state",
    "idle_s",
    "evidence",
    "backend",
    "started",
    "age_s",
    "processes",
    "rss_bytes",
    "pss_bytes",
    "cpu_ms",
    "cpu_percent",
    "tree",
    "containers",
];

#[test]
fn a_living_session_is_listed_with_what_it_costs() {
    let place = Place::new();
    assert_eq!(listed(&place), json!([]));
    assert!(!place.path("state").exists(), "looking has made books");
    let session = Session::start(&place, &[], &["sh", "-c", "sleep 60 & echo up; wait"]);
    let list = listed(&place);
    let [one] = &list.as_array().unwrap()[..] else { panic!("{list}") };
    let keys: BTreeSet<&str> = one.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(FIELDS));
    let unsaid: Vec<_> = keys.difference(&documented("`lariat ps --json`")).copied().collect();
    assert_eq!(unsaid, [""; 0], "in docs/guide/json.md");
    assert_eq!((&one["server"], &one["state"]), (&json!("sh"), &json!("ready")));
    assert_eq!((&one["within"], &one["evidence"]), (&Value::Null, &json!([])));
    assert_eq!(one["wrapper"], session.child.id());
    assert_eq!(one["host"]["pid"], std::process::id());
    let own = fs::read_to_string("/proc/self/comm").unwrap();
    assert_eq!(one["host"]["name"], own.trim_end());
    // The shell and its child; those who hold them are not the server's.
    assert_eq!(one["processes"], 2, "{one}");
    assert!(one["rss_bytes"].as_u64().unwrap() > 0);
    assert!((0.0..60.0).contains(&one["age_s"].as_f64().unwrap()));
    // The server may speak before it is written down that it was started.
    assert!(until(PATIENCE, || !events(&place).is_empty()));
    let started = events(&place).remove(0);
    assert_eq!((&one["session"], &one["backend"]), (&started["session"], &started["backend"]));
    let table = text(&place, &[]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2, "{table}");
    assert!(lines[0].starts_with("SESSION") && lines[1].contains("ready"), "{table}");
    drop(session);
    let nobody = || listed(&place) == json!([]);
    assert!(until(PATIENCE, nobody), "{}", listed(&place));
    assert_eq!(text(&place, &[]), "no sessions\n");
    assert!(until(PATIENCE, || pages(&place).is_empty()));
    assert_nothing_left(&place);
}

#[test]
fn what_a_session_says_of_itself_is_shown() {
    let place = Place::new();
    let session = Session::start(&place, &[], &["sh", "-c", "echo up; exec cat"]);
    let page = pages(&place).into_iter().find(|page| page.extension().unwrap() == "json").unwrap();
    let quiet = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let told = json!({
        "began_ms": 1, "state": "asleep", "since_ms": 1,
        "quiet_since_ms": quiet.as_millis() as u64 - 90_000, "evidence": ["host-orphaned"],
    });
    fs::write(page.with_extension("state"), told.to_string()).unwrap();
    let one = listed(&place)[0].take();
    assert_eq!((&one["state"], &one["evidence"]), (&json!("asleep"), &json!(["host-orphaned"])));
    assert!((90.0..150.0).contains(&one["idle_s"].as_f64().unwrap()), "{one}");
    assert!(text(&place, &[]).contains("host-orphaned"));
    drop(session);
    assert!(until(PATIENCE, || pages(&place).is_empty()), "{:?}", pages(&place));
}

#[test]
fn a_crashed_session_is_finished_before_anybody_is_listed() {
    let place = Place::new();
    let session = Session::start(&place, &[], &["sh", "-c", "echo up; exec cat"]);
    let page = pages(&place).into_iter().find(|page| page.extension().unwrap() == "json").unwrap();
    let mut page: Value = serde_json::from_slice(&fs::read(page).unwrap()).unwrap();
    drop(session);
    assert!(until(PATIENCE, || pages(&place).is_empty()));
    // As a crash would leave it: nobody holds it.
    page["session"] = json!("0123456789abcde");
    page["mark"] = json!(page["mark"].as_u64().unwrap() ^ 1);
    page["leaf"] = Value::Null;
    fs::write(place.path("state/sessions/0123456789abcde.json"), page.to_string()).unwrap();
    assert_eq!(listed(&place), json!([]));
    assert_eq!(events(&place).last().unwrap()["session"], "0123456789abcde");
    assert_nothing_left(&place);
}

/// Answers the first request at once, any other after a second line, which need not come.
const SLOW: &str = r#"echo up; read -r a; echo '{"jsonrpc":"2.0","id":0,"result":{}}'; read -r b; read -r c; echo '{"jsonrpc":"2.0","id":1,"result":{}}'; exec cat"#;

fn ask(session: &mut Session, id: u32, method: &str) {
    let line = json!({"jsonrpc": "2.0", "id": id, "method": method});
    writeln!(session.child.stdin.as_mut().unwrap(), "{line}").unwrap();
}

#[test]
fn who_is_asked_is_busy_and_then_idle() {
    let place = Place::new();
    let mut session =
        Session::start(&place, &["--idle", "off", "--call-timeout", "60s"], &["sh", "-c", SLOW]);
    ask(&mut session, 0, "tools/list");
    let state = |wanted: &str| until(PATIENCE, || listed(&place)[0]["state"] == wanted);
    assert!(state("ready"), "{}", listed(&place));
    assert!(listed(&place)[0]["idle_s"].as_f64().is_some_and(|idle| idle < 60.0));
    ask(&mut session, 1, "tools/call");
    assert!(state("busy"), "{}", listed(&place));
    assert_eq!(listed(&place)[0]["idle_s"], Value::Null);
    let more = json!({"jsonrpc": "2.0", "method": "notifications/progress"});
    writeln!(session.child.stdin.as_mut().unwrap(), "{more}").unwrap();
    assert!(state("ready"), "{}", listed(&place));
    let idle = || listed(&place)[0]["idle_s"].as_f64();
    assert!(until(PATIENCE, || idle().is_some_and(|idle| idle > 0.2)), "{:?}", idle());
    drop(session);
    assert!(until(PATIENCE, || pages(&place).is_empty()), "{:?}", pages(&place));
    assert_nothing_left(&place);
}

#[test]
fn who_leaves_is_ending_in_every_mode() {
    for mode in [&[][..], &["--relay"], &["--idle", "off", "--call-timeout", "60s"]] {
        let place = Place::new();
        let mut run = place.lariat("run");
        // It does not read, so it does not see that its host has hung up.
        run.args(["--grace", "30s"]).args(mode).args(["--", "sh", "-c", "echo up; exec sleep 60"]);
        let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let before = until(PATIENCE, || listed(&place)[0]["state"] == "ready");
        drop(child.stdin.take());
        let ending = until(PATIENCE, || listed(&place)[0]["state"] == "ending");
        let seen = listed(&place);
        // Not waited for yet, so the number is its own.
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        if !until(PATIENCE, || child.try_wait().unwrap().is_some()) {
            child.kill().unwrap();
        }
        child.wait().unwrap();
        assert!(before && ending, "{mode:?}: {seen}");
        assert!(until(PATIENCE, || pages(&place).is_empty()), "{:?}", pages(&place));
        assert_nothing_left(&place);
    }
}

#[test]
fn whom_its_host_has_started_again_is_superseded() {
    let place = Place::new();
    let server = ["sh", "-c", "echo up; exec cat"];
    let first = Session::start(&place, &[], &server);
    assert_eq!(listed(&place)[0]["state"], "ready");
    let second = Session::start(&place, &[], &server);
    let other = Session::start(&place, &[], &["sh", "-c", "echo up; exec cat -u"]);
    let list = listed(&place);
    let said = |at: usize| (list[at]["state"].clone(), list[at]["evidence"].clone());
    assert_eq!(list[0]["wrapper"], first.child.id());
    assert_eq!(said(0), (json!("superseded"), json!(["superseded"])), "{list}");
    assert_eq!((said(1), said(2)), ((json!("ready"), json!([])), (json!("ready"), json!([]))));
    drop((first, second, other));
    assert!(until(PATIENCE, || pages(&place).is_empty()));
}

#[test]
fn who_survived_is_listed_until_it_has_gone() {
    let place = Place::new();
    let session = Session::start(&place, &[], &["sh", "-c", "echo up; exec cat"]);
    let page = pages(&place).into_iter().find(|page| page.extension().unwrap() == "json").unwrap();
    let mut page: Value = serde_json::from_slice(&fs::read(page).unwrap()).unwrap();
    drop(session);
    assert!(until(PATIENCE, || pages(&place).is_empty()));
    // As one that could not be ended would leave it: a page without a wrapper, and a receipt of an
    // earlier life that names somebody who is there.
    let mut left = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", left.id())).unwrap();
    let start: u64 =
        stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap();
    page["session"] = json!("0123456789abcde");
    page["mark"] = json!(page["mark"].as_u64().unwrap() ^ 1);
    page["leaf"] = Value::Null;
    let receipt = json!({
        "session": "0123456789abcde", "server": "sh", "reason": "idle", "backend": "descent",
        "started": "2026-01-01T00:00:00.000Z", "ended": "2026-01-01T00:00:01.000Z",
        "duration_ms": 1000, "processes": {"seen": 1, "left": 0, "asked": 0, "killed": 0},
        "survivors": [{"kind": "process", "pid": left.id(), "start": start, "command": "cat", "why": "EPERM"}],
    });
    fs::write(place.path("state/sessions/0123456789abcde.receipt"), receipt.to_string()).unwrap();
    fs::write(place.path("state/sessions/0123456789abcde.json"), page.to_string()).unwrap();
    // It tries to end whoever is left, and may not.
    let ps = place.lariat("ps");
    let mut refused = Command::new("strace");
    refused.args(["-f", "-q", "-o", "/dev/null", "-e", "trace=pidfd_send_signal,kill"]);
    refused.args(["-e", "inject=pidfd_send_signal,kill:error=EPERM", "--"]);
    refused.arg(ps.get_program()).args(ps.get_args()).arg("--json").stdin(Stdio::null());
    let Ok(output) = refused.output() else {
        // No strace; `./test` says so.
        left.kill().unwrap();
        left.wait().unwrap();
        return;
    };
    let one = serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].take();
    assert_eq!((&one["state"], &one["processes"]), (&json!("survivors"), &json!(1)), "{one}");
    assert_eq!(
        (&one["tree"][0]["pid"], &one["tree"][0]["command"]),
        (&json!(left.id()), &json!("cat"))
    );
    // The next one may.
    assert_eq!(listed(&place), json!([]));
    assert_eq!(left.wait().unwrap().signal(), Some(9));
    assert_nothing_left(&place);
}

#[test]
fn a_tree_has_hosts_servers_and_processes() {
    let place = Place::new();
    let server = ["sh", "-c", "sh -c 'sleep 60 & echo up; wait' hidden-argument & wait"];
    let session = Session::start(&place, &["--name", "family"], &server);
    let tree = |options: &[&str]| {
        let output = finish(place.lariat("tree").args(options).env("LC_ALL", "C.UTF-8"));
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (_, text) = tree(&[]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[0].contains(&format!("({})", std::process::id())), "{text}");
    assert!(lines[1].starts_with("└─ family  ") && lines[1].contains("ready"), "{text}");
    for (line, (before, name)) in
        [("   └─ ", " sh "), ("      └─ ", " sh "), ("         └─ ", " sleep ")].iter().enumerate()
    {
        assert!(lines[line + 2].starts_with(before) && lines[line + 2].contains(name), "{text}");
    }
    assert!(!text.contains("hidden-argument"), "{text}");
    assert_eq!(tree(&["family"]), (true, tree(&["family"]).1));
    let (found, nobody) = tree(&["nobody"]);
    assert!(!found && nobody.is_empty(), "{nobody}");
    let list: Value = serde_json::from_str(&tree(&["family", "--json"]).1).unwrap();
    assert_eq!(list[0]["tree"].as_array().unwrap().len(), 3, "{list}");
    drop(session);
    assert!(until(PATIENCE, || pages(&place).is_empty()));
    assert_eq!(tree(&[]).1, "no sessions\n");
}

#[test]
fn who_watches_sees_them_come_and_go() {
    let place = Place::new();
    let mut watch = place.lariat("ps");
    watch.args(["--json", "--watch", "100ms"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut watch = watch.spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut look = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(look(), json!([]));
    let session = Session::start(&place, &[], &["sh", "-c", "echo up; exec cat"]);
    let seen = |list: &Value| list[0]["cpu_percent"].is_number();
    assert!(until(PATIENCE, || seen(&look())), "nobody came");
    drop(session);
    assert!(until(PATIENCE, || look() == json!([])), "nobody left");
    // Whoever does not read any more has seen enough.
    drop(lines);
    let left = until(PATIENCE, || watch.try_wait().unwrap().is_some());
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert!(left);
}

#[test]
fn memory_that_is_shared_is_divided_if_asked() {
    let place = Place::new();
    let session = Session::start(&place, &[], &["sh", "-c", "echo up; exec cat"]);
    assert_eq!(listed(&place)[0]["pss_bytes"], Value::Null);
    let list: Value = serde_json::from_str(&text(&place, &["--json", "--pss"])).unwrap();
    let [pss, rss] = ["pss_bytes", "rss_bytes"].map(|field| list[0][field].as_u64().unwrap());
    assert!(pss > 0 && pss < rss, "{pss} of {rss}");
    assert!(
        text(&place, &["--pss"]).starts_with("SESSION")
            && text(&place, &["--pss"]).contains(" PSS ")
    );
    drop(session);
    assert!(until(PATIENCE, || pages(&place).is_empty()));
}

#[track_caller]
fn text(place: &Place, options: &[&str]) -> String {
    let output = finish(place.lariat("ps").args(options));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn listed(place: &Place) -> Value {
    serde_json::from_str(&text(place, &["--json"])).unwrap()
}
