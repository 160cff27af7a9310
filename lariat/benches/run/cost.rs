//! What Lariat costs while nothing happens: private memory, CPU, wake-ups. Also while the server is
//! asleep, and only the wrapper is there.

use std::fs;
use std::io;

use crate::Options;
use crate::peer::{Peer, Workshop, Wrapper, holders, is_ours, pause, token};
use crate::report::Report;
use crate::wake;
use std::time::Duration;

/// One megabyte, for both processes together.
const MEMORY: f64 = 1000.0;

/// The wrapper whose server sleeps as soon as it may.
const ASLEEP: &str = "asleep";

pub(crate) fn measure(shop: &Workshop, options: &Options, report: &mut Report) -> io::Result<()> {
    let mut watched = Vec::new();
    let asleep = Wrapper { name: ASLEEP.into(), words: shop.lariat_run(&["--idle", "50ms"]) };
    for wrapper in shop.wrappers().into_iter().chain([asleep]) {
        if wrapper.words.is_empty() {
            continue;
        }
        let token = token("cost");
        let mut peer = Peer::start(&shop.stub(&wrapper), &token)?;
        peer.introduce()?;
        if wrapper.name == ASLEEP {
            wake::asleep(&peer, &token)?;
        }
        watched.push((wrapper.name, token, peer));
    }
    // Start-up is not idling.
    pause(Duration::from_millis(500));
    let server = shop.stub.as_deref().unwrap_or_default();
    let before: Vec<Spent> =
        watched.iter().map(|(_, token, _)| spent(token, server)).collect::<io::Result<_>>()?;
    pause(options.idle);
    let mut rows = Vec::new();
    for ((name, token, peer), before) in watched.iter().zip(before) {
        let after = spent(token, server)?;
        if after.processes == 0 {
            return Err(io::Error::other(format!("{name} ({}) has left", peer.pid())));
        }
        if name == ASLEEP && holders(token) != [peer.pid()] {
            return Err(io::Error::other(format!("{name}: somebody woke it")));
        }
        let (ticks, wakes) = (after.ticks - before.ticks, after.wakes - before.wakes);
        rows.push((name.clone(), vec![after.processes as f64, after.private, ticks, wakes]));
    }
    let title = format!("wrapper and guardian together, idle for {:?}", options.idle);
    report.table(&title, &["processes", "private kB", "CPU ticks", "wake-ups"], &rows);
    for (name, row) in rows.iter().filter(|(name, _)| is_ours(name) || name == ASLEEP) {
        report.bar(&format!("{name}: private memory"), row[1], MEMORY, "kB");
        report.bar(&format!("{name}: CPU ticks while idle"), row[2], 0.0, "");
    }
    Ok(())
}

/// What the processes of one run hold and have used, the server left out.
struct Spent {
    processes: usize,
    /// Private_Clean and Private_Dirty, in units of 1000 bytes.
    private: f64,
    ticks: f64,
    wakes: f64,
}

fn spent(token: &str, server: &str) -> io::Result<Spent> {
    let mut sum = Spent { processes: 0, private: 0.0, ticks: 0.0, wakes: 0.0 };
    for pid in holders(token) {
        let file = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}"));
        if fs::read_link(format!("/proc/{pid}/exe"))?.as_os_str() == server {
            continue;
        }
        let maps = file("smaps_rollup")?;
        let private = field(&maps, "Private_Clean:") + field(&maps, "Private_Dirty:");
        // After the name, which may hold anything: state is field 3, utime 14, stime 15.
        let stat = file("stat")?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let tick = |n: usize| fields.get(n - 3).and_then(|t| t.parse().ok()).unwrap_or(f64::NAN);
        sum.processes += 1;
        sum.private += private * 1024.0 / 1000.0;
        sum.ticks += tick(14) + tick(15);
        sum.wakes += field(&file("status")?, "voluntary_ctxt_switches:");
    }
    Ok(sum)
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(f64::NAN)
}
