//! Servers that say what cannot be attributed to anybody: nobody hears what may be somebody else's,
//! and who comes later has a process of their own.

use crate::client::Client;
use crate::stage::{PATIENCE, Stage, trial};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use trials::until;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial("hazards::a_question_though_nobody_can_be_asked", || asks("sampling/createMessage")),
        trial("hazards::roots_though_nobody_has_any", || asks("roots/list")),
        trial("hazards::a_notification_of_unknown_kind", || tells("notifications/odd")),
        trial("hazards::a_log_message", || tells("notifications/message")),
        trial("hazards::alone_one_hears_everything", alone_one_hears_everything),
        trial("hazards::what_changed_concerns_all", what_changed_concerns_all),
    ]
}

/// Says something through a tool and gives what each of the two hears beside the answer.
#[track_caller]
fn provoke(
    one: &mut Client,
    two: &mut Client,
    tool: &str,
    arguments: Value,
) -> (Value, Vec<Value>) {
    let mut aside = Vec::new();
    let id = one.send("tools/call", json!({"name": tool, "arguments": arguments}));
    let answer = one.answer_aside(&id, &mut aside).expect("an answer");
    // Whatever the server said before this answer has been heard by then, as lines keep their order.
    for client in [one, two] {
        let id = client.send("tools/call", json!({"name": "whoami", "arguments": {"who": "x"}}));
        client.answer_aside(&id, &mut aside).expect("an answer");
    }
    (answer, aside)
}

#[track_caller]
fn asks(method: &str) {
    let stage = Stage::new();
    let (mut one, mut two) = (stage.join(), stage.join());
    assert_eq!(one.server(), two.server());
    let (answer, aside) = provoke(&mut one, &mut two, "ask", json!({"method": method}));
    assert_eq!(aside, [json!(null); 0], "somebody was asked what may be for the other");
    assert_eq!(answer["result"]["structuredContent"]["refused"], true, "{answer}");
    assert_alone_from_now_on(&stage, one, two);
}

#[track_caller]
fn tells(method: &str) {
    let stage = Stage::new();
    let (mut one, mut two) = (stage.join(), stage.join());
    assert_eq!(one.server(), two.server());
    let params = json!({"level": "error", "data": "a secret of one of them"});
    let arguments = json!({"method": method, "params": params});
    let (_, aside) = provoke(&mut one, &mut two, "tell", arguments);
    assert_eq!(aside, [json!(null); 0], "somebody heard what may be for the other");
    if method == "notifications/message" {
        // Logs are dropped by rule, and it is shown; that is no reason to part.
        assert_eq!(one.server(), stage.join().server());
        one.leave();
        two.leave();
        return stage.close();
    }
    assert_alone_from_now_on(&stage, one, two);
}

/// Those who share go on; who comes now does not join them, and is told why.
#[track_caller]
fn assert_alone_from_now_on(stage: &Stage, mut one: Client, mut two: Client) {
    assert_eq!(one.server(), two.server(), "who shares already goes on");
    let (mut three, mut four) = (stage.join(), stage.join());
    assert_ne!(three.server(), one.server());
    assert_ne!(three.server(), four.server());
    let reasons = || {
        let verdicts = stage.verdicts();
        verdicts.into_iter().filter(|verdict| verdict.starts_with("private: ")).collect::<Vec<_>>()
    };
    assert!(until(PATIENCE, || reasons().len() == 2), "{:#?}", stage.listed());
    println!("{:?}", stage.verdicts());
    [one, two, three, four].into_iter().for_each(Client::leave);
}

fn alone_one_hears_everything() {
    let stage = Stage::new();
    let mut one = stage.join();
    let mut aside = Vec::new();
    let arguments = json!({"method": "notifications/message",
                           "params": {"level": "error", "data": "mine"}});
    let id = one.send("tools/call", json!({"name": "tell", "arguments": arguments}));
    one.answer_aside(&id, &mut aside).expect("an answer");
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert_eq!(aside[0]["params"]["data"], "mine");
    one.leave();
    stage.close();
}

fn what_changed_concerns_all() {
    let stage = Stage::new();
    let (mut one, mut two) = (stage.join(), stage.join());
    let arguments = json!({"method": "notifications/tools/list_changed"});
    let (_, aside) = provoke(&mut one, &mut two, "tell", arguments);
    let methods: Vec<&Value> = aside.iter().map(|message| &message["method"]).collect();
    assert_eq!(methods, ["notifications/tools/list_changed"; 2]);
    one.leave();
    two.leave();
    stage.close();
}
