//! `lariat probe`: what it prints, and that nothing of a server is left when it has printed it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host/books.rs"]
mod books;
#[path = "host/finish.rs"]
mod finish;
#[path = "host/place.rs"]
mod place;

use books::assert_nothing_left;
use finish::finish;
use place::Place;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Output;
use trials::Witness;

const LARIAT: &str = env!("CARGO_BIN_EXE_lariat");

#[test]
fn a_server_that_answers_is_described() {
    let place = Place::new();
    let output = probe(&place, &["--json"], &[LARIAT, "__misbehave", "polite", &token(&place)]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(fields(&found), of_a_probe());
    assert_eq!(found["server"], json!({"name": "polite", "version": "0"}));
    assert_eq!(found["tools"], json!(["echo", "hang"]));
    assert_eq!((&found["resources"], &found["prompts"]), (&json!(0), &json!(0)));
    for field in ["protocol", "era"] {
        assert!(found[field].is_string(), "{field}: {found}");
    }
    assert!(found["startup_ms"].is_u64());
    assert!(found["processes_peak"].as_u64() >= Some(1));
    assert!(found["rss_peak_bytes"].as_u64() > Some(4096));
    let receipt = &found["receipt"];
    let of_receipt = [
        "session",
        "server",
        "reason",
        "backend",
        "started",
        "ended",
        "duration_ms",
        "teardown_ms",
        "processes",
        "containers",
        "survivors",
    ];
    assert_eq!(fields(receipt), BTreeSet::from(of_receipt));
    assert_eq!(receipt["reason"], "closed");
    assert_eq!(receipt["survivors"], json!([]));
    assert_nobody_left(&place);
}

#[test]
fn text_names_the_tools_and_says_that_nothing_is_left() {
    let place = Place::new();
    let output = probe(&place, &[], &[LARIAT, "__misbehave", "polite", &token(&place)]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["polite", "2 tools", "echo", "hang", "nothing is left"] {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

#[test]
fn a_server_that_never_answers_is_ended_when_the_time_is_up() {
    let place = Place::new();
    let impatient = ["--json", "--timeout", "300ms", "--grace", "100ms"];
    let deaf = "trap '' TERM; while :; do sleep 1; done";
    let options = [&impatient[..], &["--term-grace", "100ms"]].concat();
    let output = probe(&place, &options, &["sh", "-c", deaf, &token(&place)]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("did not answer") && said.contains("in time"), "{said}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut with_error = of_a_probe();
    with_error.insert("error");
    assert_eq!(fields(&found), with_error);
    assert_eq!(found["server"], json!({"name": null, "version": null}));
    assert_eq!(found["receipt"]["survivors"], json!([]));
    assert!(found["receipt"]["processes"]["killed"].as_u64() >= Some(1));
    assert_nobody_left(&place);
}

#[test]
fn a_server_that_leaves_at_once_is_quoted() {
    let place = Place::new();
    let output = probe(&place, &["--json"], &["false", &token(&place)]);
    assert_eq!(output.status.code(), Some(1));
    let script = "echo 'no license file' >&2; exit 3";
    let output = probe(&place, &[], &["sh", "-c", script, &token(&place)]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("did not answer") && said.contains("no license file"), "{said}");
    assert_nobody_left(&place);
}

#[test]
fn a_server_that_talks_nonsense_is_no_server() {
    let place = Place::new();
    for script in ["echo hello; cat", "head -c 1000000 /dev/zero; cat", "echo '{}'; cat"] {
        let options = ["--timeout", "300ms"];
        let output = probe(&place, &options, &["sh", "-c", script, &token(&place)]);
        assert_eq!(output.status.code(), Some(1), "{script}");
        assert_nobody_left(&place);
    }
}

#[test]
fn a_server_that_never_stops_talking_is_ended_when_the_time_is_up() {
    let place = Place::new();
    let options = ["--json", "--timeout", "300ms", "--grace", "100ms"];
    let output = probe(&place, &options, &["sh", "-c", "yes; true", &token(&place)]);
    assert_eq!(output.status.code(), Some(1));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["startup_ms"].as_u64() < Some(3000), "{found}");
    assert_nobody_left(&place);
}

#[test]
fn a_server_that_is_not_there_is_127() {
    let place = Place::new();
    let output = probe(&place, &["--json"], &["/no/such/server", &token(&place)]);
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such/server"));
    assert_nobody_left(&place);
}

fn probe(place: &Place, options: &[&str], server: &[&str]) -> Output {
    finish(place.lariat("probe").args(options).arg("--").args(server))
}

/// A word in a server's arguments that no other process has.
fn token(place: &Place) -> String {
    place.path("token").to_str().unwrap().to_owned()
}

fn fields(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

fn of_a_probe() -> BTreeSet<&'static str> {
    BTreeSet::from([
        "server",
        "protocol",
        "era",
        "tools",
        "resources",
        "prompts",
        "startup_ms",
        "processes_peak",
        "rss_peak_bytes",
        "receipt",
    ])
}

#[track_caller]
fn assert_nobody_left(place: &Place) {
    let mut witness = Witness::new(&token(place), &[]);
    // It has returned: there is nothing to wait for.
    assert_eq!(witness.look(), []);
    assert_nothing_left(place);
}
