//! Round trips and throughput: what a byte pays on its way.

use std::io;
use std::time::Instant;

use crate::Options;
use crate::peer::{Call, Peer, Workshop, Wrapper, token};
use crate::report::{Report, median, quantile, ratio};
use crate::seat;

const SMALL: (usize, usize) = (1 << 10, 10_000);
const LARGE: (usize, usize) = (1 << 20, 50);

/// Messages that are sent one by one beside the small one: their lengths, and one in how many of its
/// round trips there are.
const LONGER: [(usize, usize, [&str; 3]); 2] = [
    (16 << 10, 10, ["16 KiB µs", "× bare", "× c-relay"]),
    (1 << 20, 100, ["1 MiB µs", "× bare 1 MiB", "× c-relay 1M"]),
];

/// The bare server where Lariat puts it.
const IN_A_CGROUP: &str = "bare, cgroup";

/// One wrapper in the race and what was seen of it, round by round.
struct Runner {
    name: String,
    peer: Peer,
    p50: Vec<f64>,
    p99: Vec<f64>,
    /// The median of each longer message.
    longer: [Vec<f64>; 2],
    small: Vec<f64>,
    large: Vec<f64>,
}

pub(crate) fn measure(shop: &Workshop, options: &Options, report: &mut Report) -> io::Result<()> {
    let mut wrappers = shop.wrappers();
    // The bare server a second time shows how much of a ratio is noise. In a session of its own,
    // where Lariat too puts it, it shows what the kernel takes for that: it schedules sessions
    // against each other (autogroups), and a switch between two costs more than one within.
    let own = |words: &[String]| [words, shop.stub.as_slice(), &["-s".into()]].concat();
    let floor = wrappers.iter().find(|wrapper| wrapper.name == "c-relay").map(|w| own(&w.words));
    wrappers.push(Wrapper { name: "bare again".into(), words: vec![] });
    wrappers.push(Wrapper { name: "bare, session".into(), words: own(&[]) });
    wrappers.extend(floor.map(|words| Wrapper { name: "c-relay, session".into(), words }));
    // And in a cgroup of its own, where Lariat puts it as well: what the kernel takes for accounting
    // there is no choice of ours.
    let leaf = (options.backend == "auto").then(seat::Leaf::make).flatten();
    if let (Some(leaf), Some(stub)) = (&leaf, &shop.stub) {
        let words = vec![stub.clone(), "-c".into(), leaf.0.display().to_string()];
        wrappers.push(Wrapper { name: IN_A_CGROUP.into(), words });
    }
    let mut runners = Vec::new();
    for wrapper in wrappers {
        let mut peer = Peer::start(&shop.stub(&wrapper), &token("speed"))?;
        peer.greet().map_err(|e| io::Error::other(format!("{}: {e}", wrapper.name)))?;
        peer.settle()?;
        let (p50, p99, small, large) = (vec![], vec![], vec![], vec![]);
        let longer = [vec![], vec![]];
        runners.push(Runner { name: wrapper.name, peer, p50, p99, longer, small, large });
    }
    for round in 0..options.rounds {
        // Nobody is always first.
        let (count, first) = (runners.len(), round % runners.len());
        for at in (first..count).chain(0..first) {
            runners[at].round(options.pings)?;
        }
    }
    tell(&runners, options, report);
    // Whoever is in the leaf leaves before it does.
    drop(runners);
    drop(leaf);
    Ok(())
}

impl Runner {
    fn round(&mut self, pings: usize) -> io::Result<()> {
        let micros = self.trips(200, pings)?;
        self.p50.push(median(&micros));
        self.p99.push(quantile(&micros, 0.99));
        for (at, (length, fewer, _)) in LONGER.into_iter().enumerate() {
            let micros = self.trips(length, (pings / fewer).max(10))?;
            self.longer[at].push(median(&micros));
        }
        for ((length, count), found) in [(SMALL, &mut self.small), (LARGE, &mut self.large)] {
            let time = self.peer.flood(&mut Call::of(length), count)?;
            found.push(count as f64 / time.as_secs_f64());
        }
        Ok(())
    }

    /// The times of that many round trips of messages of a length, in microseconds.
    fn trips(&mut self, length: usize, count: usize) -> io::Result<Vec<f64>> {
        let mut call = Call::of(length);
        for _ in 0..count / 10 {
            self.peer.ask(call.next())?;
        }
        let mut micros = Vec::with_capacity(count);
        for _ in 0..count {
            let line = call.next();
            let began = Instant::now();
            self.peer.ask(line)?;
            micros.push(began.elapsed().as_secs_f64() * 1e6);
        }
        Ok(micros)
    }
}

fn tell(runners: &[Runner], options: &Options, report: &mut Report) {
    let find = |name: &str| runners.iter().find(|runner| runner.name == name).expect("it ran");
    let (bare, floor) = (find("bare"), find("c-relay"));
    let rows: Vec<_> = runners
        .iter()
        .map(|r| {
            let p50 = [median(&r.p50), ratio(&r.p50, &bare.p50), ratio(&r.p50, &floor.p50)];
            let p99 = [median(&r.p99), ratio(&r.p99, &bare.p99)];
            (r.name.clone(), [&p50[..], &p99].concat())
        })
        .collect();
    let title = format!(
        "round trip of a 200-byte tools/call, {} rounds of {} on {}",
        options.rounds,
        options.pings,
        options.cpu.map_or("any CPU".into(), |cpu| format!("CPU {cpu}")),
    );
    report.table(&title, &["p50 µs", "× bare", "× c-relay", "p99 µs", "× bare p99"], &rows);
    let beside =
        |of: &[f64], bare: &[f64], floor: &[f64]| [median(of), ratio(of, bare), ratio(of, floor)];
    let longer = |r: &Runner, at: usize| beside(&r.longer[at], &bare.longer[at], &floor.longer[at]);
    let rows: Vec<_> =
        runners.iter().map(|r| (r.name.clone(), [longer(r, 0), longer(r, 1)].concat())).collect();
    let columns = LONGER.map(|(.., columns)| columns).concat();
    report.table("round trip of longer ones, p50", &columns, &rows);
    let rows: Vec<_> = runners
        .iter()
        .map(|r| {
            let small = beside(&r.small, &bare.small, &floor.small);
            let large = beside(&r.large, &bare.large, &floor.large);
            (r.name.clone(), [small, large].concat())
        })
        .collect();
    let columns =
        ["1 KiB msg/s", "× bare", "× c-relay", "1 MiB msg/s", "× bare 1 MiB", "× c-relay 1M"];
    report.table("throughput, pipelined, both ways", &columns, &rows);
    let (direct, relay, watched) = (find("direct"), find("relay"), find("watched"));
    report.bar("direct p50, × bare", ratio(&direct.p50, &bare.p50), 1.02, "");
    if let Some(held) = runners.iter().find(|runner| runner.name == IN_A_CGROUP) {
        report.bar("direct p50, × bare, cgroup", ratio(&direct.p50, &held.p50), 1.02, "");
    }
    report.bar("relay p50, × c-relay", ratio(&relay.p50, &floor.p50), 1.15, "");
    report.bar("watched p50, × c-relay", ratio(&watched.p50, &floor.p50), 1.15, "");
}
