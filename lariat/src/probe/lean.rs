//! `lariat probe` on Windows and macOS: start a server, ask what it offers, end it, and show what that took.

#[cfg(target_os = "macos")]
#[path = "macos.rs"]
mod os;
#[cfg(windows)]
#[path = "windows.rs"]
mod os;

use crate::id::{ServerName, SessionId};
use crate::mcp::{self, Client, Offer, Wire};
use crate::receipt::{Reason, Receipt};
use contain::{Ask, Event, Ladder, Mark, Report, Tree};
use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How much of a failing server's stderr is kept for the person who asks.
const LAST_WORDS: usize = 4096;

/// How long somebody who has survived may keep stderr open before that is not waited for.
const PARTING: Duration = Duration::from_secs(1);

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

/// The server's ends.
struct Streams {
    stdin: PipeReader,
    stdout: PipeWriter,
    stderr: PipeWriter,
}

/// Probes a server. Nothing of it is left when this returns, nor if it never does.
pub fn probe(probe: Probe) -> Result<Found, contain::Error> {
    let stdio = |e| contain::Error::Spawn(contain::SpawnStage::Stdio, e);
    let (stdin, input) = io::pipe().map_err(stdio)?;
    let (output, stdout) = io::pipe().map_err(stdio)?;
    let (words, stderr) = io::pipe().map_err(stdio)?;
    let (began, begun) = (SystemTime::now(), Instant::now());
    let mark = Mark::random().map_err(stdio)?;
    let command = (probe.program, probe.args);
    let mut tree = os::start(command, Streams { stdin, stdout, stderr }, probe.ladder, mark)?;
    let words = Words::listen(words);
    let (mut largest, mut exited, mut ended) = (Vec::new(), false, None);
    let (offer, startup) = {
        let mut glance = || {
            let members = os::members(&tree);
            if members.len() > largest.len() {
                let name = |member| contain::process::name(member).unwrap_or_default();
                largest = members.into_iter().map(name).collect();
            }
            match tree.event() {
                Some(Event::Exited(_)) => exited = true,
                // It is said once: a server may be gone for long when its last words are read.
                Some(Event::Ended(report)) => ended = Some(report),
                _ => {}
            }
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
    let report = ended.unwrap_or_else(|| end(&mut tree));
    let reason = if exited { Reason::Exited } else { Reason::Closed };
    let times = (began, SystemTime::now());
    let receipt = Receipt::new(SessionId::of(mark), probe.server, &reason, times, &report);
    let stderr = words.last();
    Ok(Found { offer, startup, largest, stderr, receipt })
}

fn end(tree: &mut Tree) -> Report {
    tree.ask(Ask::Closed);
    loop {
        match tree.event() {
            Some(Event::Ended(report)) => return report,
            Some(_) => {}
            None => os::wait(tree),
        }
    }
}

/// The end of what a server says on stderr, taken by a thread of its own.
struct Words {
    last: Arc<Mutex<Vec<u8>>>,
    /// Closes when everything was taken.
    taken: Receiver<()>,
}

impl Words {
    fn listen(mut source: PipeReader) -> Words {
        let last = Arc::new(Mutex::new(Vec::<u8>::new()));
        let (taking, taken) = channel();
        let heard = Arc::clone(&last);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = source.read(&mut buffer) {
                let mut last = heard.lock().unwrap_or_else(PoisonError::into_inner);
                last.extend_from_slice(&buffer[..n]);
                let extra = last.len().saturating_sub(LAST_WORDS);
                last.drain(..extra);
            }
            drop(taking);
        });
        Words { last, taken }
    }

    fn last(self) -> String {
        // Nothing is ever sent: it closes, or somebody has survived.
        let _survived = self.taken.recv_timeout(PARTING);
        String::from_utf8_lossy(&self.last.lock().unwrap_or_else(PoisonError::into_inner)).into()
    }
}
