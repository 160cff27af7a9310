//! Whatever a host has for streams is passed on, and left as it is.

use crate::finish::finish_with;
use crate::kit::{Stage, hello, request};
use crate::place::PATIENCE;
use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, mknodat};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use trials::until;

/// What a script says: everything at once, and then it has no more.
fn script() -> String {
    format!("{}\n{}", hello(), request(2, "where"))
}

fn answers(text: &str) -> Vec<u64> {
    let ids = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    ids.map(|answer| answer["id"].as_u64().unwrap()).collect()
}

#[test]
fn files_are_read_to_their_end_and_written() {
    let stage = Stage::new();
    let (script_file, answer_file) = (stage.place.path("script"), stage.place.path("answers"));
    // Its last line has no end.
    fs::write(&script_file, script()).unwrap();
    let mut command = stage.share();
    let input = Stdio::from(File::open(script_file).unwrap());
    let mut wrapper =
        command.stdin(input).stdout(File::create(&answer_file).unwrap()).spawn().unwrap();
    assert!(until(PATIENCE, || wrapper.try_wait().unwrap().is_some()));
    assert!(wrapper.wait().unwrap().success());
    assert_eq!(answers(&fs::read_to_string(answer_file).unwrap()), [1, 2]);
}

#[test]
fn a_pipe_with_a_name_ends_when_its_writer_has_left() {
    let stage = Stage::new();
    let path = stage.place.path("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let both = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let reader = File::open(&path).unwrap();
    (&both).write_all(script().as_bytes()).unwrap();
    drop(both);
    let output = finish_with(&mut stage.share(), reader.into());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(answers(&String::from_utf8(output.stdout).unwrap()), [1, 2]);
}

#[test]
fn nothing_to_say_is_an_end() {
    let stage = Stage::new();
    let output = finish_with(&mut stage.share(), Stdio::null());
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
}

#[test]
fn sockets_do_and_stay_as_they_are() {
    let stage = Stage::new();
    let (mut host_in, theirs_in) = UnixStream::pair().unwrap();
    let (host_out, theirs_out) = UnixStream::pair().unwrap();
    // Copies, as a shell has that starts another child later.
    let kept = [theirs_in.try_clone().unwrap(), theirs_out.try_clone().unwrap()];
    let flags = || kept.each_ref().map(|stream| fcntl_getfl(stream).unwrap());
    let before = flags();
    let mut command = stage.share();
    command.stdin(OwnedFd::from(theirs_in)).stdout(OwnedFd::from(theirs_out));
    let mut wrapper = command.spawn().unwrap();
    drop(command);
    writeln!(host_in, "{}", script()).unwrap();
    let mut lines = BufReader::new(host_out.try_clone().unwrap()).lines();
    for id in [1, 2] {
        assert_eq!(answers(&lines.next().unwrap().unwrap()), [id]);
    }
    assert_eq!(flags(), before);
    assert!(!before[0].contains(OFlags::NONBLOCK));
    host_in.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(until(PATIENCE, || wrapper.try_wait().unwrap().is_some()));
    assert!(wrapper.wait().unwrap().success());
}

#[test]
fn pipes_stay_as_they_are_and_are_nobody_elses() {
    let stage = Stage::new();
    let mut host = stage.host();
    let ends = |host: &crate::kit::Host| {
        let stdin = fcntl_getfl(host.stdin.as_ref().unwrap().as_fd()).unwrap();
        (stdin, fcntl_getfl(host.stdout.get_ref().as_fd()).unwrap())
    };
    let before = ends(&host);
    host.where_is_it();
    assert_eq!(ends(&host), before);
    // The wrapper has let go of them.
    assert_eq!([0, 1].map(|number| host.descriptor(number)), ["/dev/null", "/dev/null"]);
}

#[test]
fn a_message_longer_than_a_pipe_holds_comes_through() {
    let stage = Stage::new();
    let mut host = stage.host();
    host.where_is_it();
    let mut long = request(3, "where");
    long["params"] = serde_json::json!({ "text": "x".repeat(300 << 10) });
    let answer = host.ask(&long);
    assert_eq!(answer["id"], 3, "{answer}");
}
