//! What is said by TCP: the page and its files, what happens as it happens, the end of a session, and
//! the metrics.
//!
//! A browser sends requests for whoever wrote the page that it shows, so each request is asked where
//! it comes from before it is asked for its key.

use super::api::{Problem, echo};
use super::gateway::{Caller, Gateway, Target};
use super::http::{self, Answer, Content};
use super::keys::Keys;
use super::lookout::{Lookout, Watcher};
use super::machine;
use super::metrics;
use super::picture::{Picture, Point};
use super::registry::Registry;
use super::web::{self, Busy};
use crate::books::Books;
use crate::id::SessionId;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use serde::Deserialize;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

const INDEX: &str = include_str!("page/index.html");
const SCRIPT: &str = include_str!("page/app.js");
const STYLE: &str = include_str!("page/style.css");

/// For who is not let in.
const ENTER: &str = include_str!("page/enter.html");

/// For who has followed a link. By a page of ours and not by a redirect: a browser that was sent here
/// from elsewhere would not show its new cookie.
const ENTERED: &str = include_str!("page/entered.html");

/// What a request that changes something has, and a form of somebody else's cannot have.
const OURS: &str = "lariat-page";

/// What a browser may do with what it gets from here: nothing that comes from elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'";

/// Pictures on their way to one reader.
const IN_FLIGHT: usize = 2;

/// Whoever has the token: it does not say who that is.
pub(super) fn principal() -> Arc<str> {
    "http".into()
}

/// Everything that is said about it by TCP.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) address: SocketAddr,
    pub(super) keys: Keys,
    pub(super) lookout: Arc<Lookout>,
    pub(super) registry: Arc<Registry>,
    pub(super) books: Books,
    pub(super) gateway: Arc<Gateway>,
    pub(super) stopped: watch::Receiver<bool>,
    /// Everything is to rest.
    pub(super) called: watch::Receiver<bool>,
}

/// `POST /v1/page/end`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    session: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Index,
    Script,
    Style,
    Enter,
    Events,
    End,
    Metrics,
}

/// All paths that there are.
const ROUTES: [(&str, Method, Verb); 7] = [
    ("/", Method::GET, Verb::Index),
    ("/app.js", Method::GET, Verb::Script),
    ("/style.css", Method::GET, Verb::Style),
    ("/open", Method::GET, Verb::Enter),
    ("/v1/page/events", Method::GET, Verb::Events),
    ("/v1/page/end", Method::POST, Verb::End),
    ("/metrics", Method::GET, Verb::Metrics),
];

impl Page {
    /// Answers one request.
    pub(super) async fn answer(&self, busy: Busy, request: Request<Incoming>) -> Answer {
        let answer = match Target::of(request.uri().path(), request.uri().query()) {
            Some(target) => match self.admit_client(&request) {
                Ok(principal) => {
                    let caller = Caller { principal: &principal, target: &target };
                    Ok(self.gateway.answer(caller, busy, request).await)
                }
                Err(answer) => Err(answer),
            },
            None => match self.admit(&request) {
                Ok(verb) => self.dispatch(verb, busy, request).await,
                Err(answer) => Err(answer),
            },
        };
        dressed(answer.unwrap_or_else(|refusal| *refusal))
    }

    /// Refuses a client of MCP that may not ask. Only the token counts: what a browser shows, it shows
    /// for any page that it was let in for.
    fn admit_client(&self, request: &Request<Incoming>) -> Result<Arc<str>, Box<Answer>> {
        self.check_target(request).map_err(refusal)?;
        self.check_origin(request.headers()).map_err(refusal)?;
        if self.keys.admits_anyone() || self.shows_token(request.headers()) {
            return Ok(principal());
        }
        Err(Box::new(stranger(Verb::Metrics)))
    }

    /// What is asked for, if it may be.
    fn admit(&self, request: &Request<Incoming>) -> Result<Verb, Box<Answer>> {
        let headers = request.headers();
        self.check_target(request).map_err(refusal)?;
        self.check_origin(headers).map_err(refusal)?;
        let path = request.uri().path();
        let Some((_, method, verb)) = ROUTES.iter().find(|(known, _, _)| *known == path) else {
            let detail = format!("There is no `{}` here. `/` is the page.", echo(path));
            return Err(refusal(Problem::new(404, "no-path", "No such path", detail)));
        };
        if request.method() != *method {
            let detail = format!("`{path}` has only {method}.");
            let problem = Problem::new(405, "no-method", "No such method", detail);
            let answer = http::with(http::problem(&problem), header::ALLOW, method.as_str());
            return Err(Box::new(answer));
        }
        // What everybody may have: how one gets in, and what that looks like.
        if !matches!(verb, Verb::Enter | Verb::Style) && !self.knows(headers) {
            return Err(Box::new(stranger(*verb)));
        }
        if *verb == Verb::End
            && !(headers.contains_key(OURS) && headers.contains_key(header::ORIGIN))
        {
            let detail = "Only the page itself can ask for this: with its Origin and the header \
                          `Lariat-Page`. Others end a session with `lariat session close`.";
            return Err(refusal(Problem::new(403, "foreign", "Not from the page", detail)));
        }
        if *verb == Verb::End && !(self.keys.admits_anyone() || self.shows_cookie(headers)) {
            let detail = "The token is for reading. Only a browser that `lariat open` let in ends \
                          sessions here; others end one with `lariat session close`.";
            return Err(refusal(Problem::new(403, "read-only", "Only for reading", detail)));
        }
        Ok(*verb)
    }

    /// Refuses a target with another name in it than ours: such a request is for somebody else,
    /// whatever its `Host` says.
    fn check_target(&self, request: &Request<Incoming>) -> Result<(), Problem> {
        match request.uri().authority() {
            Some(named) if !self.is_own(named.as_str()) => Err(self.another_name()),
            Some(_) | None => Ok(()),
        }
    }

    fn another_name(&self) -> Problem {
        let detail = format!("This is http://{}, and answers to no other name.", self.address);
        Problem::new(403, "foreign", "Another host", detail)
    }

    /// Refuses what was asked under another name, which is how a page elsewhere would reach here by
    /// giving its own name our address; and what another page asked.
    fn check_origin(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok());
        let Some(host) = host.filter(|host| hosts.next().is_none() && self.is_own(host)) else {
            return Err(self.another_name());
        };
        let foreign = |what: &str| {
            let detail = format!("{what} Only the page at http://{} may ask here.", self.address);
            Err(Problem::new(403, "foreign", "Another origin", detail))
        };
        for origin in headers.get_all(header::ORIGIN) {
            if origin.to_str().ok().and_then(|origin| origin.strip_prefix("http://")) != Some(host)
            {
                return foreign("Another page asked.");
            }
        }
        let said = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        // A person who follows a link from elsewhere is welcome.
        let follows = said("sec-fetch-mode") == Some("navigate");
        match said("sec-fetch-site") {
            None | Some("same-origin" | "none") => Ok(()),
            Some(_) if follows => Ok(()),
            Some(_) => foreign("Another page asked."),
        }
    }

    /// True for the names of this machine to itself, at our port.
    fn is_own(&self, host: &str) -> bool {
        let (name, port) = host.rsplit_once(':').unwrap_or((host, "80"));
        let named = [self.address.ip().to_string(), format!("[{}]", self.address.ip())];
        let known = name.eq_ignore_ascii_case("localhost") || named.iter().any(|own| own == name);
        known && port.parse() == Ok(self.address.port())
    }

    /// True if a request may read: it has the token, or a cookie of ours.
    pub(super) fn knows(&self, headers: &HeaderMap) -> bool {
        self.keys.admits_anyone() || self.shows_token(headers) || self.shows_cookie(headers)
    }

    fn shows_token(&self, headers: &HeaderMap) -> bool {
        let bearer = |value: &HeaderValue| {
            let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
            let is_bearer = scheme.eq_ignore_ascii_case("bearer");
            (is_bearer && self.keys.is_token(token.trim())).then_some(())
        };
        headers.get_all(header::AUTHORIZATION).iter().any(|value| bearer(value).is_some())
    }

    fn shows_cookie(&self, headers: &HeaderMap) -> bool {
        let name = self.cookie();
        let cookie = |value: &HeaderValue| {
            let mut pairs = value.to_str().ok()?.split(';').filter_map(|pair| pair.split_once('='));
            pairs
                .find(|(key, value)| key.trim() == name && self.keys.is_cookie(value.trim()))
                .map(|_| ())
        };
        headers.get_all(header::COOKIE).iter().any(|value| cookie(value).is_some())
    }

    /// Browsers do not tell ports apart when it comes to cookies; by its name we do.
    fn cookie(&self) -> String {
        format!("lariat-{}", self.address.port())
    }

    async fn dispatch(
        &self,
        verb: Verb,
        busy: Busy,
        request: Request<Incoming>,
    ) -> Result<Answer, Box<Answer>> {
        match verb {
            Verb::Index => Ok(file("text/html; charset=utf-8", INDEX)),
            Verb::Script => Ok(file("text/javascript; charset=utf-8", SCRIPT)),
            Verb::Style => Ok(file("text/css; charset=utf-8", STYLE)),
            Verb::Enter => self.enter(&request),
            Verb::Events => Ok(self.events(busy).await),
            Verb::End => self.end(request).await.map_err(refusal),
            Verb::Metrics => {
                let text = metrics::text(&*self.lookout.now().await);
                Ok(http::answer(StatusCode::OK, metrics::KIND, Content::Whole(text.into())))
            }
        }
    }

    /// A link becomes a cookie.
    fn enter(&self, request: &Request<Incoming>) -> Result<Answer, Box<Answer>> {
        // A browser that fetches what its user may want must not use up what works once.
        let purpose = request.headers().get("sec-purpose").and_then(|value| value.to_str().ok());
        if purpose.is_some_and(|purpose| purpose.contains("prefetch")) {
            let detail = "This link works once. Follow it.";
            return Err(refusal(Problem::new(503, "busy", "Not ahead of time", detail)));
        }
        let query = request.uri().query().unwrap_or("");
        let once = query.split('&').find_map(|pair| pair.strip_prefix("once="));
        let followed = once.and_then(|once| self.keys.follow(once, Instant::now()));
        if let Some(value) = followed {
            let cookie = format!("{}={value}; Path=/; HttpOnly; SameSite=Strict", self.cookie());
            let answer = file("text/html; charset=utf-8", ENTERED);
            return Ok(http::with(answer, header::SET_COOKIE, &cookie));
        }
        if self.knows(request.headers()) {
            // Followed again in the same browser, which is in already.
            return Ok(file("text/html; charset=utf-8", ENTERED));
        }
        Err(Box::new(enter("This link has been used, or is older than a minute.")))
    }

    /// Everything that is there, and from then on what changes.
    async fn events(&self, busy: Busy) -> Answer {
        let (lines, reader) = mpsc::channel(IN_FLIGHT);
        let mut watcher = self.lookout.watch();
        let first = self.lookout.now().await;
        watcher.pictures.mark_unchanged();
        let hello = hello(&first, &self.lookout.history());
        // A page that is told nothing more asks again by itself.
        let ends = [self.stopped.clone(), self.called.clone()];
        tokio::spawn(tell(watcher, first, hello, lines, ends, busy));
        http::answer(StatusCode::OK, "text/event-stream", Content::Stream(reader))
    }

    /// Asks for the end of a session. Its receipts come with the events.
    async fn end(&self, request: Request<Incoming>) -> Result<Answer, Problem> {
        // All of it, not each piece: a client that sends a byte now and then is slow too.
        let read = timeout(web::SILENCE, http::read(request.into_body(), http::LARGEST_BODY)).await;
        let body = read.unwrap_or_else(|_late| {
            let detail = format!("A body may take {} s. Send it again.", web::SILENCE.as_secs());
            Err(Problem::new(408, "slow", "Body too slow", detail))
        })?;
        let End { session } =
            serde_json::from_slice(&body).map_err(|error| Problem::malformed(&error))?;
        let asked = json!({ "session": session });
        if let Ok(entry) = self.registry.find(&session) {
            entry.end("it was ended from the page");
            return Ok(http::json(StatusCode::ACCEPTED, &asked));
        }
        let id = SessionId::parse(&session).ok_or_else(|| gone(&session))?;
        let books = self.books.clone();
        let told = tokio::task::spawn_blocking(move || books.ask_to_end(&id)).await;
        match told {
            Ok(Ok(true)) => Ok(http::json(StatusCode::ACCEPTED, &asked)),
            Ok(Ok(false)) | Err(_) => Err(gone(&session)),
            Ok(Err(error)) => {
                let detail = format!("Who holds the session cannot be asked to end it: {error}.");
                Err(Problem::new(500, "refused", "Not permitted", detail))
            }
        }
    }
}

fn gone(session: &str) -> Problem {
    let detail = format!("There is no session `{}` any more.", echo(session));
    Problem::new(404, "no-session", "No such session", detail)
}

fn refusal(problem: Problem) -> Box<Answer> {
    Box::new(http::problem(&problem))
}

fn file(kind: &'static str, text: &'static str) -> Answer {
    http::answer(StatusCode::OK, kind, Content::Whole(Bytes::from_static(text.as_bytes())))
}

/// For who shows no key: a page to a person, a problem to a program.
fn stranger(verb: Verb) -> Answer {
    let answer = match verb {
        Verb::Index => enter(
            "Only you may look at your servers, and this browser does not say that it is you.",
        ),
        Verb::Script | Verb::Style | Verb::Enter | Verb::Events | Verb::End | Verb::Metrics => {
            let detail = "No token, or a wrong one. `lariat open` prints a link for a browser; \
                          `lariat open --token` says where the token is, for `Authorization: Bearer`.";
            http::problem(&Problem::new(401, "no-token", "No token", detail))
        }
    };
    http::with(answer, header::WWW_AUTHENTICATE, "Bearer realm=\"lariat\"")
}

fn enter(why: &str) -> Answer {
    let text = ENTER.replace("{why}", why);
    let content = Content::Whole(text.into());
    http::answer(StatusCode::UNAUTHORIZED, "text/html; charset=utf-8", content)
}

/// With what every answer has: nobody keeps it, frames it, guesses at it or reads it elsewhere.
fn dressed(mut answer: Answer) -> Answer {
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// Tells one reader what changes, until it leaves, does not read, or the daemon ends or rests.
async fn tell(
    mut watcher: Watcher,
    mut before: Arc<Picture>,
    hello: String,
    lines: mpsc::Sender<Bytes>,
    [mut stopped, mut called]: [watch::Receiver<bool>; 2],
    _busy: Busy,
) {
    if !web::send(&lines, hello.into()).await {
        return;
    }
    loop {
        tokio::select! {
            changed = watcher.pictures.changed() => if changed.is_err() { return },
            () = lines.closed() => return,
            _ = stopped.wait_for(|stopped| *stopped) => return,
            _ = called.wait_for(|called| *called) => return,
        }
        let now = watcher.pictures.borrow_and_update().clone();
        if !web::send(&lines, tick(&before, &now).into()).await {
            return;
        }
        before = now;
    }
}

fn hello(picture: &Picture, history: &[Point]) -> String {
    let points: Vec<String> = history.iter().map(point).collect();
    let machine = machine::name();
    let about = json!({ "version": env!("CARGO_PKG_VERSION"), "machine": machine });
    let change = change(&Picture::default(), picture);
    format!(
        "retry: 1000\nevent: hello\ndata: {{\"about\":{about},\"history\":[{}],{change}}}\n\n",
        points.join(",")
    )
}

fn tick(before: &Picture, now: &Picture) -> String {
    format!("event: tick\ndata: {{{}}}\n\n", change(before, now))
}

/// What is different, as the inside of a JSON object.
fn change(before: &Picture, now: &Picture) -> String {
    let is_new = |(key, row): &(&String, &Arc<str>)| before.rows.get(*key) != Some(*row);
    let rows: Vec<&str> = now.rows.iter().filter(is_new).map(|(_, row)| &**row).collect();
    let gone: Vec<&String> =
        before.rows.keys().filter(|key| !now.rows.contains_key(*key)).collect();
    let last = before.receipts.back().map_or(0, |filed| filed.number);
    let receipts = now.receipts.iter().filter(|filed| filed.number > last);
    let receipts: Vec<&str> = receipts.map(|filed| &*filed.text).collect();
    format!(
        "\"now\":{},\"point\":{},\"survivors\":{},\"rows\":[{}],\"gone\":{},\"receipts\":[{}]",
        now.now_ms,
        point(&now.point),
        now.survivors,
        rows.join(","),
        json!(gone),
        receipts.join(","),
    )
}

fn point(point: &Point) -> String {
    format!("[{},{},{},{}]", point.ms, point.servers, point.processes, point.rss_bytes)
}
