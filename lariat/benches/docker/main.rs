//! What the way through Lariat's socket costs a docker client: `cargo bench --bench docker`.
//!
//! Both ways run side by side against one engine of the bench's own, in interleaved rounds. Each bar
//! says PASS or MISS. A miss is a number to look at, not an error.
//!
//! ```text
//! --rounds N   rounds of each comparison (15)
//! --pings N    round trips per round (300)
//! --mib N      size of the image that is loaded (500)
//! --json       one JSON object instead of tables
//! ```
#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench prints")]
#![expect(clippy::unwrap_used, reason = "a bench has nothing to recover")]

#[expect(dead_code, reason = "the tests use more of it")]
#[path = "../../tests/engine/engine.rs"]
mod engine;
#[expect(dead_code, reason = "the tests use more of it")]
#[path = "../../tests/engine/eyes.rs"]
mod eyes;
#[expect(dead_code, reason = "the tests use more of it")]
#[path = "../../tests/engine/machine.rs"]
mod machine;
#[path = "../run/report.rs"]
mod report;
#[path = "../../tests/engine/room.rs"]
mod room;

use engine::{Engine, Kind};
use report::{Report, median, ratio};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

const LARIAT: &str = env!("CARGO_BIN_EXE_lariat");

struct Options {
    rounds: usize,
    pings: usize,
    mib: usize,
    json: bool,
}

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("bench: {why}");
            return ExitCode::FAILURE;
        }
    };
    let mut report = Report::new(options.json);
    match Kind::Docker.missing() {
        Some(why) => report.skip(format!("everything: {why}")),
        None => {
            let engine = Engine::start(Kind::Docker);
            round_trips(&engine, &options, &mut report);
            uploads(&engine, &options, &mut report);
        }
    }
    report.finish();
    ExitCode::SUCCESS
}

fn options(words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { rounds: 15, pings: 300, mib: 500, json: false };
    let mut words = words;
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|n| n.parse().ok()).ok_or("a number is missing");
        match word.as_str() {
            "--rounds" => options.rounds = number()?,
            "--pings" => options.pings = number()?,
            "--mib" => options.mib = number()?,
            "--json" => options.json = true,
            // Cargo says so to every bench.
            "--bench" => {}
            other => return Err(format!("unknown option {other}; see the top of the file")),
        }
    }
    Ok(options)
}

/// A command as a client of the engine, bare or under Lariat.
fn client(engine: &Engine, held: bool, words: &[&str]) -> Command {
    let mut command = Command::new(if held { LARIAT } else { words[0] });
    if held {
        command.args(["run", "--max-starts", "off", "--state-dir"]);
        command.arg(engine.path("state")).arg("--").arg(words[0]);
    }
    command.args(&words[1..]);
    engine.client(&command)
}

/// A container that says what it hears.
struct Echo {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Echo {
    fn start(engine: &Engine, held: bool) -> Echo {
        let words = ["docker", "run", "-i", "--rm", "--network", "none", "bb:latest", "cat"];
        let mut command = client(engine, held, &words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Echo { child, to, from }
    }

    /// The median of so many round trips, in microseconds.
    fn round(&mut self, pings: usize) -> f64 {
        let (line, mut heard) = ([b"x".repeat(200).as_slice(), b"\n"].concat(), Vec::new());
        let mut micros = Vec::with_capacity(pings);
        for _ in 0..pings {
            let began = Instant::now();
            self.to.as_mut().unwrap().write_all(&line).unwrap();
            heard.clear();
            self.from.read_until(b'\n', &mut heard).unwrap();
            micros.push(began.elapsed().as_secs_f64() * 1e6);
            assert_eq!(heard, line);
        }
        median(&micros)
    }

    fn end(mut self) {
        drop(self.to.take());
        assert!(self.child.wait().unwrap().success());
    }
}

fn round_trips(engine: &Engine, options: &Options, report: &mut Report) {
    let names = ["direct", "lariat", "direct again"];
    let mut echoes = [false, true, false].map(|held| Echo::start(engine, held));
    let mut found = [const { Vec::new() }; 3];
    for round in 0..=options.rounds {
        // Nobody is always first, and the first round is nobody's.
        for at in (0..3).map(|n| (n + round) % 3) {
            let micros = echoes[at].round(options.pings);
            if round > 0 {
                found[at].push(micros);
            }
        }
    }
    echoes.into_iter().for_each(Echo::end);
    let row = |at: usize| vec![median(&found[at]), ratio(&found[at], &found[0])];
    let rows: Vec<_> =
        names.iter().enumerate().map(|(at, name)| (name.to_string(), row(at))).collect();
    report.table("docker run -i, round trip of 200 bytes", &["p50 µs", "× direct"], &rows);
    report.bar("docker run -i, × direct", ratio(&found[1], &found[0]), 1.1, "");
}

fn uploads(engine: &Engine, options: &Options, report: &mut Report) {
    let archive = engine.path("big.tar");
    let archive = archive.to_str().unwrap();
    save_image(engine, options.mib, archive);
    // Its own peak is read by the shell while the proxy still lives.
    let script = format!(
        "docker load -qi {archive} >/dev/null && for p in /proc/[0-9]*; do \
         [ \"$(cat $p/comm 2>/dev/null)\" = lariat-docker ] && \
         grep -q '{}' $p/cmdline && grep VmHWM $p/status; done; :",
        engine.path("state").display()
    );
    let mut seconds = [const { Vec::new() }; 2];
    let mut peak = 0f64;
    for round in 0..options.rounds.min(5) * 2 {
        let held = round % 2 == 1;
        remove_image(engine);
        let began = Instant::now();
        let mut command = client(engine, held, &["sh", "-c", &script]);
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success());
        seconds[usize::from(held)].push(began.elapsed().as_secs_f64());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let kilobytes = said.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
        peak = kilobytes.fold(peak, f64::max);
    }
    let rate = |of: &[f64]| of.iter().map(|s| options.mib as f64 / s).collect::<Vec<f64>>();
    let (direct, held) = (rate(&seconds[0]), rate(&seconds[1]));
    let rows = [("direct", &direct), ("lariat", &held)]
        .map(|(name, of)| (name.to_string(), vec![median(of), ratio(of, &direct)]));
    let title = format!("docker load of {} MiB", options.mib);
    report.table(&title, &["MiB/s", "× direct"], &rows);
    report.bar("docker load, time × direct", ratio(&seconds[1], &seconds[0]), 1.0 / 0.9, "");
    report.bar("the proxy's memory at its largest", peak / 1024.0, 8.0, "MiB");
}

/// Saves an image of that size whose bytes cannot be packed any smaller.
fn save_image(engine: &Engine, mib: usize, archive: &str) {
    let folder = engine.path("big");
    fs::create_dir(&folder).unwrap();
    let mut noise = fs::File::open("/dev/urandom").unwrap().take((mib as u64) << 20);
    std::io::copy(&mut noise, &mut fs::File::create(folder.join("noise")).unwrap()).unwrap();
    let script = format!(
        "tar -C {} -c . | docker import - big:latest >/dev/null && docker save big:latest -o {archive}",
        folder.display()
    );
    assert!(client(engine, false, &["sh", "-c", &script]).status().unwrap().success());
}

fn remove_image(engine: &Engine) {
    let mut command = client(engine, false, &["docker", "rmi", "-f", "big:latest"]);
    assert!(command.stdout(Stdio::null()).status().unwrap().success());
}
