//! A server that was put to sleep, and a host that speaks with it again: how much longer it waits for
//! its answer than a host that starts the same server bare, greets it and calls.

use std::io;
use std::time::{Duration, Instant};

use crate::Options;
use crate::peer::{Peer, Workshop, holders, pause, token};
use crate::report::{Report, median};

/// How long a server must be silent here before it sleeps.
const IDLE: &str = "50ms";

/// How much longer waking may take than starting, in milliseconds.
const MORE: f64 = 10.0;

/// Nobody needs this long to fall asleep.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn measure(shop: &Workshop, options: &Options, report: &mut Report) -> io::Result<()> {
    let servers = shop.servers();
    if servers.len() < 2 {
        report.skip("wake of server-everything: LARIAT_CLIENTS is not set (see ./test)".into());
    }
    let mut rows = Vec::new();
    for (name, server) in servers {
        let wrapped = [shop.lariat_run(&["--idle", IDLE]), server.clone()].concat();
        let failed = |e| io::Error::other(format!("{name}: {e}"));
        let (starts, wakes) = race(&server, &wrapped, options.rounds).map_err(failed)?;
        let pairs: Vec<f64> = wakes.iter().zip(&starts).map(|(wake, start)| wake - start).collect();
        let row = [median(&starts), median(&wakes), median(&wakes) - median(&starts)];
        rows.push((name.to_owned(), [&row[..], &[median(&pairs)]].concat()));
    }
    let title = format!(
        "from spawn, or from a message to a sleeping server, to the answer of a call, {} rounds",
        options.rounds
    );
    report.table(&title, &["bare start ms", "wake ms", "added ms", "by pairs ms"], &rows);
    for (name, row) in &rows {
        report.bar(&format!("{name}: added by waking"), row[2], MORE, "ms");
    }
    Ok(())
}

/// The times of bare starts and of wakes in turns, in milliseconds.
fn race(bare: &[String], wrapped: &[String], rounds: usize) -> io::Result<(Vec<f64>, Vec<f64>)> {
    let (mut starts, mut wakes) = (Vec::new(), Vec::new());
    let word = token("wake");
    let mut sleeper = Peer::start(wrapped, &word)?;
    sleeper.introduce()?;
    // One round more: the first finds nothing in the page cache.
    for round in 0..=rounds {
        let began = Instant::now();
        let mut peer = Peer::start(bare, &token("bare"))?;
        peer.introduce()?;
        let start = began.elapsed();
        peer.end()?;
        asleep(&sleeper, &word)?;
        let began = Instant::now();
        sleeper.call(10 + round as u64)?;
        let wake = began.elapsed();
        if round > 0 {
            starts.push(start.as_secs_f64() * 1e3);
            wakes.push(wake.as_secs_f64() * 1e3);
        }
    }
    sleeper.end()?;
    Ok((starts, wakes))
}

/// Waits until only the wrapper is left of its processes, and has nothing more to do.
pub(crate) fn asleep(peer: &Peer, token: &str) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while holders(token) != [peer.pid()] {
        if Instant::now() > deadline {
            return Err(io::Error::other("the server does not fall asleep"));
        }
        pause(Duration::from_millis(5));
    }
    // It writes down what it saw.
    pause(Duration::from_millis(20));
    Ok(())
}
