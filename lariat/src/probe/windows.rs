//! `lariat probe` on Windows: start a server, ask what it offers, end it, and show what that took.

use crate::id::{ServerName, SessionId};
use crate::mcp::{self, Client, Offer, Wire};
use crate::receipt::{Reason, Receipt};
use contain::{Ask, Choice, Event, Ladder, Mark, Report, Spec, Stream, Tree};
use std::ffi::OsString;
use std::io::{self, Read};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How much of a failing server's stderr is kept for the person who asks.
const LAST_WORDS: usize = 4096;

/// What to probe and how.
#[derive(Debug)]
pub struct Probe {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its name in the receipt.
    pub server: ServerName,
    /// How it is asked to leave.
    pub ladder: Ladder,
    /// How long it may take to answer.
    pub timeout: Duration,
}

/// What was found.
#[derive(Debug)]
pub struct Found {
    /// What the server offers, or why it could not be asked.
    pub offer: Result<Offer, mcp::Error>,
    /// From the start to the end of the handshake.
    pub startup: Duration,
    /// The names of the processes when there were most of them.
    pub largest: Vec<String>,
    /// The end of what it wrote to stderr.
    pub stderr: String,
    /// How it ended.
    pub receipt: Receipt,
}

/// Probes a server. Nothing of it is left when this returns, nor if it never does.
pub fn probe(probe: Probe) -> Result<Found, contain::Error> {
    let stdio = |e| contain::Error::Spawn(contain::SpawnStage::Stdio, e);
    let (stdin, input) = io::pipe().map_err(stdio)?;
    let (output, stdout) = io::pipe().map_err(stdio)?;
    let (mut words, stderr) = io::pipe().map_err(stdio)?;
    let (began, begun) = (SystemTime::now(), Instant::now());
    let mark = Mark::random().map_err(stdio)?;
    let spec = Spec {
        program: probe.program,
        args: probe.args,
        env: None,
        cwd: None,
        stdin: Stream::from(stdin),
        stdout: Stream::from(stdout),
        stderr: Stream::from(stderr),
        backend: Choice::Auto,
        ladder: probe.ladder,
    };
    let mut tree = Tree::spawn(spec)?;
    let listener = thread::spawn(move || {
        let (mut last, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = words.read(&mut buffer) {
            last.extend_from_slice(&buffer[..n]);
            last.drain(..last.len().saturating_sub(LAST_WORDS));
        }
        last
    });
    let (mut largest, mut exited) = (Vec::new(), false);
    let (offer, startup) = {
        let mut glance = || {
            let members = tree.members().unwrap_or_default();
            if members.len() > largest.len() {
                let name = |member| contain::process::name(member).unwrap_or_default();
                largest = members.into_iter().map(name).collect();
            }
            exited |= matches!(tree.event(), Some(Event::Exited(_)));
            true
        };
        let wire = Wire::new(input, output);
        let mut client = Client::new(wire, begun + probe.timeout, &mut glance);
        let greeted = client.greet();
        let startup = begun.elapsed();
        let offer = greeted.and_then(|mut offer| client.list(&mut offer).map(|()| offer));
        // With the client goes the server's input.
        (offer, startup)
    };
    let report = end(&mut tree);
    let stderr = listener.join().unwrap_or_default();
    let reason = if exited { Reason::Exited } else { Reason::Closed };
    let times = (began, SystemTime::now());
    let receipt = Receipt::new(SessionId::of(mark), probe.server, &reason, times, &report);
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    Ok(Found { offer, startup, largest, stderr, receipt })
}

fn end(tree: &mut Tree) -> Report {
    tree.ask(Ask::Closed);
    loop {
        match tree.event() {
            Some(Event::Ended(report)) => return report,
            Some(_) => {}
            None => tree.wait(&[], None),
        }
    }
}
