//! What a host speaks through: calls, tools, states, events. Owns nothing.

use super::server::View;
use super::state::{Error, Event, State};
use super::{House, picture};
use crate::id::SessionId;
use crate::mcp::Connection;
use crate::mcp::connection::Error as ConnectionError;
use crate::snapshot;
#[cfg(feature = "rmcp")]
use crate::spec::ServerSpec;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::broadcast;
use tokio::time::timeout;

/// Speaks with the servers of one session. Cheap to clone; keeps nothing alive.
#[derive(Debug, Clone)]
pub struct Session(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    house: Arc<House>,
    views: Mutex<Views>,
}

#[derive(Debug, Default)]
struct Views {
    by_name: BTreeMap<String, Arc<View>>,
    closed: bool,
}

impl Session {
    pub(super) fn new(house: Arc<House>) -> Session {
        Session(Arc::new(Shared { house, views: Mutex::default() }))
    }

    pub(super) fn house(&self) -> &Arc<House> {
        &self.0.house
    }

    fn views(&self) -> MutexGuard<'_, Views> {
        // Nothing that is done under this lock can leave it half done.
        self.0.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Vec<Arc<View>> {
        self.views().by_name.values().cloned().collect()
    }

    /// Makes a server visible. In a session that has ended it will not run.
    pub(super) fn show(&self, view: &Arc<View>) {
        let mut views = self.views();
        if views.closed {
            view.let_go();
        }
        views.by_name.insert(view.name.clone(), view.clone());
    }

    /// Makes a server invisible, if it is still the same.
    pub(super) fn hide(&self, view: &Arc<View>) {
        let mut views = self.views();
        if views.by_name.get(&view.name).is_some_and(|there| Arc::ptr_eq(there, view)) {
            views.by_name.remove(&view.name);
        }
    }

    /// Ends all servers, and lets none run any more.
    pub(super) fn let_go(&self) {
        self.views().closed = true;
        for view in self.all() {
            view.let_go();
        }
    }

    /// Which session.
    pub fn id(&self) -> &SessionId {
        self.0.house.id()
    }

    /// What its owner calls it.
    pub fn name(&self) -> Option<&str> {
        self.0.house.name.as_deref()
    }

    /// What happens from now on. Who wants to hear of the start, too, gives
    /// [`Config::events`](super::Config::events) a channel of its own.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.0.house.events.subscribe()
    }

    /// How each server is.
    pub fn states(&self) -> BTreeMap<String, State> {
        self.all().into_iter().map(|view| (view.name.clone(), view.state())).collect()
    }

    /// Waits until each server is ready or has failed.
    pub async fn settled(&self) {
        for view in self.all() {
            view.settled().await;
        }
    }

    /// The tools of each server that is ready, as it describes them; for the others, why not.
    pub fn tools(&self) -> BTreeMap<String, Result<Vec<Box<RawValue>>, Error>> {
        let tools = |view: Arc<View>| {
            let tools = match view.state() {
                State::Ready(ready) => Ok(ready.tools.clone()),
                state => Err(not_ready(&view, &state)),
            };
            (view.name.clone(), tools)
        };
        self.all().into_iter().map(tools).collect()
    }

    /// Calls a tool, and gives the server's result as it is. A server that is just being started is
    /// waited for. Dropping the call cancels it.
    pub async fn call(
        &self,
        server: &str,
        tool: &str,
        arguments: Value,
    ) -> Result<Box<RawValue>, Error> {
        #[derive(Serialize)]
        struct Call<'a> {
            name: &'a str,
            #[serde(skip_serializing_if = "Value::is_null")]
            arguments: Value,
        }
        let view = self.view(server)?;
        let spec = view.spec();
        if !spec.allows(tool) {
            return Err(Error::NotAllowed { server: server.into(), tool: tool.into() });
        }
        let params = to_raw_value(&Call { name: tool, arguments }).ok();
        let work = async {
            let connection = self.ready(&view).await?;
            connection.request("tools/call", params).await.map_err(|e| self.explain(&view, e))
        };
        match timeout(spec.tool_timeout, work).await {
            Ok(result) => result,
            Err(_) => Err(Error::Timeout { tool: tool.into(), after: spec.tool_timeout }),
        }
    }

    /// Lets one more client speak MCP with a server, until either has enough.
    pub async fn attach(
        &self,
        server: &str,
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(), Error> {
        let view = self.view(server)?;
        let connection = self.ready(&view).await?;
        connection.attach(reader, writer).await.map_err(|e| self.explain(&view, e))
    }

    /// Waits until a server is ready, if it may become so.
    pub async fn wait_ready(&self, server: &str) -> Result<(), Error> {
        let view = self.view(server)?;
        self.ready(&view).await.map(drop)
    }

    /// What a server is to be, and how it is.
    #[cfg(feature = "rmcp")]
    pub(super) fn look(&self, server: &str) -> Result<(Arc<ServerSpec>, State), Error> {
        let view = self.view(server)?;
        Ok((view.spec(), view.state()))
    }

    /// How many processes its servers consist of.
    pub fn processes(&self) -> usize {
        picture::count(&self.all())
    }

    /// Its servers and what they consist of, as it is now.
    pub async fn snapshot(&self) -> Vec<snapshot::Server> {
        picture::of(self.all(), self.house()).await
    }

    pub(super) fn view(&self, server: &str) -> Result<Arc<View>, Error> {
        let views = self.views();
        match views.by_name.get(server) {
            _ if views.closed => Err(Error::Closed),
            Some(view) => Ok(view.clone()),
            None => Err(Error::NoServer(server.chars().take(80).collect())),
        }
    }

    pub(super) async fn ready(&self, view: &Arc<View>) -> Result<Connection, Error> {
        let mut states = view.watch();
        loop {
            let state = states.borrow_and_update().clone();
            match (&state, view.connection()) {
                (State::Ready(_), Some(connection)) => return Ok(connection),
                (State::Ready(_) | State::Starting | State::Restarting { .. }, _) => {}
                _ => return Err(not_ready(view, &state)),
            }
            if self.views().closed {
                return Err(Error::Closed);
            }
            if states.changed().await.is_err() {
                return Err(Error::Closed);
            }
        }
    }

    pub(super) fn explain(&self, view: &Arc<View>, error: ConnectionError) -> Error {
        match error {
            ConnectionError::Closed if view.was_told() => Error::Closed,
            ConnectionError::Closed => Error::Left(view.name.clone()),
            ConnectionError::Refused { code, message, .. } => Error::Refused { code, message },
            ConnectionError::NotAllowed(tool) => {
                Error::NotAllowed { server: view.name.clone(), tool }
            }
            other => Error::NotReady(view.name.clone(), other.to_string().into()),
        }
    }
}

fn not_ready(view: &View, state: &State) -> Error {
    let why = match state {
        State::Failed { why } | State::Restarting { why, .. } => why.clone(),
        State::Ending | State::Ended(_) => return Error::Closed,
        State::Starting | State::Ready(_) => "it is being started".into(),
    };
    Error::NotReady(view.name.clone(), why)
}
