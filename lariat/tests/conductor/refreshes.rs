//! A session that is refreshed again and again through the daemon, with calls in flight throughout.

use crate::kit::{self, PATIENCE, PROMISE, Place};
use crate::stage::{Daemon, LARIAT, connect};
use lariat::daemon::api::{Call, Open, Refresh};
use lariat::spec::{Restart, ServerSpec, Servers};
use std::time::Duration;
use trials::until;

pub(crate) const TESTS: &[(&str, fn())] = &[("refreshes::as-in-the-report", report)];

/// As often as in openai/codex #18881.
const REFRESHES: usize = 123;

/// Four servers, of which one has a child that left its session.
const ALIVE: usize = 4 + 1;

/// One of them differs from round to round, and now and then all of them do.
fn four(token: &str, round: usize) -> Servers {
    let verbs = [("a", "polite"), ("b", "polite"), ("c", "polite"), ("d", "setsid-child")];
    let one = |(number, (name, verb)): (usize, (&str, &str))| {
        let version = if round.is_multiple_of(10) { round } else { (round + number) / 4 };
        let mut spec = ServerSpec::new(LARIAT).args(["__misbehave", verb, token]);
        spec.restart = Restart::Never;
        (name.to_owned(), spec.env("ROUND", version.to_string()))
    };
    verbs.into_iter().enumerate().map(one).collect()
}

/// The daemon when it has noticed that the last callers have left: at its smallest.
fn calm(daemon: &Daemon) -> [usize; 3] {
    let mut least = daemon.footprint();
    until(Duration::from_secs(1), || {
        let now = daemon.footprint();
        least = [0, 1, 2].map(|at| least[at].min(now[at]));
        false
    });
    least
}

fn report() {
    let place = Place::new("refreshes");
    let daemon = Daemon::start(&place);
    kit::runtime().block_on(async {
        let mut client = connect(&place).await;
        let open = Open { servers: four(&place.token, 0), ..Open::default() };
        let id = client.open(&open, true).await.expect("a session").id;
        let mut after_ten = [0; 3];
        for round in 1..=REFRESHES {
            let mut calls = tokio::task::JoinSet::new();
            for name in ["a", "b", "c", "d"] {
                let (id, mut caller) = (id.clone(), connect(&place).await);
                let hang = Call { tool: "hang".into(), arguments: None };
                calls.spawn(async move { caller.call(&id, name, &hang).await });
            }
            let refresh = Refresh { servers: four(&place.token, round) };
            let session = client.refresh(&id, &refresh).await.expect("it refreshes");
            let alive = place.witness().look().len();
            assert_eq!(alive, ALIVE, "after refresh {round}: {session:?}");
            assert!(session.servers.values().all(|server| server.state == "ready"), "{session:?}");
            let receipts = session.receipts.expect("those that were replaced");
            assert!(!receipts.is_empty());
            assert!(receipts.iter().all(|receipt| receipt.survivors.is_empty()), "{receipts:?}");
            // Those of servers that were kept hang on; nobody needs them any more.
            calls.shutdown().await;
            if round == 10 {
                after_ten = calm(&daemon);
            }
        }
        // No more than that. A thread with nothing to do leaves after a while, then or now.
        let most = [after_ten[0], after_ten[1], after_ten[2] + 2048];
        let has_grown = || daemon.footprint().iter().zip(most).any(|(now, most)| *now > most);
        assert!(
            until(2 * PATIENCE, || !has_grown()),
            "{after_ten:?} then {:?}",
            daemon.footprint()
        );
        let closed = client.close(&id).await.expect("it closes");
        assert_eq!((closed.receipts.len(), closed.survivors), (4, vec![]));
    });
    drop(daemon);
    place.assert_gone(PROMISE);
}
