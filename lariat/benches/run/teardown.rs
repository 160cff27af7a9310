//! Trees that do not want to leave: how long after the promised waits they are gone.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::Options;
use crate::peer::{Peer, Workshop, holders, pause, token};
use crate::report::{Report, median};

/// The waits of the ladder that this bench asks for. The linger has no option, so the grace is made
/// equal to it: a tree whose leader leaves at once then waits as long whichever begins first.
const GRACE: u64 = LINGER;
const TERM_GRACE: u64 = 200;
const LINGER: u64 = 250;

/// What the trial kit calls a tree, how many processes it has, and which waits it sits out.
const TREES: &[(&str, usize, u64)] = &[
    ("polite", 1, 0),
    ("ignores-eof", 1, GRACE),
    ("ignores-eof-and-term", 1, GRACE + TERM_GRACE),
    // The leader leaves at once; its deaf children do not.
    ("setsid-child", 2, LINGER + TERM_GRACE),
    ("double-fork", 2, LINGER + TERM_GRACE),
    (WIDE, 201, LINGER + TERM_GRACE),
];
const WIDE: &str = "wide-tree";
/// Four servers of fifty processes, all deaf, whose wrappers are killed at once.
const SERVERS: usize = 4;
const CHILDREN: usize = 49;

pub(crate) fn measure(shop: &Workshop, options: &Options, report: &mut Report) -> io::Result<()> {
    let rounds = options.rounds.min(5);
    let graces = ["--grace", &format!("{GRACE}ms"), "--term-grace", &format!("{TERM_GRACE}ms")];
    let lariat = shop.lariat_run(&graces);
    let mut rows = Vec::new();
    for (verb, members, waits) in TREES {
        let mut took = Vec::new();
        for _ in 0..rounds {
            let token = token(verb);
            let misbehave = [shop.lariat.as_str(), "__misbehave", verb, &token];
            let words: Vec<String> =
                lariat.iter().cloned().chain(misbehave.map(str::to_owned)).collect();
            let mut peer = Peer::start(&words, &token)?;
            peer.greet().map_err(|e| io::Error::other(format!("{verb}: {e}")))?;
            // Lariat's own two carry the token too.
            complete(&token, members + 2)?;
            took.push(peer.end()?.as_secs_f64() * 1e3);
            nobody(&token, verb)?;
        }
        rows.push(((*verb).to_owned(), row(*members, &took, *waits)));
    }
    if shop.stub.is_some() {
        let took: Vec<f64> =
            (0..rounds).map(|_| killed(shop, &lariat)).collect::<io::Result<_>>()?;
        let members = SERVERS * (CHILDREN + 1);
        rows.push(("4 wrappers killed".into(), row(members, &took, TERM_GRACE)));
    } else {
        report.skip("4 wrappers killed: no C compiler".into());
    }
    let columns = ["processes", "took ms", "of it waits", "after ms"];
    let title =
        format!("from closed input (or SIGKILL of the wrapper) to nobody left, {rounds} rounds");
    report.table(&title, &columns, &rows);
    let after = |name: &str| rows.iter().find(|(row, _)| row == name).map(|(_, row)| row[3]);
    for name in [WIDE, "4 wrappers killed"] {
        if let Some(after) = after(name) {
            report.bar(&format!("{name}: gone after the waits"), after, 50.0, "ms");
        }
    }
    Ok(())
}

fn row(members: usize, took: &[f64], waits: u64) -> Vec<f64> {
    vec![members as f64, median(took), waits as f64, median(took) - waits as f64]
}

/// From SIGKILL of all wrappers to the end of the last process of their trees.
fn killed(shop: &Workshop, lariat: &[String]) -> io::Result<f64> {
    let token = token("killed");
    let mut words = shop.stub.iter().fold(lariat.to_vec(), |mut words, stub| {
        words.push(stub.clone());
        words
    });
    words.extend(["-w".into(), CHILDREN.to_string()]);
    let mut peers = Vec::new();
    for _ in 0..SERVERS {
        let mut peer = Peer::start(&words, &token)?;
        peer.greet()?;
        peers.push(peer);
    }
    let everybody = complete(&token, SERVERS * (CHILDREN + 1 + 2))?;
    let mut held = Vec::new();
    for pid in everybody {
        held.push(pidfd_open(Pid::from_raw(pid as i32).expect("a pid"), PidfdFlags::empty())?);
    }
    let began = Instant::now();
    for peer in &mut peers {
        peer.kill()?;
    }
    for one in &held {
        // Readable means ended. The order does not matter: all must be.
        poll(&mut [PollFd::new(one, PollFlags::IN)], None)?;
    }
    let took = began.elapsed().as_secs_f64() * 1e3;
    nobody(&token, "4 wrappers killed")?;
    Ok(took)
}

/// Waits until the tree has all its members, and gives them.
fn complete(token: &str, members: usize) -> io::Result<Vec<u32>> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let found = holders(token);
        if found.len() >= members {
            return Ok(found);
        }
        if Instant::now() > deadline {
            let seen = format!("{token}: {} of {members} processes came up", found.len());
            return Err(io::Error::other(seen));
        }
        pause(Duration::from_millis(2));
    }
}

/// A survivor is not a slow number but a broken promise.
fn nobody(token: &str, what: &str) -> io::Result<()> {
    match holders(token).as_slice() {
        [] => Ok(()),
        left => Err(io::Error::other(format!("{what}: still alive after the end: {left:?}"))),
    }
}
