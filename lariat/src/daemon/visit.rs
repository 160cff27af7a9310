//! A connection by TCP, until it ends. It rests when everything does: between two requests, or in the
//! middle of a stream of events, of which the rest is then written here.

pub(super) mod carried;

use super::connections::Guest;
use super::flow::{self, Around, End, Idle, Midway};
use super::gateway::{Source, Spring};
use super::page::Page;
use super::rest::Rest;
use super::web::{Presence, SILENCE, answer};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Where connections rest.
pub(super) type Visits = Rest<Visit>;

/// What is read ahead while events are written.
const AHEAD: usize = 64 << 10;

/// A connection.
#[derive(Debug)]
pub(super) struct Visit {
    idle: Idle<TcpStream>,
    /// It has shown a key.
    known: bool,
    events: Option<Events>,
}

/// A stream of events that is not at its end.
#[derive(Debug)]
struct Events {
    /// Each piece has its length before it.
    chunked: bool,
    source: Source,
}

/// How it went on.
enum Poured {
    /// The client has left.
    Over,
    /// All was said.
    Whole,
    /// It is to rest.
    Rests(Source),
}

impl Visit {
    pub(super) fn new(stream: TcpStream) -> Visit {
        Visit {
            idle: Idle { stream, unread: Bytes::new(), heard: false },
            known: false,
            events: None,
        }
    }

    /// Serves it until it ends.
    pub(super) async fn serve(mut self, page: Arc<Page>, visits: Arc<Visits>, guest: Guest) {
        let _counted = visits.come();
        let presence = Arc::new(Presence::new(guest, page.registry.changed.clone()));
        // If there are too many, it is told so when it asks.
        let _too_many = self.known && !presence.shows_key();
        loop {
            if let Some(Events { chunked, source }) = self.events.take() {
                match self.pour(&page, source, chunked, &presence).await {
                    Poured::Over => return,
                    Poured::Whole if !chunked => return,
                    Poured::Whole => {}
                    Poured::Rests(source) => {
                        self.events = Some(Events { chunked, source });
                        self = visits.lie_down(self).await;
                        continue;
                    }
                }
            }
            let around = Around {
                called: visits.called(),
                given_up: presence.is_given_up(),
                is_told: || false,
                stopped: page.stopped.clone(),
            };
            let answer =
                |request: Request<Incoming>| answer(page.clone(), presence.clone(), request);
            let (idle, events) = match flow::converse(self.idle, answer, around).await {
                End::Over => return,
                End::Quiet(idle) => (idle, None),
                End::Midway(idle, Midway { chunked, spring }) => {
                    // Without it there is nothing to be said any more, and the client sees that.
                    let Some(source) = spring.and_then(|spring| spring.take()) else { return };
                    (idle, Some(Events { chunked, source }))
                }
            };
            let known = presence.is_known();
            self = visits.lie_down(Visit { idle, known, events }).await;
        }
    }

    /// Writes the rest of a stream of events.
    async fn pour(
        &mut self,
        page: &Page,
        source: Source,
        chunked: bool,
        presence: &Presence,
    ) -> Poured {
        let spring = Arc::new(Spring::default());
        let mut lines = page.gateway.pour(source, spring.clone(), presence.busy());
        let mut unread = self.idle.unread.to_vec();
        let mut unwritten: Vec<u8> = Vec::new();
        let poured = loop {
            let (mut reader, mut writer) = self.idle.stream.split();
            let is_written = unwritten.is_empty();
            let has_room = unread.len() < AHEAD;
            let stilled = poll_fn(|cx| match spring.is_still(cx.waker()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            });
            tokio::select! {
                written = writer.write(&unwritten), if !is_written => match written {
                    Ok(count) if count > 0 => drop(unwritten.drain(..count)),
                    _ => break Poured::Over,
                },
                line = lines.recv(), if is_written => match line {
                    Some(line) => flow::add(&mut unwritten, &line, chunked),
                    None => break Poured::Whole,
                },
                // The beginning of the next request, or the end.
                read = reader.read_buf(&mut unread), if has_room => match read {
                    Ok(count) if count > 0 => {}
                    _ => break Poured::Over,
                },
                // It does not read, or somebody else needs the place.
                () = presence.is_given_up() => break Poured::Over,
                () = stilled, if is_written => match spring.take() {
                    Some(source) => break Poured::Rests(source),
                    None => break Poured::Over,
                },
            }
        };
        self.idle.unread = unread.into();
        if chunked && matches!(poured, Poured::Whole) {
            let end = timeout(SILENCE, self.idle.stream.write_all(b"0\r\n\r\n")).await;
            if !matches!(end, Ok(Ok(()))) {
                return Poured::Over;
            }
        }
        poured
    }
}
