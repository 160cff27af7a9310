//! The hosts and servers of the demo: this executable under a hidden verb, one role per process.
//!
//! A host starts servers and loses them. A server is a small tree like those in the wild: a
//! launcher (as npx is) starts the server; the server starts a browser, which makes its own
//! session, and a daemon, which is double-forked and makes its own session too. Nothing here knows
//! Lariat, except that a host puts `lariat run` in front of its servers when it is told to.
//!
//! Every actor leaves when the demo process is gone, whatever ended it, and after two minutes in
//! any case. That is the net for Ctrl-C and SIGKILL of the demo, and needs no signal handler. It
//! does not falsify what is shown: the demo process lives on through both halves, only hosts die.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{PidfdFlags, pidfd_open};

use super::identity::Identity;
use super::lease::{LIFETIME, Lease, Woke};
use super::look::Eyes;

/// The hidden verb before every role.
pub(super) const VERB: &str = "__demo";

/// What every token begins with.
const TOKEN: &str = "lariat-demo-";

/// How long a host waits for a server's first line.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// What a server writes to its stdout once its whole tree is up.
const READY: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/demo/ready\"}\n";

/// How many processes one server is: launcher, server, browser, daemon.
pub(super) const TREE: usize = 4;

const SERVER_BALLAST: usize = 4 << 20;
const BROWSER_BALLAST: usize = 8 << 20;

/// What a host is to do; its argv and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Orders {
    /// Whether servers are started through `lariat run`.
    pub(super) wrapped: bool,
    /// How many times the servers are started anew, the first time included.
    pub(super) sets: u32,
    /// How many servers are in a set.
    pub(super) servers: u32,
    /// The time from one set to the next, and from the last to the host's own end.
    pub(super) interval: Duration,
    /// Whether the host then waits to be killed instead of ending by itself.
    pub(super) stays: bool,
}

impl Orders {
    fn words(self) -> [String; 5] {
        [
            u32::from(self.wrapped).to_string(),
            self.sets.to_string(),
            self.servers.to_string(),
            self.interval.as_millis().to_string(),
            u32::from(self.stays).to_string(),
        ]
    }

    fn parse(words: &[String]) -> Option<Self> {
        let [wrapped, sets, servers, interval, stays] = words else {
            return None;
        };
        Some(Self {
            wrapped: wrapped == "1",
            sets: sets.parse().ok()?,
            servers: servers.parse().ok()?,
            interval: Duration::from_millis(interval.parse().ok()?),
            stays: stays == "1",
        })
    }
}

/// Starts a host. Its stdout carries one line per event: `ready N`, or `failed` and why.
pub(super) fn start_host(token: &str, demo: Identity, orders: Orders) -> io::Result<Child> {
    let part = Part { token: token.to_owned(), demo, rest: Vec::new() };
    part.command("host", &orders.words())?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

/// Starts the janitor, which tidies up when the demo did not get to do it itself.
///
/// Ctrl-C and SIGKILL end the demo without a last word. The actors then leave by themselves; the
/// state directory of the wrapped half does not, and something may be left that was not foreseen.
pub(super) fn start_janitor(token: &str, demo: Identity) -> io::Result<Child> {
    let part = Part { token: token.to_owned(), demo, rest: Vec::new() };
    part.command("janitor", &[])?
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// A new token: what all processes of one run of the demo have in their argv, and no other has.
pub(super) fn new_token() -> String {
    format!("{TOKEN}{:016x}", RandomState::new().build_hasher().finish())
}

fn is_token(word: &str) -> bool {
    let run = word.split_once('/').map_or(word, |(run, _)| run);
    run.strip_prefix(TOKEN)
        .is_some_and(|rest| rest.len() == 16 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Where the wrapped half keeps its books and logs: not where those of real servers are.
pub(super) fn state_dir(token: &str) -> PathBuf {
    let run = token.split_once('/').map_or(token, |(run, _)| run);
    env::temp_dir().join(run)
}

/// Plays the role in `args` (role, token, demo, and what the role needs) until it is over.
pub(super) fn play(mut args: impl Iterator<Item = String>) -> io::Result<()> {
    let bad = || io::Error::new(io::ErrorKind::InvalidInput, "the demo's own verb, not for people");
    let role = args.next().ok_or_else(bad)?;
    let part = Part {
        token: args.next().ok_or_else(bad)?,
        demo: args.next().ok_or_else(bad)?.parse()?,
        rest: args.collect(),
    };
    // A janitor ends processes and removes a directory by this word: it must be one of ours.
    if !is_token(&part.token) {
        return Err(bad());
    }
    if role == "janitor" {
        return janitor(&part);
    }
    let Some(lease) = Lease::take(part.demo) else {
        return Ok(());
    };
    match role.as_str() {
        "host" => host(&part, &lease, Orders::parse(&part.rest).ok_or_else(bad)?),
        "launcher" => launcher(&part, &lease),
        "server" => server(&part, &lease),
        "browser" => apart(&lease, BROWSER_BALLAST),
        "fork" => fork(&part),
        "daemon" => apart(&lease, 0),
        _ => Err(bad()),
    }
}

/// The janitor: out of reach of the terminal's signals, waits for the demo's end and tidies up.
fn janitor(part: &Part) -> io::Result<()> {
    rustix::process::setsid()?;
    if let Some(lease) = Lease::take(part.demo) {
        lease.wait(None, LIFETIME);
    }
    Eyes::open()?.clean(&part.token)?;
    fs::remove_dir_all(state_dir(&part.token))
}

/// A host: starts a set of servers at each refresh, and forgets the set before.
fn host(part: &Part, lease: &Lease, orders: Orders) -> io::Result<()> {
    let begun = Instant::now();
    let mut current = Vec::new();
    for set in 1..=orders.sets {
        let mut next = Vec::new();
        for number in 0..orders.servers {
            let deaf = number % 2 == 0;
            let serial = (set - 1) * orders.servers + number + 1;
            next.push(start_server(part, orders.wrapped, serial, deaf)?);
        }
        for server in &mut next {
            if let Err(why) = handshake(lease, server) {
                return tell(&format!("failed {why}"));
            }
        }
        // Dropping a `Child` closes its pipes; it neither ends nor reaps the process. This is the
        // bug that the reports are about, in one line.
        drop(std::mem::replace(&mut current, next));
        tell(&format!("ready {set}"))?;
        let due = begun + orders.interval * set;
        if lease.wait(None, due.saturating_duration_since(Instant::now())) == Woke::Over {
            return Ok(());
        }
    }
    if orders.stays {
        lease.wait(None, LIFETIME);
    }
    Ok(())
}

/// Starts one server, bare or through `lariat run`. A deaf one does not notice that its input ends.
fn start_server(part: &Part, wrapped: bool, serial: u32, deaf: bool) -> io::Result<Child> {
    let hearing = if deaf { "deaf" } else { "hears" };
    let bare = part.command("launcher", &[serial.to_string(), hearing.to_owned()])?;
    let mut command = if wrapped {
        let mut run = Command::new(bare.get_program());
        run.args(["run", "--name", &format!("demo-{serial}")])
            .args(["--grace", "300ms", "--term-grace", "300ms", "--state-dir"])
            .args([state_dir(&part.token).as_os_str(), OsStr::new("--")])
            .arg(bare.get_program())
            .args(bare.get_args());
        run
    } else {
        bare
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// Waits for a server's first line; if none comes, its first words on stderr are the reason.
fn handshake(lease: &Lease, server: &mut Child) -> Result<(), String> {
    let silent = || "a server did not answer".to_owned();
    let mut stdout = server.stdout.take().ok_or_else(silent)?;
    let mut first = [0; READY.len()];
    let answered = lease.wait(Some(stdout.as_fd()), HANDSHAKE) == Woke::Other
        && stdout.read_exact(&mut first).is_ok()
        && first == READY;
    server.stdout = Some(stdout);
    if answered {
        return Ok(());
    }
    let mut stderr = server.stderr.take().ok_or_else(silent)?;
    let mut words = [0; 400];
    let said = match lease.wait(Some(stderr.as_fd()), Duration::ZERO) {
        Woke::Other => stderr.read(&mut words).unwrap_or_default(),
        Woke::Over | Woke::Late => 0,
    };
    let words = String::from_utf8_lossy(&words[..said]);
    Err(words.lines().next().map_or_else(silent, |line| format!("{}: {line}", silent())))
}

/// The launcher: starts the server on its own stdin and stdout, and lives as long as it does.
fn launcher(part: &Part, lease: &Lease) -> io::Result<()> {
    let child = part.command("server", &part.rest)?.spawn()?;
    let process = pidfd_open(rustix::process::Pid::from_child(&child), PidfdFlags::empty())?;
    lease.wait(Some(process.as_fd()), LIFETIME);
    Ok(())
}

/// The server: brings up its helpers, says so, and then hears the end of its input or does not.
fn server(part: &Part, lease: &Lease) -> io::Result<()> {
    let ballast = vec![0xA5_u8; SERVER_BALLAST];
    for helper in ["browser", "fork"] {
        // The helper's first byte says that it is up; the pipe is of no use after that.
        let mut child = part
            .command(helper, &part.rest)?
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        if let Some(mut up) = child.stdout.take() {
            up.read_exact(&mut [0])?;
        }
        if helper == "fork" {
            child.wait()?;
        }
    }
    say(READY)?;
    let input = io::stdin();
    let hears = part.rest.last().is_some_and(|hearing| hearing == "hears");
    let mut sink = [0; 4096];
    while lease.wait(hears.then(|| input.as_fd()), LIFETIME) == Woke::Other {
        if input.lock().read(&mut sink)? == 0 {
            break;
        }
    }
    black_box(&ballast);
    Ok(())
}

/// The intermediate of a double fork: starts the daemon and is gone.
///
/// Forking without exec would need `unsafe`; a short-lived process between the two looks the same
/// from outside.
fn fork(part: &Part) -> io::Result<()> {
    part.command("daemon", &part.rest)?.spawn().map(drop)
}

/// A helper in a session of its own, out of reach of signals to the server's process group.
fn apart(lease: &Lease, ballast: usize) -> io::Result<()> {
    rustix::process::setsid()?;
    let ballast = vec![0xA5_u8; ballast];
    say(b".")?;
    lease.wait(None, LIFETIME);
    black_box(&ballast);
    Ok(())
}

fn tell(line: &str) -> io::Result<()> {
    say(format!("{line}\n").as_bytes())
}

fn say(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// What every actor is told: whose it is, and what its role needs.
struct Part {
    token: String,
    demo: Identity,
    rest: Vec<String>,
}

impl Part {
    /// This executable in another role of the same half.
    fn command(&self, role: &str, rest: &[String]) -> io::Result<Command> {
        let mut command = Command::new(env::current_exe()?);
        command.args([VERB, role, &self.token, &self.demo.to_string()]).args(rest);
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_argv() {
        let orders = Orders {
            wrapped: true,
            sets: 8,
            servers: 2,
            interval: Duration::from_millis(500),
            stays: false,
        };
        assert_eq!(Orders::parse(&orders.words()), Some(orders));
        assert_eq!(Orders::parse(&["1".to_owned()]), None);
    }

    #[test]
    fn only_tokens_are_tokens() {
        assert!(is_token(&new_token()));
        assert!(is_token(&format!("{}/1-bare", new_token())));
        for bad in ["", "/", "lariat-demo-", "../lariat-demo-0123456789abcdef", "lariat-demo-../.."]
        {
            assert!(!is_token(bad), "{bad}");
        }
    }

    #[test]
    fn both_halves_share_the_state_directory_of_their_run() {
        assert_eq!(state_dir("run/1-bare"), state_dir("run"));
        assert_ne!(state_dir("run"), state_dir("walk"));
    }
}
