//! Where there is nothing to join, the server runs alone; what cannot be kept is not promised.

use crate::books::{assert_nothing_left, events};
use crate::finish::finish;
use crate::kit::{Host, share};
use crate::place::Place;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

#[test]
fn beside_a_stranger_the_server_runs_alone() {
    let place = Place::new();
    let socket = place.path("other.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    // Somebody who speaks HTTP and nothing else, like a daemon from before.
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut heard = [0; 1];
        stream.read_exact(&mut heard).unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        heard
    });
    let mut command = place.lariat("run");
    command.arg("--socket").arg(&socket).args(share(&place).get_args().skip(3));
    let mut host = Host::start(&mut command);
    let found = host.where_is_it();
    assert!(found["pid"].is_number(), "{found}");
    host.stdin = None;
    let (status, said) = host.ended();
    assert!(status.success(), "{said}");
    assert!(said.contains("teller is not shared") && said.contains("runs alone"), "{said}");
    assert_eq!(&other.join().unwrap(), b"!");
    let named: Vec<_> = events(&place).iter().map(|event| event["event"].clone()).collect();
    assert_eq!(named, ["unshared", "started", "ended"]);
    std::fs::remove_file(place.path("state/events.jsonl")).unwrap();
    assert_nothing_left(&place);
}

#[test]
fn what_the_daemon_cannot_keep_is_refused() {
    let place = Place::new();
    for option in [
        &["--lazy"][..],
        &["--relay"],
        &["--receipt", "r"],
        &["--log-dir", "l"],
        &["--memory", "1g"],
        &["--pids", "5"],
        &["--cpu", "1"],
        &["--backend", "descent"],
        &["--grace", "1s"],
        &["--containers", "leave"],
        &["--call-timeout", "1s"],
        &["--max-starts", "5/s"],
    ] {
        let mut command = place.lariat("run");
        let output = finish(command.arg("--share").args(option).args(["--", "true"]));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("--share") && said.contains(option[0]), "{said}");
    }
    assert!(!place.path("state").exists(), "nothing was begun");
}
