//! A daemon makes way for the next: nobody who has joined notices, and newcomers are the next one's.

use crate::kit::{Stage, request};
use serde_json::{Value, json};

#[test]
fn whoever_has_joined_stays_and_newcomers_go_to_the_next() {
    let mut stage = Stage::new();
    let mut early = stage.host();
    let place = early.where_is_it();
    // In flight while the daemon changes.
    early.say(&request(3, "slow"));
    let mut elder = stage.replace();
    let mut late = stage.host();
    assert_ne!(late.where_is_it()["pid"], place["pid"]);
    assert_eq!(early.hear()["result"], json!({ "slow": true }));
    assert_eq!(early.ask(&request(4, "where"))["result"], place);
    assert!(elder.try_wait().unwrap().is_none(), "it left before its last host");
    early.stdin = None;
    assert_eq!(early.hear(), Value::Null);
    assert!(early.ended().0.success());
    assert!(crate::kit::ended(&mut elder).success());
    assert_eq!(late.ask(&request(3, "where"))["id"], 3);
}

#[test]
fn where_nobody_is_there_is_nobody_to_replace() {
    let mut stage = Stage::new();
    stage.kill_daemon();
    crate::kit::ended(&mut stage.replace());
    assert!(stage.host().where_is_it()["pid"].is_number());
}
