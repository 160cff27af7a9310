//! A legacy client's session: the seat it has at a server, its streams, and when both are over.
//!
//! Most clients never say that they go. A session is over when they do, when the server is gone, or
//! when for a long time nobody has asked for anything and nobody has listened.

use super::seat::{Ear, Mouth, Over};
use super::streams::{Ask, Next, Reader, Streams, Twice};
use super::{Caller, answers};
use crate::daemon::web::{self, Busy, SILENCE};
use hyper::body::Bytes;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Random bytes in an id.
const STRENGTH: usize = 16;

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    /// The server that it is at; empty for all of them.
    server: String,
    /// Whose it is.
    principal: Arc<str>,
    /// The revision that the handshake led to.
    version: OnceLock<String>,
    mouth: tokio::sync::Mutex<Mouth>,
    streams: Mutex<Streams>,
    /// Rung when a reader took something.
    room: Notify,
    /// Rung when somebody wants the end.
    goodbye: Notify,
    usage: watch::Sender<Use>,
}

/// How much a session is in use, and since when it is so.
#[derive(Debug, Clone, Copy)]
struct Use {
    count: usize,
    since: Instant,
}

impl Session {
    pub(super) fn new(caller: Caller<'_>, mouth: Mouth) -> io::Result<Session> {
        Ok(Session {
            id: random()?,
            server: caller.target.name().to_owned(),
            principal: caller.principal.clone(),
            version: OnceLock::new(),
            mouth: tokio::sync::Mutex::new(mouth),
            streams: Mutex::new(Streams::new()),
            room: Notify::new(),
            goodbye: Notify::new(),
            usage: watch::Sender::new(Use { count: 0, since: Instant::now() }),
        })
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
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

    /// While this is kept the session is in use.
    pub(super) fn in_use(self: &Arc<Self>) -> InUse {
        self.usage.send_modify(|it| *it = Use { count: it.count + 1, since: Instant::now() });
        InUse(self.clone())
    }

    /// Listens to the server until the session is over.
    pub(super) async fn listen(&self, mut ear: Ear, ttl: Duration, retired: watch::Receiver<bool>) {
        loop {
            let mut retired = retired.clone();
            let unreachable = async {
                // Its client finds another daemon there now. Who is here is still served.
                if retired.wait_for(|retired| *retired).await.is_err() {
                    std::future::pending::<()>().await;
                }
                self.abandoned(Duration::ZERO).await;
            };
            tokio::select! {
                line = ear.hear() => match line {
                    Some(line) => self.deliver(line).await,
                    None => break,
                },
                () = self.goodbye.notified() => break,
                () = self.abandoned(ttl) => break,
                () = unreachable => break,
            }
        }
        drop(ear);
        self.streams().end();
    }

    /// Gives a line to its stream, and waits if there is too much that nobody has read.
    async fn deliver(&self, line: Vec<u8>) {
        self.streams().deliver(super::peek::on_one_line(line).into());
        loop {
            {
                let mut streams = self.streams();
                streams.shed(false);
                if !streams.is_full() {
                    return;
                }
            }
            if timeout(SILENCE, self.room.notified()).await.is_err() {
                self.streams().shed(true);
            }
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
    session: Arc<Session>,
    reader: Reader,
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

    /// Sends a stream's events until it is over, or nobody reads them, or the daemon ends.
    pub(super) async fn pump(
        self,
        lines: mpsc::Sender<Bytes>,
        primed: Option<u64>,
        mut stopped: watch::Receiver<bool>,
        _busy: Busy,
    ) {
        let place = |number: u64| format!("{}-{number}", self.reader.stream);
        if let Some(number) = primed
            && !web::send(&lines, answers::prime(&place(number))).await
        {
            return;
        }
        loop {
            let sent = match self.next() {
                Next::Over => return,
                Next::Event(number, line) => {
                    answers::send(&lines, Some(&place(number)), line).await
                }
                Next::Wait => {
                    let is_long = tokio::select! {
                        () = self.reader.bell.notified() => false,
                        () = lines.closed() => return,
                        _ = stopped.wait_for(|stopped| *stopped) => return,
                        () = sleep(answers::KEEP_ALIVE) => true,
                    };
                    !is_long || web::send(&lines, answers::still_here()).await
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

/// What nobody guesses.
fn random() -> io::Result<String> {
    let mut bytes = [0; STRENGTH];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::super::Target;
    use super::super::streams::OWN;
    use super::*;

    /// Longer than anything here takes.
    const LONG: Duration = Duration::from_secs(60);

    type Server = (mpsc::Receiver<Vec<u8>>, mpsc::Sender<Vec<u8>>);

    /// A session whose server is this test.
    fn session() -> (Arc<Session>, Ear, Server) {
        let ((mouth, said), (told, ear)) = (mpsc::channel(4), mpsc::channel(4));
        let (principal, target) = ("me".into(), Target::One("a".into()));
        let caller = Caller { principal: &principal, target: &target };
        let session = Session::new(caller, Mouth::All(mouth)).unwrap();
        assert!(session.is_for(caller));
        let [another, elsewhere] = [("you".into(), target), ("me".into(), Target::One("b".into()))]
            .map(|(principal, target)| {
                session.is_for(Caller { principal: &principal, target: &target })
            });
        assert!(!another && !elsewhere);
        (Arc::new(session), Ear::All(ear), (said, told))
    }

    fn ask(id: &str) -> [Ask<'_>; 1] {
        [Ask { id, token: None }]
    }

    #[tokio::test]
    async fn what_is_asked_is_answered_to_who_asked() {
        let (session, ear, (mut said, told)) = session();
        let listener = session.clone();
        let listening =
            tokio::spawn(async move { listener.listen(ear, LONG, watch::channel(false).1).await });
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
        session.listen(ear, LONG, watch::channel(false).1).await;
        let (session, ear, _server) = self::session();
        let usage = session.in_use();
        let left = async {
            tokio::task::yield_now().await;
            drop(usage);
            Instant::now()
        };
        let listening = async {
            session.listen(ear, Duration::from_millis(20), watch::channel(false).1).await;
            Instant::now()
        };
        let (left, ended) = tokio::join!(left, listening);
        assert!(ended > left);
    }

    #[test]
    fn an_id_is_visible_and_nobody_elses() {
        let (one, other) = (random().unwrap(), random().unwrap());
        assert!(one.len() == 2 * STRENGTH && one.chars().all(|c| c.is_ascii_alphanumeric()));
        assert_ne!(one, other);
    }
}
