//! The command line: where the page may be, what is said if it cannot, and `lariat open`.

use crate::finish::finish;
use crate::kit::{House, Wire};
use crate::place::{PATIENCE, Place};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Output;
use trials::until;

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_page_is_on_this_machine_alone() {
    let place = Place::new();
    for address in ["0.0.0.0:0", "192.168.1.1:80", "[::]:0", "example.com:80", "7457", ""] {
        let output = finish(place.lariat("daemon").args(["--http", address]));
        assert_eq!(output.status.code(), Some(2), "{address}: {}", said(&output));
        assert!(said(&output).contains("127.0.0.1"), "{}", said(&output));
    }
    let output = finish(place.lariat("daemon").args(["--no-token"]));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let output = finish(place.lariat("daemon").args(["--http", "--no-token", "--token-file", "x"]));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}

#[test]
fn a_port_that_is_taken_is_said() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = finish(place.lariat("daemon").args(["--http", &address]));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains(&format!("somebody else listens on {address}")),
        "{}",
        said(&output)
    );
    assert!(said(&output).contains("--http 127.0.0.1:PORT"), "{}", said(&output));
    assert!(!place.path("state/daemon.sock").exists());
}

#[test]
fn a_token_of_ones_own_is_used_and_a_bad_one_refused() {
    let place = Place::new();
    let file = place.path("secret");
    let path = file.to_str().unwrap().to_owned();
    fs::write(&file, "short\n").unwrap();
    let output =
        finish(place.lariat("daemon").args(["--http", "127.0.0.1:0", "--token-file", &path]));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("16 to 4096 visible") && !said(&output).contains("short"),
        "{}",
        said(&output)
    );
    fs::write(&file, "a-token-of-my-own-0123\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let house = House::with(place, &["--http", "127.0.0.1:0", "--token-file", &path]);
    house.get("/", "Authorization: Bearer a-token-of-my-own-0123\r\n").expect(200);
    house.get("/", "Authorization: Bearer a-token-of-my-own-0124\r\n").expect(401);
    let output = finish(house.place.lariat("open").arg("--token"));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), path);
    assert!(!house.place.path("state/token").exists());
}

#[test]
fn without_a_token_everybody_is_let_in_but_other_pages() {
    let house = House::with(Place::new(), &["--http", "127.0.0.1:0", "--no-token"]);
    house.get("/", "").expect(200);
    house.get("/metrics", "").expect(200);
    house.get("/metrics", "Origin: http://evil.example\r\n").expect(403);
    let output = finish(house.place.lariat("open").arg("--token"));
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("--no-token"), "{}", said(&output));
    assert!(!house.place.path("state/token").exists());
}

#[test]
fn open_opens_the_page_of_a_daemon_that_was_started_without() {
    let house = House::with(Place::new(), &[]);
    assert!(!house.place.path("state/token").exists());
    let [first, second] = [house.link(), house.link()];
    let split = |link: &str| {
        let rest = link.strip_prefix("http://").unwrap().to_owned();
        let (address, path) = rest.split_once('/').unwrap();
        (address.to_owned(), format!("/{path}"))
    };
    let ((address, path), (same, other)) = (split(&first), split(&second));
    assert_eq!(address, same);
    assert!(address.starts_with("127.0.0.1:") && path != other, "{first} {second}");
    for path in [path, other] {
        let mut wire = Wire::new(&address);
        wire.send("GET", &path, &format!("Host: {address}\r\n"), "");
        wire.answer().unwrap().expect(200);
    }
    let output = finish(house.place.lariat("open").arg("--json"));
    let link: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(link["url"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{link}");
    assert_eq!(link["expires_s"], 60);
    assert_eq!(link["token_file"], house.place.path("state/token").to_str().unwrap());
    assert_eq!(link["metrics"], format!("http://{address}/metrics"));
    let metrics = finish(house.place.lariat("open").arg("--metrics"));
    assert_eq!(String::from_utf8(metrics.stdout).unwrap(), format!("http://{address}/metrics\n"));
    // Nobody is to send the token to a port that somebody else may have.
    let help = finish(house.place.lariat("open").arg("--help"));
    assert!(!String::from_utf8(help.stdout).unwrap().contains(":7457/"));
    let token = finish(house.place.lariat("open").arg("--token"));
    assert_eq!(token.stdout, format!("{}\n", link["token_file"].as_str().unwrap()).as_bytes());
    std::fs::remove_file(house.place.path("state/token")).unwrap();
    let token = finish(house.place.lariat("open").arg("--token"));
    assert!(token.status.code() == Some(1) && token.stdout.is_empty(), "{}", said(&token));
}

#[test]
fn open_starts_a_daemon_if_there_is_none() {
    let place = Place::new();
    let output = finish(&mut place.lariat("open"));
    assert!(output.status.success(), "{}", said(&output));
    let stream = UnixStream::connect(place.path("state/daemon.sock")).unwrap();
    let daemon = rustix::net::sockopt::socket_peercred(&stream).unwrap().pid;
    drop(stream);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.starts_with("http://127.0.0.1:") && printed.lines().count() == 1, "{printed}");
    end(daemon);
    assert!(until(PATIENCE, || !place.path("state/daemon.sock").exists()));
}

/// The one that was just spoken with.
fn end(daemon: Pid) {
    kill_process(daemon, Signal::TERM).unwrap();
}
