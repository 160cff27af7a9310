//! One connection of a session's process with the engine: request, answer, request, answer, and
//! perhaps a tunnel in the end.
//!
//! Each client connection has one connection to the engine, so whatever the two agree on by keeping
//! a connection open stays between them. A client that closes its sending side is passed on as just
//! that: `docker run` does so at once when it has no input, and still wants the answer.

use super::admission::{Refused, Shared};
use super::connect::{Stream, connect};
use super::head::{self, Bad, Body, Request};
use super::label::{self, Creates};
use super::tally::Tally;
use super::tunnel::{self, End};
use rustix::event::{PollFd, PollFlags};
use serde_json::json;
use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{sleep, timeout};

/// A create longer than this is refused: it has to be held to be labelled.
const LONGEST_CREATE: usize = 4 << 20;

/// How long a head, or the body of a create, may take once it has begun.
const SLOW: Duration = Duration::from_secs(60);

/// How long what a client still sends is thrown away so that it can read our last answer.
const LINGER: Duration = Duration::from_secs(5);

/// How much of the next request is read while this one is answered.
const AHEAD: usize = 64 << 10;

/// How often to see whether a client that has closed its sending side is there at all.
const STILL_THERE: Duration = Duration::from_secs(2);

/// What is read at once.
const PIECE: usize = 64 << 10;

/// The reading side of a connection and what was read too early.
struct Inlet<R> {
    from: R,
    buffer: Vec<u8>,
    ended: bool,
}

impl<R: AsyncRead + Unpin> Inlet<R> {
    fn new(from: R) -> Inlet<R> {
        Inlet { from, buffer: Vec::new(), ended: false }
    }

    /// Reads some more. False once there is no more. Losing the race in a `select` loses no byte.
    async fn fill(&mut self) -> io::Result<bool> {
        self.buffer.reserve(PIECE);
        let n = self.from.read_buf(&mut self.buffer).await?;
        self.ended = n == 0;
        Ok(!self.ended)
    }

    /// Passes a body on as it comes.
    async fn pass(
        &mut self,
        body: &mut Body,
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), Broken> {
        loop {
            let n = body.take(&self.buffer).map_err(|bad| Broken::Source(invalid(bad)))?;
            if n > 0 {
                to.write_all(&self.buffer[..n]).await.map_err(Broken::Sink)?;
                to.flush().await.map_err(Broken::Sink)?;
                self.buffer.drain(..n);
            }
            if body.is_done() {
                return Ok(());
            }
            if !self.fill().await.map_err(Broken::Source)? {
                return match body {
                    Body::UntilClose => Ok(()),
                    _ => Err(Broken::Short),
                };
            }
        }
    }

    /// Passes everything on until there is no more.
    async fn drain_to(&mut self, to: &mut (impl AsyncWrite + Unpin)) -> Result<(), Broken> {
        self.pass(&mut Body::UntilClose, to).await
    }
}

impl Inlet<OwnedReadHalf> {
    /// True if the client has closed both ways. One that has closed its sending side alone waits for
    /// an answer.
    fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(self.from.as_ref(), PollFlags::empty())];
        contain::wait(&mut fds, Some(Instant::now()));
        fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Returns when the client is gone.
    async fn gone(&self) {
        while !self.is_gone() {
            sleep(STILL_THERE).await;
        }
    }
}

/// Why bytes cannot be passed on.
#[derive(Debug)]
enum Broken {
    /// Where they come from has failed.
    Source(io::Error),
    /// Where they go to has failed.
    Sink(io::Error),
    /// There are fewer than were announced.
    Short,
}

impl From<Broken> for io::Error {
    fn from(broken: Broken) -> io::Error {
        match broken {
            Broken::Source(e) | Broken::Sink(e) => e,
            Broken::Short => io::ErrorKind::UnexpectedEof.into(),
        }
    }
}

fn invalid(bad: Bad) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, bad)
}

/// The engine's side of a connection.
struct Engine {
    inlet: Inlet<ReadHalf<Stream>>,
    outlet: WriteHalf<Stream>,
}

/// What comes after an answer.
#[derive(Debug, PartialEq, Eq)]
enum After {
    /// Another request may come.
    Next,
    /// Nothing.
    Close,
    /// Nothing, and nobody is there to be told.
    Gone,
    /// Bytes both ways that are nobody's business.
    Tunnel,
}

/// One client's connection.
pub(super) struct Exchange {
    shared: Rc<Shared>,
    client: Inlet<OwnedReadHalf>,
    to_client: OwnedWriteHalf,
}

impl Exchange {
    pub(super) fn new(client: UnixStream, shared: Rc<Shared>) -> Exchange {
        let (from, to_client) = client.into_split();
        Exchange { shared, client: Inlet::new(from), to_client }
    }

    /// Serves the connection to its end. A client or an engine that goes away is an end like any.
    pub(super) async fn run(self) {
        let _gone = self.talk().await;
    }

    async fn talk(mut self) -> io::Result<()> {
        let mut engine = None;
        while let Some(request) = self.request(&mut engine).await? {
            match self.answer(request, &mut engine).await? {
                After::Next => {}
                After::Close => {
                    self.part().await;
                    break;
                }
                After::Gone => break,
                After::Tunnel => {
                    return match engine {
                        Some(engine) => self.tunnel(engine).await,
                        None => Ok(()),
                    };
                }
            }
        }
        Ok(())
    }

    /// The next request's head; `None` if the client or the engine has left.
    async fn request(&mut self, engine: &mut Option<Engine>) -> io::Result<Option<Request>> {
        let mut begun = None;
        loop {
            match head::request(&self.client.buffer) {
                Ok(Some(request)) => return Ok(Some(request)),
                Ok(None) => {}
                Err(bad) => {
                    let (status, why) = explain(&bad);
                    self.refuse(status, why).await?;
                    self.part().await;
                    return Ok(None);
                }
            }
            if !self.client.buffer.is_empty() {
                begun.get_or_insert_with(Instant::now);
            }
            let left = begun.map_or(Duration::MAX, |since| SLOW.saturating_sub(since.elapsed()));
            // An engine that closes an idle connection (it was restarted) closes the client's too:
            // the client then connects anew, as it would without us.
            let engine_left = async {
                match engine.as_mut() {
                    Some(engine) => engine.inlet.fill().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                more = timeout(left, self.client.fill()) => match more {
                    Ok(more) => if !more? { return Ok(None) },
                    Err(_) => {
                        self.refuse("408 Request Timeout", "this request takes too long").await?;
                        self.part().await;
                        return Ok(None);
                    }
                },
                _ = engine_left => return Ok(None),
            }
        }
    }

    /// Passes one request on and its answer back.
    async fn answer(
        &mut self,
        mut request: Request,
        engine: &mut Option<Engine>,
    ) -> io::Result<After> {
        let head = self.client.buffer.drain(..request.length).collect::<Vec<u8>>();
        let creates = label::creates(&request.method, &request.target);
        // Without a body only volumes are created; of others the engine says what it misses.
        let Some(what) = creates.filter(|what| *what == Creates::Volume || !request.body.is_done())
        else {
            if !self.reach(engine).await? {
                return Ok(After::Close);
            }
            let Some(engine) = engine else { return Ok(After::Close) };
            return self.pass(&head, &mut request, engine, None).await;
        };
        let Some(labelled) = self.labelled(&head, &mut request, what).await? else {
            return Ok(After::Close);
        };
        let admitted = match self.shared.admit(what == Creates::Container).await {
            Ok(admitted) => admitted,
            Err(Refused::Full(most)) => {
                let why = format!(
                    "this session has {most} containers, as many as it may; remove some, or raise \
                     --max-containers"
                );
                self.refuse("429 Too Many Requests", &why).await?;
                return Ok(After::Close);
            }
            Err(Refused::Ended) => {
                self.refuse("503 Service Unavailable", "this session has ended").await?;
                return Ok(After::Close);
            }
            Err(Refused::Unreachable(e)) => {
                self.unreachable(&e).await?;
                return Ok(After::Close);
            }
        };
        if !self.reach(engine).await? {
            return Ok(After::Close);
        }
        let Some(engine) = engine else { return Ok(After::Close) };
        let tally = match Tally::sent(&self.shared.service.tally) {
            Ok(tally) => tally,
            Err(e) => {
                // What cannot be noted could not be removed after a crash.
                let why = format!("cannot note this create: {e}");
                self.refuse("507 Insufficient Storage", &why).await?;
                return Ok(After::Close);
            }
        };
        request.body = Body::Empty;
        let heard = Cell::new(false);
        let answered = self.pass(&labelled, &mut request, engine, Some(&heard)).await;
        if heard.get() {
            tally.answered();
        }
        drop(admitted);
        answered
    }

    /// Makes sure that there is a connection to the engine; false if there is none and the client
    /// has been told.
    async fn reach(&mut self, engine: &mut Option<Engine>) -> io::Result<bool> {
        if engine.is_none() {
            match connect(&self.shared.service.endpoint).await {
                Ok(stream) => {
                    let (from, outlet) = split(stream);
                    *engine = Some(Engine { inlet: Inlet::new(from), outlet });
                }
                Err(e) => {
                    self.unreachable(&e).await?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    async fn unreachable(&mut self, error: &io::Error) -> io::Result<()> {
        let why = format!("cannot reach the engine at {}: {error}", self.shared.service.endpoint);
        self.refuse("502 Bad Gateway", &why).await
    }

    /// Takes in the body of a create and gives head and body with the labels in it. `None` if it
    /// was refused.
    async fn labelled(
        &mut self,
        head: &[u8],
        request: &mut Request,
        what: Creates,
    ) -> io::Result<Option<Vec<u8>>> {
        if request.expects_continue {
            self.to_client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let mut raw = Vec::new();
        let read = async {
            while !request.body.is_done() {
                let n = request.body.take(&self.client.buffer).map_err(invalid)?;
                raw.extend(self.client.buffer.drain(..n));
                if raw.len() > LONGEST_CREATE {
                    return Ok(false);
                }
                if !request.body.is_done() && !self.client.fill().await? {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Ok::<bool, io::Error>(true)
        };
        let chunked = match timeout(SLOW, read).await {
            Ok(Ok(true)) => matches!(request.body, Body::Chunked(_)),
            Ok(Ok(false)) => {
                let why = format!("a create may have {} MiB at most", LONGEST_CREATE >> 20);
                self.refuse("413 Payload Too Large", &why).await?;
                return Ok(None);
            }
            Ok(Err(e)) if e.kind() == io::ErrorKind::InvalidData => {
                self.refuse("400 Bad Request", "this body has no clear end").await?;
                return Ok(None);
            }
            Ok(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => {
                self.refuse("400 Bad Request", "this body ends too early").await?;
                return Ok(None);
            }
            Ok(Err(e)) => return Err(e),
            Err(_) => {
                self.refuse("408 Request Timeout", "this request takes too long").await?;
                return Ok(None);
            }
        };
        let mut body = if chunked { head::dechunk(&raw).map_err(invalid)? } else { raw };
        let bodiless = body.is_empty();
        if bodiless {
            body.extend(b"{}");
        }
        match label::inject(&body, what, &self.shared.labels()) {
            Ok(body) => {
                let mut whole = head::with_length(head, request, body.len());
                if bodiless {
                    // It had no type, having nothing that could have one.
                    let first = whole.windows(2).position(|two| two == b"\r\n");
                    let at = first.map_or(0, |at| at + 2);
                    whole.splice(at..at, *b"Content-Type: application/json\r\n");
                }
                whole.extend(body);
                Ok(Some(whole))
            }
            Err(why) => {
                self.refuse("400 Bad Request", &why.to_string()).await?;
                Ok(None)
            }
        }
    }

    /// Sends a request and returns the answer to the client, both as they come. With `heard`, waits
    /// for the answer also if the client is not there any more to be told, and says whether it came.
    async fn pass(
        &mut self,
        head: &[u8],
        request: &mut Request,
        engine: &mut Engine,
        heard: Option<&Cell<bool>>,
    ) -> io::Result<After> {
        let awaited = heard.is_some();
        let may_hijack = label::may_hijack(&request.target);
        let Exchange { client, to_client, .. } = self;
        let Engine { inlet, outlet } = engine;
        let mut sent = false;
        let up = async {
            outlet.write_all(head).await.map_err(Broken::Sink)?;
            match client.pass(&mut request.body, outlet).await {
                Ok(()) => sent = true,
                // What is missing, the engine says itself.
                Err(Broken::Short) => {}
                Err(broken) => return Err(broken),
            }
            outlet.flush().await.map_err(Broken::Sink)?;
            // From here on only to notice that the client has closed its side.
            while !client.ended && client.buffer.len() < AHEAD {
                client.fill().await.map_err(Broken::Source)?;
            }
            // What came with the end is another request, which the engine is to hear first.
            if !client.ended || (!client.buffer.is_empty() && !client.is_gone()) {
                return std::future::pending().await;
            }
            if !client.is_gone() {
                // An engine that takes this for the end of the matter says so.
                outlet.shutdown().await.map_err(Broken::Sink)?;
                client.gone().await;
            }
            Err::<Infallible, Broken>(Broken::Short)
        };
        let method = request.method.clone();
        let down = answered(inlet, to_client, &method, may_hijack, heard);
        let mut down = Box::pin(down);
        let after = tokio::select! {
            biased;
            after = &mut down => after?,
            Err(broken) = up => match (broken, awaited) {
                // The client is gone, and with it whoever wanted to know.
                (Broken::Source(_) | Broken::Short, false) => return Ok(After::Gone),
                // The engine does not take it; perhaps it has said why. Or it is a create, whose
                // end we want to know ourselves.
                (broken, _) => match timeout(LINGER, &mut down).await {
                    Ok(after) => after.map(|_| After::Close)?,
                    Err(_) => return Err(broken.into()),
                },
            },
        };
        drop(down);
        let after = if sent || after == After::Tunnel { after } else { After::Close };
        let after = if request.close && after == After::Next { After::Close } else { after };
        Ok(after)
    }

    /// Bytes both ways. Each side's end is passed on; the engine's end is the end.
    async fn tunnel(self, engine: Engine) -> io::Result<()> {
        let Exchange { mut client, mut to_client, .. } = self;
        let Engine { mut inlet, outlet } = engine;
        let stream = inlet.from.unsplit(outlet);
        if stream.is_plain() {
            let ours = client.from.reunite(to_client).map_err(io::Error::other)?.into_std()?;
            ours.set_nonblocking(false)?;
            let client = End { socket: ours.into(), early: client.buffer };
            let engine = End { socket: stream.into_socket()?, early: inlet.buffer };
            tunnel::run(client, engine).await;
            return Ok(());
        }
        let (from, mut outlet) = split(stream);
        inlet.from = from;
        let up = async {
            match client.drain_to(&mut outlet).await {
                Ok(()) if client.is_gone() => return,
                Ok(()) => {
                    let _gone = outlet.shutdown().await;
                }
                // The engine hears no more; it may still speak.
                Err(Broken::Sink(_)) => {}
                Err(_) => return,
            }
            client.gone().await;
        };
        let down = async {
            let _gone = inlet.drain_to(&mut to_client).await;
            let _gone = to_client.shutdown().await;
        };
        tokio::select! {
            () = down => {}
            () = up => {}
        }
        Ok(())
    }

    /// Answers in the engine's place.
    async fn refuse(&mut self, status: &str, why: &str) -> io::Result<()> {
        let message = format!("lariat: {}", why.trim_start_matches("lariat: "));
        let mut body = serde_json::to_vec(&json!({ "message": message }))?;
        body.push(b'\n');
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            body.len()
        );
        self.to_client.write_all(&[head.as_bytes(), &body].concat()).await
    }

    /// Closes so that the client can still read what it was sent: a socket that is closed while
    /// something is unread in it takes the last answer with it.
    async fn part(&mut self) {
        let _gone = self.to_client.shutdown().await;
        let rest = async {
            loop {
                self.client.buffer.clear();
                if !self.client.fill().await.unwrap_or(false) {
                    return;
                }
            }
        };
        let _cut_off = timeout(LINGER, rest).await;
    }
}

/// Passes an answer on: first whatever the engine says meanwhile, then the answer itself.
async fn answered(
    inlet: &mut Inlet<ReadHalf<Stream>>,
    to_client: &mut OwnedWriteHalf,
    method: &str,
    may_hijack: bool,
    heard: Option<&Cell<bool>>,
) -> io::Result<After> {
    loop {
        let Some(mut response) = head::response(&inlet.buffer, method).map_err(invalid)? else {
            if !inlet.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            continue;
        };
        let hijacked = may_hijack && response.hijacked();
        if response.status == 101 && !hijacked {
            // A tunnel where none can be needed: creates in it would not be seen.
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if let Some(heard) = heard {
            heard.set(response.status >= 200);
        }
        to_client.write_all(&inlet.buffer[..response.length]).await?;
        inlet.buffer.drain(..response.length);
        if hijacked {
            return Ok(After::Tunnel);
        }
        if (100..200).contains(&response.status) {
            continue;
        }
        inlet.pass(&mut response.body, to_client).await?;
        let closed = response.close || matches!(response.body, Body::UntilClose);
        return Ok(if closed { After::Close } else { After::Next });
    }
}

/// The answer to a head that cannot be read.
fn explain(bad: &Bad) -> (&'static str, &'static str) {
    match bad {
        Bad::TooLarge => ("431 Request Header Fields Too Large", "this head is too long"),
        Bad::Malformed(why) => ("400 Bad Request", why),
    }
}
