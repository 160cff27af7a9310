//! Speaking with servers: calls, limits, clients that attach, servers that leave.

use crate::kit::{self, PATIENCE, PROMISE, Place, RUNG, named, server};
use lariat::contain::Ladder;
use lariat::session::{Error, Manager, State};
use lariat::spec::Restart;
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use trials::until;

pub(crate) fn tests() -> Vec<Trial> {
    kit::trials([
        ("speech::calls-and-limits", calls as fn()),
        ("speech::close-does-not-wait-for-calls", close_at_once),
        ("speech::a-client-attaches", attach),
        ("speech::a-server-that-leaves-is-started-again", restarted),
        ("speech::a-server-that-keeps-leaving-is-given-up", given_up),
        ("speech::holder-and-guardian-are-killed", holders_killed),
        ("speech::holder-and-guardian-are-stopped", holders_stopped),
        ("speech::closed-on-another-runtime", another_runtime),
        ("speech::bystanders-are-untouched", bystanders),
    ])
}

fn calls() {
    let place = Place::new("calls");
    kit::runtime().block_on(async {
        let mut timed = server("polite", &place.token);
        timed.tool_timeout = Duration::from_millis(200);
        let mut few = server("polite", &place.token);
        few.tools = vec!["ec*".into()];
        let config = kit::config(&place.dir, named([("timed", timed), ("few", few)]));
        let manager = Manager::start(config).await.expect("it starts");
        let session = manager.session();
        let result = session.call("timed", "echo", json!({"a": 1})).await.expect("it answers");
        let result: Value = serde_json::from_str(result.get()).expect("JSON");
        assert_eq!(result["content"][0]["text"], "done");
        let late = session.call("timed", "hang", json!({})).await;
        assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
        let forbidden = session.call("few", "hang", json!({})).await;
        assert!(matches!(forbidden, Err(Error::NotAllowed { .. })), "{forbidden:?}");
        let unknown = session.call("nobody", "echo", json!({})).await;
        assert!(matches!(unknown, Err(Error::NoServer(_))), "{unknown:?}");
        let tools = session.tools();
        assert_eq!(tools["timed"].as_ref().expect("ready").len(), 2);
        assert_eq!(tools["few"].as_ref().expect("ready").len(), 1);
        // After one that timed out the server still answers.
        session.call("timed", "echo", json!({})).await.expect("it answers");
        manager.close().await.expect("nobody survives");
    });
    place.assert_gone(PROMISE);
}

fn close_at_once() {
    let place = Place::new("at-once");
    kit::runtime().block_on(async {
        let deaf = server("ignores-eof", &place.token);
        let config = kit::config(&place.dir, named([("deaf", deaf)]));
        let manager = Manager::start(config).await.expect("it starts");
        let session = manager.session().clone();
        let call = tokio::spawn(async move {
            let failed = session.call("deaf", "hang", json!({})).await;
            (failed, Instant::now())
        });
        let busy = || async { manager.session().snapshot().await[0].state == "busy" };
        while !busy().await {
            tokio::task::yield_now().await;
        }
        let began = Instant::now();
        let ended = manager.close().await.expect("nobody survives");
        let took = began.elapsed();
        let (failed, when) = call.await.expect("no panic");
        assert!(matches!(failed, Err(Error::Closed)), "{failed:?}");
        assert!(when < began + RUNG, "the call waited for the server to leave");
        assert!(took < RUNG + Duration::from_secs(1), "closing took {took:?}");
        assert_eq!(ended.receipts[0].reason, "closed");
        assert_eq!(ended.receipts[0].processes.asked, 1, "{:?}", ended.receipts[0]);
    });
    place.assert_gone(PROMISE);
}

fn attach() {
    let place = Place::new("attach");
    kit::runtime().block_on(async {
        let config = kit::config(&place.dir, named([("one", server("polite", &place.token))]));
        let manager = Manager::start(config).await.expect("it starts");
        let (client, ours) = tokio::io::duplex(4096);
        let (reader, writer) = tokio::io::split(ours);
        let session = manager.session().clone();
        let attached = tokio::spawn(async move { session.attach("one", reader, writer).await });
        let (reader, mut writer) = tokio::io::split(client);
        let mut lines = BufReader::new(reader).lines();
        let hello = json!({"jsonrpc": "2.0", "id": "x", "method": "initialize", "params":
            {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}});
        let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params":
            {"name": "echo", "arguments": {}}});
        for (message, id) in [(hello, json!("x")), (call, json!(7))] {
            writer.write_all(format!("{message}\n").as_bytes()).await.expect("it reads");
            let answer = lines.next_line().await.expect("it answers").expect("a line");
            let answer: Value = serde_json::from_str(&answer).expect("JSON");
            assert_eq!(answer["id"], id, "{answer}");
            assert!(answer["result"].is_object(), "{answer}");
        }
        manager.close().await.expect("an attached client keeps nobody alive");
        assert_eq!(lines.next_line().await.expect("an end"), None);
        let _over = attached.await.expect("no panic");
    });
    place.assert_gone(PROMISE);
}

fn restarted() {
    let place = Place::new("restarted");
    kit::runtime().block_on(async {
        let mut spec = server("setsid-child", &place.token);
        spec.restart = Restart::Always;
        let config = kit::config(&place.dir, named([("one", spec)]));
        let manager = Manager::start(config).await.expect("it starts");
        let session = manager.session().clone();
        let mut events = session.events();
        let pid = |session: &lariat::session::Session| match &session.states()["one"] {
            State::Ready(ready) => ready.pid,
            other => panic!("{other:?}"),
        };
        let first = pid(&session);
        let call = {
            let session = session.clone();
            tokio::spawn(async move { session.call("one", "hang", json!({})).await.map(drop) })
        };
        while session.snapshot().await[0].state != "busy" {
            tokio::task::yield_now().await;
        }
        kill_process(Pid::from_raw(first).expect("a pid"), Signal::KILL).expect("it is ours");
        let failed = call.await.expect("no panic");
        assert!(matches!(failed, Err(Error::Left(_))), "{failed:?}");
        // A call waits for the next one.
        session.call("one", "echo", json!({})).await.expect("it answers");
        assert_ne!(pid(&session), first);
        assert_eq!(place.witness().look().len(), 2, "the first tree is gone, its child too");
        let (mut words, mut reasons) = (Vec::new(), Vec::new());
        while let Ok(event) = events.try_recv() {
            words.push(event.event);
            reasons.extend(event.receipt.map(|receipt| receipt.reason.clone()));
        }
        assert_eq!(words, ["ended", "restarting", "starting", "ready"]);
        assert_eq!(reasons, ["exited"]);
        manager.close().await.expect("nobody survives");
    });
    place.assert_gone(PROMISE);
}

fn given_up() {
    let place = Place::new("given-up");
    kit::runtime().block_on(async {
        let me = std::env::current_exe().expect("a name").display().to_string();
        // It answers, and is gone a moment later.
        let script = format!("timeout 0.1 {me} __misbehave polite {}; exit 4", place.token);
        let mut spec = kit::shell(&script, &place.token);
        spec.restart = Restart::Always;
        let config = kit::config(&place.dir, named([("one", spec)]));
        let manager = Manager::start(config).await.expect("it starts");
        let began = Instant::now();
        loop {
            let state = manager.session().states()["one"].clone();
            if let State::Failed { why } = state {
                assert!(why.contains("5 times in a row"), "{why}");
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{state:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let failed = manager.session().call("one", "echo", json!({})).await;
        assert!(matches!(failed, Err(Error::NotReady(..))), "{failed:?}");
        assert!(place.witness().look().is_empty());
        manager.close().await.expect("nobody survives");
    });
    place.assert_gone(PROMISE);
}

/// Whoever stands between us and the server is killed: we do their work, and have a receipt.
fn holders_killed() {
    let place = Place::new("holders");
    kit::runtime().block_on(async {
        let config =
            kit::config(&place.dir, named([("one", server("setsid-child", &place.token))]));
        let manager = Manager::start(config).await.expect("it starts");
        let State::Ready(ready) = manager.session().states()["one"].clone() else { panic!() };
        let mut events = manager.session().events();
        let parent = |pid: i32| lariat::contain::process::stat(pid).expect("alive").ppid;
        let guardian = parent(ready.pid);
        for pid in [parent(guardian), guardian] {
            kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("it is ours");
        }
        let mut witness = place.witness();
        assert!(until(PROMISE, || witness.look().is_empty()), "{:?}", witness.look());
        let receipt = loop {
            if let Some(receipt) = events.recv().await.expect("an event").receipt {
                break receipt;
            }
        };
        assert_eq!((receipt.reason.as_str(), receipt.survivors.len()), ("wrapper-died", 0));
        manager.close().await.expect("nobody survives");
    });
    place.assert_gone(PROMISE);
}

/// Who is between us and a server: holder and guardian.
async fn between(place: &Place, ladder: Ladder) -> (Manager, [Pid; 2]) {
    let mut config =
        kit::config(&place.dir, named([("one", server("setsid-child", &place.token))]));
    config.ladder = ladder;
    let manager = Manager::start(config).await.expect("it starts");
    let State::Ready(ready) = manager.session().states()["one"].clone() else { panic!() };
    let parent = |pid: i32| lariat::contain::process::stat(pid).expect("alive").ppid;
    let guardian = parent(ready.pid);
    let pids = [parent(guardian), guardian].map(|pid| Pid::from_raw(pid).expect("a pid"));
    (manager, pids)
}

/// Whoever of them somebody stopped or killed: nobody lives on, and there is a receipt.
fn holders_stopped() {
    let ladder = Ladder {
        grace: RUNG,
        term_grace: RUNG,
        look: Duration::from_millis(500),
        ..Ladder::default()
    };
    let (stop, kill) = (Signal::STOP, Signal::KILL);
    let mixtures: [&[(usize, Signal)]; 6] = [
        &[(0, stop)],
        &[(1, stop)],
        &[(0, stop), (1, stop)],
        &[(0, stop), (1, kill)],
        &[(1, kill), (0, stop)],
        &[(0, kill), (1, stop)],
    ];
    for mixture in mixtures {
        let place = Place::new("stopped");
        kit::runtime().block_on(async {
            let (manager, pids) = between(&place, ladder).await;
            for (whom, signal) in mixture {
                // One that was killed takes the other along at times.
                let _gone = kill_process(pids[*whom], *signal);
            }
            manager.close().await.unwrap_or_else(|e| panic!("{mixture:?}: {e}"));
            let left = place.witness().look();
            assert!(left.is_empty(), "{mixture:?}: {left:?}");
        });
        place.assert_gone(PROMISE);
    }
    // Dropped, half a second is given to a holder to prove that it is there.
    let place = Place::new("stopped-dropped");
    kit::runtime().block_on(async {
        let (manager, [holder, _]) = between(&place, ladder).await;
        kill_process(holder, Signal::STOP).expect("it is ours");
        drop(manager);
    });
    place.assert_gone(PROMISE + Duration::from_millis(500));
}

/// Closed on another runtime than its own, which is gone: nobody can say how it ended, and that is
/// what is said.
fn another_runtime() {
    let place = Place::new("runtimes");
    let first = kit::runtime();
    let deaf = server("ignores-eof-and-term", &place.token);
    let config = kit::config(&place.dir, named([("one", deaf)]));
    let manager = first.block_on(Manager::start(config)).expect("it starts");
    first.shutdown_background();
    let ended = kit::runtime().block_on(manager.close());
    assert_eq!(ended.expect_err("no receipt").0.unaccounted, ["one"]);
    place.assert_gone(PROMISE);
}

/// The same command line and environment, but nobody's server.
fn bystanders() {
    let place = Place::new("bystanders");
    let spec = server("ignores-eof", &place.token);
    let mut twin = std::process::Command::new(spec.command.as_deref().expect("a program"));
    let mut twin = twin.args(&spec.args).stdin(std::process::Stdio::piped()).spawn().expect("it");
    kit::runtime().block_on(async {
        let config = kit::config(&place.dir, named([("one", spec)]));
        let manager = Manager::start(config).await.expect("it starts");
        assert_eq!(place.witness().look().len(), 2);
        manager.close().await.expect("nobody survives");
    });
    let left = place.witness().look();
    let alive = left.iter().any(|process| process.pid == twin.id() as i32);
    twin.kill().expect("it is ours");
    twin.wait().expect("it is ours");
    assert!(alive && left.len() == 1, "{left:?}");
    place.assert_gone(PROMISE);
}
