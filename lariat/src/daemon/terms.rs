//! What every daemon has, on whatever it listens: what its sessions have in common, how patient it is, and how
//! it ends.

use super::api::{Closed, Problem};
use super::config;
use super::limits::Limits;
use super::web::Access;
use crate::pool;
use crate::receipt::Survivor;
use crate::session::Config;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// How many connections there may be.
pub(super) const CONNECTIONS: usize = 1024;

/// How many more may be told that there are too many, or that they are somebody else's.
pub(super) const REFUSALS: usize = 64;

/// How long a new connection may say nothing. Later it may: it can be what a session hangs on.
pub(super) const FIRST_REQUEST: Duration = Duration::from_secs(10);

/// How long connections may take to write their last answers.
pub(super) const LAST_ANSWER: Duration = Duration::from_secs(1);

/// How long to wait if a connection cannot be accepted, for want of descriptors mostly.
pub(super) const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What all sessions of a daemon have in common.
#[derive(Debug, Clone)]
pub struct Defaults {
    /// What a session is without a name and servers of its own.
    pub session: Config,
    /// How much there may be of everything.
    pub limits: Limits,
    /// End after so long without a session and a connection; `None` for never.
    pub idle: Option<Duration>,
    /// Who may see the page.
    pub access: Access,
    /// Which servers can be reached by HTTP.
    pub offer: config::Config,
}

impl Defaults {
    /// The same for the servers that sessions have together.
    pub(super) fn pool(&self) -> pool::Config {
        let Config { state_dir, holder, ladder, backend, docker, max_containers, .. } =
            self.session.clone();
        pool::Config { state_dir, holder, ladder, backend, docker, max_containers }
    }
}

/// How a daemon ended.
#[derive(Debug)]
pub struct Farewell {
    /// Nobody had wanted anything for so long that it ended by itself.
    pub was_idle: bool,
    /// How many sessions were ended with it.
    pub sessions: usize,
    /// What of them could not be ended.
    pub survivors: Vec<Survivor>,
}

impl Farewell {
    /// After everything was ended.
    pub(super) fn new(was_idle: bool, sessions: &[Arc<Closed>], pool: &pool::Ended) -> Farewell {
        let of_sessions = sessions.iter().flat_map(|end| &end.survivors);
        let of_pool = pool.receipts.iter().flat_map(|receipt| &receipt.survivors);
        let survivors = of_sessions.chain(of_pool).cloned().collect();
        Farewell { was_idle, sessions: sessions.len(), survivors }
    }
}

/// What is said to whoever comes when there is no room.
pub(super) fn busy() -> Problem {
    let detail = format!("There are {CONNECTIONS} connections. Close some, or try again.");
    Problem::new(503, "busy", "Too many connections", detail)
}

/// Waits until then; for ever if there is no such moment.
pub(super) async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
