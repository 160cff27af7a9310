//! What all requests share, and what only a pipe has.

use super::Defaults;
use super::http::Io;
use super::lease::Line;
use super::registry::Registry;
use super::web::Web;
use crate::pool::Pool;
use crate::session::Session;
use hyper::upgrade::OnUpgrade;
use std::io::Cursor;
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use tokio::net::windows::named_pipe::NamedPipeServer;
use tokio::sync::watch;

/// What all requests share.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) registry: Arc<Registry>,
    pub(super) defaults: Defaults,
    /// True once all sessions have ended because the daemon does.
    pub(super) stopped: watch::Sender<bool>,
    /// Never true here: nothing is handed to another daemon.
    pub(super) retired: watch::Sender<bool>,
    /// The page, if it is there.
    pub(super) web: Web,
    /// Servers that sessions have together.
    pub(super) pool: Pool,
}

/// Speaks with a server by what was a connection of the API. It counts as one until it ends.
pub(super) async fn speak(
    _desk: Arc<Desk>,
    line: Arc<Line>,
    session: Session,
    server: String,
    upgrade: OnUpgrade,
) {
    if let Ok(upgraded) = upgrade.await
        && let Ok(parts) = upgraded.downcast::<Io<NamedPipeServer>>()
    {
        let (reader, writer) = tokio::io::split(parts.io.0);
        let reader = Cursor::new(parts.read_buf).chain(reader);
        // Nobody is left to be told why it ended.
        let _ended = session.attach(&server, reader, writer).await;
    }
    drop(line);
}
