//! What all requests share, and what only a unix socket has.

use super::Defaults;
use super::attached::Attached;
use super::flow::Stream;
use super::handover::Asked;
use super::http::Io;
use super::joining::Seated;
use super::lease::Line;
use super::line::Resting;
use super::registry::Registry;
use super::rest::Rest;
use super::web::Web;
use crate::pool::Pool;
use crate::session::Session;
use hyper::upgrade::OnUpgrade;
use std::sync::Arc;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

/// What all requests share.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) registry: Arc<Registry>,
    pub(super) defaults: Defaults,
    /// True once all sessions have ended because the daemon does.
    pub(super) stopped: watch::Sender<bool>,
    /// True once another daemon has the name, and newcomers are that one's.
    pub(super) retired: watch::Sender<bool>,
    /// The page, if it is there.
    pub(super) web: Web,
    /// Servers that sessions have together.
    pub(super) pool: Pool,
    /// Hosts that have joined it, while everything rests.
    pub(super) rest: Rest<Seated>,
    /// The same of connections by the socket.
    pub(super) lines: Rest<Resting>,
    /// The same of clients that speak MCP by them.
    pub(super) attached: Rest<Attached>,
    /// Whoever wants this daemon to become the next one.
    pub(super) asking: mpsc::Sender<Asked>,
}

/// Speaks with a server by what was a connection of the API. It counts as one until it ends.
pub(super) fn speak(
    desk: Arc<Desk>,
    line: Arc<Line>,
    session: Session,
    server: String,
    upgrade: OnUpgrade,
) -> impl Future<Output = ()> + Send {
    let counted = desk.attached.come();
    async move {
        if let Ok(upgraded) = upgrade.await
            && let Ok(parts) = upgraded.downcast::<Io<Stream<UnixStream>>>()
            && let Ok(place) = session.sit(&server).await
        {
            let (stream, unread) = parts.io.0.into_parts();
            let heard = [&parts.read_buf[..], &unread[..]].concat();
            let whose = (session.id().clone(), server);
            // Nobody is left to be told why it ended.
            Attached::new((stream, heard), line, whose, place).stay(&desk).await;
        }
        drop(counted);
    }
}
