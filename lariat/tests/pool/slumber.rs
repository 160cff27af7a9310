//! A server that sleeps has clients and no process. Whoever looks on sees both.

use crate::client::Client;
use crate::stage::{PATIENCE, Stage, trial};
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::{Value, json};
use trials::until;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial("slumber::is_seen", is_seen),
        trial("slumber::ends_with_its_last_client", ends_with_its_last_client),
        trial("slumber::ends_with_its_daemon", ends_with_its_daemon),
    ]
}

/// Hosts whose server has gone to sleep.
fn sleeping<const N: usize>(stage: &Stage) -> [Client; N] {
    let options = ["--name", "checker", "--idle", "300ms"];
    let clients = std::array::from_fn(|_| {
        let mut client = Client::start(stage.sharing(&options, &stage.checker(&[])));
        client.greet();
        client
    });
    assert!(until(PATIENCE, || stage.servers().is_empty()), "it does not sleep");
    assert!(until(PATIENCE, || !look(stage).is_empty()), "it is not seen");
    clients
}

/// What `ps` says of each: state, clients and processes.
#[track_caller]
fn look(stage: &Stage) -> Vec<(Value, Value, Value)> {
    let listed = stage.listed().into_iter();
    listed
        .map(|one| {
            (one["state"].clone(), one["share"]["sessions"].clone(), one["processes"].clone())
        })
        .collect()
}

fn is_seen() {
    let stage = Stage::new();
    let [mut one, two] = sleeping(&stage);
    let asleep = [(json!("asleep"), json!(2), json!(0))];
    assert!(until(PATIENCE, || look(&stage) == asleep), "{:#?}", stage.listed());
    let before = stage.listed()[0]["session"].clone();
    assert!(stage.listed()[0]["idle_s"].as_f64() > Some(0.0), "{:#?}", stage.listed());
    one.server();
    let awake = |one: &Value| one["processes"] == 1 && one["session"] != before;
    // It sleeps again as soon as nobody speaks with it.
    let is_awake = until(PATIENCE, || {
        one.server();
        stage.listed().iter().all(awake) && stage.listed().len() == 1
    });
    assert!(is_awake, "{:#?}", stage.listed());
    two.leave();
    one.leave();
    assert!(until(PATIENCE, || stage.listed().is_empty()), "{:#?}", stage.listed());
    stage.close();
}

fn ends_with_its_last_client() {
    let stage = Stage::new();
    let [one, two] = sleeping(&stage);
    one.leave();
    let asleep = [(json!("asleep"), json!(1), json!(0))];
    assert!(until(PATIENCE, || look(&stage) == asleep), "{:#?}", stage.listed());
    two.leave();
    assert!(until(PATIENCE, || stage.listed().is_empty()), "{:#?}", stage.listed());
    stage.close();
}

fn ends_with_its_daemon() {
    let mut stage = Stage::new();
    let [client] = sleeping(&stage);
    stage.end_daemon(Signal::KILL);
    // Somebody of the daemon's own may be on the way out, and has its notes open until then.
    assert!(until(PATIENCE, || stage.listed().is_empty()), "{:#?}", stage.listed());
    drop(client);
    stage.start_daemon(&[]);
    stage.close();
}
