//! A manager that is refreshed again and again, as in openai/codex #18881, with calls in flight throughout.

use crate::kit::{self, PATIENCE, PROMISE, Place, mute, named, server};
use lariat::session::{Error, Manager, Session, State};
use lariat::spec::{ServerSpec, Servers};
use libtest_mimic::Trial;
use serde_json::json;
use std::fs;
use std::time::{Duration, Instant};
use trials::until;

/// As often as in openai/codex #18881, or less if there is no time.
fn refreshes() -> usize {
    if kit::rounds() > 1 { 123 } else { 20 }
}

/// Each tree is a leader and a child that left its session.
const TREE: usize = 2;

pub(crate) fn tests() -> Vec<Trial> {
    kit::trials([
        ("turnover::refreshed-as-in-the-report", report as fn()),
        ("turnover::unchanged-servers-keep-their-calls", keeps_calls),
        ("turnover::a-set-that-fails-leaves-a-truthful-state", fails_truthfully),
        ("turnover::refreshes-come-one-after-the-other", serialised),
        ("turnover::a-refresh-that-is-dropped-orphans-nobody", dropped),
        ("turnover::a-replaced-server-is-gone-before-the-next-starts", in_order),
        ("turnover::close-waits-for-what-a-dropped-refresh-began", close_after_dropped),
        ("turnover::a-probe-leaves-nothing", probe),
    ])
}

/// Four servers; `which` of them differ from round to round.
fn four(token: &str, round: usize) -> Servers {
    let one = |number: usize| {
        // All of them change now and then, as when a host reads its config anew.
        let version = if round.is_multiple_of(10) { round } else { (round + number) / 4 };
        server("setsid-child", token).env("ROUND", version.to_string())
    };
    ["a", "b", "c", "d"].iter().enumerate().map(|(i, name)| ((*name).to_owned(), one(i))).collect()
}

/// What a host would see grow: descriptors, threads, resident memory in KiB.
fn footprint() -> [usize; 3] {
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect("a field");
        line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
    };
    [fs::read_dir("/proc/self/fd").expect("fds").count(), field("Threads:"), field("VmRSS:")]
}

fn hang(session: &Session, name: &'static str) -> tokio::task::JoinHandle<Result<(), Error>> {
    let session = session.clone();
    tokio::spawn(async move { session.call(name, "hang", json!({})).await.map(drop) })
}

fn report() {
    let place = Place::new("report");
    let token = place.token.clone();
    kit::runtime().block_on(async {
        let config = kit::config(&place.dir, four(&token, 0));
        let manager = Manager::start(config).await.expect("it starts");
        let mut clones = Vec::new();
        let mut after_ten = [0; 3];
        for round in 1..=refreshes() {
            let session = manager.session().clone();
            let calls = ["a", "b", "c", "d"].map(|name| hang(&session, name));
            clones.push(session);
            let change = manager.refresh(four(&token, round)).await.expect("it refreshes");
            let alive = place.witness().look().len();
            assert_eq!(alive, 4 * TREE, "after refresh {round}: {change:?}");
            assert!(change.receipts.iter().all(|receipt| receipt.survivors.is_empty()));
            for call in calls {
                // Those of servers that were kept hang on; nobody needs them any more.
                call.abort();
            }
            if round == 10 {
                after_ten = footprint();
            }
        }
        // No more than that. A thread with nothing to do leaves after a while, then or now.
        let most = [after_ten[0], after_ten[1], after_ten[2] + 2048];
        let has_grown = || footprint().iter().zip(most).any(|(now, most)| *now > most);
        assert!(until(2 * PATIENCE, || !has_grown()), "{after_ten:?} then {:?}", footprint());
        let ended = manager.close().await.expect("nobody survives");
        assert_eq!(ended.receipts.len(), 4);
        let gone = clones[0].call("a", "echo", json!({})).await;
        assert!(matches!(gone, Err(Error::Closed)), "{gone:?}");
    });
    place.assert_gone(PROMISE);
}

fn keeps_calls() {
    let place = Place::new("keeps");
    kit::runtime().block_on(async {
        let servers = named([
            ("kept", server("polite", &place.token)),
            ("changed", server("polite", &place.token)),
            ("removed", server("polite", &place.token)),
        ]);
        let config = kit::config(&place.dir, servers.clone());
        let manager = Manager::start(config).await.expect("it starts");
        let pid = pid_of(&manager, "kept");
        let [kept, changed, removed] =
            ["kept", "changed", "removed"].map(|name| hang(manager.session(), name));
        let mut next = servers;
        next.remove("removed");
        next.insert("changed".into(), server("polite", &place.token).env("A", "B"));
        next.insert("new".into(), server("polite", &place.token));
        let change = manager.refresh(next).await.expect("it refreshes");
        assert_eq!(change.kept, ["kept"]);
        assert_eq!(change.replaced, ["changed"]);
        assert_eq!(change.removed, ["removed"]);
        assert_eq!(change.started, ["new"]);
        assert_eq!(change.receipts.len(), 2, "{change:?}");
        for call in [changed, removed] {
            let failed = call.await.expect("no panic");
            assert!(matches!(failed, Err(Error::Closed)), "{failed:?}");
        }
        assert!(!kept.is_finished());
        assert_eq!(pid_of(&manager, "kept"), pid);
        for name in ["kept", "changed", "new"] {
            manager.session().call(name, "echo", json!({})).await.expect("it answers");
        }
        manager.close().await.expect("nobody survives");
        let failed = kept.await.expect("no panic");
        assert!(matches!(failed, Err(Error::Closed)), "{failed:?}");
    });
    place.assert_gone(PROMISE);
}

fn pid_of(manager: &Manager, name: &str) -> i32 {
    match &manager.session().states()[name] {
        State::Ready(ready) => ready.pid,
        other => panic!("{name} is {other:?}"),
    }
}

fn fails_truthfully() {
    let place = Place::new("fails");
    kit::runtime().block_on(async {
        let good = server("polite", &place.token);
        let config = kit::config(&place.dir, named([("good", good.clone())]));
        let manager = Manager::start(config).await.expect("it starts");
        let mut slow = mute(&place.token);
        slow.startup_timeout = Duration::from_millis(300);
        let set = [
            ("good", good.clone()),
            ("absent", ServerSpec::new("/no/such/program")),
            ("mute", slow),
            ("leaves", kit::shell("echo the reason >&2; exit 3", &place.token)),
        ];
        manager.refresh(named(set)).await.expect("a failure is a state, not an error");
        let states = manager.session().states();
        assert!(matches!(states["good"], State::Ready(_)));
        let why = |name: &str| match &states[name] {
            State::Failed { why } => why.to_string(),
            other => panic!("{name} is {other:?}"),
        };
        assert!(why("absent").contains("was not found"), "{}", why("absent"));
        assert!(why("mute").contains("was not ready after 300 ms"), "{}", why("mute"));
        assert!(why("leaves").contains("exit code 3: the reason"), "{}", why("leaves"));
        assert_eq!(place.witness().look().len(), 1, "only the good one is there");
        // Nonsense changes nothing at all.
        let nonsense = manager.refresh(named([("bad", ServerSpec::new(""))])).await;
        assert!(matches!(nonsense, Err(Error::Spec(..))), "{nonsense:?}");
        assert_eq!(manager.session().states().len(), 4);
        manager.refresh(named([("good", good)])).await.expect("it refreshes");
        assert_eq!(manager.session().states().len(), 1);
        manager.close().await.expect("nobody survives");
    });
    place.assert_gone(PROMISE);
}

fn serialised() {
    let place = Place::new("serialised");
    kit::runtime().block_on(async {
        let config = kit::config(&place.dir, four(&place.token, 0));
        let manager = Manager::start(config).await.expect("it starts");
        let to = |round| manager.refresh(four(&place.token, round));
        let (a, b, c, d) = tokio::join!(to(10), to(20), to(30), to(40));
        for change in [a, b, c, d] {
            assert_eq!(change.expect("it refreshes").replaced.len(), 4);
        }
        assert_eq!(place.witness().look().len(), 4 * TREE);
        manager.close().await.expect("nobody survives");
    });
    place.assert_gone(PROMISE);
}

fn dropped() {
    let place = Place::new("dropped");
    kit::runtime().block_on(async {
        let config = kit::config(&place.dir, four(&place.token, 0));
        let manager = Manager::start(config).await.expect("it starts");
        for step in 0..20u64 {
            // Given up a little later each time: while the old end, while the new start.
            let patience = Duration::from_millis(step * 15);
            let refresh = manager.refresh(four(&place.token, 10 * (step as usize + 1)));
            let _given_up = tokio::time::timeout(patience, refresh).await;
        }
        let fewer = named([("a", server("setsid-child", &place.token))]);
        let _given_up =
            tokio::time::timeout(Duration::from_millis(1), manager.refresh(fewer.clone())).await;
        manager.refresh(four(&place.token, 500)).await.expect("it refreshes");
        let mut witness = place.witness();
        assert!(until(PATIENCE, || witness.look().len() == 4 * TREE), "{:?}", witness.look());
        manager.refresh(fewer).await.expect("it refreshes");
        assert_eq!(place.witness().look().len(), TREE);
        drop(manager);
    });
    place.assert_gone(PROMISE);
}

fn close_after_dropped() {
    let place = Place::new("close-after");
    kit::runtime().block_on(async {
        let deaf = server("ignores-eof-and-term", &place.token);
        let config = kit::config(&place.dir, named([("a", deaf.clone()), ("b", deaf.clone())]));
        let manager = Manager::start(config).await.expect("it starts");
        let fewer = manager.refresh(named([("a", deaf)]));
        let _given_up = tokio::time::timeout(Duration::from_millis(20), fewer).await;
        let ended = manager.close().await.expect("nobody survives");
        assert!(place.witness().look().is_empty(), "close did not wait");
        assert_eq!(ended.receipts.len(), 2, "{ended:?}");
    });
    place.assert_gone(PROMISE);
}

fn in_order() {
    let place = Place::new("in-order");
    let lock = place.dir.join("lock");
    kit::runtime().block_on(async {
        let me = std::env::current_exe().expect("a name").display().to_string();
        let (lock, token) = (lock.display(), &place.token);
        let script = format!(
            "mkdir {lock} || exit 9; trap 'rmdir {lock}; exit 0' TERM; \
             {me} __misbehave ignores-eof {token}; rmdir {lock}"
        );
        let spec = kit::shell(&script, token);
        let config = kit::config(&place.dir, named([("one", spec.clone())]));
        let manager = Manager::start(config).await.expect("it starts");
        for round in 0..5 {
            let next = spec.clone().env("ROUND", round.to_string());
            manager.refresh(named([("one", next)])).await.expect("it refreshes");
            // One that finds the lock of the one before fails.
            let state = &manager.session().states()["one"];
            assert!(matches!(state, State::Ready(_)), "round {round}: {state:?}");
        }
        manager.close().await.expect("nobody survives");
    });
    place.assert_gone(PROMISE);
}

fn probe() {
    let place = Place::new("probe");
    kit::runtime().block_on(async {
        let servers = named([
            ("deaf", server("ignores-eof-and-term", &place.token)),
            ("absent", ServerSpec::new("/no/such/program")),
        ]);
        let began = Instant::now();
        let probed = Manager::probe(kit::config(&place.dir, servers)).await.expect("it probes");
        assert!(place.witness().look().is_empty(), "after {:?}", began.elapsed());
        let State::Ready(ready) = &probed.states["deaf"] else { panic!("{probed:?}") };
        assert_eq!(ready.tools.len(), 2);
        assert!(matches!(probed.states["absent"], State::Failed { .. }));
        assert_eq!(probed.ended.receipts.len(), 1);
        assert_eq!(probed.ended.receipts[0].processes.killed, 1);
    });
    place.assert_gone(PROMISE);
}
