//! Sessions that have a server together: one process, right answers, and it ends with the last.

use crate::kit::{PATIENCE, PROMISE, Place, RUNG, config, named, runtime, server, trials};
use lariat::contain::{Choice, Ladder};
use lariat::pool::{Config, Pool, Server, Want};
use lariat::session::{Manager, State};
use lariat::spec::{Idle, Recycle, ServerSpec, Share};
use libtest_mimic::Trial;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use trials::until;

pub(crate) fn tests() -> Vec<Trial> {
    trials([
        ("shared::one-process-for-several-sessions", one_process_for_several_sessions as fn()),
        ("shared::who-can-be-asked-has-its-own", who_can_be_asked_has_its_own),
        ("shared::a-crash-is-seen-by-all", a_crash_is_seen_by_all),
        ("shared::asleep-it-is-gone-and-wakes-for-a-call", asleep_it_is_gone_and_wakes_for_a_call),
        ("shared::what-differs-is-not-shared", what_differs_is_not_shared),
        ("shared::a-pool-that-closes-ends-all", a_pool_that_closes_ends_all),
        ("shared::a-warm-one-is-there-before-and-after", a_warm_one_is_there_before_and_after),
        ("shared::one-that-is-too-old-is-not-joined", one_that_is_too_old_is_not_joined),
    ])
}

fn pool(place: &Place) -> Pool {
    Pool::new(Config {
        state_dir: place.state(),
        holder: None,
        ladder: Ladder { grace: RUNG, term_grace: RUNG, ..Ladder::default() },
        backend: Choice::Auto,
        docker: None,
        max_containers: 1,
    })
    .expect("a pool")
}

fn shared(verb: &str, place: &Place) -> ServerSpec {
    let mut spec = server(verb, &place.token);
    spec.share = Share::Strict;
    spec
}

async fn open(place: &Place, pool: &Pool, spec: ServerSpec) -> Manager {
    let mut config = config(&place.dir, named([("a", spec)]));
    config.pool = Some(pool.clone());
    let manager = Manager::start(config).await.expect("a session");
    let state = manager.session().states().remove("a");
    assert!(matches!(state, Some(State::Ready(_))), "{state:?}");
    manager
}

async fn call(manager: &Manager) -> bool {
    manager.session().call("a", "echo", json!({})).await.is_ok()
}

/// How many servers there are, none of which has children.
fn trees(place: &Place) -> usize {
    place.witness().look().len()
}

fn one_process_for_several_sessions() {
    let place = Place::new("several");
    runtime().block_on(async {
        let pool = pool(&place);
        let mut sessions = Vec::new();
        for _ in 0..5 {
            sessions.push(open(&place, &pool, shared("polite", &place)).await);
        }
        assert_eq!(trees(&place), 1);
        let view = &pool.view()[..];
        assert_eq!((view.len(), view[0].sessions), (1, 5));
        assert_eq!(view[0].verdict.to_string(), "shared");
        for session in &sessions {
            assert!(call(session).await);
        }
        while let Some(session) = sessions.pop() {
            assert_eq!(trees(&place), 1);
            assert!(call(&session).await);
            session.close().await.expect("nobody is left");
        }
    });
    place.assert_gone(PROMISE);
}

fn who_can_be_asked_has_its_own() {
    let place = Place::new("asked");
    runtime().block_on(async {
        let pool = pool(&place);
        let plain = open(&place, &pool, shared("polite", &place)).await;
        let mut spec = shared("polite", &place);
        spec.capabilities.insert("roots".into(), json!({}));
        let rooted = open(&place, &pool, spec.clone()).await;
        let another = open(&place, &pool, spec).await;
        assert_eq!(trees(&place), 3);
        let mut verdicts: Vec<String> =
            pool.view().iter().map(|view| view.verdict.to_string()).collect();
        verdicts.sort();
        let private = "private: client declares roots";
        assert_eq!(verdicts, [private, private, "shared"]);
        for session in [plain, rooted, another] {
            assert!(call(&session).await);
            drop(session);
        }
    });
    place.assert_gone(PROMISE);
}

fn a_crash_is_seen_by_all() {
    let place = Place::new("crash");
    runtime().block_on(async {
        let pool = pool(&place);
        let one = open(&place, &pool, shared("polite", &place)).await;
        let two = open(&place, &pool, shared("polite", &place)).await;
        place.witness().end_all();
        for manager in [&one, &two] {
            let failed = || matches!(manager.session().states()["a"], State::Failed { .. });
            let deadline = tokio::time::Instant::now() + PATIENCE;
            while !failed() && tokio::time::Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(failed(), "{:?}", manager.session().states());
        }
        // Who comes now gets a fresh one.
        let three = open(&place, &pool, shared("polite", &place)).await;
        assert!(call(&three).await);
    });
    place.assert_gone(PROMISE);
}

fn asleep_it_is_gone_and_wakes_for_a_call() {
    let place = Place::new("asleep");
    let runtime = runtime();
    for (capability, what) in [(None, "shared"), (Some("roots"), "private")] {
        runtime.block_on(async {
            let pool = pool(&place);
            let mut spec = shared("polite", &place);
            spec.idle = Idle::After(Duration::from_millis(200));
            spec.capabilities.extend(capability.map(|name| (name.into(), json!({}))));
            let one = open(&place, &pool, spec.clone()).await;
            let two = open(&place, &pool, spec).await;
            for _ in 0..3 {
                let gone = tokio::task::block_in_place(|| until(PATIENCE, || trees(&place) == 0));
                assert!(gone, "{what}: {:?}", pool.view());
                assert!(pool.view().iter().all(|view| view.sessions > 0), "{what}");
                assert!(call(&one).await && call(&two).await, "{what}");
            }
        });
        place.assert_gone(PROMISE);
    }
}

fn what_differs_is_not_shared() {
    let place = Place::new("differs");
    runtime().block_on(async {
        let pool = pool(&place);
        let plain = || shared("polite", &place);
        let mut other_dir = plain();
        other_dir.cwd = Some("/".into());
        let mut limited = plain();
        limited.max_sessions = std::num::NonZero::new(1);
        let mut odd = plain();
        odd.capabilities.insert("experimental".into(), json!({ "x": 1 }));
        let specs = [
            plain(),
            plain().env("A", "1"),
            plain().env("A", "2"),
            other_dir,
            odd,
            limited.clone(),
            limited,
        ];
        let mut sessions = Vec::new();
        for spec in specs {
            sessions.push(open(&place, &pool, spec).await);
            assert_eq!(trees(&place), sessions.len());
        }
        sessions.push(open(&place, &pool, plain()).await);
        assert_eq!(trees(&place), sessions.len() - 1);
    });
    place.assert_gone(PROMISE);
}

fn a_pool_that_closes_ends_all() {
    let place = Place::new("closes");
    runtime().block_on(async {
        let pool = pool(&place);
        let _one = open(&place, &pool, shared("polite", &place)).await;
        let _two = open(&place, &pool, shared("ignores-eof-and-term", &place)).await;
        let ended = pool.close().await;
        assert_eq!((ended.receipts.len(), ended.unaccounted.len()), (2, 0), "{ended:?}");
        assert_eq!(trees(&place), 0);
    });
    place.assert_gone(PROMISE);
}

fn a_warm_one_is_there_before_and_after() {
    let place = Place::new("warm");
    runtime().block_on(async {
        let pool = pool(&place);
        let mut spec = shared("polite", &place);
        spec.warm = true;
        let server = Server { name: "a".into(), spec: spec.clone(), environment: None };
        let want = Want {
            server: Arc::new(server),
            principal: "".into(),
            share: spec.share,
            host: None,
            linger: Duration::ZERO,
        };
        pool.warm(&want);
        pool.warm(&want);
        let ready = || pool.view().iter().any(|view| view.state == "ready");
        assert!(tokio::task::block_in_place(|| until(PATIENCE, ready)), "{:?}", pool.view());
        assert_eq!(trees(&place), 1);
        for _ in 0..2 {
            let (one, two) =
                (open(&place, &pool, spec.clone()).await, open(&place, &pool, spec.clone()).await);
            assert!(call(&one).await && call(&two).await);
            assert_eq!(trees(&place), 1);
            for session in [one, two] {
                session.close().await.expect("nobody is left");
            }
            let alone = || pool.view().iter().all(|view| view.sessions == 0);
            assert!(tokio::task::block_in_place(|| until(PATIENCE, alone)));
            assert_eq!(trees(&place), 1, "it is kept for the next");
        }
        pool.close().await;
    });
    place.assert_gone(PROMISE);
}

fn one_that_is_too_old_is_not_joined() {
    let place = Place::new("old");
    runtime().block_on(async {
        let pool = pool(&place);
        let mut spec = shared("polite", &place);
        spec.recycle = Recycle { after_s: Some(0), above_bytes: None };
        let one = open(&place, &pool, spec.clone()).await;
        let two = open(&place, &pool, spec.clone()).await;
        assert_eq!(trees(&place), 2);
        assert!(call(&one).await && call(&two).await);
        spec.recycle = Recycle { after_s: None, above_bytes: Some(1) };
        let three = open(&place, &pool, spec.clone()).await;
        let four = open(&place, &pool, spec).await;
        assert_eq!(trees(&place), 4);
        assert!(call(&three).await && call(&four).await);
    });
    place.assert_gone(PROMISE);
}
