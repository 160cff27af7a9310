//! Whatever moment a conversation is stopped at, and whether this program goes on with it or another that
//! knows only what was written down: each client hears all that it asked for, once and in order.

use super::*;
use crate::dice::{self, Dice};
use crate::mcp::Rules;
use crate::mcp::connection::Opening;
use serde_json::json;
use std::future::pending;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex};
use tokio::sync::oneshot;
use tokio::task::yield_now;

/// More rounds than any talk needs.
const ENOUGH: usize = 200_000;

struct Client {
    who: usize,
    mouth: Mouth,
    ear: Ear,
    /// How many lines it has said, and is to say.
    said: usize,
    all: usize,
    heard: Vec<u8>,
}

impl Client {
    /// Says one line after the other.
    async fn speak(&mut self, sizes: &[usize]) {
        loop {
            self.mouth.go_on().await.unwrap();
            if self.said == self.all {
                return pending().await;
            }
            self.said += 1;
            let pad = "x".repeat(sizes[self.said % sizes.len()]);
            let params = json!({ "who": self.who, "n": self.said, "pad": pad });
            let line =
                json!({ "jsonrpc": "2.0", "id": self.said, "method": "x", "params": params });
            self.mouth.say(line.to_string().into_bytes());
        }
    }
}

/// Answers each line with what was asked.
async fn serve(stdin: DuplexStream, mut stdout: DuplexStream) {
    let mut lines = BufReader::new(stdin).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        let asked: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line}: {e}"));
        let answer = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": asked["params"] });
        stdout.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
    }
}

/// One talk: stopped at every turn, and now and then written down and read again.
async fn talk(seed: u64) -> usize {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (seed << 20) ^ seed);
    (0..8).for_each(|_| assert!(dice.next(2) < 2));
    let kin = dice.next(2) == 0;
    let company = if kin { Company::Kin } else { Company::Strangers };
    let mut connection =
        Connection::new(Rules { tools: vec!["*".into()], capabilities: Map::new() }, company);
    match kin {
        true => connection.greeted_by_client(),
        false => connection.greeted_modern(false),
    }
    // Long ones fill the room that there is, and so do many that are short.
    let sizes = [&[0, 30][..], &[0, 300, 5], &[150_000, 0, 20, 200_000]][dice.next(3)];
    let is_long = sizes[0] > 0;
    let all = if is_long { 4 } else { 1 + dice.next(100) };
    let size = |dice: &mut Dice| match is_long {
        true => 1 << 16,
        false => [1, 7, 64, 4096][dice.next(4)],
    };
    let (input, stdin) = duplex(size(&mut dice));
    let (stdout, output) = duplex(size(&mut dice));
    let server = tokio::spawn(serve(stdin, stdout));
    let mut wire = Wire { input: Some(input), output, inbox: Inbox::default() };
    let mut clients = Vec::new();
    for who in 0..if kin { 1 } else { 1 + dice.next(4) } {
        let (mouth, ear) = connection.sit().unwrap();
        clients.push(Client { who, mouth, ear, said: 0, all, heard: Vec::new() });
    }
    let lines = |client: &Client| client.heard.iter().filter(|byte| **byte == b'\n').count();
    let mut changes = 0;
    for round in 0.. {
        if clients.iter().all(|client| lines(client) >= all) {
            break;
        }
        assert!(round < ENOUGH, "seed {seed}: it comes to no end");
        let polls = [1, 1 + dice.next(4), dice.next(200)][dice.next(3)];
        let reads: Vec<bool> = clients.iter().map(|_| dice.next(4) > 0).collect();
        let opened = oneshot::channel().0;
        let running = connection.run(&mut wire, Opening::Straight, opened);
        let speaking_and_hearing =
            clients.iter_mut().zip(reads).map(|(client, reads)| async move {
                // Both halves are one client's, so they take turns.
                loop {
                    let mut lines = Vec::new();
                    let Client { ear, .. } = client;
                    if reads && ear.fill_at_once(&mut lines) {
                        client.heard.extend_from_slice(&lines);
                    }
                    tokio::select! {
                        biased;
                        () = client.speak(sizes) => {}
                        () = yield_now() => {}
                    }
                }
            });
        let everybody = all_of(speaking_and_hearing.collect());
        let enough = async {
            for _ in 0..polls {
                yield_now().await;
            }
        };
        tokio::select! {
            () = enough => {}
            ended = running => panic!("seed {seed}: {ended:?}"),
            () = everybody => {}
        }
        if dice.next(4) == 0 {
            changes += 1;
            let carried = connection.carry(&mut Vec::new()).unwrap();
            let carry = |client: &mut Client| place(Some(&client.mouth), &mut client.ear);
            let places: Vec<Place> = clients.iter_mut().map(carry).collect();
            let written = serde_json::to_vec(&(carried, places, wire.inbox.carry())).unwrap();
            let (carried, places, said) =
                serde_json::from_slice::<(Carried, Vec<Place>, Said)>(&written).unwrap();
            connection = Connection::carried(carried);
            // Before anybody sits again, as with servers of a session.
            wire.inbox = Inbox::carried(said);
            for (client, place) in clients.iter_mut().zip(places) {
                (client.mouth, client.ear) = connection.sit_again(place).unwrap();
            }
        }
    }
    for client in &clients {
        let heard = client.heard.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let heard: Vec<Value> = heard.map(|line| serde_json::from_slice(line).unwrap()).collect();
        assert_eq!(heard.len(), all, "seed {seed}");
        for (at, answer) in heard.iter().enumerate() {
            let told = (&answer["id"], &answer["result"]["n"], &answer["result"]["who"]);
            assert_eq!(told, (&json!(at + 1), &json!(at + 1), &json!(client.who)), "seed {seed}");
        }
    }
    server.abort();
    changes
}

/// Waits for all of them, each of which gets its turn.
async fn all_of(futures: Vec<impl Future<Output = ()>>) {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if futures.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[tokio::test]
async fn nothing_is_lost_whenever_it_is_stopped() {
    let end = dice::enough(1);
    let (mut seed, mut changes) = (0, 0);
    while seed < 30 || Instant::now() < end {
        seed += 1;
        changes += talk(seed).await;
    }
    assert!(changes > 30, "{changes}");
    println!("{seed} talks, written down {changes} times");
}

/// A client that has not read what it asked for, so that its next requests wait; and a next program, in which there is
/// room for what it has not read.
#[tokio::test]
async fn what_waits_for_a_reader_goes_on_in_the_next_program() {
    const ALL: usize = 600;
    // What one may wait for at a time is less than is read at once: when that much was read, there is room for the
    // rest, and it is not lent any more.
    let sizes = &[850];
    let rules = Rules { tools: vec!["*".into()], capabilities: Map::new() };
    let mut connection = Connection::new(rules, Company::Strangers);
    connection.greeted_modern(false);
    let (input, stdin) = duplex(1 << 16);
    let (stdout, output) = duplex(1 << 16);
    let server = tokio::spawn(serve(stdin, stdout));
    let mut wire = Wire { input: Some(input), output, inbox: Inbox::default() };
    let (mouth, ear) = connection.sit().unwrap();
    let mut client = Client { who: 0, mouth, ear, said: 0, all: ALL, heard: Vec::new() };
    for reads in [false, true] {
        let running = connection.run(&mut wire, Opening::Straight, oneshot::channel().0);
        let talking = async {
            for _ in 0..20_000 {
                if reads {
                    client.ear.fill_at_once(&mut client.heard);
                    client.heard.retain(|byte| *byte == b'\n');
                }
                tokio::select! {
                    biased;
                    () = client.speak(sizes) => {}
                    () = yield_now() => {}
                }
            }
        };
        tokio::select! {
            () = talking => {}
            ended = running => panic!("{ended:?}"),
        }
        if !reads {
            assert_eq!((connection.in_flight(), client.ear.chair.queue.owes()), (0, true));
            assert!(client.ear.fill_at_once(&mut client.heard));
            client.heard.retain(|byte| *byte == b'\n');
            let carried = connection.carry(&mut Vec::new()).unwrap();
            let place = place(Some(&client.mouth), &mut client.ear);
            connection = Connection::carried(carried);
            (client.mouth, client.ear) = connection.sit_again(place).unwrap();
        }
    }
    assert_eq!(client.heard.len(), ALL, "answers");
    server.abort();
}
