//! Where a daemon listens: a pipe that is one user's alone.
//!
//! The first instance, which says who may come, is [`contain`]'s. The others come from the runtime, and
//! are for the same user by being of the same pipe. A few of them wait at any time: who comes while
//! none does is told that all are busy, and not every client tries again.

use contain::pipe::Anchor;
use std::io;
use std::time::Duration;
use tokio::net::windows::named_pipe::{NamedPipeServer, ServerOptions};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How many instances wait for somebody to come.
const WAITING: usize = 4;

/// How long to wait if there can be no further instance, for want of memory mostly.
const AGAIN: Duration = Duration::from_millis(100);

/// A pipe with this process at one end.
#[derive(Debug)]
pub struct Pipe {
    come: mpsc::Receiver<NamedPipeServer>,
    /// Each has an instance that waits. They end with this.
    _doors: JoinSet<()>,
    _anchor: Anchor,
}

impl Pipe {
    /// Listens there. In a runtime. If somebody does already, the error is a permission denied.
    pub fn listen(name: &str) -> io::Result<Pipe> {
        let anchor = Anchor::cast(name)?;
        let (comes, come) = mpsc::channel(WAITING);
        let mut doors = JoinSet::new();
        for _ in 0..WAITING {
            let (first, name, comes) = (instance(name)?, name.to_owned(), comes.clone());
            doors.spawn(wait(first, name, comes));
        }
        Ok(Pipe { come, _doors: doors, _anchor: anchor })
    }

    /// The next who has come.
    pub(super) async fn accepted(&mut self) -> NamedPipeServer {
        match self.come.recv().await {
            Some(stream) => stream,
            // Those who wait are there as long as this is.
            None => std::future::pending().await,
        }
    }
}

/// One more instance, for this machine alone. No child inherits it.
fn instance(name: &str) -> io::Result<NamedPipeServer> {
    ServerOptions::new().reject_remote_clients(true).create(name)
}

async fn wait(first: NamedPipeServer, name: String, comes: mpsc::Sender<NamedPipeServer>) {
    let mut next = Some(first);
    loop {
        let here = match next.take() {
            Some(here) => here,
            None => match instance(&name) {
                Ok(here) => here,
                Err(_) => {
                    sleep(AGAIN).await;
                    continue;
                }
            },
        };
        // One who left again at once was nobody.
        if here.connect().await.is_ok() && comes.send(here).await.is_err() {
            return;
        }
    }
}
