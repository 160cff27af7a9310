//! What a create must pass before it goes to the engine: room for one more, labels of its own, and a
//! session that has not ended.
//!
//! All connections of a proxy share this, and the proxy waits for what it has let through.

use super::client::{Client, Kind};
use super::endpoint::Endpoint;
use super::label::Labels;
use std::cell::Cell;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{Mutex, Notify};

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
    pub(super) fn new(service: Service) -> Shared {
        Shared {
            client: Client::new(&service.endpoint),
            service,
            admission: Mutex::new(()),
            under_way: Cell::new(0),
            settled: Notify::new(),
            births: Cell::new(0),
            closing: Cell::new(false),
        }
    }

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

    /// Lets nothing through any more.
    pub(super) fn close(&self) {
        self.closing.set(true);
    }

    /// Returns when the engine has answered everything that was let through.
    pub(super) async fn settled(&self) {
        while self.under_way.get() > 0 {
            self.settled.notified().await;
        }
    }
}
