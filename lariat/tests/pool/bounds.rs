//! One of those who share does too much: long lines, many calls, answers that it does not read. The
//! others do not notice, and the daemon does not grow.

use crate::stage::{PATIENCE, Stage, memory, trial};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use trials::until;

/// A line near the longest.
const LONG: usize = 63 << 20;

/// How often the daemon may have it in its memory, while it is on its way one way or the other.
const COPIES: f64 = 2.2;

/// How much of the daemon's memory may be more than before once it has passed, in kB.
const AFTERWARDS: u64 = 4_000;

/// How much of the daemon's memory a client that does not read may fill, in kB. It asks for twice as
/// much.
const ROOM: u64 = 130_000;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial("bounds::a_long_line_both_ways", a_long_line_both_ways),
        trial("bounds::a_flood_of_calls", a_flood_of_calls),
        trial("bounds::who_does_not_read", who_does_not_read),
        trial("bounds::what_waits_can_be_cancelled", what_waits_can_be_cancelled),
    ]
}

/// 63 MiB there and 63 MiB back, while another one is answered. It is held whole, because its id may be its
/// last word, but hardly twice, and not longer than it has to be.
fn a_long_line_both_ways() {
    let stage = Stage::new();
    let (mut one, mut other) = (stage.join(), stage.join());
    let server = other.server();
    let private = || memory(stage.daemon()).0;
    let before = private();
    let mut most = 0;
    let who = "w".repeat(LONG);
    let arguments = json!({"who": who, "nonce": 1, "pad": 9});
    let line = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                      "params": {"name": "whoami", "arguments": arguments}});
    std::thread::scope(|scope| {
        let long = scope.spawn(|| {
            assert!(one.say(&line.to_string()));
            one.answer_aside(&json!(1), &mut Vec::new())
        });
        while !long.is_finished() {
            assert_eq!(other.server(), server);
            most = most.max(private().saturating_sub(before));
        }
        let answer = long.join().expect("no panic").expect("an answer");
        assert!(answer["result"]["structuredContent"]["who"] == who.as_str(), "not what was sent");
    });
    let copies = (most << 10) as f64 / LONG as f64;
    let more = || private().saturating_sub(before);
    let passed = until(PATIENCE, || more() < AFTERWARDS);
    println!("{copies:.2} times the line at most, {} kB afterwards", more());
    assert!(copies < COPIES, "{copies:.2} times the line");
    assert!(passed, "{} kB more than before", more());
    one.leave();
    other.leave();
    stage.close();
}

/// One says as much as it can, another one asks one thing after the other and is answered in between.
fn a_flood_of_calls() {
    const FLOOD: u64 = 40_000;
    let stage = Stage::new();
    let (mut wild, mut other) = (stage.join(), stage.join());
    let server = other.server();
    let mut writer = wild.speaking_half();
    let heard = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            (0..FLOOD).all(|id| writer.say(&call(id, &json!({"who": "wild", "nonce": id}))))
        });
        let reader = scope.spawn(|| {
            while heard.load(Ordering::Relaxed) < FLOOD {
                let Some(line) = wild.hear(PATIENCE) else { return false };
                assert!(String::from_utf8_lossy(&line).contains("\"wild\""));
                heard.fetch_add(1, Ordering::Relaxed);
            }
            true
        });
        let so_far = || heard.load(Ordering::Relaxed);
        assert!(until(PATIENCE, || so_far() > 0));
        let mut longest = 0;
        for _ in 0..20 {
            let before = so_far();
            assert_eq!(other.server(), server);
            longest = longest.max(so_far() - before);
        }
        let meanwhile = so_far();
        println!("20 calls beside {meanwhile} of {FLOOD}, {longest} of them beside the slowest");
        assert!(meanwhile < FLOOD, "the other one had to wait for the end of the flood");
        assert!(sender.join().expect("no panic"), "the flood was cut off");
        assert!(reader.join().expect("no panic"), "an answer is missing");
    });
    drop(writer);
    wild.leave();
    other.leave();
    stage.close();
}

/// One asks for 260 MiB and reads none of it.
fn who_does_not_read() {
    const EACH: usize = 1 << 20;
    const CALLS: u64 = 260;
    let stage = Stage::new();
    let (mut lazy, mut other) = (stage.join(), stage.join());
    let server = other.server();
    let (before, _) = memory(stage.daemon());
    let mut writer = lazy.speaking_half();
    std::thread::scope(|scope| {
        // It is kept waiting.
        let sender = scope.spawn(|| {
            let arguments = |id| json!({"who": "lazy", "nonce": id, "pad": EACH});
            (0..CALLS).all(|id| writer.say(&call(id, &arguments(id))))
        });
        let mut most = 0;
        for _ in 0..400 {
            assert_eq!(other.server(), server, "the other one has to wait");
            let (now, _) = memory(stage.daemon());
            most = most.max(now.saturating_sub(before));
        }
        println!("the daemon grew by {most} kB at most");
        assert!(most < ROOM, "the daemon grew by {most} kB");
        // Now it reads: everything there is comes whole and in its place.
        let (mut heard, mut is_whole) = (0, true);
        while heard < CALLS
            && let Some(line) = lazy.hear(PATIENCE)
        {
            let answer: Value = serde_json::from_slice(&line).expect("a whole line");
            let pad = answer["result"]["structuredContent"]["pad"].as_str().map(str::len);
            is_whole &= pad == Some(EACH) || answer["error"].is_object();
            heard += 1;
        }
        println!("it then read {heard} of {CALLS} answers, and is cut off: {}", lazy.is_over());
        assert!(is_whole, "an answer came in pieces");
        assert_eq!(heard, CALLS, "who reads late was cut off instead of being kept waiting");
        sender.join().expect("no panic");
    });
    drop(writer);
    drop(lazy);
    other.leave();
    stage.close();
}

/// However many calls wait, taking them back is heard.
fn what_waits_can_be_cancelled() {
    const MANY: u64 = 300;
    let stage = Stage::new();
    let (mut one, mut other) = (stage.join(), stage.join());
    for id in 0..MANY {
        let params = json!({"name": "hold", "arguments": {}});
        let line = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        assert!(one.say(&line.to_string()));
    }
    for id in 0..MANY {
        let params = json!({"requestId": id});
        let line = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        assert!(one.say(&line.to_string()));
    }
    let taken_back = until(PATIENCE, || {
        let about = other.about();
        about["held"] == 0 && about["cancelled"].as_u64() > Some(0)
    });
    assert!(taken_back, "{}", other.about());
    one.server();
    one.leave();
    other.leave();
    stage.close();
}

fn call(id: u64, arguments: &Value) -> String {
    let params = json!({"name": "whoami", "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}
