//! The daemon's API from the other end: one connection, one method for each request.

#[cfg(target_os = "linux")]
mod socket;
#[cfg(windows)]
#[path = "windows/socket.rs"]
mod socket;

pub use socket::Stream;

use super::api::{self, Call, Closed, LEASE, LEASE_CONNECTION, Open, Problem, Refresh, UPGRADE};
use super::http::Io;
use super::routes::encoded;
use crate::snapshot::Snapshot;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header;
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::fmt;
use std::io;

/// A connection to a daemon. Sessions that were opened with it as their lease end when it is dropped.
#[derive(Debug)]
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
}

/// Why a request came to nothing.
#[derive(Debug)]
pub enum Error {
    /// The daemon says why.
    Refused(Box<Problem>),
    /// The connection broke. A session that was being opened by it has ended, or never was.
    Broken(io::Error),
    /// What came back is not what the API says.
    Nonsense(String),
    /// Who listens is another user, and is told nothing.
    Stranger(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(problem) => f.write_str(&problem.detail),
            Error::Broken(_) => f.write_str("the connection to the daemon broke"),
            Error::Nonsense(what) => write!(f, "the daemon's answer makes no sense: {what}"),
            Error::Stranger(user) => write!(f, "the daemon there is that of another user, {user}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Broken(error) => Some(error),
            Error::Refused(_) | Error::Nonsense(_) | Error::Stranger(_) => None,
        }
    }
}

impl From<hyper::Error> for Error {
    fn from(error: hyper::Error) -> Error {
        Error::Broken(io::Error::other(error))
    }
}

/// A connection that speaks MCP from here on.
#[derive(Debug)]
pub struct Attached {
    /// Newline-delimited JSON-RPC, both ways.
    pub stream: Stream,
    /// What the server said already.
    pub heard: Bytes,
}

impl Client {
    /// Speaks with whoever listens there, if that is the same user.
    pub async fn over(stream: Stream) -> Result<Client, Error> {
        socket::check(&stream)?;
        let (sender, connection) = http1::handshake(Io(stream)).await?;
        // Ends with the sender, or with the daemon; requests see that.
        tokio::spawn(connection.with_upgrades());
        Ok(Client { sender })
    }

    /// Opens a session; with `lease`, one that ends with this connection.
    pub async fn open(&mut self, open: &Open, lease: bool) -> Result<api::Session, Error> {
        let mut request = request(Method::POST, "/v1/sessions", Some(open))?;
        if lease {
            let value = header::HeaderValue::from_static(LEASE_CONNECTION);
            request.headers_mut().insert(LEASE, value);
        }
        self.ask(request).await
    }

    /// All sessions.
    pub async fn list(&mut self) -> Result<api::Sessions, Error> {
        self.ask(request(Method::GET, "/v1/sessions", NOTHING)?).await
    }

    /// One session.
    pub async fn look(&mut self, id: &str) -> Result<api::Session, Error> {
        self.ask(request(Method::GET, &session(id), NOTHING)?).await
    }

    /// Ends a session. Returns when it is gone.
    pub async fn close(&mut self, id: &str) -> Result<Closed, Error> {
        self.ask(request(Method::DELETE, &session(id), NOTHING)?).await
    }

    /// Replaces a session's servers.
    pub async fn refresh(&mut self, id: &str, refresh: &Refresh) -> Result<api::Session, Error> {
        let path = format!("{}/refresh", session(id));
        self.ask(request(Method::POST, &path, Some(refresh))?).await
    }

    /// Calls a tool.
    pub async fn call(
        &mut self,
        id: &str,
        server: &str,
        call: &Call,
    ) -> Result<Box<RawValue>, Error> {
        let path = format!("{}/servers/{}/call", session(id), encoded(server));
        self.ask(request(Method::POST, &path, Some(call))?).await
    }

    /// The processes of all sessions.
    pub async fn snapshot(&mut self) -> Result<Snapshot, Error> {
        self.ask(request(Method::GET, "/v1/snapshot", NOTHING)?).await
    }

    /// A link to the page that works once. The page is opened if it is not yet.
    pub async fn link(&mut self) -> Result<api::Link, Error> {
        self.ask(request(Method::POST, "/v1/page/links", NOTHING)?).await
    }

    /// Makes the connection one to a server.
    pub async fn attach(mut self, id: &str, server: &str) -> Result<Attached, Error> {
        let path = format!("{}/servers/{}/mcp", session(id), encoded(server));
        let mut request = request(Method::GET, &path, NOTHING)?;
        let headers = request.headers_mut();
        headers.insert(header::CONNECTION, header::HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, header::HeaderValue::from_static(UPGRADE));
        let response = self.sender.send_request(request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal(response).await?);
        }
        let upgraded = hyper::upgrade::on(response).await?;
        // It is the stream that `over` was given.
        let parts =
            upgraded.downcast::<Io<Stream>>().map_err(|_| Error::Nonsense("no stream".into()))?;
        Ok(Attached { stream: parts.io.0, heard: parts.read_buf })
    }

    async fn ask<T: DeserializeOwned>(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<T, Error> {
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        if !response.status().is_success() {
            return Err(refusal(response).await?);
        }
        let body = response.into_body().collect().await?.to_bytes();
        serde_json::from_slice(&body).map_err(|error| Error::Nonsense(error.to_string()))
    }
}

const NOTHING: Option<&()> = None;

fn session(id: &str) -> String {
    format!("/v1/sessions/{}", encoded(id))
}

fn request(
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<Request<Full<Bytes>>, Error> {
    let bytes = match body {
        Some(body) => {
            serde_json::to_vec(body).map_err(|error| Error::Nonsense(error.to_string()))?
        }
        None => Vec::new(),
    };
    let builder = Request::builder().method(method).uri(path).header(header::HOST, "lariat");
    let builder = match body {
        Some(_) => builder.header(header::CONTENT_TYPE, "application/json"),
        None => builder,
    };
    builder.body(Full::new(bytes.into())).map_err(|error| Error::Nonsense(error.to_string()))
}

async fn refusal(response: Response<Incoming>) -> Result<Error, Error> {
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    Ok(match serde_json::from_slice(&body) {
        Ok(problem) => Error::Refused(Box::new(problem)),
        Err(_) => Error::Nonsense(format!("status {status}")),
    })
}
