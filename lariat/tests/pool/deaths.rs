//! Whoever dies: the others go on, the dead one's calls are cancelled, and nobody is left.

use crate::client::Client;
use crate::stage::{PATIENCE, Stage, signal, trial};
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::json;
use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;
use trials::{Bystander, Process, until};

/// By which this binary knows that it is to be a host between a trial and a wrapper.
const BETWEEN: &str = "__between";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial("deaths::host_sigkill", host_sigkill),
        trial("deaths::wrapper_sigkill", || one_leaves(|one| signal(one.process(), Signal::KILL))),
        trial("deaths::wrapper_sigterm", || one_leaves(|one| signal(one.process(), Signal::TERM))),
        trial("deaths::wrapper_sigint", || one_leaves(|one| signal(one.process(), Signal::INT))),
        trial("deaths::stdin_closed", stdin_closed),
        trial("deaths::stdin_closed_behind_much", stdin_closed_behind_much),
        trial("deaths::both_ends_closed", || {
            one_leaves(|one| {
                one.close_stdin();
                one.close_stdout();
            });
        }),
        trial("deaths::stdout_closed", stdout_closed),
        trial("deaths::daemon_sigkill", || daemon_dies(Signal::KILL)),
        trial("deaths::daemon_sigterm", || daemon_dies(Signal::TERM)),
        trial("deaths::server_sigkill", server_sigkill),
        trial("deaths::server_leaves", server_leaves),
        trial("deaths::everybody_at_once", everybody_at_once),
    ]
}

/// Somebody who looks like the server and has no part in it.
fn bystander(stage: &Stage) -> Bystander {
    let mut words = stage.checker(&[]);
    (words[1], words[2]) = ("__misbehave".into(), "polite".into());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    Bystander::start(command, "beside").expect("a bystander")
}

#[track_caller]
fn assert_unharmed(bystander: Bystander) {
    let harm = bystander.harm();
    bystander.end();
    assert_eq!(harm, None);
}

/// A call that is never answered, so that its end is seen.
fn hold(client: &mut Client) {
    client.send("tools/call", json!({"name": "hold", "arguments": {}}));
}

/// One of five leaves in this way, with a call in flight.
#[track_caller]
fn one_leaves(leave: fn(&mut Client)) {
    let stage = Stage::new();
    let bystander = bystander(&stage);
    let mut clients: Vec<Client> = (0..5).map(|_| stage.join()).collect();
    let server = clients[1].server();
    hold(&mut clients[0]);
    assert!(until(PATIENCE, || clients[1].about()["held"] == 1), "it was never asked");
    leave(&mut clients[0]);
    assert!(until(PATIENCE, || clients[1].about()["held"] == 0), "its call was not cancelled");
    assert!(clients[0].ended().is_some(), "the wrapper does not end");
    while clients[0].hear(PATIENCE).is_some() {}
    assert!(clients[0].is_over(), "its output stays open");
    for client in &mut clients[1..] {
        assert_eq!(client.server(), server, "the others go on");
    }
    assert_eq!(stage.join().server(), server, "and another may come");
    drop(clients);
    assert_unharmed(bystander);
    stage.close();
}

/// Who says nothing more still hears what it asked for; then it is over, in good order.
fn stdin_closed() {
    let stage = Stage::new();
    let (mut one, mut other) = (stage.join(), stage.join());
    let server = other.server();
    let arguments = json!({"who": "one", "nonce": 1, "late": 300});
    let id = one.send("tools/call", json!({"name": "whoami", "arguments": arguments}));
    one.close_stdin();
    let answer = one.answer_aside(&id, &mut Vec::new()).expect("what was asked is answered");
    assert_eq!(answer["result"]["structuredContent"]["nonce"], 1, "{answer}");
    assert_eq!(one.hear(PATIENCE), None);
    assert!(one.is_over(), "its output stays open");
    assert!(one.ended().is_some_and(|status| status.success()));
    assert_eq!(other.server(), server);
    other.leave();
    stage.close();
}

/// What a script has said at once is answered, however much it is.
fn stdin_closed_behind_much() {
    let stage = Stage::new();
    let mut client = stage.join();
    let ask = |nonce: u64| {
        let arguments = json!({"who": "script", "nonce": nonce});
        let params = json!({"name": "whoami", "arguments": arguments});
        json!({"jsonrpc": "2.0", "id": nonce, "method": "tools/call", "params": params})
    };
    let script: Vec<String> = (0..4_000).map(|nonce| ask(nonce).to_string()).collect();
    assert!(client.say(&script.join("\n")));
    client.close_stdin();
    for nonce in 0..script.len() {
        let line = client.hear(PATIENCE).unwrap_or_else(|| panic!("{nonce} is not answered"));
        let answer: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
        assert_eq!(answer["result"]["structuredContent"]["nonce"], json!(nonce), "{answer}");
    }
    assert_eq!(client.hear(PATIENCE), None);
    stage.close();
}

/// The wrapper's host is killed: nobody says goodbye to anybody.
fn host_sigkill() {
    let stage = Stage::new();
    let bystander = bystander(&stage);
    let mut witness = stage.join();
    let server = witness.server();
    let wrapper = stage.sharing(&["--name", "checker"], &stage.checker(&[]));
    let me = std::env::current_exe().expect("ourselves");
    let mut host = stage.mark(Command::new(me));
    host.arg(BETWEEN).arg(wrapper.get_program()).args(wrapper.get_args());
    let mut client = Client::start(host);
    client.greet();
    assert_eq!(client.server(), server);
    hold(&mut client);
    assert!(until(PATIENCE, || witness.about()["held"] == 1), "it was never asked");
    client.kill();
    assert!(until(PATIENCE, || witness.about()["held"] == 0), "its call was not cancelled");
    assert_eq!(witness.server(), server);
    drop(client);
    witness.leave();
    assert_unharmed(bystander);
    stage.close();
}

/// A host that does not listen any more, and notices nothing.
fn stdout_closed() {
    let stage = Stage::new();
    let (mut deaf, mut other) = (stage.join(), stage.join());
    let server = other.server();
    deaf.close_stdout();
    deaf.send("tools/call", json!({"name": "whoami", "arguments": {"who": "deaf"}}));
    assert!(deaf.ended().is_some(), "a wrapper that nobody hears stays");
    assert_eq!(other.server(), server);
    other.leave();
    stage.close();
}

/// Everything ends as with a dead server, soon, and without us.
#[track_caller]
fn daemon_dies(how: Signal) {
    let mut stage = Stage::new();
    let bystander = bystander(&stage);
    let mut clients: Vec<Client> = (0..4).map(|_| stage.join()).collect();
    hold(&mut clients[0]);
    let servers = stage.servers();
    assert_eq!(servers.len(), 1);
    stage.end_daemon(how);
    for client in &mut clients {
        while client.hear(PATIENCE).is_some() {}
        assert!(client.is_over(), "a pipe stays open");
        let ended = client.ended().expect("the wrapper ends");
        println!("a wrapper ended with {ended}");
    }
    assert!(until(PATIENCE, || !servers.iter().any(|one| one.is_alive())), "a server is left");
    drop(clients);
    stage.assert_gone();
    assert_unharmed(bystander);
    // The next one finds everything as new.
    let mut next = stage.join();
    next.server();
    next.leave();
    if let Some(daemon) = stage.any_daemon() {
        signal(daemon, Signal::TERM);
    }
    stage.assert_gone();
}

/// Who waits is told; who comes back has another one.
fn server_sigkill() {
    let stage = Stage::new();
    let bystander = bystander(&stage);
    let mut clients: Vec<Client> = (0..3).map(|_| stage.join()).collect();
    let server = clients[0].server();
    let waiting: Vec<_> = clients
        .iter_mut()
        .map(|client| client.send("tools/call", json!({"name": "hold", "arguments": {}})))
        .collect();
    assert!(until(PATIENCE, || clients[0].about()["held"] == 3));
    signal(Process::now(server).expect("it lives"), Signal::KILL);
    for (client, id) in clients.iter_mut().zip(&waiting) {
        let answer = client.answer_aside(id, &mut Vec::new()).expect("whoever waits is told");
        assert!(answer["error"].is_object(), "{answer}");
    }
    for client in &mut clients {
        while client.hear(PATIENCE).is_some() {}
        assert!(client.is_over(), "its output stays open");
        let status = client.ended().expect("the wrapper ends");
        assert_eq!(status.code(), Some(128 + 9), "as the server did");
    }
    assert_ne!(stage.join().server(), server);
    drop(clients);
    assert_unharmed(bystander);
    stage.close();
}

/// A server that leaves by itself: the wrappers leave with its code.
fn server_leaves() {
    let stage = Stage::new();
    let mut clients: Vec<Client> = (0..3).map(|_| stage.join()).collect();
    clients[0].send("tools/call", json!({"name": "leave", "arguments": {"code": 3}}));
    for client in &mut clients {
        while client.hear(PATIENCE).is_some() {}
        assert!(client.is_over(), "its output stays open");
        assert_eq!(client.ended().expect("the wrapper ends").code(), Some(3));
    }
    stage.close();
}

/// Daemon, wrappers and server in one moment. Only guardians can see to the rest.
fn everybody_at_once() {
    let mut stage = Stage::new();
    let bystander = bystander(&stage);
    let mut clients: Vec<Client> = (0..4).map(|_| stage.join()).collect();
    clients.iter_mut().for_each(hold);
    let servers = stage.servers();
    for one in clients.iter().map(Client::process).chain(servers) {
        signal(one, Signal::KILL);
    }
    stage.end_daemon(Signal::KILL);
    drop(clients);
    stage.assert_gone();
    assert_unharmed(bystander);
}

/// Is a host between this binary and what it starts, if asked: `EXE __between COMMAND…`. It lives as
/// long as the pipes do; killed, it is a host that was killed.
pub(crate) fn stand_between_if_asked() -> bool {
    let mut args = std::env::args_os().skip(1);
    if args.next().as_deref() != Some(OsStr::new(BETWEEN)) {
        return false;
    }
    let mut command = Command::new(args.next().expect("a command"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let (mut to, mut from) =
        (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    std::thread::spawn(move || std::io::copy(&mut std::io::stdin(), &mut to));
    std::io::copy(&mut from, &mut std::io::stdout()).ok();
    until(Duration::from_secs(60), || child.try_wait().is_ok_and(|ended| ended.is_some()));
    true
}
