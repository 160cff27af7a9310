//! The proxy: what a session's processes know as their Docker engine.
//!
//! A process of its own beside the tree, started by the first connection. Bytes pass as they come;
//! only the head of each message is read, to know where it ends, and only the body of a create is
//! held and changed. It ends when it is told that the tree is gone, or when both wrapper and
//! guardian are: from then on nothing can be created any more that nobody would remove.

use super::admission::{Service, Shared};
use super::exchange::Exchange;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout};

/// How long creates that are on their way to the engine may take once the tree is gone.
const LAST_CREATES: Duration = Duration::from_millis(800);

/// A proxy that nobody talks to leaves after this long; the next connection starts another.
const IDLE: Duration = Duration::from_secs(60);

/// How long to wait when the machine has no descriptor left for another connection.
const EXHAUSTED: Duration = Duration::from_millis(50);

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
        let shared = Rc::new(Shared::new(service));
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
    shared.close();
    // What the engine has been told to create exists sooner or later; known is better. The
    // connections are driven meanwhile by the set that they run in.
    let _in_doubt = timeout(LAST_CREATES, shared.settled()).await;
}
