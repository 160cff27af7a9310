//! The gateway beside those that others use: the same client, the same server, the same run.

use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Options;
use crate::checker;
use crate::daemon::Daemon;
use crate::http::Session;
use crate::memory::everybody;
use crate::peer::{Workshop, pause};
use crate::report::{Report, median, quantile, ratio};

/// Sessions that call at once.
const SESSIONS: usize = 16;

/// What is compared, in the versions of today.
const PACKAGES: [&str; 2] = ["supergateway@4.0.0", "mcp-proxy@6.7.19"];
const PYTHON: &str = "mcp-proxy==0.13.0";

/// One gateway in the race.
struct Front {
    name: &'static str,
    address: String,
    path: &'static str,
    /// Where in the table.
    place: usize,
    /// Kept for its end.
    running: Running,
    calm: Vec<Session>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    /// Time for a call while all sessions are in a hurry.
    hurry: Vec<f64>,
}

enum Running {
    Ours(Daemon),
    Theirs(Child),
}

impl Running {
    fn pid(&self) -> u32 {
        match self {
            Running::Ours(daemon) => daemon.pid(),
            Running::Theirs(child) => child.id(),
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.calm.clear();
        if let Running::Theirs(child) = &mut self.running {
            // Their servers end with their input.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

pub(crate) fn measure(shop: &Workshop, options: &Options, report: &mut Report) -> io::Result<()> {
    if options.fetch {
        fetch(options)?;
    }
    let mut fronts = Vec::new();
    for (name, share) in [("lariat, shared", true), ("lariat, own", false)] {
        match ours(shop, name, share) {
            Ok(front) => fronts.push(front),
            Err(error) => report.skip(format!("{name}: {error}")),
        }
    }
    for other in others(options)? {
        match theirs(&other) {
            Ok(front) => fronts.push(front),
            Err(error) => report.skip(format!("{}: {error} (--fetch installs it)", other.name)),
        }
    }
    let mut ready = Vec::new();
    for mut front in fronts {
        let open = |_| Session::open(&front.address, front.path);
        let sessions: io::Result<Vec<Session>> = (0..SESSIONS).map(open).collect();
        match sessions {
            Ok(sessions) => {
                (front.calm, front.place) = (sessions, ready.len());
                ready.push(front);
            }
            Err(error) => report.skip(format!("{}: {error}", front.name)),
        }
    }
    for _ in 0..options.rounds {
        // Nobody is always first, and who fails is out.
        let next = usize::from(!ready.is_empty());
        ready.rotate_left(next);
        let mut left = Vec::new();
        for mut front in ready {
            match front.round(options.pings / 10) {
                Ok(()) => left.push(front),
                Err(error) => report.skip(format!("{}: {error}", front.name)),
            }
        }
        ready = left;
    }
    ready.sort_by_key(|front| front.place);
    tell(&ready, options, report);
    Ok(())
}

impl Front {
    fn round(&mut self, pings: usize) -> io::Result<()> {
        self.calm.iter_mut().try_for_each(Session::renew)?;
        let mut micros = Vec::with_capacity(pings);
        for ping in 0..pings + pings / 10 {
            let began = Instant::now();
            self.calm[0].call()?;
            if ping >= pings / 10 {
                micros.push(began.elapsed().as_secs_f64() * 1e6);
            }
        }
        self.p50.push(median(&micros));
        self.p99.push(quantile(&micros, 0.99));
        let each = pings.max(10);
        let began = Instant::now();
        std::thread::scope(|scope| {
            let run = |session: &mut Session| (0..each).try_for_each(|_| session.call());
            let threads: Vec<_> =
                self.calm.iter_mut().map(|session| scope.spawn(move || run(session))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        self.hurry.push(began.elapsed().as_secs_f64() * 1e6 / (each * SESSIONS) as f64);
        Ok(())
    }
}

fn tell(fronts: &[Front], options: &Options, report: &mut Report) {
    let Some(lariat) = fronts.first().filter(|front| front.name.starts_with("lariat")) else {
        return report.skip("the comparison: our own gateway does not answer".into());
    };
    let held = |front: &Front| everybody(front.running.pid()) / 1000.0;
    let rows: Vec<_> = fronts
        .iter()
        .map(|front| {
            let speed = [median(&front.p50), ratio(&front.p50, &lariat.p50), median(&front.p99)];
            let rate = 1e6 / median(&front.hurry);
            let more = [rate, 1.0 / ratio(&front.hurry, &lariat.hurry), held(front)];
            (front.name.to_owned(), [speed, more].concat())
        })
        .collect();
    let title = format!(
        "HTTP: a 200-byte call alone, and {SESSIONS} sessions in a hurry; {} rounds",
        options.rounds
    );
    let columns = ["p50 µs", "× ours", "p99 µs", "calls/s", "× ours", "PSS MB"];
    report.table(&title, &columns, &rows);
    for front in fronts.iter().filter(|front| !front.name.starts_with("lariat")) {
        let name = front.name;
        report.bar(&format!("latency, × {name}"), ratio(&lariat.p50, &front.p50), 1.0, "");
        report.bar(
            &format!("time for a call, × {name}"),
            ratio(&lariat.hurry, &front.hurry),
            1.0,
            "",
        );
        report.bar(&format!("memory, × {name}"), held(lariat) / held(front), 1.0, "");
    }
}

/// The server behind all of them is the checker of the trials: the C program reads too little of what
/// is said for gateways that speak for themselves.
fn server() -> io::Result<[String; 3]> {
    let me = std::env::current_exe()?.display().to_string();
    Ok([me, checker::FLAG.into(), "fronts".into()])
}

fn ours(shop: &Workshop, name: &'static str, share: bool) -> io::Result<Front> {
    let config = shop.room.join(format!("{share}.toml"));
    let [command, flag, word] = server()?;
    let args = format!("args = [\"{flag}\", \"{word}\"]");
    fs::write(
        &config,
        format!("[servers.checker]\ncommand = \"{command}\"\n{args}\nshare = {share}\n"),
    )?;
    let config = config.display().to_string();
    let options = ["--config", &config, "--http", "127.0.0.1:0", "--no-token"];
    let daemon = Daemon::start(shop, &format!("front-{share}"), &options)?;
    let address = daemon.address.clone();
    Ok(Front::new(name, address, "/servers/checker/mcp", Running::Ours(daemon)))
}

impl Front {
    fn new(name: &'static str, address: String, path: &'static str, running: Running) -> Front {
        let (p50, p99, hurry) = (vec![], vec![], vec![]);
        Front { name, address, path, place: 0, running, calm: vec![], p50, p99, hurry }
    }
}

/// One that others use: where it serves MCP, and how it is started on a port (`PORT`).
struct Other {
    name: &'static str,
    words: Vec<String>,
}

fn others(options: &Options) -> io::Result<[Other; 3]> {
    let server = server()?;
    let line = server.join(" ");
    let home = options.clients.as_deref().unwrap_or(Path::new("/nowhere")).join("peers");
    let script = |name: &str| home.join("node_modules/.bin").join(name).display().to_string();
    let words = |program: &[&str], words: &[&str], rest: &[String]| {
        let own = program.iter().chain(words).map(ToString::to_string);
        own.chain(rest.iter().cloned()).collect::<Vec<String>>()
    };
    let supergateway = ["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none"];
    let stdio = ["--port".into(), "PORT".into(), "--stdio".into(), line];
    let proxy = ["--host", "127.0.0.1", "--server", "stream", "--port", "PORT", "--"];
    let python = home.join("py/bin/mcp-proxy").display().to_string();
    let python_words = ["--log-level", "ERROR", "--port", "PORT", "--"];
    Ok([
        Other {
            // One process for each session: the only way of its that keeps a session.
            name: "supergateway 4.0.0",
            words: words(&["node", &script("supergateway")], &supergateway, &stdio),
        },
        Other {
            // One process for all sessions.
            name: "mcp-proxy 6.7 (npm)",
            words: words(&["node", &script("mcp-proxy")], &proxy, &server),
        },
        Other { name: "mcp-proxy 0.13 (PyPI)", words: words(&[&python], &python_words, &server) },
    ])
}

fn theirs(other: &Other) -> io::Result<Front> {
    let Other { name, words } = other;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let program = if words[0] == "node" { &words[1] } else { &words[0] };
    if !Path::new(program).exists() {
        return Err(io::Error::other("not installed"));
    }
    let words: Vec<&str> =
        words.iter().map(|word| if word == "PORT" { port.as_str() } else { word }).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn()?;
    let address = format!("127.0.0.1:{port}");
    let front = Front::new(name, address, "/mcp", Running::Theirs(child));
    let deadline = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(&front.address).is_err() {
        if Instant::now() > deadline {
            return Err(io::Error::other("it does not listen"));
        }
        pause(Duration::from_millis(50));
    }
    Ok(front)
}

/// Installs the others.
fn fetch(options: &Options) -> io::Result<()> {
    let Some(clients) = &options.clients else {
        return Err(io::Error::other("--fetch needs LARIAT_CLIENTS, which says where to"));
    };
    let home = clients.join("peers");
    fs::create_dir_all(&home)?;
    let run = |command: &mut Command| match command.stdout(Stdio::null()).status()? {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("{command:?}: {status}"))),
    };
    if !home.join("node_modules/.bin/supergateway").exists() {
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-fund", "--no-audit", "--save-exact", "--prefix"]);
        run(npm.arg(&home).args(PACKAGES))?;
    }
    if !home.join("py/bin/mcp-proxy").exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(home.join("py")))?;
        run(Command::new(home.join("py/bin/pip")).args(["install", "-q", PYTHON]))?;
    }
    Ok(())
}
