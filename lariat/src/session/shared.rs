//! A server that a session may have together with others: it is the pool's, and the session is one
//! client of it. The session speaks with it as it does with its own.

use super::House;
use super::server::{Conversation, View};
use super::state::Ready;
use crate::mcp::{Connection, Rules};
use crate::pool::{Over, Pool, Seat, Server, Want};
use crate::spec::ServerSpec;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{duplex, split};
use tokio::task::JoinHandle;

/// What may be on its way between the two, beside what waits at either end.
const ROOM: usize = 64 << 10;

/// A session's place at a shared server. Dropped, it is left.
pub(super) struct Membership {
    serving: JoinHandle<Over>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Membership {
    /// Joins, and speaks by the connection. Nothing is started before something is said.
    pub(super) fn new(
        pool: &Pool,
        house: &House,
        view: &View,
        spec: &ServerSpec,
    ) -> (Membership, Connection, Conversation) {
        let server = Server { name: view.name.clone(), spec: spec.clone(), environment: None };
        let seat = pool.join(Want {
            server: Arc::new(server),
            principal: "".into(),
            share: spec.share,
            host: house.household.on_behalf,
            linger: Duration::ZERO,
        });
        let (near, far) = duplex(ROOM);
        let (far_reader, far_writer) = split(far);
        let serving = tokio::spawn(Seat::serve(seat, far_reader, far_writer));
        let (reader, writer) = split(near);
        let rules = Rules { tools: spec.tools.clone(), capabilities: spec.capabilities.clone() };
        let (connection, driving) = Connection::open(writer, reader, rules);
        let conversation = Conversation::of(driving);
        (Membership { serving }, connection, conversation)
    }

    /// Shakes hands. Gives a sentence if it does not come to that.
    pub(super) async fn begin(&mut self, connection: &Connection) -> Result<Ready, String> {
        let greeted = async {
            let hello = connection.greet().await?;
            Ok::<_, crate::mcp::connection::Error>((hello, connection.tools().await?))
        };
        match greeted.await {
            // Its processes are the pool's.
            Ok((hello, tools)) => Ok(Ready { pid: 0, backend: "pool".into(), hello, tools }),
            Err(crate::mcp::connection::Error::Closed) => Err(self.why().await),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Why it is over, which it is.
    pub(super) async fn why(&mut self) -> String {
        let over = (&mut self.serving).await;
        over.map_or_else(|_| "the pool has ended".into(), |over| over.why)
    }
}
