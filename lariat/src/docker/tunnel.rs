//! A hijacked connection between two sockets of this machine: two threads that copy.
//!
//! Here, and only here, how soon a byte goes on is what a person waits for: a server in a container
//! speaks its protocol through this pipe. A thread that waits in `read` is woken by the kernel and
//! writes at once. Falling asleep and being woken is most of what a hop costs, so a thread that has just
//! passed something on stays awake for a moment, in which the answer may come.

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long to stay awake. An answer of a container that has nothing to think about takes this long.
const AWAKE: Duration = Duration::from_micros(300);

/// What is read at once.
const PIECE: usize = 64 << 10;

/// A thread of ours does nothing deep.
const STACK: usize = 64 << 10;

/// One side, and what was read from it too early.
#[derive(Debug)]
pub(super) struct End {
    /// A stream socket that blocks.
    pub(super) socket: OwnedFd,
    /// What it has said already.
    pub(super) early: Vec<u8>,
}

/// Copies both ways until the engine's side has ended or the client is gone.
pub(super) async fn run(client: End, engine: End) {
    let (said, ended) = oneshot::channel();
    let (to_client, to_engine) = (Arc::new(client.socket), Arc::new(engine.socket));
    let (from_client, from_engine) = (Arc::clone(&to_client), Arc::clone(&to_engine));
    let up = move || {
        if copy(&from_client, &to_engine, &client.early) {
            // A client that has said all it has to say still listens; perhaps to nothing for long.
            let _gone = shutdown(&to_engine, Shutdown::Write);
            let mut fds = [PollFd::new(&from_client, PollFlags::empty())];
            contain::wait(&mut fds, None);
        }
        // Wakes the other thread.
        let _gone = shutdown(&to_engine, Shutdown::Both);
    };
    let both = [Arc::clone(&to_client), Arc::clone(&from_engine)];
    let close = move || {
        for socket in &both {
            let _gone = shutdown(socket, Shutdown::Both);
        }
    };
    let close_early = close.clone();
    let down = move || {
        copy(&from_engine, &to_client, &engine.early);
        close();
        let _nobody = said.send(());
    };
    let thread = || thread::Builder::new().stack_size(STACK);
    if thread().spawn(up).is_ok() && thread().spawn(down).is_ok() {
        let _without_a_word = ended.await;
    } else {
        close_early();
    }
}

/// Copies one way until there is no more; false if it cannot go on.
fn copy(from: &impl AsFd, to: &impl AsFd, early: &[u8]) -> bool {
    let mut buffer = vec![0; PIECE];
    if !send_all(to, early) {
        return false;
    }
    let mut awake_until = Instant::now();
    loop {
        let flags =
            if Instant::now() < awake_until { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        match recv(from, buffer.as_mut_slice(), flags) {
            Ok((0, _)) => return true,
            Ok((n, _)) => {
                if !send_all(to, &buffer[..n]) {
                    return false;
                }
                awake_until = Instant::now() + AWAKE;
            }
            Err(Errno::AGAIN) => thread::yield_now(),
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn send_all(to: &impl AsFd, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match send(to, bytes, SendFlags::NOSIGNAL) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}
