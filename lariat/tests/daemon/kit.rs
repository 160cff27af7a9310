//! A daemon of one test's own, and servers for it.

use crate::http::Wire;
use crate::place::{PATIENCE, Place};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use trials::{Witness, until};

/// Both rungs of the ladder.
pub(crate) const RUNG: &str = "200ms";

/// Both rungs, and the second that the promise adds.
pub(crate) const PROMISE: Duration = Duration::from_millis(2 * 200 + 250 + 1000);

/// A daemon in the foreground. It is killed with the test, and what it held ends with it.
pub(crate) struct Daemon {
    pub(crate) place: Place,
    pub(crate) token: String,
    child: Child,
}

impl Daemon {
    pub(crate) fn new() -> Daemon {
        Daemon::with(&[])
    }

    /// With more options.
    pub(crate) fn with(options: &[&str]) -> Daemon {
        let place = Place::new();
        let child = start(&mut command(&place, options));
        Daemon { place, token: token(), child }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.place.path("d.sock")
    }

    pub(crate) fn wire(&self) -> Wire {
        Wire::new(&self.socket())
    }

    /// A server that behaves in this way.
    pub(crate) fn server(&self, verb: &str) -> Value {
        server(verb, &self.token)
    }

    /// A body that opens one server, `a`.
    pub(crate) fn one(&self, verb: &str) -> String {
        json!({ "servers": { "a": self.server(verb) } }).to_string()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        assert!(until(PATIENCE, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        }));
        status.unwrap()
    }

    /// Starts another one in the same place.
    pub(crate) fn again(&mut self) {
        self.child = start(&mut command(&self.place, &[]));
    }

    /// How many sessions there are.
    pub(crate) fn sessions(&self) -> usize {
        let listed = self.wire().ask("GET", "/v1/sessions", "").expect(200);
        listed["sessions"].as_array().unwrap().len()
    }

    /// No process of any server of this test is alive, soon enough.
    #[track_caller]
    pub(crate) fn assert_gone(&self) {
        let mut witness = Witness::new(&self.token, &[]);
        let gone = until(PROMISE, || witness.nobody_in(1));
        let left: Vec<String> = witness.look().iter().map(|p| witness.describe(*p)).collect();
        assert!(gone, "{left:#?}");
    }

    /// How many processes of servers of this test are alive.
    pub(crate) fn alive(&self) -> usize {
        Witness::new(&self.token, &[]).look().len()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended as the test wished.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
        // What it held ends without it, and writes that down; then the place can go.
        until(PATIENCE, || {
            let pages = fs::read_dir(self.place.path("state/sessions"));
            pages.is_ok_and(|mut pages| pages.next().is_none())
                || !self.place.path("state/sessions").exists()
        });
    }
}

/// What nobody else has in its command line.
pub(crate) fn token() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("daemon-test-{}-{number}-token", std::process::id())
}

pub(crate) fn lariat() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_lariat"))
}

pub(crate) fn server(verb: &str, token: &str) -> Value {
    json!({ "command": lariat(), "args": ["__misbehave", verb, token] })
}

/// `lariat daemon` in a place.
pub(crate) fn command(place: &Place, options: &[&str]) -> Command {
    let mut command = place.lariat("daemon");
    command.arg("--socket").arg(place.path("d.sock"));
    command.args(["--grace", RUNG, "--term-grace", RUNG, "--containers", "leave"]).args(options);
    command
}

#[track_caller]
fn start(command: &mut Command) -> Child {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on /"), "{line}");
    child
}
