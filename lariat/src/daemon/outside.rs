//! The way in for other machines: MCP and nothing else, by TLS, for whoever has a token that was
//! signed for us. A token says whose it is, and nobody ever has another's session or process.

use super::api::{Problem, echo};
use super::connections::{Connections, Guest};
use super::gateway::{Caller, Gateway, Target};
use super::handle::Desk;
use super::http::{self, Answer};
use super::oauth::{Guard, Issuer, METADATA, Refusal};
use super::web::{self, Abort, Presence, SILENCE, accepted};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap};
use hyper::{Method, Request, StatusCode};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What it takes to be reached from other machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secured {
    /// A file with our certificate and those that it needs, in PEM.
    pub certificate: PathBuf,
    /// A file with its private key, in PEM.
    pub key: PathBuf,
    /// Whose tokens let somebody in.
    pub issuer: Issuer,
}

impl Secured {
    /// Reads everything, and says what cannot be used.
    pub fn check(&self) -> io::Result<()> {
        Guard::new(&self.issuer)?;
        acceptor(self).map(drop)
    }
}

/// A listener for other machines, and who may come in by it.
pub struct Gate {
    listener: std::net::TcpListener,
    address: SocketAddr,
    tls: TlsAcceptor,
    guard: Guard,
}

impl std::fmt::Debug for Gate {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Gate {
    /// Reads the certificate, its key, and the keys of who signs tokens.
    pub fn new(listener: std::net::TcpListener, secured: &Secured) -> io::Result<Gate> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let guard = Guard::new(&secured.issuer)?;
        Ok(Gate { listener, address, tls: acceptor(secured)?, guard })
    }

    /// Where it is, with the port that the kernel has chosen if nobody else has.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn acceptor(secured: &Secured) -> io::Result<TlsAcceptor> {
    let invalid = |what: &str, path: &Path, e: &dyn std::fmt::Display| {
        let what = format!("the {what} {} cannot be used: {e}", path.display());
        io::Error::new(io::ErrorKind::InvalidInput, what)
    };
    let Secured { certificate, key, .. } = secured;
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| invalid("certificate", certificate, &e))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| invalid("key", key, &e))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_no_client_auth())
        .and_then(|builder| builder.with_single_cert(chain, private))
        .map_err(|e| invalid("certificate", certificate, &e))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Everybody from other machines.
pub(super) struct Outside {
    everybody: Arc<Everybody>,
    serving: Abort,
}

struct Everybody {
    guard: Guard,
    gateway: Arc<Gateway>,
    connections: Arc<Connections>,
    changed: Arc<Notify>,
    stopped: watch::Receiver<bool>,
}

impl Outside {
    /// Serves by this gate, until everything is stopped.
    pub(super) fn open(desk: &Desk, gate: Gate) -> io::Result<Outside> {
        let Gate { listener, tls, guard, .. } = gate;
        let listener = TcpListener::from_std(listener)?;
        let (pool, offer) = (desk.pool.clone(), &desk.defaults.offer);
        let (changed, stopped) = (desk.registry.changed.clone(), desk.stopped.subscribe());
        // What is said by TLS cannot be said on by the next program, so nothing rests here.
        let words = [stopped.clone(), desk.retired.subscribe(), watch::channel(false).1];
        let gateway = Gateway::new(offer, pool, changed.clone(), words);
        let everybody = Arc::new(Everybody {
            guard,
            gateway: Arc::new(gateway),
            connections: Arc::default(),
            changed,
            stopped,
        });
        let serving = serve(everybody.clone(), listener, tls, desk.retired.subscribe());
        let serving = Abort(tokio::spawn(serving));
        Ok(Outside { everybody, serving })
    }

    /// True if nobody is connected, and nobody has a session who may come back.
    pub(super) fn is_quiet(&self) -> bool {
        self.everybody.connections.is_empty() && self.everybody.gateway.is_empty()
    }

    /// True if somebody has a session who may come back.
    pub(super) fn has_sessions(&self) -> bool {
        !self.everybody.gateway.is_empty()
    }

    /// Returns when all has been said. If it is dropped before, nothing more is.
    pub(super) async fn closed(mut self) {
        let _ended = (&mut self.serving.0).await;
    }
}

async fn serve(
    everybody: Arc<Everybody>,
    listener: TcpListener,
    tls: TlsAcceptor,
    mut retired: watch::Receiver<bool>,
) {
    let mut stopped = everybody.stopped.clone();
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => break,
            _ = retired.wait_for(|retired| *retired), if listener.is_some() => listener = None,
            stream = accepted(listener.as_ref()) => {
                let guest = everybody.connections.enter();
                connections.spawn(connection(everybody.clone(), tls.clone(), stream, guest));
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(outside: Arc<Everybody>, tls: TlsAcceptor, stream: TcpStream, guest: Guest) {
    // Answers are short, and somebody waits for them.
    let _slower = stream.set_nodelay(true);
    let secured = tokio::select! {
        secured = timeout(SILENCE, tls.accept(stream)) => secured,
        () = guest.must_leave() => return,
    };
    let Ok(Ok(stream)) = secured else { return };
    let presence = Arc::new(Presence::new(guest, outside.changed.clone()));
    let (stopped, looked_after) = (outside.stopped.clone(), presence.clone());
    let answer = move |request: Request<Incoming>| {
        let (outside, busy, presence) = (outside.clone(), presence.busy(), presence.clone());
        async move {
            match outside.admit(&request) {
                Ok(_) if !presence.shows_key() => web::too_many(),
                Ok((principal, target)) => {
                    let caller = Caller { principal: &principal, target: &target };
                    let answer = outside.gateway.answer(caller, busy, request).await;
                    http::in_pieces(answer, presence.busy())
                }
                // Strangers are told one thing, and then make room.
                Err(refusal) => http::with(*refusal, header::CONNECTION, "close"),
            }
        }
    };
    http::converse(stream, answer, looked_after.is_given_up(), stopped).await;
}

impl Everybody {
    /// Who asks for what, if it may.
    fn admit(&self, request: &Request<Incoming>) -> Result<(Arc<str>, Target), Box<Answer>> {
        self.check_origin(request).map_err(|problem| Box::new(http::problem(&problem)))?;
        let path = request.uri().path();
        if path.starts_with(METADATA) {
            return Err(Box::new(self.metadata(request.method())));
        }
        let Some(target) = Target::of(path, request.uri().query()) else {
            let detail = format!("There is no `{}` here. `/mcp` is for MCP.", echo(path));
            let problem = Problem::new(404, "no-path", "No such path", detail);
            return Err(Box::new(http::problem(&problem)));
        };
        let who = self.guard.principal(bearer(request.headers()), SystemTime::now());
        let who = who.map_err(|refusal: Refusal| Box::new(self.guard.refuse(&refusal)))?;
        Ok((who, target))
    }

    fn metadata(&self, method: &Method) -> Answer {
        if *method == Method::GET {
            return http::json(StatusCode::OK, &self.guard.metadata());
        }
        let problem = Problem::new(405, "no-method", "No such method", "This is only to be read.");
        http::with(http::problem(&problem), header::ALLOW, "GET")
    }

    /// Refuses what was asked under another name, and what another page asked.
    fn check_origin(&self, request: &Request<Incoming>) -> Result<(), Problem> {
        let headers = request.headers();
        // A port that goes without saying may be said.
        let bare = |name: &str| name.strip_suffix(":443").unwrap_or(name).to_ascii_lowercase();
        let is_own = |name: &str| bare(name) == bare(self.guard.authority());
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok());
        let named = request.uri().authority().map(|authority| authority.as_str());
        if !host.is_some_and(is_own)
            || hosts.next().is_some()
            || named.is_some_and(|name| !is_own(name))
        {
            let detail = format!("This is {}, and answers to no other name.", self.guard.origin());
            return Err(Problem::new(403, "foreign", "Another host", detail));
        }
        let is_ours = |origin: &str| origin.eq_ignore_ascii_case(self.guard.origin());
        let mut origins = headers.get_all(header::ORIGIN).iter();
        if origins.any(|origin| !origin.to_str().is_ok_and(is_ours)) {
            let detail = format!("Only {} itself may ask here.", self.guard.origin());
            return Err(Problem::new(403, "foreign", "Another origin", detail));
        }
        Ok(())
    }
}

/// The token that a request shows, if it shows one.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut shown = headers.get_all(header::AUTHORIZATION).iter();
    let one = shown.next().filter(|_| shown.next().is_none())?;
    let (scheme, token) = one.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
