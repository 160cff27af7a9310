//! A server behind a wrapper, spoken to over pipes; and the workshop that builds what C there is.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Options;
use crate::report::Report;

const HELLO: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;

const SETTLED: &str = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";

/// The environment variable by which a run's processes are found again.
const MARK: &str = "LARIAT_BENCH_TOKEN";

/// A wrapper: its name in the tables, and the words that go before the server's.
pub(crate) struct Wrapper {
    pub(crate) name: String,
    pub(crate) words: Vec<String>,
}

/// True for the wrappers that have bars to keep.
pub(crate) fn is_ours(name: &str) -> bool {
    ["direct", "relay", "watched"].contains(&name)
}

/// A directory with the C programs, removed with its value.
pub(crate) struct Workshop {
    pub(crate) room: PathBuf,
    pub(crate) lariat: String,
    pub(crate) backend: String,
    /// The stub server, if there is a compiler.
    pub(crate) stub: Option<String>,
    relay: Option<String>,
    also: Vec<String>,
    /// Where the packages are that play servers, if they are anywhere.
    clients: Option<PathBuf>,
}

impl Workshop {
    pub(crate) fn open(
        lariat: PathBuf,
        options: &Options,
        report: &mut Report,
    ) -> io::Result<Workshop> {
        let room = std::env::temp_dir().join(format!("lariat-bench-{}", std::process::id()));
        fs::create_dir(&room)?;
        let mut shop = Workshop {
            lariat: fs::canonicalize(lariat)?.display().to_string(),
            room,
            backend: options.backend.clone(),
            stub: None,
            relay: None,
            also: options.also.clone(),
            clients: options.clients.clone(),
        };
        match (
            shop.compile("stub", include_str!("stub.c")),
            shop.compile("relay", include_str!("relay.c")),
        ) {
            (Ok(stub), Ok(relay)) => (shop.stub, shop.relay) = (Some(stub), Some(relay)),
            (stub, relay) => {
                let error = stub.and(relay).expect_err("one failed");
                report.skip(format!("the C programs: cc: {error}"));
            }
        }
        Ok(shop)
    }

    fn compile(&self, name: &str, source: &str) -> io::Result<String> {
        let (file, program) = (self.room.join(format!("{name}.c")), self.room.join(name));
        fs::write(&file, source)?;
        let status = Command::new("cc").arg("-O2").arg("-o").args([&program, &file]).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("{name}.c: {status}")));
        }
        Ok(program.display().to_string())
    }

    /// `lariat run` with options, its state in the workshop.
    pub(crate) fn lariat_run(&self, options: &[&str]) -> Vec<String> {
        let state = self.room.join("state").display().to_string();
        let mut words = vec![self.lariat.as_str(), "run", "--state-dir", &state];
        words.extend(["--backend", &self.backend, "--max-starts", "off"]);
        words.extend(options);
        words.push("--");
        words.into_iter().map(str::to_owned).collect()
    }

    /// Everything to compare; the first is the bare server.
    pub(crate) fn wrappers(&self) -> Vec<Wrapper> {
        let wrapper = |name: &str, words| Wrapper { name: name.into(), words };
        let mut all = vec![
            wrapper("bare", vec![]),
            wrapper("direct", self.lariat_run(&[])),
            wrapper("relay", self.lariat_run(&["--relay"])),
            wrapper("watched", self.lariat_run(&["--idle", "1h"])),
            wrapper("c-relay", self.relay.iter().cloned().collect()),
        ];
        let also = self
            .also
            .iter()
            .map(|words| wrapper(words, words.split(' ').map(str::to_owned).collect()));
        all.extend(also);
        all
    }

    /// Servers that take their time to start, beside the stub that takes none.
    pub(crate) fn servers(&self) -> Vec<(&'static str, Vec<String>)> {
        let stub = self.stub.iter().map(|stub| ("stub", vec![stub.clone()]));
        let everything = "node/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
        let everything = self.clients.as_ref().map(|clients| clients.join(everything));
        let node = everything.filter(|file| file.exists()).map(|file| {
            ("server-everything", vec!["node".into(), file.display().to_string(), "stdio".into()])
        });
        stub.chain(node).collect()
    }

    /// The stub server behind a wrapper.
    pub(crate) fn stub(&self, wrapper: &Wrapper) -> Vec<String> {
        wrapper.words.iter().chain(&self.stub).cloned().collect()
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.room).ok();
    }
}

/// A running server, perhaps wrapped. Dropped, it is given end of input and waited for.
pub(crate) struct Peer {
    child: Child,
    to: Option<ChildStdin>,
    from: ChildStdout,
    buffer: Vec<u8>,
}

impl Peer {
    /// Starts the command; every process of it carries the token in its environment.
    pub(crate) fn start(words: &[String], token: &str) -> io::Result<Peer> {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env(MARK, token).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn()?;
        let (to, from) = (child.stdin.take(), child.stdout.take().expect("piped"));
        Ok(Peer { child, to, from, buffer: vec![0; 1 << 16] })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line and waits for one.
    pub(crate) fn ask(&mut self, line: &[u8]) -> io::Result<()> {
        self.to.as_mut().expect("not closed").write_all(line)?;
        loop {
            let got = self.from.read(&mut self.buffer)?;
            if got == 0 {
                return Err(io::Error::other("the server left"));
            }
            if self.buffer[got - 1] == b'\n' {
                return Ok(());
            }
        }
    }

    /// The handshake.
    pub(crate) fn greet(&mut self) -> io::Result<()> {
        self.ask(format!("{HELLO}\n").as_bytes())
    }

    /// The rest of it, which nobody answers.
    pub(crate) fn settle(&mut self) -> io::Result<()> {
        self.to.as_mut().expect("not closed").write_all(SETTLED.as_bytes())
    }

    /// Sends a request and waits for its answer, whatever else is said meanwhile.
    fn request(&mut self, id: u64, line: &str) -> io::Result<()> {
        self.to.as_mut().expect("not closed").write_all(format!("{line}\n").as_bytes())?;
        let mut said = Vec::new();
        loop {
            while let Some(end) = said.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = said.drain(..=end).collect();
                let line: Value = serde_json::from_slice(&line).map_err(io::Error::other)?;
                if line["id"] == id && line["error"].is_null() {
                    return Ok(());
                } else if line["id"] == id {
                    return Err(io::Error::other(format!("an error: {}", line["error"])));
                }
            }
            match self.from.read(&mut self.buffer)? {
                0 => return Err(io::Error::other("the server left")),
                got => said.extend_from_slice(&self.buffer[..got]),
            }
        }
    }

    /// Everything that a host says before its first call, and the call.
    pub(crate) fn introduce(&mut self) -> io::Result<()> {
        self.request(0, HELLO)?;
        self.settle()?;
        self.call(1)
    }

    /// A call that every server here can answer.
    pub(crate) fn call(&mut self, id: u64) -> io::Result<()> {
        // The stub gives back what is between `text` and the last quote.
        let between = BETWEEN.replace("\"text\"", "\"message\":\"hello\",\"text\"");
        self.request(id, &format!("{BEFORE}{id}{between}hello{}", AFTER.trim_end()))
    }

    /// Sends `count` messages without waiting, and gives the time until all are answered.
    pub(crate) fn flood(&mut self, call: &mut Call, count: usize) -> io::Result<Duration> {
        let (to, from) = (self.to.as_mut().expect("not closed"), &mut self.from);
        let began = Instant::now();
        std::thread::scope(|scope| {
            let sender =
                scope.spawn(move || (0..count).try_for_each(|_| to.write_all(call.next())));
            let mut left = count;
            while left > 0 {
                let got = from.read(&mut self.buffer)?;
                if got == 0 {
                    return Err(io::Error::other("the server left"));
                }
                left -= self.buffer[..got].iter().filter(|byte| **byte == b'\n').count();
            }
            sender.join().expect("the sender does not panic")?;
            Ok(began.elapsed())
        })
    }

    /// Closes the server's input and gives the time until the process we started has left.
    pub(crate) fn end(mut self) -> io::Result<Duration> {
        let began = Instant::now();
        drop(self.to.take());
        self.child.wait()?;
        Ok(began.elapsed())
    }

    /// SIGKILL to the process that we started, and nobody else.
    pub(crate) fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.to.take());
        self.child.wait().ok();
    }
}

/// A `tools/call` of a given length, with a new id each time.
pub(crate) struct Call {
    line: Vec<u8>,
    id: u32,
}

const BEFORE: &str = r#"{"jsonrpc":"2.0","id":"#;
const BETWEEN: &str = r#","method":"tools/call","params":{"name":"echo","arguments":{"text":""#;
const AFTER: &str = "\"}}}\n";

impl Call {
    pub(crate) fn of(length: usize) -> Call {
        let rest = length - BEFORE.len() - 8 - BETWEEN.len() - AFTER.len();
        let line = format!("{BEFORE}{:08}{BETWEEN}{}{AFTER}", 0, "x".repeat(rest));
        Call { line: line.into(), id: 10_000_000 }
    }

    pub(crate) fn next(&mut self) -> &[u8] {
        self.id += 1;
        let (mut rest, at) = (self.id, BEFORE.len());
        for digit in self.line[at..at + 8].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        &self.line
    }
}

/// A word for the processes of one run.
pub(crate) fn token(what: &str) -> String {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("lariat-bench-{}-{what}-{count}.", std::process::id())
}

/// Every process whose environment or arguments hold the token.
pub(crate) fn holders(token: &str) -> Vec<u32> {
    let holds = |file: &Path| {
        let bytes = fs::read(file).unwrap_or_default();
        bytes.windows(token.len()).any(|part| part == token.as_bytes())
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|entry| {
            holds(&entry.path().join("environ")) || holds(&entry.path().join("cmdline"))
        })
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

#[expect(clippy::disallowed_methods, reason = "the only place that lets time pass")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
