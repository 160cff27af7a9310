//! Starting a server on Windows: books first, then the tree.
//!
//! There is no holder here. The process that wants a server has the handle of its job, and the kernel
//! ends the job with that process. What a holder does elsewhere is done by a thread of ours.
//!
//! ```text
//! lean             the books, before there is a process
//! local            what the owner has: a leash, a line, the server's streams
//! keeper           the thread that starts a server, waits for its end and accounts for it
//! duct             between a thread that may block and a task that may not
//! talk, word       the same as elsewhere
//! ```

#[path = "windows/duct.rs"]
mod duct;
pub(crate) mod environment;
pub(crate) mod image;
#[path = "windows/keeper.rs"]
mod keeper;
mod lean;
#[path = "windows/local.rs"]
pub(crate) mod local;
#[path = "windows/stderr.rs"]
mod stderr;
#[expect(dead_code, reason = "it counts containers, of which there are none here")]
pub(crate) mod talk;
pub(crate) mod word;

pub use lean::Failure;
pub(crate) use lean::{Opened, Plan};

use crate::id::SessionId;
use contain::{Backend, Mark, Spec, Tree};
use std::fs::File;
use std::io::{self, Read};
use std::thread;

/// How often in a row a read must find nothing to mean the end: one that finds nothing can also be
/// somebody's write of nothing.
const EMPTY: usize = 16;

/// What holds a tree here.
const BACKEND: Backend = Backend::Job;

/// The number that a page has: its processes carry none, for the job knows them.
fn carried(_mark: Mark) -> Option<u64> {
    None
}

/// Starts a tree. The lock is the owner's alone: with that goes the job.
fn spawn(spec: Spec, _mark: Mark, _lock: &File) -> Result<Tree, contain::Error> {
    Tree::spawn(spec)
}

impl Failure {
    /// What failed, on what, and why, for whoever asked for this program.
    pub(crate) fn in_words(&self, program: &str) -> String {
        match self {
            Failure::State(dir, e) => {
                format!("the state directory {} cannot be written: {e}", dir.display())
            }
            Failure::Log(dir, e) => format!("its log in {} cannot be written: {e}", dir.display()),
            Failure::Receipt(file, e) => {
                format!("its receipt {} cannot be written: {e}", file.display())
            }
            Failure::Streams(e) => format!("its streams cannot be set up: {e}"),
            Failure::Start(e) => word::not_started(program, e),
        }
    }
}

impl Opened {
    /// Which session it is.
    pub(crate) fn session(&self) -> &SessionId {
        self.entry.session()
    }

    /// Takes it out again: nothing is to be started.
    pub(crate) fn abandon(self) {
        self.entry.strike();
    }
}

/// A thread of ours, which a host's author may meet in a debugger.
fn named(what: &str) -> thread::Builder {
    thread::Builder::new().name(what.into())
}

/// The next bytes of a pipe; nothing at the end, however that comes.
pub(crate) fn next<'a>(source: &mut impl Read, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut empty = 0;
    loop {
        match source.read(buffer) {
            Ok(0) if empty < EMPTY => empty += 1,
            Ok(0) => return None,
            Ok(n) => return Some(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}
