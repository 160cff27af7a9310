//! The daemon becomes the next one: the same servers, the same wrappers, and not a message is lost, said
//! twice or in another order.

use crate::client::Client;
use crate::stage::{PATIENCE, Stage, is_full, signal, trial};
use libtest_mimic::Trial;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use trials::until;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial("handover::in_flight", in_flight),
        trial("handover::floods", floods),
        trial("handover::late_readers", late_readers),
        trial("handover::asleep", asleep),
        trial("handover::half_a_line", half_a_line),
        trial("handover::one_leaves", || one_leaves(|one| signal(one.process(), Signal::KILL))),
        trial("handover::one_hangs_up", || one_leaves(Client::close_both)),
        trial("handover::the_last_leaves", the_last_leaves),
        trial("handover::daemon_sigkill", daemon_sigkill),
        trial("handover::stand_in_sigkill", stand_in_sigkill),
        trial("handover::server_leaves", server_leaves),
        trial("handover::no_program", no_program),
    ]
}

/// Asks who one is, to be told after that many milliseconds.
fn ask_late(client: &mut Client, who: &str, nonce: u64, late: u64) -> Value {
    let arguments = json!({"who": who, "nonce": nonce, "late": late, "progress": 1});
    let meta = json!({"progressToken": format!("of {who}")});
    client.send("tools/call", json!({"name": "whoami", "arguments": arguments, "_meta": meta}))
}

/// Calls that were made before are answered afterwards, to who made them and by who was asked.
fn in_flight() {
    let mut stage = Stage::new();
    let mut clients: Vec<Client> = (0..3).map(|_| stage.join()).collect();
    let mut private = stage.meet(&[]);
    private.greet_as("2025-11-25", &json!({"roots": {}}));
    let mut modern = stage.meet(&["modern"]).modern();
    modern.ask("server/discover", json!({}));
    clients.extend([private, modern]);
    let servers: Vec<i32> = clients.iter_mut().map(Client::server).collect();
    assert_eq!((servers[0], servers[1]), (servers[1], servers[2]));
    let is_told = || !stage.verdicts().contains(&"none".into());
    assert!(until(PATIENCE, is_told), "nobody says how they are shared");
    let (was, seen) = (stage.daemon(), stage.verdicts());
    let descriptors =
        || fs::read_dir(format!("/proc/{}/fd", was.pid)).into_iter().flatten().count();
    let mut first = None;
    for round in 0..3 {
        let names: Vec<String> = (0..clients.len()).map(|at| format!("{round}.{at}")).collect();
        let ask = |(client, name): (&mut Client, &String)| ask_late(client, name, round, 700);
        let asked: Vec<Value> = clients.iter_mut().zip(&names).map(ask).collect();
        let held = |clients: &mut Vec<Client>| clients[0].about()["held"] == 3;
        assert!(until(PATIENCE, || held(&mut clients)), "it was never asked");
        stage.replace();
        for (at, client) in clients.iter_mut().enumerate() {
            let mut aside = Vec::new();
            let answer = client.answer_aside(&asked[at], &mut aside).expect("an answer");
            let told = &answer["result"]["structuredContent"];
            assert_eq!(told["who"], json!(names[at]), "{answer}");
            assert_eq!((&told["nonce"], &told["pid"]), (&json!(round), &json!(servers[at])));
            aside.retain(|said| said["method"] == "notifications/progress");
            assert!(aside.len() <= 1, "{aside:?}");
        }
        assert_eq!(stage.join().server(), servers[0], "who comes later finds the same");
        assert!(was.is_alive(), "it is another process");
        assert_eq!(stage.verdicts(), seen);
        first = first.or_else(|| Some(descriptors()));
    }
    let most = first.expect("several rounds");
    assert!(until(PATIENCE, || descriptors() <= most), "{} descriptors", descriptors());
    let about = clients[0].about();
    assert_eq!((&about["sins"], &about["greetings"]), (&json!([]), &json!(1)), "{about}");
    let again: Vec<i32> = clients.iter_mut().map(Client::server).collect();
    assert_eq!(again, servers);
    clients.into_iter().for_each(Client::leave);
    stage.close();
    assert!(!was.is_alive());
}

/// Everybody asks as much as goes, and hears all of it once and in order, however often the daemon changes.
fn floods() {
    let mut stage = Stage::new();
    let (crowd, calls, changes) = if is_full() { (12, 6_000, 20) } else { (6, 1_500, 6) };
    let over = AtomicBool::new(false);
    let clients: Vec<Client> = (0..crowd)
        .map(|at| {
            let mut client = stage.meet(&[]);
            // Every third has a server of its own.
            let capabilities = if at % 3 == 0 { json!({"roots": {}}) } else { json!({}) };
            client.greet_as("2025-11-25", &capabilities);
            client
        })
        .collect();
    thread::scope(|scope| {
        let over = &over;
        let mut hosts = Vec::new();
        for (at, mut client) in clients.into_iter().enumerate() {
            let mut speaking = client.speaking_half();
            let asked = scope.spawn(move || {
                // Goes on until the daemon has changed often enough.
                let mut nonce = 0;
                while nonce < calls || !over.load(Ordering::Relaxed) {
                    nonce += 1;
                    let pad = if nonce % 40 == 0 { 90_000 } else { nonce % 5 * 100 };
                    let arguments = json!({"who": at, "nonce": nonce, "pad": pad});
                    let params = json!({"name": "whoami", "arguments": arguments});
                    let line = json!({"jsonrpc": "2.0", "id": nonce, "method": "tools/call", "params": params});
                    assert!(speaking.say(&line.to_string()), "nobody listens");
                }
                (nonce, speaking)
            });
            hosts.push(scope.spawn(move || {
                let mut heard = 0;
                while !asked.is_finished() || heard < calls {
                    // Whoever asks waits for whoever hears.
                    let Some(line) = client.hear(Duration::from_millis(100)) else { continue };
                    heard += 1;
                    assert_answer(&line, heard, at);
                }
                let (asked, speaking) = asked.join().expect("all was said");
                while heard < asked {
                    heard += 1;
                    assert_answer(&client.hear(PATIENCE).expect("an answer"), heard, at);
                }
                assert_eq!(client.hear(Duration::from_millis(100)), None, "one too many");
                drop(speaking);
                heard
            }));
        }
        let mut longest = Duration::ZERO;
        for _ in 0..changes {
            let began = Instant::now();
            stage.replace();
            longest = longest.max(began.elapsed());
        }
        over.store(true, Ordering::Relaxed);
        let heard: u64 = hosts.into_iter().map(|host| host.join().expect("all of it")).sum();
        println!("{heard} answers, {changes} changes, the longest {longest:?}");
    });
    stage.close();
}

/// This is the answer to this call of theirs.
#[track_caller]
fn assert_answer(line: &[u8], nonce: u64, who: usize) {
    let answer: Value = serde_json::from_slice(line).expect("JSON");
    let told = &answer["result"]["structuredContent"];
    assert_eq!((&answer["id"], &told["nonce"]), (&json!(nonce), &json!(nonce)));
    assert_eq!(told["who"], json!(who));
}

/// What waits for somebody who does not read is still there afterwards.
fn late_readers() {
    let mut stage = Stage::new();
    let mut clients = vec![stage.join(), stage.join(), stage.meet(&[])];
    clients[2].greet_as("2025-11-25", &json!({"roots": {}}));
    let servers: Vec<i32> = clients.iter_mut().map(Client::server).collect();
    let ask = |client: &mut Client, nonce: u64| {
        let arguments = json!({"who": "late", "nonce": nonce, "pad": 50_000});
        client.send("tools/call", json!({"name": "whoami", "arguments": arguments}))
    };
    let asked: Vec<Vec<Value>> = clients
        .iter_mut()
        .map(|client| (0..40).map(|nonce| ask(client, nonce)).collect())
        .collect();
    for _ in 0..3 {
        stage.replace();
    }
    for (at, client) in clients.iter_mut().enumerate() {
        for (nonce, id) in asked[at].iter().enumerate() {
            let mut aside = Vec::new();
            let answer = client.answer_aside(id, &mut aside).expect("an answer");
            assert!(aside.is_empty(), "{} are out of order", aside.len());
            let told = &answer["result"]["structuredContent"];
            assert_eq!((&told["nonce"], &told["pid"]), (&json!(nonce), &json!(servers[at])));
        }
        assert_eq!(client.server(), servers[at]);
    }
    clients.into_iter().for_each(Client::leave);
    stage.close();
}

/// One that sleeps is woken by the next daemon.
fn asleep() {
    let mut stage = Stage::new();
    let options = ["--name", "checker", "--idle", "200ms"];
    let mut client = Client::start(stage.sharing(&options, &stage.checker(&[])));
    client.greet();
    let server = client.server();
    assert!(until(PATIENCE, || stage.servers().is_empty()), "it does not sleep");
    stage.replace();
    assert_ne!(client.server(), server);
    assert!(until(PATIENCE, || stage.servers().is_empty()), "it does not sleep again");
    assert_eq!(client.about()["greetings"], 1);
    client.leave();
    stage.close();
}

/// A line that is only begun goes on afterwards.
fn half_a_line() {
    let mut stage = Stage::new();
    let mut client = stage.join();
    let server = client.server();
    let line = json!({"jsonrpc": "2.0", "id": "half", "method": "tools/call",
        "params": {"name": "whoami", "arguments": {"who": "x".repeat(200_000), "nonce": 3}}});
    let line = line.to_string();
    let (one, other) = line.split_at(100_000);
    assert!(client.say_part(one));
    stage.replace();
    assert!(client.say(other));
    let answer = client.answer_aside(&json!("half"), &mut Vec::new()).expect("an answer");
    assert_eq!(answer["result"]["structuredContent"]["pid"], json!(server));
    client.leave();
    stage.close();
}

/// After the change, who leaves takes its own along, and nobody else.
#[track_caller]
fn one_leaves(leave: fn(&mut Client)) {
    let mut stage = Stage::new();
    let mut clients: Vec<Client> = (0..3).map(|_| stage.join()).collect();
    let server = clients[1].server();
    clients[0].send("tools/call", json!({"name": "hold", "arguments": {}}));
    assert!(until(PATIENCE, || clients[1].about()["held"] == 1), "it was never asked");
    stage.replace();
    leave(&mut clients[0]);
    assert!(until(PATIENCE, || clients[1].about()["held"] == 0), "its call was not cancelled");
    assert!(clients[0].ended().is_some(), "the wrapper does not end");
    for client in &mut clients[1..] {
        assert_eq!(client.server(), server, "the others go on");
    }
    drop(clients);
    stage.close();
}

/// After the change, the last one to leave ends the server, and there is a receipt.
fn the_last_leaves() {
    let mut stage = Stage::new();
    let mut client = stage.join();
    client.server();
    stage.replace();
    client.close_stdin();
    assert_eq!(client.hear(PATIENCE), None);
    assert!(client.ended().is_some_and(|status| status.success()), "the wrapper does not end well");
    assert!(until(PATIENCE, || stage.servers().is_empty()), "the server stays");
    let ended = || stage.events().iter().filter(|event| event["event"] == "ended").count();
    assert!(until(PATIENCE, || ended() == 1), "{:#?}", stage.events());
    let events = stage.events();
    let ended = events.iter().find(|event| event["event"] == "ended").expect("just seen");
    // It may have left before it was asked to.
    assert!(["closed", "exited"].map(Into::into).contains(&ended["reason"]), "{ended}");
    assert_eq!(ended["survivors"], json!([]), "{ended}");
    stage.close();
}

/// SIGKILL of what the daemon has become: everybody is gone, and hosts see it.
fn daemon_sigkill() {
    let mut stage = Stage::new();
    let daemon = stage.daemon();
    let mut clients: Vec<Client> = (0..3).map(|_| stage.join()).collect();
    let servers: Vec<i32> = clients.iter_mut().map(Client::server).collect();
    assert!(servers.iter().all(|server| *server == servers[0]));
    stage.replace();
    signal(daemon, Signal::KILL);
    for client in &mut clients {
        assert_eq!(client.hear(PATIENCE), None);
        assert!(client.is_over(), "its output stays open");
        assert_eq!(client.ended().and_then(|status| status.code()), Some(125));
    }
    stage.assert_gone();
}

/// Whoever stands for the daemon is killed: it ends as one does that is told so.
fn stand_in_sigkill() {
    let mut stage = Stage::new();
    let mut client = stage.join();
    client.server();
    stage.replace();
    stage.end_daemon(Signal::KILL);
    assert_eq!(client.hear(PATIENCE), None);
    assert!(client.ended().is_some(), "the wrapper does not end");
    stage.assert_gone();
}

/// After the change, a server that leaves takes its clients along, each with the code.
fn server_leaves() {
    let mut stage = Stage::new();
    let mut clients: Vec<Client> = (0..2).map(|_| stage.join()).collect();
    let servers: Vec<i32> = clients.iter_mut().map(Client::server).collect();
    assert!(servers.iter().all(|server| *server == servers[0]));
    stage.replace();
    clients[0].send("tools/call", json!({"name": "leave", "arguments": {"code": 7}}));
    for client in &mut clients {
        while client.hear(PATIENCE).is_some() {}
        assert_eq!(client.ended().and_then(|status| status.code()), Some(7));
    }
    stage.close();
}

/// What is no program cannot be become: the daemon says so, and goes on as if nothing had happened.
fn no_program() {
    let stage = Stage::new();
    let mut clients = vec![stage.join(), stage.join(), stage.meet(&[])];
    clients[2].greet_as("2025-11-25", &json!({"roots": {}}));
    let servers: Vec<i32> = clients.iter_mut().map(Client::server).collect();
    for round in 0..5 {
        let ask = |client: &mut Client| ask_late(client, "me", round, 100);
        let asked: Vec<Value> = clients.iter_mut().map(ask).collect();
        let said = ask_to_become(&stage, &fs::File::open("/proc/self/status").expect("no program"));
        assert!(said["no"]["why"].as_str().is_some_and(|why| why.contains("Permission")), "{said}");
        for (client, (id, server)) in clients.iter_mut().zip(asked.iter().zip(&servers)) {
            let answer = client.answer_aside(id, &mut Vec::new()).expect("an answer");
            let told = &answer["result"]["structuredContent"];
            assert_eq!((&told["nonce"], &told["pid"]), (&json!(round), &json!(server)));
        }
    }
    assert_eq!(stage.join().server(), servers[0]);
    clients.into_iter().for_each(Client::leave);
    stage.close();
}

/// Asks the daemon to become this. Gives what it says.
pub(crate) fn ask_to_become(stage: &Stage, program: &impl AsFd) -> Value {
    let line = UnixStream::connect(stage.path("state/daemon.sock")).expect("a daemon");
    let request = json!({
        "version": 3, "state_dir": stage.path("state"), "args": ["lariat", "daemon"], "env": [],
        "http": "127.0.0.1:0",
    });
    let here = fs::File::open(".").expect("a directory");
    let nothing = fs::File::open("/dev/null").expect("nothing");
    let given = [program.as_fd(), here.as_fd(), nothing.as_fd(), nothing.as_fd(), nothing.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&given)));
    let text = format!(">{request}\n");
    let sent =
        sendmsg(&line, &[IoSlice::new(text.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL);
    assert_eq!(sent.expect("somebody who listens"), text.len());
    let mut said = String::new();
    BufReader::new(line).read_line(&mut said).expect("an answer");
    serde_json::from_str(&said).expect("JSON")
}
