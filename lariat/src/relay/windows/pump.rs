//! The threads that copy bytes, one for each stream.
//!
//! None of them is waited for without a bound: a thread that reads from a host which says nothing
//! reads until the process ends.

use super::backlog::Backlog;
use crate::journal::Journal;
use crate::start::next;
use contain::pipe::is_closing;
use contain::{Bell, Stream};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::windows::io::{AsHandle, BorrowedHandle, OwnedHandle};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// How much is written at once. Wine loses the thread that writes much more while the machine is busy.
const CHUNK: usize = 16 << 10;

/// How much of stderr waits for a host that does not read it, and how much of stdin for a server.
const STDERR: usize = 256 << 10;
const STDIN: usize = 4 << 20;

/// Who takes nothing for this long, after the other has gone, is not waited for.
const PARTING: Duration = Duration::from_secs(2);

/// The server's ends.
pub(super) struct Streams {
    pub(super) stdin: Stream,
    pub(super) stdout: Stream,
    pub(super) stderr: Stream,
}

/// Our ends, before there is a server.
pub(super) struct Pumps {
    to_stdin: PipeWriter,
    from_stdout: PipeReader,
    from_stderr: PipeReader,
    told: Arc<Told>,
}

/// What the threads tell.
#[derive(Debug)]
struct Told {
    bell: Bell,
    /// The host has closed the server's input, or reads its output no more.
    done: AtomicBool,
    /// How much has been written to the host.
    written: AtomicU64,
}

impl Told {
    fn host_is_done(&self) {
        self.done.store(true, Ordering::SeqCst);
        self.bell.ring();
    }
}

/// Copying.
#[derive(Debug)]
pub(super) struct Running {
    told: Arc<Told>,
    /// Each of the two threads that write to the host has an end of one until it is through.
    stdout: Receiver<()>,
    stderr: Receiver<()>,
}

impl Pumps {
    pub(super) fn new(bell: &Bell) -> io::Result<(Pumps, Streams)> {
        let (stdin, to_stdin) = io::pipe()?;
        let (from_stdout, stdout) = io::pipe()?;
        let (from_stderr, stderr) = io::pipe()?;
        let told =
            Told { bell: bell.clone(), done: AtomicBool::new(false), written: AtomicU64::new(0) };
        let pumps = Pumps { to_stdin, from_stdout, from_stderr, told: Arc::new(told) };
        let streams = Streams { stdin: stdin.into(), stdout: stdout.into(), stderr: stderr.into() };
        Ok((pumps, streams))
    }

    /// Begins to copy.
    pub(super) fn start(self, log: Journal) -> Running {
        let Pumps { to_stdin, from_stdout, from_stderr, told } = self;
        let ((out, stdout), (err, stderr)) = (channel::<()>(), channel::<()>());
        let to_host = Arc::new(Backlog::new(STDERR));
        let at_host = Arc::clone(&to_host);
        let (reading, writing) = (Arc::clone(&told), Arc::clone(&told));
        let to_server = Arc::new(Backlog::new(STDIN));
        let at_server = Arc::clone(&to_server);
        thread::spawn(move || read_stdin(&to_server, &reading));
        thread::spawn(move || write_stdin(&at_server, to_stdin));
        thread::spawn(move || {
            copy_stdout(from_stdout, &writing);
            drop(out);
        });
        thread::spawn(move || drain_stderr(from_stderr, log, &to_host));
        let writing = Arc::clone(&told);
        thread::spawn(move || {
            write_stderr(&at_host, &writing);
            drop(err);
        });
        Running { told, stdout, stderr }
    }
}

impl Running {
    /// Whether the host wants no more.
    pub(super) fn host_is_done(&self) -> bool {
        self.told.done.load(Ordering::SeqCst)
    }

    /// Waits until the host has everything that the server said, for as long as it takes any of it; and
    /// while the host is `owed` its output, until it does: the server itself would have waited.
    pub(super) fn finish(self, owed: impl Fn() -> bool) {
        self.drained(&self.stdout, || owed() && !self.host_is_done());
        self.drained(&self.stderr, || false);
    }

    fn drained(&self, through: &Receiver<()>, patient: impl Fn() -> bool) {
        loop {
            let before = self.told.written.load(Ordering::SeqCst);
            match through.recv_timeout(PARTING) {
                Err(RecvTimeoutError::Disconnected) => return,
                _ if self.told.written.load(Ordering::SeqCst) == before && !patient() => return,
                _ => {}
            }
        }
    }
}

/// The host's own stream, without anybody's buffer in between. `None` where it has none.
fn own(stream: BorrowedHandle<'_>) -> Option<File> {
    stream.try_clone_to_owned().ok().map(|handle: OwnedHandle| File::from(handle))
}

/// Reads ahead of the server, so that the end is heard of even if the server has stopped reading.
fn read_stdin(server: &Backlog, told: &Told) {
    let mut buffer = vec![0; CHUNK];
    if let Some(mut host) = own(io::stdin().as_handle()) {
        while let Some(bytes) = next(&mut host, &mut buffer) {
            // Nobody reads on then, so the end is looked for behind what waits.
            server.push(bytes, PARTING, || {
                if is_closing(host.as_handle()) {
                    told.host_is_done();
                }
            });
        }
    }
    // Its input closes behind what was said, and its time begins then; but not if it never reads.
    server.settle(PARTING);
    told.host_is_done();
}

fn write_stdin(host: &Backlog, server: PipeWriter) {
    let mut server = Some(server);
    while let Some(bytes) = host.take() {
        // A server that reads no more may still have something to say; the host is heard to its end
        // all the same.
        server = server.and_then(|mut server| server.write_all(&bytes).is_ok().then_some(server));
    }
    drop(server);
    host.through();
}

fn copy_stdout(mut server: PipeReader, told: &Told) {
    let mut host = own(io::stdout().as_handle());
    let mut buffer = vec![0; CHUNK];
    while let Some(bytes) = next(&mut server, &mut buffer) {
        let Some(open) = &mut host else { continue };
        if open.write_all(bytes).is_ok() {
            told.written.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        } else {
            // The rest is taken and dropped, so that the server never waits for a host that is gone.
            host = None;
            told.host_is_done();
        }
    }
}

/// Takes what the server says on stderr, whether the host does or not.
fn drain_stderr(mut server: PipeReader, log: Journal, host: &Backlog) {
    let (mut log, mut dropped) = (Some(log), 0_u64);
    let mut buffer = vec![0; CHUNK];
    while let Some(bytes) = next(&mut server, &mut buffer) {
        // A full disk is no reason to stop draining.
        log = log.and_then(|mut log| log.append(bytes).is_ok().then_some(log));
        if dropped > 0 && host.put(&note(dropped)) {
            dropped = 0;
        }
        if !host.put(bytes) {
            dropped += bytes.len() as u64;
        }
    }
    if dropped > 0 {
        // Nobody reads it, most likely.
        host.put(&note(dropped));
    }
    host.close();
}

fn note(dropped: u64) -> Vec<u8> {
    let note = format!(
        "\nlariat: {dropped} bytes of stderr were dropped because the host did not read; they are \
         in the server's log\n"
    );
    note.into_bytes()
}

fn write_stderr(chunks: &Backlog, told: &Told) {
    let mut host = own(io::stderr().as_handle());
    while let Some(chunk) = chunks.take() {
        let Some(open) = &mut host else { continue };
        match open.write_all(&chunk) {
            Ok(()) => drop(told.written.fetch_add(chunk.len() as u64, Ordering::SeqCst)),
            Err(_) => host = None,
        }
    }
}
