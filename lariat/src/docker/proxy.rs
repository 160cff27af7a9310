//! The proxy: what a session's processes know as their Docker engine.
//!
//! A process of its own beside the tree, started by the first connection. Bytes pass as they come;
//! only the head of each message is read, to know where it ends, and only the body of a create is
//! held and changed. It ends when it is told that the tree is gone, or when both wrapper and
//! guardian are: from then on nothing can be created any more that nobody would remove.

use super::client::{Client, Kind};
use super::endpoint::Endpoint;
use super::exchange::Exchange;
use super::label::Labels;
use serde::Serialize;
use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, Notify};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout};

/// How long creates that are on their way to the engine may take once the tree is gone.
const LAST_CREATES: Duration = Duration::from_millis(800);

/// A proxy that nobody talks to leaves after this long; the next connection starts another.
const IDLE: Duration = Duration::from_secs(60);

/// How long to wait when the machine has no descriptor left for another connection.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// What a proxy needs to know.
#[derive(Debug, Clone)]
pub struct Service {
    /// The real engine.
    pub endpoint: Endpoint,
    /// What everything that is created carries.
    pub labels: Labels,
    /// How many containers may live at once.
    pub most: usize,
    /// Where creates are tallied.
    pub tally: PathBuf,
}

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) service: Service,
    client: Client,
    /// One at a time asks whether there is room.
    admission: Mutex<()>,
    /// Creates that the engine has not answered.
    under_way: Cell<usize>,
    settled: Notify,
    births: Cell<u64>,
    /// From here on nothing is created.
    closing: Cell<bool>,
}

/// A create that was let through.
#[derive(Debug)]
pub(super) struct Admitted {
    shared: Rc<Shared>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let under_way = &self.shared.under_way;
        under_way.set(under_way.get() - 1);
        self.shared.settled.notify_waiters();
    }
}

/// Why a create was not let through.
#[derive(Debug)]
pub(super) enum Refused {
    /// As many as the session may have are there.
    Full(usize),
    /// The engine could not be asked.
    Unreachable(io::Error),
    /// The session has ended.
    Ended,
}

impl Shared {
    /// The labels for one more create.
    pub(super) fn labels(&self) -> Labels {
        let number = self.births.replace(self.births.get() + 1);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let birth = format!("{:x}-{number}", since.as_nanos());
        Labels { birth, ..self.service.labels.clone() }
    }

    /// Lets a create through, if it is not one container too many.
    pub(super) async fn admit(self: &Rc<Self>, container: bool) -> Result<Admitted, Refused> {
        if container {
            let _turn = self.admission.lock().await;
            let session = &self.service.labels.session;
            let listed = self.client.of_session(Kind::Container, session).await;
            let listed = listed.map_err(Refused::Unreachable)?;
            let over = ["exited", "dead", "removing"];
            let alive = listed.iter().filter(|thing| !over.contains(&thing.state.as_str()));
            if alive.count() + self.under_way.get() >= self.service.most {
                return Err(Refused::Full(self.service.most));
            }
        }
        if self.closing.get() {
            return Err(Refused::Ended);
        }
        self.under_way.set(self.under_way.get() + 1);
        Ok(Admitted { shared: Rc::clone(self) })
    }
}

/// The body of an answer of our own, in the engine's words.
#[derive(Debug, Serialize)]
pub(super) struct Said<'a> {
    pub(super) message: &'a str,
}

/// Serves until the lifeline says something or breaks. Blocks.
pub fn serve(listener: StdListener, lifeline: OwnedFd, service: Service) -> io::Result<()> {
    raise_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let lifeline = StdStream::from(lifeline);
        lifeline.set_nonblocking(true)?;
        let lifeline = UnixStream::from_std(lifeline)?;
        let shared = Rc::new(Shared {
            client: Client::new(&service.endpoint),
            service,
            admission: Mutex::new(()),
            under_way: Cell::new(0),
            settled: Notify::new(),
            births: Cell::new(0),
            closing: Cell::new(false),
        });
        accept(listener, lifeline, &shared).await;
        Ok(())
    })
}

/// Two descriptors for each connection: as many as this process may have.
fn raise_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = getrlimit(Resource::Nofile).maximum;
    // As it was, connections wait for each other.
    let _fewer = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
}

async fn accept(listener: UnixListener, mut lifeline: UnixStream, shared: &Rc<Shared>) {
    let mut connections = JoinSet::new();
    let mut word = [0u8; 1];
    loop {
        let nobody = connections.is_empty();
        tokio::select! {
            // A word or the end of the line: either way nobody needs us any more.
            _ = lifeline.read(&mut word) => break,
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    let exchange = Exchange::new(client, Rc::clone(shared));
                    connections.spawn_local(exchange.run());
                }
                Err(_) => sleep(EXHAUSTED).await,
            },
            () = sleep(IDLE), if nobody => return,
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    shared.closing.set(true);
    // What the engine has been told to create exists sooner or later; known is better.
    let last = async {
        while shared.under_way.get() > 0 {
            let settled = shared.settled.notified();
            tokio::select! {
                () = settled => {}
                Some(_) = connections.join_next() => {}
            }
        }
    };
    let _in_doubt = timeout(LAST_CREATES, last).await;
}
