//! A host with a manager: the table, what a call brings back, and why something failed.

use crate::table::{PATIENCE, Place, everything, lariat, leave, own};
use lariat::contain::Ladder;
use lariat::pool::Pool;
use lariat::session::{Config, Error, Manager, State};
use lariat::spec::{Restart, ServerSpec, Servers, Share};
use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use trials::{Death, Misbehaviour, Subject, Witness, until};

/// Both rungs of the ladder.
const RUNG: Duration = Duration::from_millis(150);

/// Of misbehaviours, those that a manager could meet in another way than a wrapper.
const SAMPLE: &[Misbehaviour] = &[
    Misbehaviour::Polite,
    Misbehaviour::IgnoresBreak,
    Misbehaviour::CmdChain,
    Misbehaviour::CmdStarts,
    Misbehaviour::Detached,
    Misbehaviour::LeaderExits,
    Misbehaviour::HoldsStdout,
    Misbehaviour::StartsDuringKill,
    Misbehaviour::WideTree,
];

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = trials([
        ("manager::calls-are-answered-right", calls),
        ("manager::a-server-that-does-not-start-says-why", says_why),
        ("manager::who-does-not-read-or-stop-is-ended", unread),
        ("manager::a-picture-shows-the-whole-tree", picture),
        ("manager::a-runtime-that-ends-first-ends-them", runtime_first),
        ("manager::a-killed-host-is-swept", swept),
        ("manager::sessions-share-one-process", shared),
    ]);
    for &misbehaviour in Misbehaviour::ALL {
        for death in [Death::Close, Death::Drop, Death::Panic, Death::HostKilled] {
            let wide = misbehaviour == Misbehaviour::WideTree && death != Death::Close;
            if wide || !everything() && !SAMPLE.contains(&misbehaviour) {
                continue;
            }
            tests.push(Trial::test(format!("manager::{misbehaviour}::{death}"), move || {
                let place = Place::new();
                let owner = [own().into_os_string(), OWN.into(), place.0.clone().into()];
                let subject = Subject::owner(own(), owner);
                trials::run_in_turn(everything(), misbehaviour, death, &subject)
                    .map_err(Failed::from)
            }));
        }
    }
    tests
}

/// Tests by name. What a test says of its failure is above.
pub(crate) fn trials<const N: usize>(tests: [(&str, fn()); N]) -> Vec<Trial> {
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            std::panic::catch_unwind(test).map_err(|_| Failed::from("see above"))
        })
    };
    tests.into_iter().map(trial).collect()
}

/// A server that misbehaves in this way, and is not started again.
pub(crate) fn server(verb: &str, token: &str) -> ServerSpec {
    let mut spec = ServerSpec::new(own().to_string_lossy()).args(["__misbehave", verb, token]);
    spec.restart = Restart::Never;
    spec
}

/// A server that only serves.
fn serves() -> ServerSpec {
    let mut spec = ServerSpec::new(own().to_string_lossy()).args(["__serve"]);
    spec.restart = Restart::Never;
    spec
}

/// Servers by name.
pub(crate) fn named(servers: impl IntoIterator<Item = (&'static str, ServerSpec)>) -> Servers {
    servers.into_iter().map(|(name, spec)| (name.to_owned(), spec)).collect()
}

pub(crate) fn config(place: &Path, servers: Servers) -> Config {
    let mut config = Config::new(place, servers);
    config.ladder = Ladder { grace: RUNG, term_grace: RUNG, ..Ladder::default() };
    config
}

/// A runtime with threads, as hosts have.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime")
}

/// A word that nobody else has.
pub(crate) fn token(what: &str) -> String {
    format!("lariat-{what}-{}", std::process::id())
}

/// How many carry this token now. A console's host comes and goes by itself.
pub(crate) fn there(token: &str) -> usize {
    let mut witness = Witness::new(token);
    let mut all = witness.look();
    all.retain(|one| !witness.name(*one).eq_ignore_ascii_case("conhost.exe"));
    all.len()
}

const OWN: &str = "__own-manager";

/// Plays the owner if asked: `EXE __own-manager DIR -- SERVER…`.
pub(crate) fn own_if_asked() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|verb| verb != OWN) {
        return;
    }
    let place = args.next().expect("a directory");
    let words = args.skip_while(|word| word != "--").skip(1);
    let mut words = words.map(|word| word.into_string().expect("text"));
    let mut spec = ServerSpec::new(words.next().unwrap_or_default()).args(words);
    spec.restart = Restart::Never;
    // None of them greets, and two hundred take their time to be there.
    spec.startup_timeout = 5 * PATIENCE;
    let config = config(place.as_ref(), named([("one", spec)]));
    let mut lines = std::io::stdin().lock().lines().map_while(Result::ok);
    if lines.next().is_none_or(|line| line != "go") {
        leave(5);
    }
    let runtime = runtime();
    let mut manager = Some(runtime.block_on(async { Manager::open(config) }).expect("it opens"));
    runtime.block_on(up(manager.as_ref().expect("a manager")));
    let mut out = std::io::stdout();
    out.write_all(b"up\n").and_then(|()| out.flush()).expect("the runner reads");
    for line in lines {
        match line.as_str() {
            "close" => {
                let manager = manager.take().expect("closed once");
                let ended = runtime.block_on(manager.close()).expect("nobody survives");
                let reason = &ended.receipts.first().expect("a receipt").reason;
                assert!(["closed", "exited"].contains(&reason.as_str()), "{reason}");
            }
            "drop" => drop(manager.take()),
            "panic" => panic!("as asked, with the manager on the stack"),
            _ => {}
        }
    }
    leave(0)
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

/// Many at once, of several servers, short and long: each gets its own answer, from its own server.
fn calls() {
    let place = Place::new();
    runtime().block_on(async {
        let servers = named([("a", serves()), ("b", serves()), ("c", serves())]);
        let manager = Manager::start(config(&place.0, servers)).await.expect("it starts");
        let tools = manager.session().tools();
        assert_eq!(tools["a"].as_ref().map(Vec::len).ok(), Some(2), "{tools:?}");
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..300 {
            let (session, name) = (manager.session().clone(), ["a", "b", "c"][number % 3]);
            let State::Ready(ready) = &session.states()[name] else { panic!("{name} is ready") };
            let pid = ready.pid;
            // Longer than any pipe, now and then.
            let length = if number.is_multiple_of(50) { 1 << 20 } else { number };
            let said = json!({"number": number, "text": "x".repeat(length)});
            calls.spawn(async move {
                let answer = session.call(name, "hammer", said.clone()).await.expect("an answer");
                let answer: Value = serde_json::from_str(answer.get()).expect("JSON");
                assert!(answer == json!({"pid": pid, "said": said}), "call {number}");
            });
        }
        while let Some(call) = calls.join_next().await {
            call.expect("no panic");
        }
        let ended = manager.close().await.expect("nobody survives");
        assert_eq!(ended.receipts.len(), 3);
        for receipt in ended.receipts {
            // A console brings a process of its own, where there is none to share.
            assert!((1..=2).contains(&receipt.processes.seen), "{receipt:?}");
            assert!(receipt.processes.left >= 1, "it leaves when its input ends: {receipt:?}");
            assert_eq!((receipt.backend.as_str(), receipt.within.is_some()), ("job", true));
        }
    });
    assert_eq!(place.pages(), 0);
}

fn says_why() {
    let place = Place::new();
    let leaves = serves().args(["__complain-and-exit"]);
    let mut deaf = serves().args(["__deaf"]);
    // Its process has to be there by then.
    deaf.startup_timeout = Duration::from_secs(10);
    let mut imaged = serves();
    imaged.image = Some("time:1".into());
    let servers = named([
        ("absent", ServerSpec::new("no-such-program-at-all")),
        ("leaves", leaves),
        ("deaf", deaf),
        ("imaged", imaged),
        ("good", serves()),
    ]);
    runtime().block_on(async {
        let manager = Manager::start(config(&place.0, servers)).await.expect("it starts");
        let states = manager.session().states();
        for (name, words) in [
            ("absent", "was not found"),
            ("leaves", "it left with exit code 3: the reason"),
            ("deaf", "its process runs, but the handshake did not finish"),
            ("imaged", "containers cannot be held on Windows yet"),
        ] {
            let State::Failed { why } = &states[name] else { panic!("{:?}", states[name]) };
            assert!(why.contains(words), "{name}: {why}");
            let refused = manager.session().call(name, "hammer", json!({})).await;
            assert!(matches!(refused, Err(Error::NotReady(..))), "{refused:?}");
        }
        manager.session().call("good", "hammer", json!({})).await.expect("it answers");
        manager.close().await.expect("nobody survives");
    });
    assert_eq!(place.pages(), 0, "also of what never was");
    let log = fs::read_to_string(place.0.join("logs").join("leaves.log")).expect("a log");
    assert_eq!(log, "the reason");
}

/// One that has stopped reading, and one that says much that nobody has asked for: neither makes the
/// host wait, nor fills its memory, and both end in time.
fn unread() {
    let place = Place::new();
    let mut stuck = serves().args(["__serve", "stuck"]);
    stuck.tool_timeout = Duration::from_millis(500);
    let servers = named([("stuck", stuck), ("floods", serves().args(["__serve", "floods"]))]);
    runtime().block_on(async {
        let manager = Manager::start(config(&place.0, servers)).await.expect("it starts");
        let session = manager.session();
        let much = json!("x".repeat(4 << 20));
        let late = session.call("stuck", "hammer", much).await;
        assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
        let said = session.call("floods", "hammer", json!("is it there?")).await;
        assert!(said.expect("an answer").get().contains("is it there?"));
        let ended = manager.close().await.expect("nobody survives");
        assert_eq!(ended.receipts.len(), 2);
    });
    assert_eq!(place.pages(), 0);
}

fn picture() {
    let (place, token) = (Place::new(), token("picture"));
    runtime().block_on(async {
        let servers = named([("one", server("cmd-chain", &token))]);
        let manager = Manager::start(config(&place.0, servers)).await.expect("it starts");
        assert!(until(PATIENCE, || there(&token) == 4), "a leaf below two shells");
        assert!((4..=5).contains(&manager.session().processes()), "with or without a console");
        let servers = manager.session().snapshot().await;
        let State::Ready(ready) = &manager.session().states()["one"] else { panic!("ready") };
        let processes = &servers[0].processes;
        let leader = processes.iter().find(|one| one.pid == ready.pid).expect("the leader");
        assert_eq!(leader.ppid, std::process::id().cast_signed());
        assert!(processes.iter().all(|one| one.rss_bytes > 0 && !one.command.is_empty()));
        assert_eq!(processes.iter().filter(|one| one.command == "cmd.exe").count(), 2);
        let mut ps = Command::new(lariat());
        let ps = ps.args(["ps", "--json", "--state-dir"]).arg(&place.0).output();
        let ps = ps.expect("it runs");
        let shown: Value = serde_json::from_slice(&ps.stdout).expect("one session");
        assert_eq!((&shown["server"], &shown["leader"]["pid"]), (&json!("one"), &json!(ready.pid)));
        manager.close().await.expect("nobody survives");
        assert_eq!(manager_is_gone(&token), 0);
    });
}

/// How many are there after a moment.
fn manager_is_gone(token: &str) -> usize {
    until(PATIENCE, || there(token) == 0);
    there(token)
}

fn runtime_first() {
    let (place, token) = (Place::new(), token("runtime"));
    let runtime = runtime();
    let servers = named([("one", server("cmd-chain", &token))]);
    let manager = runtime.block_on(Manager::start(config(&place.0, servers))).expect("it starts");
    assert!(there(&token) > 0);
    runtime.shutdown_background();
    assert_eq!(manager_is_gone(&token), 0);
    drop(manager);
    assert!(until(PATIENCE, || place.pages() == 0), "somebody has accounted for it");
}

fn swept() {
    let (place, token) = (Place::new(), token("manager-swept"));
    let mut host = Command::new(own());
    host.arg(OWN).arg(&place.0).arg("--").arg(own());
    host.args([OsString::from("__misbehave"), "detached".into(), token.clone().into()]);
    let mut host = host.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a host");
    let mut stdin = host.stdin.take().expect("a pipe");
    stdin.write_all(b"go\n").expect("it listens");
    let mut line = String::new();
    let mut said = std::io::BufReader::new(host.stdout.take().expect("a pipe"));
    said.read_line(&mut line).expect("it is up");
    assert!(until(PATIENCE, || there(&token) == 3), "host, server and leaf");
    host.kill().expect("it can be");
    host.wait().expect("it is");
    assert_eq!(manager_is_gone(&token), 0, "the kernel ends them");
    assert_eq!(place.pages(), 2, "nobody was there to strike the page");
    // The next session finishes what that one left.
    runtime().block_on(async {
        let servers = named([("two", serves())]);
        let manager = Manager::start(config(&place.0, servers)).await.expect("it starts");
        manager.close().await.expect("nobody survives");
    });
    assert_eq!(place.pages(), 0);
    let events = fs::read_to_string(place.0.join("events.jsonl")).expect("events");
    let receipts = events.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let of_one = receipts.filter(|event| event["event"] == "ended" && event["server"] == "one");
    let of_one: Vec<Value> = of_one.collect();
    assert_eq!(of_one.len(), 1, "{events}");
    assert_eq!((&of_one[0]["reason"], &of_one[0]["swept"]), (&json!("wrapper-died"), &json!(true)));
    assert!(of_one[0]["within"].is_string());
}

fn shared() {
    let place = Place::new();
    runtime().block_on(async {
        let pool = Pool::new(lariat::pool::Config {
            state_dir: place.0.clone(),
            holder: None,
            ladder: Ladder { grace: RUNG, term_grace: RUNG, ..Ladder::default() },
            backend: lariat::contain::Choice::Auto,
            docker: None,
            max_containers: 1,
        });
        let pool = pool.expect("a pool");
        let mut spec = serves();
        spec.share = Share::Strict;
        let mut sessions = Vec::new();
        for _ in 0..3 {
            let mut config = config(&place.0, named([("one", spec.clone())]));
            config.pool = Some(pool.clone());
            sessions.push(Manager::start(config).await.expect("it starts"));
        }
        let mut pids = Vec::new();
        for (number, session) in sessions.iter().enumerate() {
            let answer = session.session().call("one", "nail", json!(number)).await;
            let answer: Value =
                serde_json::from_str(answer.expect("an answer").get()).expect("JSON");
            assert_eq!(answer["said"], json!(number));
            pids.push(answer["pid"].clone());
        }
        pids.dedup();
        assert_eq!((pids.len(), pool.view().len()), (1, 1), "one process for all");
        drop(sessions);
        let ended = pool.close().await;
        assert!(ended.unaccounted.is_empty());
        assert!(ended.receipts.iter().all(|receipt| receipt.survivors.is_empty()));
    });
    assert!(until(PATIENCE, || place.pages() == 0));
}
