//! Sessions that come and go, and one that is refreshed again and again, as in
//! github/copilot-sdk #1132 and openai/codex #18881.

use crate::manager::{config, named, runtime, server, there, token, trials};
use crate::table::{PATIENCE, Place, everything, leave, own};
use lariat::session::{Error, Manager, Session};
use lariat::spec::Servers;
use libtest_mimic::Trial;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use trials::{Process, Witness, until};

/// A server, two shells and a leaf.
const CHAIN: usize = 4;

/// A server and a leaf without a console.
const DETACHED: usize = 2;

/// Four for each of four servers, three of the host's own, and one of the system's.
const THREADS: usize = 4 * 4 + 3 + 1;

pub(crate) fn tests() -> Vec<Trial> {
    trials([
        ("turnover::24-sessions", sessions),
        ("turnover::refreshed-as-in-the-report", refreshed),
        ("turnover::unchanged-servers-keep-their-calls", keeps_calls),
        ("turnover::a-probe-leaves-nothing", probe),
    ])
}

/// Never is there more than one session's processes.
fn sessions() {
    let (place, token) = (Place::new(), token("turnover"));
    runtime().block_on(async {
        for number in 0..24 {
            let servers = named([("one", server("cmd-chain", &token))]);
            let manager = Manager::start(config(&place.0, servers)).await.expect("it starts");
            assert!(until(PATIENCE, || there(&token) >= CHAIN), "session {number} is complete");
            assert_eq!(there(&token), CHAIN, "in session {number}");
            let ended = manager.close().await.expect("nobody survives");
            let processes = ended.receipts[0].processes;
            // A console brings a process of its own, where there is none to share.
            assert!((4..=5).contains(&processes.seen), "{processes:?}");
            assert!(processes.killed >= 1, "the leaf is deaf: {processes:?}");
            assert_eq!(there(&token), 0, "after session {number}");
        }
    });
    assert_eq!(place.pages(), 0);
}

/// Four servers; one of them differs from round to round, and now and then all of them do.
fn four(token: &str, round: usize) -> Servers {
    let one = |number: usize| {
        let version = if round.is_multiple_of(10) { round } else { (round + number) / 4 };
        server("detached", token).env("ROUND", version.to_string())
    };
    ["a", "b", "c", "d"].iter().enumerate().map(|(i, name)| ((*name).to_owned(), one(i))).collect()
}

fn hang(session: &Session, name: &'static str) -> tokio::task::JoinHandle<Result<(), Error>> {
    let session = session.clone();
    tokio::spawn(async move { session.call(name, "hang", json!({})).await.map(drop) })
}

const REFRESHES: &str = "__refreshes";

/// In a process of its own, of which threads and handles can be counted.
fn refreshed() {
    let place = Place::new();
    let mut host = Command::new(own());
    let host = host.args([REFRESHES, &token("refreshed")]).arg(&place.0).output();
    let host = host.expect("a host");
    assert!(host.status.success(), "{}", String::from_utf8_lossy(&host.stderr));
    assert_eq!(place.pages(), 0);
}

/// Plays that host if asked.
pub(crate) fn refresh_if_asked() {
    let mut args = std::env::args().skip(1);
    if args.next().is_some_and(|verb| verb == REFRESHES) {
        let token = args.next().expect("a token");
        refresh(&token, &PathBuf::from(args.next().expect("a directory")));
        leave(0)
    }
}

fn refresh(token: &str, place: &Path) {
    let rounds = if everything() { 123 } else { 20 };
    let me = Process::now(std::process::id()).expect("it runs");
    let mut witness = Witness::new(token);
    // Its own command line has the token as well.
    witness.spare(me);
    let mut there = move || {
        let all = witness.look();
        all.iter().filter(|one| !witness.name(**one).eq_ignore_ascii_case("conhost.exe")).count()
    };
    let mut after_ten = [0; 2];
    runtime().block_on(async {
        let manager = Manager::start(config(place, four(token, 0))).await.expect("it starts");
        for round in 1..=rounds {
            let calls = ["a", "b", "c", "d"].map(|name| hang(manager.session(), name));
            let change = manager.refresh(four(token, round)).await.expect("it refreshes");
            assert!(change.receipts.iter().all(|receipt| receipt.survivors.is_empty()));
            assert!(!change.receipts.is_empty() && change.unaccounted.is_empty(), "{change:?}");
            assert_eq!(there(), 4 * DETACHED, "after refresh {round}: {change:?}");
            // Those of servers that were kept hang on; nobody needs them any more.
            calls.iter().for_each(|call| call.abort());
            if round == 10 {
                // Threads of servers that are gone may be about to end.
                until(PATIENCE, || me.footprint()[0] <= THREADS);
                after_ten = me.footprint();
            }
        }
        // Wine counts no handles; where they are counted, one more for each server would be seen.
        let small = || {
            let [threads, handles] = me.footprint();
            threads <= after_ten[0] && handles <= after_ten[1] + 8
        };
        assert!(until(PATIENCE, small), "{after_ten:?}, then {:?}", me.footprint());
        assert!((4 * 4..=THREADS).contains(&after_ten[0]), "{after_ten:?}");
        let session = manager.session().clone();
        let ended = manager.close().await.expect("nobody survives");
        assert_eq!(ended.receipts.len(), 4);
        let gone = session.call("a", "echo", json!({})).await;
        assert!(matches!(gone, Err(Error::Closed)), "{gone:?}");
    });
    assert_eq!(there(), 0);
}

fn keeps_calls() {
    let (place, token) = (Place::new(), token("keeps"));
    runtime().block_on(async {
        let servers = named([
            ("changed", server("polite", &token)),
            ("kept", server("polite", &token)),
            ("removed", server("polite", &token)),
        ]);
        let manager = Manager::start(config(&place.0, servers.clone())).await.expect("it starts");
        let [changed, kept, removed] =
            ["changed", "kept", "removed"].map(|name| hang(manager.session(), name));
        let mut next = servers;
        next.remove("removed");
        next.insert("changed".into(), server("polite", &token).env("A", "B"));
        let change = manager.refresh(next).await.expect("it refreshes");
        assert_eq!((change.kept, change.removed), (vec!["kept".into()], vec!["removed".into()]));
        for call in [changed, removed] {
            let failed = call.await.expect("no panic");
            assert!(matches!(failed, Err(Error::Closed)), "{failed:?}");
        }
        assert!(!kept.is_finished());
        manager.session().call("kept", "echo", json!({})).await.expect("it answers");
        manager.close().await.expect("nobody survives");
        let failed = kept.await.expect("no panic");
        assert!(matches!(failed, Err(Error::Closed)), "{failed:?}");
    });
    assert_eq!(there(&token), 0);
}

fn probe() {
    let (place, token) = (Place::new(), token("probe"));
    runtime().block_on(async {
        let servers = named([
            ("chain", server("cmd-chain", &token)),
            ("detached", server("detached", &token)),
            ("leaves", server("leader-exits", &token)),
        ]);
        let probed = Manager::probe(config(&place.0, servers)).await.expect("it probes");
        let words: Vec<&str> = probed.states.values().map(|state| state.word()).collect();
        assert_eq!(words, ["ready", "ready", "failed"]);
        assert!(probed.ended.unaccounted.is_empty());
        assert_eq!(probed.ended.survivors().count(), 0);
        assert_eq!(there(&token), 0);
    });
    assert_eq!(place.pages(), 0);
}
