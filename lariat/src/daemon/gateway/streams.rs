//! On which stream of a session a message goes, and what is kept of it for who comes back. Pure.
//!
//! A legacy client has a stream for each request that it posted, and may have one more that belongs
//! to no request. A message goes on one stream only. What was not read yet waits here, and what was
//! is kept for a while: a connection that breaks is no reason to lose an answer. Both are bounded
//! together; when nothing that was read is left to forget, the server has to wait.

use crate::mcp::envelope::{self, Envelope, Items, Line, Members, Shape};
use hyper::body::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::Notify;

/// The stream that belongs to no request.
pub(super) const OWN: u64 = 0;

/// Events of one session that are kept, read or not.
const MOST_EVENTS: usize = 256;

/// Their bytes. One that is longer is alone.
const MOST_BYTES: usize = 1 << 20;

/// All streams of a session. Written down and read again it is the same, but nobody reads it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Streams {
    streams: BTreeMap<u64, Stream>,
    last: u64,
    /// Requests without an answer, by their id as the client wrote it.
    pending: HashMap<Box<str>, u64>,
    /// Their progress tokens, as the client wrote them.
    tokens: HashMap<Box<str>, u64>,
    events: usize,
    bytes: usize,
    /// Counts events, so that the oldest can be found.
    clock: u64,
    dropped: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Stream {
    /// Rung when there is something new for the reader.
    #[serde(skip)]
    bell: Arc<Notify>,
    events: VecDeque<Event>,
    /// The number of the last event.
    last: u64,
    /// The number of the last event that a reader has asked for more behind. Until then it is on its way, and
    /// counts: somebody may have opened many streams and read none.
    taken: u64,
    /// The number of the last event that a reader was given.
    #[serde(skip)]
    given: u64,
    /// The reader that counts. An older one leaves.
    reader: u64,
    #[serde(skip)]
    is_read: bool,
    /// Requests that are to be answered on it.
    waiting: usize,
    /// Takes answers only.
    is_plain: bool,
    is_over: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Event {
    number: u64,
    age: u64,
    #[serde(with = "kept")]
    line: Bytes,
}

/// A line, written down as the text that it is.
mod kept {
    use super::Bytes;
    use crate::bytes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(line: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        bytes::Bytes(line[..].into()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        bytes::Bytes::deserialize(from).map(|line| line.0.into())
    }
}

/// A right to read a stream, until somebody else does.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    pub(super) stream: u64,
    reader: u64,
    /// Rung when it is worth to look again.
    pub(super) bell: Arc<Notify>,
}

/// What a reader gets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A message and its number.
    Event(u64, Bytes),
    /// Nothing yet.
    Wait,
    /// Nothing any more.
    Over,
}

/// A request of a client, as far as its answers need it.
#[derive(Debug)]
pub(super) struct Ask<'a> {
    pub(super) id: &'a str,
    pub(super) token: Option<&'a str>,
}

/// This id is in use already.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Twice;

impl Streams {
    pub(super) fn new() -> Streams {
        Streams {
            streams: BTreeMap::from([(OWN, Stream::default())]),
            last: OWN,
            pending: HashMap::new(),
            tokens: HashMap::new(),
            events: 0,
            bytes: 0,
            clock: 0,
            dropped: 0,
        }
    }

    /// A stream for the answers to these requests. A plain one takes nothing else.
    pub(super) fn open(&mut self, asks: &[Ask<'_>], is_plain: bool) -> Result<Reader, Twice> {
        self.last += 1;
        let stream = self.last;
        for (at, ask) in asks.iter().enumerate() {
            if self.pending.contains_key(ask.id) {
                for ask in &asks[..at] {
                    self.pending.remove(ask.id);
                }
                return Err(Twice);
            }
            self.pending.insert(ask.id.into(), stream);
        }
        for token in asks.iter().filter_map(|ask| ask.token) {
            self.tokens.insert(token.into(), stream);
        }
        let new = Stream { waiting: asks.len(), is_plain, ..Stream::default() };
        self.streams.insert(stream, new);
        self.attach(stream, None).ok_or(Twice)
    }

    /// Reads a stream from here on, instead of whoever did; after an event if one is named. `None` if
    /// what came after it is not kept any more.
    pub(super) fn attach(&mut self, stream: u64, after: Option<u64>) -> Option<Reader> {
        let it = self.streams.get_mut(&stream)?;
        if let Some(after) = after {
            let first = it.events.front().map_or(it.last + 1, |event| event.number);
            if after > it.last || after + 1 < first {
                return None;
            }
            it.taken = after;
        }
        it.given = it.taken;
        it.reader += 1;
        it.is_read = true;
        it.bell.notify_one();
        // A bell of its own: the last ring for the one before must not be lost.
        it.bell = Arc::new(Notify::new());
        Some(Reader { stream, reader: it.reader, bell: it.bell.clone() })
    }

    /// True if somebody reads the stream that belongs to no request.
    #[cfg(test)]
    pub(super) fn is_read(&self) -> bool {
        self.streams.get(&OWN).is_some_and(|own| own.is_read)
    }

    /// The same once more. `None` if it could not be written down.
    pub(super) fn again(&self) -> Option<Streams> {
        serde_json::from_slice(&serde_json::to_vec(self).ok()?).ok()
    }

    /// The last event of a stream that its reader took.
    pub(super) fn taken(&self, reader: &Reader) -> Option<u64> {
        let stream = self.streams.get(&reader.stream)?;
        (stream.reader == reader.reader).then_some(stream.taken)
    }

    /// The reader does not read any more.
    pub(super) fn detach(&mut self, reader: &Reader) {
        if let Some(stream) = self.streams.get_mut(&reader.stream)
            && stream.reader == reader.reader
        {
            stream.is_read = false;
        }
        self.forget(reader.stream);
    }

    /// The next event for this reader.
    pub(super) fn next(&mut self, reader: &Reader) -> Next {
        let Some(stream) = self.streams.get_mut(&reader.stream) else { return Next::Over };
        if stream.reader != reader.reader {
            return Next::Over;
        }
        stream.taken = stream.taken.max(stream.given);
        let at = stream.events.partition_point(|event| event.number <= stream.taken);
        match stream.events.get(at) {
            Some(event) => {
                stream.given = event.number;
                Next::Event(event.number, event.line.clone())
            }
            None if stream.is_over => Next::Over,
            None => Next::Wait,
        }
    }

    /// A line of the server.
    pub(super) fn deliver(&mut self, line: Bytes) {
        match envelope::read(&line) {
            Line::One(envelope) => {
                let place = self.place(&envelope);
                let is_answer = envelope.shape() == Shape::Response;
                match place {
                    Some(stream) => self.push(stream, line, is_answer),
                    None => self.dropped += 1,
                }
            }
            // 2025-03-26 allows batches. Each message finds its own way.
            Line::Many(Items(parts)) => {
                for part in parts {
                    if part.get().trim_start().starts_with('{') {
                        self.deliver(Bytes::copy_from_slice(part.get().as_bytes()));
                    } else {
                        self.dropped += 1;
                    }
                }
            }
            Line::Odd | Line::Noise => self.dropped += 1,
        }
    }

    /// Where a message goes. `None` for nowhere.
    fn place(&mut self, envelope: &Envelope<'_>) -> Option<u64> {
        match envelope.shape() {
            Shape::Response => self.pending.remove(envelope.id?.get()),
            Shape::Notification => {
                let method = envelope.method.as_deref().unwrap_or_default();
                if method == "notifications/progress" {
                    let token = Members::of(envelope.params)?.progress_token?;
                    let stream = self.tokens.get(token.get()).copied();
                    if let Some(stream) = stream.filter(|stream| self.takes_all(*stream)) {
                        return Some(stream);
                    }
                }
                let is_apart = method.ends_with("/list_changed")
                    || method == "notifications/resources/updated";
                Some(if is_apart { self.apart() } else { self.beside() })
            }
            Shape::Request => Some(self.beside()),
            Shape::Odd => None,
        }
    }

    /// For what most likely has to do with a request: if there is only one, with that.
    fn beside(&self) -> u64 {
        let mut streams = self.pending.values();
        match (streams.next(), streams.next()) {
            (Some(only), None) if self.takes_all(*only) && self.is_read_now(*only) => *only,
            _ => self.apart(),
        }
    }

    /// For what belongs to no request. If nobody listens for that, any stream is better than none: a
    /// server that asks something waits for the answer.
    fn apart(&self) -> u64 {
        if self.is_read_now(OWN) {
            return OWN;
        }
        let open = |(at, it): (&u64, &Stream)| {
            (it.is_read && !it.is_over && !it.is_plain && *at != OWN).then_some(*at)
        };
        self.streams.iter().rev().find_map(open).unwrap_or(OWN)
    }

    fn takes_all(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_some_and(|it| !it.is_plain && !it.is_over)
    }

    fn is_read_now(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_some_and(|it| it.is_read)
    }

    fn push(&mut self, at: u64, line: Bytes, is_answer: bool) {
        let Some(stream) = self.streams.get_mut(&at) else {
            self.dropped += 1;
            return;
        };
        self.clock += 1;
        self.events += 1;
        self.bytes += line.len();
        stream.last += 1;
        stream.events.push_back(Event { number: stream.last, age: self.clock, line });
        if is_answer {
            stream.waiting = stream.waiting.saturating_sub(1);
            stream.is_over = stream.waiting == 0;
        }
        stream.bell.notify_one();
        if stream.is_over {
            self.tokens.retain(|_, stream| *stream != at);
        }
        self.make_room();
    }

    /// The client does not wait for this answer any more.
    pub(super) fn cancel(&mut self, id: &str) {
        let Some(at) = self.pending.remove(id) else { return };
        let Some(stream) = self.streams.get_mut(&at) else { return };
        stream.waiting = stream.waiting.saturating_sub(1);
        stream.is_over = stream.waiting == 0;
        stream.bell.notify_one();
        if stream.is_over {
            self.tokens.retain(|_, stream| *stream != at);
            self.forget(at);
        }
    }

    /// True if more is kept than may be, and all of it is unread.
    pub(super) fn is_full(&self) -> bool {
        self.events > MOST_EVENTS || (self.bytes > MOST_BYTES && self.events > 1)
    }

    /// Forgets what was read, the oldest first, until there is room.
    pub(super) fn make_room(&mut self) {
        while self.is_full() {
            let read = |(at, it): (&u64, &Stream)| {
                let front = it.events.front().filter(|event| event.number <= it.taken)?;
                Some((front.age, *at))
            };
            let Some((_, at)) = self.streams.iter().filter_map(read).min() else { return };
            self.pop(at);
        }
    }

    /// Forgets what nobody reads, or if nobody has read for too long, what somebody should have: then
    /// that stream is over.
    pub(super) fn shed(&mut self, too_long: bool) {
        self.make_room();
        while self.is_full() {
            let unread = |(at, it): (&u64, &Stream)| {
                let front = it.events.front().filter(|_| too_long || !it.is_read)?;
                Some((front.age, *at))
            };
            let Some((_, at)) = self.streams.iter().filter_map(unread).min() else { return };
            self.dropped += 1;
            self.pop(at);
            if let Some(stream) = self.streams.get_mut(&at).filter(|it| it.is_read) {
                stream.reader += 1;
                stream.is_read = false;
                stream.bell.notify_one();
            }
        }
    }

    fn pop(&mut self, at: u64) {
        let Some(stream) = self.streams.get_mut(&at) else { return };
        if let Some(event) = stream.events.pop_front() {
            self.events -= 1;
            self.bytes -= event.line.len();
            stream.taken = stream.taken.max(event.number);
        }
        self.forget(at);
    }

    /// A stream that is over, empty and read by nobody is gone.
    fn forget(&mut self, at: u64) {
        let is_gone = |it: &Stream| it.is_over && !it.is_read && it.events.is_empty();
        if at != OWN && self.streams.get(&at).is_some_and(is_gone) {
            self.streams.remove(&at);
        }
    }

    /// The server is gone: every stream ends after what it has.
    pub(super) fn end(&mut self) {
        self.pending.clear();
        self.tokens.clear();
        for stream in self.streams.values_mut() {
            stream.is_over = true;
            stream.bell.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
