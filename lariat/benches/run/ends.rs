//! The beginning and the end of a server that behaves.

use std::io;
use std::time::Instant;

use crate::Options;
use crate::peer::{Peer, Workshop, is_ours, token};
use crate::report::{Report, median};

pub(crate) fn measure(shop: &Workshop, options: &Options, report: &mut Report) -> io::Result<()> {
    let wrappers = shop.wrappers();
    let mut seen = vec![(vec![], vec![]); wrappers.len()];
    // One round more: the first finds nothing in the page cache.
    for round in 0..=options.rounds {
        for (wrapper, (starts, ends)) in wrappers.iter().zip(&mut seen) {
            let words = shop.stub(wrapper);
            let began = Instant::now();
            let mut peer = Peer::start(&words, &token("ends"))?;
            peer.greet().map_err(|e| io::Error::other(format!("{}: {e}", wrapper.name)))?;
            let start = began.elapsed();
            let end = peer.end()?;
            if round > 0 {
                starts.push(start.as_secs_f64() * 1e3);
                ends.push(end.as_secs_f64() * 1e3);
            }
        }
    }
    let more = |of: &[f64], than: &[f64]| {
        let pairs = of.iter().zip(than);
        median(&pairs.map(|(one, base)| one - base).collect::<Vec<_>>())
    };
    let (bare_starts, bare_ends) = &seen[0];
    let rows: Vec<_> = wrappers
        .iter()
        .zip(&seen)
        .map(|(wrapper, (starts, ends))| {
            let start = [median(starts), more(starts, bare_starts)];
            let end = [median(ends), more(ends, bare_ends)];
            (wrapper.name.clone(), [start, end].concat())
        })
        .collect();
    let columns = ["start ms", "added", "end ms", "added at end"];
    report.table("from spawn to the first answer; from closed input to exit", &columns, &rows);
    for (name, row) in rows.iter().filter(|(name, _)| is_ours(name)) {
        report.bar(&format!("{name}: start-up added"), row[1], 5.0, "ms");
        report.bar(&format!("{name}: end of a polite server added"), row[3], 10.0, "ms");
    }
    Ok(())
}
