//! Many sessions of the same few servers: as many trees as servers, whatever the number of sessions.

use crate::client::Client;
use crate::stage::{Stage, is_full, memory, trial};
use libtest_mimic::Trial;

const SERVERS: [&str; 4] = ["one", "two", "three", "four"];

pub(crate) fn tests() -> Vec<Trial> {
    vec![trial("trees::as_many_as_servers", as_many_as_servers)]
}

fn as_many_as_servers() {
    let sessions = if is_full() { 200 } else { 40 };
    let stage = Stage::new();
    let meet = |word: &str| {
        let mut client = stage.meet(&[word]);
        client.greet();
        client.server();
        client
    };
    let mut clients: Vec<Client> = SERVERS.iter().map(|word| meet(word)).collect();
    assert_eq!(stage.servers().len(), SERVERS.len());
    let (few, _) = memory(stage.daemon());
    for _ in 1..sessions {
        clients.extend(SERVERS.iter().map(|word| meet(word)));
    }
    let servers = stage.servers();
    assert_eq!(servers.len(), SERVERS.len(), "one tree for each server");
    let (many, _) = memory(stage.daemon());
    let joined = clients.len() - SERVERS.len();
    let wrappers: u64 = clients.iter().map(|client| memory(client.process()).0).sum();
    println!(
        "{} sessions of {} servers: {:.1} kB each in the daemon, {} kB each in the wrapper",
        clients.len(),
        SERVERS.len(),
        many.saturating_sub(few) as f64 / joined as f64,
        wrappers / clients.len() as u64,
    );
    clients.into_iter().for_each(Client::leave);
    let (after, _) = memory(stage.daemon());
    println!("the daemon has {few} kB with few, {many} kB with many, {after} kB afterwards");
    stage.close();
}
