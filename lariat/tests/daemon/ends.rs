//! Every way in which a session or the daemon ends, and what is left: nothing.

use crate::finish::finish;
use crate::kit::{Daemon, PROMISE, command};
use crate::place::{PATIENCE, Place};
use rustix::process::Signal;
use serde_json::json;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use trials::until;

/// A server that starts and never says anything.
fn mute(daemon: &Daemon) -> serde_json::Value {
    json!({ "command": "sh", "args": ["-c", "sleep 50; :", daemon.token] })
}

/// Somebody who lives until told otherwise.
fn somebody() -> Child {
    Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn with_the_connection() {
    let daemon = Daemon::new();
    let mut wire = daemon.wire();
    let body = daemon.one("ignores-eof-and-term");
    let asked = wire.ask_with("POST", "/v1/sessions", &body, "Lariat-Lease: connection\r\n");
    assert_eq!(asked.expect(201)["owner"]["lease"], "connection");
    // Requests on other connections come and go.
    assert_eq!((daemon.sessions(), daemon.alive()), (1, 1));
    drop(wire);
    daemon.assert_gone();
    assert!(until(PATIENCE, || daemon.sessions() == 0));
}

#[test]
fn with_the_process_that_was_named() {
    let daemon = Daemon::new();
    let mut owner = somebody();
    let body = json!({ "owner_pid": owner.id(), "servers": { "a": daemon.server("polite") } });
    let opened = daemon.wire().ask("POST", "/v1/sessions", &body.to_string()).expect(201);
    assert_eq!(opened["owner"], json!({ "pid": owner.id(), "command": "cat", "lease": "process" }));
    assert_eq!(daemon.sessions(), 1, "the connection is not the lease");
    owner.kill().unwrap();
    // Dead is enough: nobody has waited for it yet.
    daemon.assert_gone();
    assert!(until(PATIENCE, || daemon.sessions() == 0));
    owner.wait().unwrap();
}

#[test]
fn with_a_client_that_leaves_before_the_answer() {
    let daemon = Daemon::new();
    let mut wire = daemon.wire();
    let body = json!({ "servers": { "a": mute(&daemon), "b": daemon.server("polite") } });
    wire.send("POST", "/v1/sessions", &body.to_string(), "");
    assert!(until(PATIENCE, || daemon.alive() == 2 && daemon.sessions() == 1));
    drop(wire);
    daemon.assert_gone();
    assert!(until(PATIENCE, || daemon.sessions() == 0));
}

#[test]
fn with_an_owner_that_ends_before_the_answer() {
    let daemon = Daemon::new();
    let mut owner = somebody();
    let mut wire = daemon.wire();
    let body = json!({ "owner_pid": owner.id(), "servers": { "a": mute(&daemon) } });
    wire.send("POST", "/v1/sessions", &body.to_string(), "");
    assert!(until(PATIENCE, || daemon.alive() == 1));
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert!(wire.answer().unwrap().problem(409).contains("ended"));
    daemon.assert_gone();
}

#[test]
fn closed_twice_at_once_is_one_end() {
    let daemon = Daemon::new();
    let opened = daemon.wire().ask("POST", "/v1/sessions", &daemon.one("ignores-eof-and-term"));
    let path = format!("/v1/sessions/{}", opened.expect(201)["id"].as_str().unwrap());
    let (mut one, mut other) = (daemon.wire(), daemon.wire());
    one.send("DELETE", &path, "", "");
    let ending = || daemon.wire().ask("GET", &path, "").json()["state"] == "ending";
    assert!(until(PATIENCE, ending), "it is listed as long as something is there");
    other.send("DELETE", &path, "", "");
    let (one, other) = (one.answer().unwrap(), other.answer().unwrap());
    assert_eq!(one.expect(200), other.expect(200));
    assert_eq!(one.json()["receipts"][0]["processes"]["killed"], 1);
    assert_eq!(daemon.alive(), 0);
    daemon.wire().ask("DELETE", &path, "").problem(404);
}

#[test]
fn while_a_call_and_a_refresh_are_under_way() {
    let daemon = Daemon::new();
    let opened = daemon.wire().ask("POST", "/v1/sessions", &daemon.one("polite")).expect(201);
    let path = format!("/v1/sessions/{}", opened["id"].as_str().unwrap());
    let (mut call, mut refresh) = (daemon.wire(), daemon.wire());
    call.send("POST", &format!("{path}/servers/a/call"), r#"{"tool":"hang"}"#, "");
    let more = json!({ "servers": { "a": daemon.server("polite"), "b": mute(&daemon) } });
    refresh.send("POST", &format!("{path}/refresh"), &more.to_string(), "");
    assert!(until(PATIENCE, || daemon.alive() == 2));
    let begun = Instant::now();
    daemon.wire().ask("DELETE", &path, "").expect(200);
    assert!(begun.elapsed() < PROMISE, "{:?}", begun.elapsed());
    call.answer().unwrap().problem(409);
    refresh.answer().unwrap().problem(409);
    daemon.assert_gone();
}

#[test]
fn of_the_daemon_by_sigterm() {
    let mut daemon = Daemon::new();
    let mut wire = daemon.wire();
    for verb in ["polite", "setsid-child", "ignores-eof-and-term"] {
        wire.ask("POST", "/v1/sessions", &daemon.one(verb)).expect(201);
    }
    let begun = Instant::now();
    daemon.signal(Signal::TERM);
    assert!(daemon.ended().success());
    assert!(begun.elapsed() < PROMISE, "one after the other: {:?}", begun.elapsed());
    assert_eq!(daemon.alive(), 0, "gone when it has ended");
    assert!(!daemon.socket().exists());
}

#[test]
fn of_the_daemon_by_sigkill_and_the_next_one_listens() {
    let mut daemon = Daemon::new();
    let mut wire = daemon.wire();
    for verb in ["polite", "setsid-child", "ignores-eof-and-term"] {
        wire.ask("POST", "/v1/sessions", &daemon.one(verb)).expect(201);
    }
    daemon.signal(Signal::KILL);
    daemon.ended();
    daemon.assert_gone();
    assert!(fs::symlink_metadata(daemon.socket()).unwrap().file_type().is_socket(), "left behind");
    daemon.again();
    assert_eq!(daemon.sessions(), 0);
    daemon.wire().ask("POST", "/v1/sessions", &daemon.one("polite")).expect(201);
}

#[test]
fn of_a_daemon_that_nobody_wants() {
    let mut daemon = Daemon::with(&["--idle", "300ms"]);
    let wire = {
        let mut wire = daemon.wire();
        wire.ask("POST", "/v1/sessions", &daemon.one("polite")).expect(201);
        wire
    };
    drop(wire);
    // A session is reason enough to stay, and so is a connection.
    let id = daemon.wire().ask("GET", "/v1/sessions", "").json()["sessions"][0]["id"].clone();
    let mut wire = daemon.wire();
    assert!(!until(Duration::from_millis(700), || !daemon.socket().exists()));
    wire.ask("DELETE", &format!("/v1/sessions/{}", id.as_str().unwrap()), "").expect(200);
    assert!(!until(Duration::from_millis(700), || !daemon.socket().exists()));
    drop(wire);
    assert!(daemon.ended().success());
    assert!(!daemon.socket().exists());
}

#[test]
fn a_second_daemon_leaves_the_first_alone() {
    let daemon = Daemon::new();
    let opened = daemon.wire().ask("POST", "/v1/sessions", &daemon.one("polite")).expect(201);
    let output = finish(&mut command(&daemon.place, &[]));
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("another daemon listens on") && said.contains("--socket PATH"), "{said}");
    let listed = daemon.wire().ask("GET", "/v1/sessions", "").expect(200);
    assert_eq!(listed["sessions"][0], opened);
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let place = Place::new();
    fs::write(place.path("d.sock"), "precious").unwrap();
    let output = finish(&mut command(&place, &[]));
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("is no socket"), "{said}");
    assert_eq!(fs::read_to_string(place.path("d.sock")).unwrap(), "precious");
}

#[test]
fn a_socket_left_by_a_crash_is_replaced_by_one_for_its_user_alone() {
    let place = Place::new();
    drop(UnixListener::bind(place.path("d.sock")).unwrap());
    fs::set_permissions(place.path("d.sock"), fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = command(&place, &["--idle", "50ms"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let mode = || fs::metadata(place.path("d.sock")).map(|m| m.permissions().mode() & 0o777);
    assert!(until(PATIENCE, || mode().is_ok_and(|mode| mode == 0o600)));
    assert!(child.wait().unwrap().success());
}
