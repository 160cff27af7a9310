//! What it costs to look: `ps` once and `top` at 1 Hz, with 500 servers of six processes each.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Options;
use crate::peer::Workshop;
use crate::report::{Report, median};

const SERVERS: usize = 500;
const PROCESSES: usize = 3000;

/// Five that wait and the server itself. They end with its input.
const SERVER: &str = "for i in 1 2 3 4 5; do sleep 3600 & done; echo up; exec cat";

/// So many are started at a time, so that the machine is not asked for too much at once.
const AT_ONCE: usize = 10;

/// What `top` does first is not what it costs.
const SETTLED: Duration = Duration::from_secs(8);

/// The servers, which end with this.
struct Crowd {
    wrappers: Vec<(Child, Option<ChildStdin>, ChildStdout)>,
}

impl Crowd {
    fn gather(shop: &Workshop, state: &Path) -> io::Result<Crowd> {
        let mut crowd = Crowd { wrappers: Vec::new() };
        for first in (0..SERVERS).step_by(AT_ONCE) {
            for number in first..(first + AT_ONCE).min(SERVERS) {
                let mut run = Command::new(&shop.lariat);
                run.args(["run", "--max-starts", "off", "--backend", &shop.backend]);
                run.args(["--name", &format!("server-{number}"), "--state-dir"]).arg(state);
                run.args(["--", "sh", "-c", SERVER]);
                let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
                let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
                let stdout = stdout.ok_or_else(|| io::Error::other("no pipe"))?;
                crowd.wrappers.push((child, stdin, stdout));
            }
            for (_, _, stdout) in &mut crowd.wrappers[first..] {
                let mut line = String::new();
                BufReader::new(stdout).read_line(&mut line)?;
                if line != "up\n" {
                    return Err(io::Error::other(format!("a server said {line:?}")));
                }
            }
            eprint!("\r{} servers ", crowd.wrappers.len());
        }
        eprintln!();
        Ok(crowd)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for (_, stdin, _) in &mut self.wrappers {
            drop(stdin.take());
        }
        for (child, _, _) in &mut self.wrappers {
            // Its guardian ends the tree if it has died.
            let _gone = child.wait();
        }
    }
}

/// `top` on a terminal that Python makes; it ends with this.
struct Top {
    python: Child,
    pid: u32,
}

impl Top {
    fn start(shop: &Workshop, state: &Path) -> io::Result<Top> {
        let terminal = "import fcntl, os, pty, struct, sys, termios\n\
            child, fd = pty.fork()\n\
            if child == 0: os.execvp(sys.argv[1], sys.argv[1:])\n\
            fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack('HHHH', 50, 160, 0, 0))\n\
            print(child, flush=True)\n\
            while os.read(fd, 65536): pass";
        let mut python = Command::new("python3");
        python.args(["-c", terminal, &shop.lariat, "top", "--state-dir"]).arg(state);
        python.env("TERM", "xterm").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut python = python.stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        let stdout = python.stdout.take().ok_or_else(|| io::Error::other("no pipe"))?;
        BufReader::new(stdout).read_line(&mut line)?;
        let pid = line.trim().parse().map_err(|_| io::Error::other("no terminal"));
        let mut top = Top { python, pid: 0 };
        top.pid = pid?;
        Ok(top)
    }

    /// CPU time that it has used.
    fn used(&self) -> io::Result<Duration> {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.pid))?;
        let nanos = text.split(' ').next().and_then(|word| word.parse().ok());
        nanos.map(Duration::from_nanos).ok_or_else(|| io::Error::other("no schedstat"))
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        // Hangs up, which ends the other.
        let _gone = self.python.kill().and_then(|()| self.python.wait().map(drop));
    }
}

/// Sets them up, looks, and ends them.
pub(crate) fn measure(shop: &Workshop, options: &Options, report: &mut Report) -> io::Result<()> {
    let state = shop.room.join("person");
    let crowd = Crowd::gather(shop, &state)?;
    let ps = |words: &[&str]| -> io::Result<f64> {
        let mut ps = Command::new(&shop.lariat);
        ps.arg("ps").args(words).arg("--state-dir").arg(&state).stdout(Stdio::null());
        let began = Instant::now();
        let status = ps.status()?;
        let took = began.elapsed();
        if !status.success() {
            return Err(io::Error::other("ps failed"));
        }
        Ok(took.as_secs_f64() * 1000.0)
    };
    let list =
        Command::new(&shop.lariat).args(["ps", "--json", "--state-dir"]).arg(&state).output()?;
    let list: serde_json::Value = serde_json::from_slice(&list.stdout)?;
    let seen: Vec<u64> =
        list.as_array().into_iter().flatten().filter_map(|one| one["processes"].as_u64()).collect();
    if (seen.len(), seen.iter().sum::<u64>()) != (SERVERS, PROCESSES as u64) {
        return Err(io::Error::other(format!("saw {} servers: {list:.400}", seen.len())));
    }
    let mut rows = Vec::new();
    for words in [&[][..], &["--json"], &["--pss"]] {
        let times = (0..options.rounds).map(|_| ps(words)).collect::<io::Result<Vec<f64>>>()?;
        rows.push((format!("ps {}", words.join(" ")), times));
    }
    let top = Top::start(shop, &state);
    let top = top.and_then(|top| {
        let wait = |time| lariat::contain::wait(&mut [], Some(Instant::now() + time));
        wait(SETTLED);
        let (began, before) = (Instant::now(), top.used()?);
        wait(options.idle);
        Ok((top.used()? - before).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
    });
    drop(crowd);
    let cells: Vec<(String, Vec<f64>)> =
        rows.iter().map(|(name, times)| (name.clone(), vec![median(times)])).collect();
    report.table(&format!("{SERVERS} servers, {PROCESSES} processes"), &["ms"], &cells);
    report.bar("ps", median(&rows[0].1), 100.0, "ms");
    match top {
        Ok(percent) => report.bar("top at 1 Hz", percent, 2.0, "% of a core"),
        Err(error) => report.skip(format!("top: {error}")),
    }
    Ok(())
}
