//! A client of the official SDK for a server of a session: typed calls, and a handler of the host's
//! own for what the server asks (sampling, elicitation, roots).
//!
//! The SDK gets two streams and never a process. A peer that is cloned and kept, or that waits for an
//! answer, holds an end of a pipe in memory; it sees the server leave and keeps nothing alive.

use super::handle::Session;
use super::state::{Error, State};
use rmcp::model::ProtocolVersion;
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, RunningService};
use rmcp::{ClientHandler, RoleClient};
use serde_json::{Map, Value};

/// How much may be on its way to or from a peer.
const PIPE: usize = 64 << 10;

impl Session {
    /// Attaches a client of the official SDK to a server.
    ///
    /// What the handler declares that it can do, the server must have been told when it was started:
    /// see [`ServerSpec::capabilities`](crate::spec::ServerSpec::capabilities).
    pub async fn peer<H: ClientHandler>(
        &self,
        server: &str,
        handler: H,
    ) -> Result<RunningService<RoleClient, H>, Error> {
        self.wait_ready(server).await?;
        let (spec, state) = self.look(server)?;
        let refused = |why: String| Error::NotReady(server.into(), why.into());
        let declared = serde_json::to_value(handler.get_info().capabilities).unwrap_or_default();
        if let Some(more) = beyond(&declared, &spec.capabilities) {
            let why = format!("its handler declares `{more}`, which its `capabilities` do not");
            return Err(refused(why));
        }
        let lifecycle = match state {
            State::Ready(ready) if ready.hello.era == "modern" => {
                ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] }
            }
            _ => ClientLifecycleMode::Initialize,
        };
        let (theirs, ours) = tokio::io::duplex(PIPE);
        let (reader, writer) = tokio::io::split(ours);
        let (session, name) = (self.clone(), server.to_owned());
        tokio::spawn(async move { session.attach(&name, reader, writer).await });
        let service = handler.serve_with_lifecycle(tokio::io::split(theirs), lifecycle).await;
        service.map_err(|e| refused(e.to_string()))
    }
}

/// The first capability that the server was not told of.
fn beyond(declared: &Value, told: &Map<String, Value>) -> Option<String> {
    let declared = declared.as_object()?;
    declared.keys().find(|name| !told.contains_key(*name)).cloned()
}
