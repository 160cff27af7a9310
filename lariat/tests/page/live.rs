//! What the page is told: everything at first, then what changes, soon.

use crate::kit::{House, Wire, Wrapped};
use crate::place::PATIENCE;
use crate::press::end;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use trials::until;

/// How soon an end is to be seen.
const SOON: Duration = Duration::from_secs(1);

fn watch(house: &House) -> (Wire, Value) {
    let mut wire = house.wire();
    let more = format!("Host: {}\r\n{}", house.address, house.bearer());
    wire.send("GET", "/v1/page/events", &more, "");
    let (status, headers) = wire.head().unwrap();
    assert_eq!((status, headers["content-type"].as_str()), (200, "text/event-stream"));
    let (name, hello) = event(&mut wire);
    assert_eq!(name, "hello");
    (wire, hello)
}

/// The name and the data of the next event.
fn event(wire: &mut Wire) -> (String, Value) {
    let mut name = String::new();
    loop {
        // Lengths of chunks are lines too, and say nothing.
        let line = wire.line().unwrap();
        if let Some(said) = line.strip_prefix("event: ") {
            name = said.to_owned();
        } else if let Some(data) = line.strip_prefix("data: ") {
            return (name, serde_json::from_str(data).unwrap());
        }
    }
}

/// The first tick for which this holds.
#[track_caller]
fn tick(wire: &mut Wire, fits: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let (name, tick) = event(wire);
        assert_eq!(name, "tick");
        if fits(&tick) {
            return tick;
        }
        assert!(begun.elapsed() < PATIENCE, "{tick}");
    }
}

#[test]
fn what_is_there_is_said_and_then_what_changes() {
    let house = House::new();
    let first = Wrapped::start(&house.place, "ox", "sleep 60 &");
    let (mut wire, hello) = watch(&house);
    assert_eq!(hello["about"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(hello["history"].as_array().is_some_and(|points| !points.is_empty()));
    let [row] = &hello["rows"].as_array().unwrap()[..] else { panic!("{hello}") };
    assert_eq!((&row["server"], &row["state"]), (&json!("ox"), &json!("ready")));
    assert_eq!((&row["processes"], &row["host"]["pid"]), (&json!(2), &json!(std::process::id())));
    assert_eq!(row["tree"].as_array().unwrap().len(), 2);
    assert!(!hello.to_string().contains("sleep 60"), "arguments are shown: {hello}");
    // Nothing happens to it: it is not said again.
    let quiet = tick(&mut wire, |tick| tick["rows"] == json!([]));
    assert_eq!((&quiet["gone"], &quiet["point"][1]), (&json!([]), &json!(1)));
    let second = Wrapped::start(&house.place, "cow", "");
    let is_cow = |row: &Value| row["server"] == "cow";
    tick(&mut wire, |tick| tick["rows"].as_array().unwrap().iter().any(is_cow));
    let ended = Instant::now();
    drop(first);
    let gone = tick(&mut wire, |tick| tick["gone"] != json!([]));
    assert!(ended.elapsed() < SOON + Duration::from_millis(500), "{:?}", ended.elapsed());
    assert_eq!(gone["gone"], json!([row["key"]]));
    let receipts = gone["receipts"].as_array().unwrap().clone();
    let receipt = receipts.first().cloned().unwrap_or_else(|| {
        tick(&mut wire, |tick| tick["receipts"] != json!([]))["receipts"][0].clone()
    });
    assert_eq!((&receipt["server"], &receipt["survivors"]), (&json!("ox"), &json!([])));
    drop(second);
    let (_, again) = watch(&house);
    assert!(again["receipts"].as_array().is_some_and(|receipts| !receipts.is_empty()));
}

#[test]
fn a_session_of_lariat_run_is_ended_from_the_page() {
    let house = House::new();
    let mut wrapped = Wrapped::start(&house.place, "ox", "sleep 60 &");
    let other = Wrapped::start(&house.place, "cow", "");
    let (mut wire, hello) = watch(&house);
    let row = hello["rows"].as_array().unwrap().iter().find(|row| row["server"] == "ox").unwrap();
    let session = row["session"].as_str().unwrap();
    assert!(end(&house, session).expect(202).text.contains(session));
    let told = tick(&mut wire, |tick| tick["receipts"] != json!([]));
    assert_eq!(told["receipts"][0]["server"], "ox");
    assert_eq!(told["receipts"][0]["reason"], "signal:TERM");
    assert!(until(PATIENCE, || wrapped.child.try_wait().unwrap().is_some()));
    end(&house, session).expect(404);
    let (_, after) = watch(&house);
    assert_eq!(after["rows"].as_array().unwrap().len(), 1);
    drop(other);
}

#[test]
fn a_session_of_the_daemon_is_ended_whole() {
    let house = House::new();
    let mut control = UnixStream::connect(house.place.path("state/daemon.sock")).unwrap();
    let server = |verb: &str| json!({"command": env!("CARGO_BIN_EXE_lariat"), "args": ["__misbehave", verb, "page-test"]});
    let body = json!({
        "name": "night",
        "servers": {"a": server("polite"), "b": server("polite"), "c": {"command": "/nowhere"}},
    })
    .to_string();
    write!(
        control,
        "POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut status = String::new();
    BufReader::new(control.try_clone().unwrap()).read_line(&mut status).unwrap();
    assert!(status.contains("201"), "{status}");
    let (mut wire, hello) = watch(&house);
    let rows = hello["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{hello}");
    let session = rows[0]["session"].as_str().unwrap().to_owned();
    for row in rows {
        assert_eq!((&row["session"], &row["name"]), (&json!(session), &json!("night")));
        assert_eq!(row["host"]["pid"], std::process::id());
    }
    let bad = rows.iter().find(|row| row["server"] == "c").unwrap();
    assert_eq!(bad["state"], "failed");
    assert!(bad["why"].as_str().is_some_and(|why| !why.is_empty()), "{bad}");
    end(&house, &session).expect(202);
    tick(&mut wire, |tick| receipts_of(tick) > 0);
    let nobody = || watch(&house).1["rows"] == json!([]);
    assert!(until(PATIENCE, nobody));
    let (_, after) = watch(&house);
    assert_eq!(receipts_of(&after), 3, "{after}");
}

fn receipts_of(tick: &Value) -> usize {
    tick["receipts"].as_array().unwrap().len()
}

#[test]
fn metrics_count_what_happens_without_the_daemon_too() {
    let house = House::new();
    let value = |name: &str| -> f64 {
        let text = house.get("/metrics", &house.bearer()).expect(200).text;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    };
    assert_eq!((value("lariat_sessions"), value("lariat_starts_total")), (0.0, 0.0));
    let one = Wrapped::start(&house.place, "ox", "sleep 60 &");
    assert!(until(PATIENCE, || value("lariat_processes") == 2.0));
    assert_eq!((value("lariat_sessions"), value("lariat_starts_total")), (1.0, 1.0));
    assert_eq!(value("lariat_servers{state=\"ready\"}"), 1.0);
    assert!(value("lariat_resident_bytes") > 4096.0);
    drop(one);
    assert!(until(PATIENCE, || value("lariat_sessions") == 0.0));
    assert!(until(PATIENCE, || value("lariat_teardown_seconds_count") == 1.0));
    assert_eq!(value("lariat_ends_total{reason=\"stdin-closed\"}"), 1.0);
    assert_eq!(value("lariat_teardown_seconds_bucket{le=\"+Inf\"}"), 1.0);
    assert_eq!((value("lariat_survivors"), value("lariat_sweeps_total")), (0.0, 0.0));
}
