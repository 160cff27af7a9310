//! Round trips and throughput over pipes, as stdio hosts have them.

use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use crate::Options;
use crate::daemon::Daemon;
use crate::peer::{Call, Peer, Workshop, Wrapper, token};
use crate::report::{Report, median, quantile, ratio};

const HELLO: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","#,
    r#""capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#,
    "\n"
);
const SETTLED: &str = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";

/// Sessions that call at once.
const SESSIONS: usize = 16;
/// Calls that a session has in flight.
const DEPTH: usize = 32;
/// Calls of a session in a round.
const CALLS: usize = 64 * DEPTH;
/// What a call may take when all of them are in a hurry: 50,000 in a second.
const BAR: f64 = 20.0;

/// One contender and what was seen of it, round by round.
struct Runner {
    name: String,
    peer: Peer,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

/// Everything on one CPU, so that the ratio is the code's and not the scheduler's.
pub(crate) fn latency(shop: &Workshop, options: &Options, report: &mut Report) -> io::Result<()> {
    let _pinned = options.cpu.map(Pinned::to).transpose()?;
    let daemon = Daemon::start(shop, "latency", &[])?;
    let relay = Wrapper { name: "relay".into(), words: shop.lariat_run(&["--relay"]) };
    let bare = |name: &str| Wrapper { name: name.into(), words: vec![] };
    let wrappers = [bare("bare"), bare("bare again"), relay, daemon.sharing(shop)];
    let mut runners = Vec::new();
    for wrapper in wrappers {
        let mut peer = Peer::start(&shop.stub(&wrapper), &token("latency"))?;
        peer.greet().map_err(|e| io::Error::other(format!("{}: {e}", wrapper.name)))?;
        peer.settle()?;
        runners.push(Runner { name: wrapper.name, peer, p50: vec![], p99: vec![] });
    }
    for round in 0..options.rounds {
        // Nobody is always first.
        let (count, first) = (runners.len(), round % runners.len());
        for at in (first..count).chain(0..first) {
            runners[at].round(options.pings)?;
        }
    }
    let find = |name: &str| runners.iter().find(|runner| runner.name == name).expect("it ran");
    let (bare, relay) = (find("bare"), find("relay"));
    let rows: Vec<_> = runners
        .iter()
        .map(|r| {
            let p50 = [median(&r.p50), ratio(&r.p50, &bare.p50), ratio(&r.p50, &relay.p50)];
            (r.name.clone(), [&p50[..], &[median(&r.p99)]].concat())
        })
        .collect();
    let title = format!(
        "round trip of a 200-byte tools/call over pipes, {} rounds of {}",
        options.rounds, options.pings,
    );
    report.table(&title, &["p50 µs", "× bare", "× relay", "p99 µs"], &rows);
    report.bar("pool p50, × relay", ratio(&find("pool").p50, &relay.p50), 2.0, "");
    Ok(())
}

impl Runner {
    fn round(&mut self, pings: usize) -> io::Result<()> {
        let mut call = Call::of(200);
        let mut micros = Vec::with_capacity(pings);
        for ping in 0..pings + pings / 10 {
            let line = call.next();
            let began = Instant::now();
            self.peer.ask(line)?;
            if ping >= pings / 10 {
                micros.push(began.elapsed().as_secs_f64() * 1e6);
            }
        }
        self.p50.push(median(&micros));
        self.p99.push(quantile(&micros, 0.99));
        Ok(())
    }
}

/// As many calls as the machine can do, on all its CPUs.
pub(crate) fn throughput(
    shop: &Workshop,
    options: &Options,
    report: &mut Report,
) -> io::Result<()> {
    let daemon = Daemon::start(shop, "throughput", &[])?;
    let bare = Wrapper { name: "bare".into(), words: vec![] };
    let contenders = [
        ("bare, one client", &bare, 1),
        ("pool, one session", &daemon.sharing(shop), 1),
        ("pool, 16 sessions", &daemon.sharing(shop), SESSIONS),
    ];
    let mut crews = Vec::new();
    for (_, wrapper, sessions) in &contenders {
        // One word for a crew: who has another environment has another server.
        let token = token("throughput");
        let crew: io::Result<Vec<Rower>> =
            (0..*sessions).map(|_| Rower::start(&shop.stub(wrapper), &token)).collect();
        crews.push((crew?, Vec::new()));
    }
    // One round more: the first is for the caches.
    for _ in 0..=options.rounds {
        for (crew, seen) in &mut crews {
            let each = CALLS * SESSIONS / crew.len();
            let began = Instant::now();
            std::thread::scope(|scope| {
                let row = |rower| scope.spawn(move || Rower::row(rower, each));
                let threads: Vec<_> = crew.iter_mut().map(row).collect();
                threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
            })?;
            seen.push(began.elapsed().as_secs_f64() * 1e6 / (CALLS * SESSIONS) as f64);
        }
    }
    let rows: Vec<_> = contenders
        .iter()
        .zip(&crews)
        .map(|((name, ..), (_, seen))| {
            let micros = median(&seen[1..]);
            ((*name).to_owned(), vec![1e6 / micros, micros])
        })
        .collect();
    let title =
        format!("200-byte calls, {DEPTH} of each session in flight, {} rounds", options.rounds);
    report.table(&title, &["calls/s", "µs each"], &rows);
    report.bar("pool, 16 sessions: a call", rows[2].1[1], BAR, "µs (50,000 in a second)");
    Ok(())
}

/// A client that says many calls with one breath, so that it costs less than what it measures.
struct Rower {
    child: Child,
    to: Option<ChildStdin>,
    from: ChildStdout,
    buffer: Vec<u8>,
}

impl Rower {
    fn start(words: &[String], token: &str) -> io::Result<Rower> {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("LARIAT_BENCH_TOKEN", token);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let (to, from) = (child.stdin.take(), child.stdout.take().expect("piped"));
        let mut rower = Rower { child, to, from, buffer: vec![0; 1 << 16] };
        rower.say(HELLO.as_bytes())?;
        rower.hear(1)?;
        rower.say(SETTLED.as_bytes())?;
        Ok(rower)
    }

    /// Calls so often, with as many in flight as may be.
    fn row(&mut self, count: usize) -> io::Result<()> {
        let mut call = Call::of(200);
        let mut breath = Vec::new();
        for _ in 0..count / DEPTH {
            breath.clear();
            (0..DEPTH).for_each(|_| breath.extend_from_slice(call.next()));
            self.say(&breath)?;
            self.hear(DEPTH)?;
        }
        Ok(())
    }

    fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.as_mut().expect("not closed").write_all(bytes)
    }

    /// Hears that many lines.
    fn hear(&mut self, mut lines: usize) -> io::Result<()> {
        while lines > 0 {
            let got = self.from.read(&mut self.buffer)?;
            if got == 0 {
                return Err(io::Error::other("the server left"));
            }
            lines -= self.buffer[..got].iter().filter(|byte| **byte == b'\n').count();
        }
        Ok(())
    }
}

impl Drop for Rower {
    fn drop(&mut self) {
        drop(self.to.take());
        self.child.wait().ok();
    }
}

/// Runs on one CPU, with everybody who is started meanwhile, until it is dropped.
struct Pinned(rustix::thread::CpuSet);

impl Pinned {
    fn to(cpu: usize) -> io::Result<Pinned> {
        let before = rustix::thread::sched_getaffinity(None)?;
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set)?;
        Ok(Pinned(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        rustix::thread::sched_setaffinity(None, &self.0).ok();
    }
}
