//! The place of an attached client: by streams, or by lines.

use super::{Connection, Error, Life, Shared};
use crate::mcp::envelope::{self, Line, Shape};
use crate::mcp::frame::Frames;
use crate::mcp::mux::{Company, Port, Routed};
use crate::mcp::queue::{self, Parcels, Queue};
use crate::mcp::reply::{INVALID_REQUEST, error};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// How long a client that says nothing more is kept for what it has asked.
const LAST_ANSWERS: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 30_000 });

/// How many answers one of several strangers may wait for. It asks for no more until it has some: a
/// server takes one request after the other, and the others' come after what it has taken.
const MOST_OF_ONE: usize = 64;

/// What was read at once is handed over up to this many bytes.
const BATCH: usize = 64 << 10;

impl Connection {
    /// Speaks with one more client, a message a line, until it closes or the connection ends. Its
    /// side is then shut down. What it still waited for is cancelled. An error if it was not the
    /// client that ended it, or if that said a line that is too long.
    pub async fn attach(
        &self,
        reader: impl AsyncRead + Send + Unpin,
        mut writer: impl AsyncWrite + Send + Unpin,
    ) -> Result<(), Error> {
        let mut life = self.0.life.subscribe();
        let (chair, mut parcels) = Chair::take(&self.0)?;
        let outcome = {
            let mut writing = pin!(queue::write(&mut writer, &mut parcels));
            let (outcome, listens) = tokio::select! {
                outcome = chair.serve(reader) => (outcome, true),
                _ = &mut writing => (Ok(()), false),
                _ = life.wait_for(|life| *life != Life::Open) => (Err(Error::Closed), true),
            };
            drop(chair);
            if listens {
                // What was said to it is still its own.
                tokio::select! {
                    _ = writing => {}
                    _ = life.wait_for(|life| *life == Life::Cut) => {}
                }
            }
            outcome
        };
        let _gone_already = writer.shutdown().await;
        outcome
    }

    /// A place for one more client that speaks and hears line by line.
    pub(crate) fn sit(&self) -> Result<(Mouth, Ear), Error> {
        let (chair, parcels) = Chair::take(&self.0)?;
        let chair = Arc::new(chair);
        Ok((Mouth(chair.clone()), Ear { chair, parcels }))
    }

    /// How many clients are attached.
    pub(crate) fn sitting(&self) -> usize {
        self.0.lock().ports.len()
    }
}

/// By which a client speaks.
#[derive(Debug)]
pub(crate) struct Mouth(Arc<Chair>);

impl Mouth {
    /// One message. Waits for room.
    pub(crate) async fn say(&self, line: Vec<u8>) -> Result<(), Error> {
        self.0.say(line).await
    }

    /// Waits until everything that was asked is answered, for a while.
    pub(crate) async fn last_answers(&self) {
        self.0.last_answers().await;
    }
}

/// By which a client hears. Dropped, the client has left, and what it waited for is cancelled.
#[derive(Debug)]
pub(crate) struct Ear {
    chair: Arc<Chair>,
    parcels: Parcels,
}

impl Ear {
    /// The next message; nothing once everything is over. Nothing is lost if this is dropped before
    /// it is done.
    pub(crate) async fn hear(&mut self) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        self.next(&mut line).await.then(|| {
            line.pop();
            line
        })
    }

    /// Waits for a message and takes whatever else is there, each with its line end. False once
    /// everything is over.
    pub(crate) async fn fill(&mut self, lines: &mut Vec<u8>) -> bool {
        if !self.next(lines).await {
            return false;
        }
        while lines.len() < BATCH
            && let Ok(parcel) = self.parcels.try_recv()
        {
            lines.extend_from_slice(parcel.line());
        }
        true
    }

    async fn next(&mut self, lines: &mut Vec<u8>) -> bool {
        let parcel = tokio::select! {
            biased;
            parcel = self.parcels.recv() => parcel,
            () = self.chair.queue.closed() => self.parcels.try_recv().ok(),
        };
        let Some(parcel) = parcel else { return false };
        match lines.is_empty() {
            true => *lines = parcel.into_line(),
            false => lines.extend_from_slice(parcel.line()),
        }
        true
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.chair.leave();
    }
}

/// A client's place.
#[derive(Debug)]
pub(super) struct Chair {
    shared: Arc<Shared>,
    port: Port,
    queue: Queue,
    left: AtomicBool,
}

impl Chair {
    pub(super) fn take(shared: &Arc<Shared>) -> Result<(Chair, Parcels), Error> {
        let (queue, parcels) = Queue::new();
        let mut state = shared.lock();
        if !state.open {
            return Err(Error::Closed);
        }
        let port = state.mux.arrive();
        state.ports.insert(port, queue.clone());
        drop(state);
        shared.company_changed.notify_one();
        let chair = Chair { shared: Arc::clone(shared), port, queue, left: AtomicBool::new(false) };
        Ok((chair, parcels))
    }

    /// Listens, and then waits for what the client has asked: one that has said all it will (a script
    /// at the end of a pipe) is not one that has left.
    async fn serve(&self, reader: impl AsyncRead + Unpin) -> Result<(), Error> {
        self.listen(reader).await?;
        self.last_answers().await;
        Ok(())
    }

    /// It may have left all the same, so patience has an end. What is not answered by then is
    /// cancelled when the place is left.
    async fn last_answers(&self) {
        let answered = timeout(LAST_ANSWERS, async {
            loop {
                let heard = self.shared.heard.notified();
                if !self.shared.lock().mux.waits(self.port) {
                    return;
                }
                heard.await;
            }
        });
        let _cancelled = answered.await;
    }

    async fn listen(&self, mut reader: impl AsyncRead + Unpin) -> Result<(), Error> {
        let mut frames = Frames::default();
        loop {
            while let Some(line) = frames.next() {
                self.say(line).await?;
            }
            let Ok(room) = frames.room() else {
                let message = "this line is too long";
                let line = error("null", INVALID_REQUEST, message);
                self.shared.deliver(self.port, &self.queue, line).await;
                return Err(Error::Refused {
                    code: INVALID_REQUEST,
                    message: message.into(),
                    data: None,
                });
            };
            if reader.read_buf(room).await.unwrap_or(0) == 0 {
                break;
            }
        }
        match frames.rest() {
            Some(line) => self.say(line).await,
            None => Ok(()),
        }
    }

    async fn say(&self, line: Vec<u8>) -> Result<(), Error> {
        if line.is_empty() {
            return Ok(());
        }
        if self.shared.company == Company::Strangers {
            self.turn(&line).await;
        }
        let room = self.shared.queue.room(line.len()).await.map_err(|_| Error::Closed)?;
        let to_port = {
            let mut state = self.shared.lock();
            if !state.open || self.left.load(Ordering::Relaxed) {
                return Err(Error::Closed);
            }
            state.last = Instant::now();
            let Routed { to_server, to_ports, .. } = state.mux.port_says(self.port, line);
            let mut lines = to_server.into_iter();
            let first = lines.next();
            let speaks = first.is_some();
            if let Some(line) = first {
                let _closing = self.shared.queue.push(room, line);
            }
            self.shared.squeeze(&mut state, lines);
            if speaks && state.asleep {
                state.wanted = true;
                self.shared.wanted.notify_one();
            }
            to_ports
        };
        for (_, line) in to_port {
            self.shared.deliver(self.port, &self.queue, line).await;
        }
        Ok(())
    }

    /// Waits until it may ask for more.
    async fn turn(&self, line: &[u8]) {
        let asks = || match envelope::read(line) {
            Line::One(envelope) => envelope.shape() == Shape::Request,
            _ => true,
        };
        loop {
            let stirred = self.queue.stirred();
            let waits_for = || self.shared.lock().mux.in_flight_of(self.port);
            let may = !self.queue.owes() && (waits_for() < MOST_OF_ONE || !asks());
            if may || self.queue.is_closed() {
                return;
            }
            stirred.await;
        }
    }

    /// It hears nothing more, and what it waited for is cancelled.
    fn leave(&self) {
        if self.left.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut state = self.shared.lock();
        state.ports.remove(&self.port);
        let routed = state.mux.depart(self.port);
        self.shared.squeeze(&mut state, routed.to_server);
        drop(state);
        // Wakes whoever waits to tell it something.
        self.queue.close();
        self.shared.company_changed.notify_one();
    }
}

impl Drop for Chair {
    fn drop(&mut self) {
        self.leave();
    }
}
