//! A legacy client's session: the seat it has at a server, its streams, and when both are over.
//!
//! Most clients never say that they go. A session is over when they do, when the server is gone, or
//! when for a long time nobody has asked for anything and nobody has listened.

use super::seat::{Ear, Mouth, Over};
use super::spring::{Course, Source};
use super::streams::{Ask, Next, Reader, Streams, Twice};
use super::{Caller, answers};
use crate::daemon::machine;
use crate::daemon::rest::Rest;
use crate::daemon::web::{self, SILENCE};
use hyper::body::Bytes;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Random bytes in an id.
const STRENGTH: usize = 16;

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    /// The server that it is at; empty for all of them.
    pub(super) server: String,
    /// Whose it is.
    pub(super) principal: Arc<str>,
    /// The revision that the handshake led to.
    version: OnceLock<String>,
    pub(super) mouth: tokio::sync::Mutex<Mouth>,
    streams: Mutex<Streams>,
    /// Rung when a reader took something.
    room: Notify,
    /// Rung when somebody wants the end.
    goodbye: Notify,
    usage: watch::Sender<Use>,
}

/// A session while everything rests: its listener lies down with what it hears by.
#[derive(Debug)]
pub(in crate::daemon) struct Resting {
    pub(super) session: Arc<Session>,
    pub(super) ear: Ear,
}

/// How much a session is in use, and since when it is so.
#[derive(Debug, Clone, Copy)]
struct Use {
    count: usize,
    since: Instant,
}

impl Session {
    pub(super) fn new(caller: Caller<'_>, mouth: Mouth) -> io::Result<Session> {
        let (server, principal) = (caller.target.name().to_owned(), caller.principal.clone());
        Ok(Session::with(machine::random::<STRENGTH>()?, server, principal, mouth, Streams::new()))
    }

    /// One that is known by this id.
    pub(super) fn with(
        id: String,
        server: String,
        principal: Arc<str>,
        mouth: Mouth,
        streams: Streams,
    ) -> Session {
        Session {
            id,
            server,
            principal,
            version: OnceLock::new(),
            mouth: tokio::sync::Mutex::new(mouth),
            streams: Mutex::new(streams),
            room: Notify::new(),
            goodbye: Notify::new(),
            usage: watch::Sender::new(Use { count: 0, since: Instant::now() }),
        }
    }

    pub(super) fn streams(&self) -> MutexGuard<'_, Streams> {
        // Nothing in here can be left half done by a panic.
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if it is this one's, at this path. An id alone opens nothing.
    pub(super) fn is_for(&self, caller: Caller<'_>) -> bool {
        self.server == caller.target.name() && self.principal == *caller.principal
    }

    /// The revision that the handshake led to; empty before it did.
    pub(super) fn version(&self) -> &str {
        self.version.get().map_or("", String::as_str)
    }

    /// The handshake led to this.
    pub(super) fn greeted(&self, version: String) {
        // A second handshake is refused.
        let _already = self.version.set(version);
    }

    /// Says a message to the server. Waits for room.
    pub(super) async fn say(&self, line: Vec<u8>) -> Result<(), Over> {
        self.mouth.lock().await.say(line).await
    }

    /// A stream for the answers to these requests, which are to be said next.
    pub(super) fn open(
        self: &Arc<Self>,
        asks: &[Ask<'_>],
        is_plain: bool,
    ) -> Result<Reading, Twice> {
        let reader = self.streams().open(asks, is_plain)?;
        let unsaid = asks.iter().map(|ask| ask.id.into()).collect();
        Ok(Reading { session: self.clone(), reader, unsaid })
    }

    /// A stream that is there already, after the event that is named.
    pub(super) fn attach(self: &Arc<Self>, stream: u64, after: Option<u64>) -> Option<Reading> {
        let reader = self.streams().attach(stream, after)?;
        Some(Reading { session: self.clone(), reader, unsaid: Vec::new() })
    }

    /// The client wants no answer to this any more.
    pub(super) fn cancel(&self, id: &str) {
        self.streams().cancel(id);
    }

    /// Somebody wants it to end.
    pub(super) fn end(&self) {
        self.goodbye.notify_one();
    }

    /// How long nobody has used it.
    pub(super) fn unused(&self) -> Duration {
        let Use { count, since } = *self.usage.borrow();
        if count > 0 { Duration::ZERO } else { since.elapsed() }
    }

    /// Nobody has used it for so long.
    pub(super) fn was_unused(&self, time: Duration) {
        let since = Instant::now();
        let since = since.checked_sub(time).unwrap_or(since);
        self.usage.send_modify(|it| it.since = since);
    }

    /// While this is kept the session is in use.
    pub(super) fn in_use(self: &Arc<Self>) -> InUse {
        self.usage.send_modify(|it| *it = Use { count: it.count + 1, since: Instant::now() });
        InUse(self.clone())
    }

    /// Listens to the server until the session is over. Rests when everything does.
    pub(super) async fn listen(
        self: Arc<Self>,
        mut ear: Ear,
        ttl: Duration,
        retired: watch::Receiver<bool>,
        rest: &Rest<Resting>,
    ) {
        let _counted = rest.come();
        loop {
            let mut retired = retired.clone();
            let unreachable = async {
                // Its client finds another daemon there now. Who is here is still served.
                if retired.wait_for(|retired| *retired).await.is_err() {
                    std::future::pending::<()>().await;
                }
                self.abandoned(Duration::ZERO).await;
            };
            let has_room = self.has_room();
            tokio::select! {
                // Whoever has left does not rest, and a server that speaks all the time keeps nobody from either.
                biased;
                () = self.goodbye.notified() => break,
                () = rest.called() => {
                    ear = rest.lie_down(Resting { session: self.clone(), ear }).await.ear;
                }
                () = self.abandoned(ttl) => break,
                () = unreachable => break,
                () = self.made_room(), if !has_room => {}
                line = ear.hear(), if has_room => match line {
                    Some(line) => self.streams().deliver(super::peek::on_one_line(line).into()),
                    None => break,
                },
            }
        }
        drop(ear);
        self.streams().end();
    }

    /// False if there is too much that nobody has read.
    fn has_room(&self) -> bool {
        let mut streams = self.streams();
        streams.shed(false);
        !streams.is_full()
    }

    /// Waits until somebody has read something. Whoever should have for too long is not waited for.
    async fn made_room(&self) {
        if timeout(SILENCE, self.room.notified()).await.is_err() {
            self.streams().shed(true);
        }
    }

    /// Returns when nobody has used it for so long.
    async fn abandoned(&self, ttl: Duration) {
        let mut uses = self.usage.subscribe();
        loop {
            let Use { count, since } = *uses.borrow_and_update();
            tokio::select! {
                () = sleep_until(since + ttl), if count == 0 => return,
                // The sender is here as long as this waits.
                _changed = uses.changed() => {}
            }
        }
    }
}

/// Somebody reads a stream, until this is dropped.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) session: Arc<Session>,
    pub(super) reader: Reader,
    /// Requests that the server does not know of yet. Who goes away before it does takes them along.
    unsaid: Vec<Box<str>>,
}

impl Reading {
    /// The server knows now what is to be answered.
    pub(super) fn is_said(&mut self) {
        self.unsaid.clear();
    }

    fn next(&self) -> Next {
        let next = self.session.streams().next(&self.reader);
        self.session.room.notify_one();
        next
    }

    /// Reads all answers of a stream.
    pub(super) async fn collect(self) -> Vec<Bytes> {
        let mut found = Vec::new();
        loop {
            match self.next() {
                Next::Event(_, line) => found.push(line),
                Next::Wait => self.reader.bell.notified().await,
                Next::Over => return found,
            }
        }
    }
}

/// Somebody who is sent a stream's events.
#[derive(Debug)]
pub(in crate::daemon) struct Listening {
    pub(super) reading: Reading,
    pub(super) _usage: InUse,
    /// The event after which to resume, if that is to be said first.
    pub(super) primed: Option<u64>,
}

impl Listening {
    /// Sends events until the stream is over, or nobody reads them, or the daemon ends, or it rests.
    pub(super) async fn pump(mut self, mut course: Course) {
        let stream = self.reading.reader.stream;
        let place = |number: u64| format!("{stream}-{number}");
        if let Some(number) = self.primed.take()
            && !web::send(&course.lines, answers::prime(&place(number))).await
        {
            return;
        }
        loop {
            let sent = match self.reading.next() {
                Next::Over => return,
                Next::Event(number, line) => {
                    answers::send(&course.lines, Some(&place(number)), line).await
                }
                Next::Wait => {
                    let is_long = tokio::select! {
                        () = self.reading.reader.bell.notified() => false,
                        () = course.lines.closed() => return,
                        _ = course.stopped.wait_for(|stopped| *stopped) => return,
                        Ok(_) = course.called.wait_for(|called| *called) => {
                            return course.spring.keep(Source::Session(self), course.lines);
                        }
                        () = sleep(answers::KEEP_ALIVE) => true,
                    };
                    !is_long || web::send(&course.lines, answers::still_here()).await
                }
            };
            if !sent {
                return;
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut streams = self.session.streams();
        self.unsaid.iter().for_each(|id| streams.cancel(id));
        streams.detach(&self.reader);
        drop(streams);
        self.session.room.notify_one();
    }
}

/// A use of a session, until it is dropped.
#[derive(Debug)]
pub(super) struct InUse(Arc<Session>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.usage.send_modify(|it| *it = Use { count: it.count - 1, since: Instant::now() });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Target;
    use super::super::seat::From;
    use super::super::streams::OWN;
    use super::*;
    use tokio::sync::mpsc;

    /// Longer than anything here takes.
    const LONG: Duration = Duration::from_secs(60);

    type Server = (mpsc::Receiver<Vec<u8>>, mpsc::Sender<Vec<u8>>);

    /// A session whose server is this test.
    fn session() -> (Arc<Session>, Ear, Server) {
        let ((mouth, said), (told, ear)) = (mpsc::channel(4), mpsc::channel(4));
        let (principal, target) = ("me".into(), Target::One("a".into()));
        let caller = Caller { principal: &principal, target: &target };
        let session = Session::new(caller, Mouth::All(0, mouth)).unwrap();
        assert!(session.is_for(caller));
        let [another, elsewhere] = [("you".into(), target), ("me".into(), Target::One("b".into()))]
            .map(|(principal, target)| {
                session.is_for(Caller { principal: &principal, target: &target })
            });
        assert!(!another && !elsewhere);
        (Arc::new(session), Ear::new(From::All(ear)), (said, told))
    }

    fn ask(id: &str) -> [Ask<'_>; 1] {
        [Ask { id, token: None }]
    }

    #[tokio::test]
    async fn what_is_asked_is_answered_to_who_asked() {
        let (session, ear, (mut said, told)) = session();
        let listener = session.clone();
        let listening = tokio::spawn(async move {
            listener.listen(ear, LONG, watch::channel(false).1, &Rest::new()).await
        });
        let mut reading = session.open(&ask("1"), true).unwrap();
        session.say(b"{}".to_vec()).await.unwrap();
        reading.is_said();
        assert_eq!(said.recv().await.unwrap(), b"{}");
        told.send(b"{\"id\":1,\r\"result\":{}}".to_vec()).await.unwrap();
        assert_eq!(reading.collect().await, [Bytes::from_static(b"{\"id\":1, \"result\":{}}")]);
        // The server goes, and with it everything.
        let own = session.attach(OWN, None).unwrap();
        drop(told);
        assert!(own.collect().await.is_empty());
        listening.await.unwrap();
        drop(said);
        assert!(session.say(Vec::new()).await.is_err());
    }

    #[tokio::test]
    async fn what_was_never_said_is_not_waited_for() {
        let (session, _ear, _server) = session();
        let reading = session.open(&ask("1"), true).unwrap();
        assert!(session.open(&ask("1"), true).is_err());
        drop(reading);
        let mut reading = session.open(&ask("1"), true).unwrap();
        reading.is_said();
        drop(reading);
        assert!(session.open(&ask("1"), true).is_err(), "it may still be answered");
    }

    #[tokio::test]
    async fn it_ends_when_somebody_wants_that_or_nobody_comes_any_more() {
        let (session, ear, _server) = self::session();
        session.end();
        session.listen(ear, LONG, watch::channel(false).1, &Rest::new()).await;
        let (session, ear, _server) = self::session();
        let usage = session.in_use();
        let left = async {
            tokio::task::yield_now().await;
            drop(usage);
            Instant::now()
        };
        let listening = async {
            let (ttl, rest) = (Duration::from_millis(20), Rest::new());
            session.listen(ear, ttl, watch::channel(false).1, &rest).await;
            Instant::now()
        };
        let (left, ended) = tokio::join!(left, listening);
        assert!(ended > left);
    }

    #[test]
    fn an_id_is_visible_and_nobody_elses() {
        let (one, other) =
            (machine::random::<STRENGTH>().unwrap(), machine::random::<STRENGTH>().unwrap());
        assert!(one.len() == 2 * STRENGTH && one.chars().all(|c| c.is_ascii_alphanumeric()));
        assert_ne!(one, other);
    }
}
