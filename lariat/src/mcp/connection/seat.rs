//! The place of an attached client: by streams, or by lines.

use super::parking::Turn;
use super::{Connection, Error, Life, Shared};
use crate::mcp::frame::Frames;
use crate::mcp::mux::{Company, Port, Routed};
use crate::mcp::queue::{self, Parcel, Parcels, Queue, Room};
use crate::mcp::reply::{INVALID_REQUEST, error};
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// How long a client that says nothing more is kept for what it has asked.
pub(crate) const LAST_ANSWERS: Duration = Duration::from_secs(30);

/// What was read at once is handed over up to this many bytes.
const BATCH: usize = 64 << 10;

impl Connection {
    /// Speaks with one more client, a message a line, until it closes or the connection ends. Its
    /// side is then shut down. What it still waited for is cancelled. An error if it was not the
    /// client that ended it, or if that said a line that is too long.
    pub async fn attach(
        &self,
        reader: impl AsyncRead + Send + Unpin,
        writer: impl AsyncWrite + Send + Unpin,
    ) -> Result<(), Error> {
        self.attach_for(LAST_ANSWERS, reader, writer).await
    }

    /// The same; a client that says nothing more is kept that long for what it has asked.
    pub(super) async fn attach_for(
        &self,
        patience: Duration,
        reader: impl AsyncRead + Send + Unpin,
        mut writer: impl AsyncWrite + Send + Unpin,
    ) -> Result<(), Error> {
        let mut life = self.0.life.subscribe();
        let (chair, mut parcels) = Chair::take(&self.0)?;
        let outcome = {
            let mut writing = pin!(queue::write(&mut writer, &mut parcels));
            let (outcome, listens) = tokio::select! {
                outcome = chair.serve(reader, patience) => (outcome, true),
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
        Ok((Mouth::new(chair.clone()), Ear { chair, parcels }))
    }

    /// How many clients are attached.
    pub(crate) fn sitting(&self) -> usize {
        self.0.lock().ports.len()
    }
}

/// By which a client speaks.
#[derive(Debug)]
pub(crate) struct Mouth {
    pub(super) chair: Arc<Chair>,
    pub(super) unsaid: Unsaid,
}

/// What is not passed on yet.
#[derive(Debug, Default)]
pub(super) struct Unsaid {
    /// Of a client.
    pub(super) line: Option<Vec<u8>>,
    /// What it is told at once.
    pub(super) told: VecDeque<Vec<u8>>,
}

impl Mouth {
    fn new(chair: Arc<Chair>) -> Mouth {
        Mouth { chair, unsaid: Unsaid::default() }
    }

    /// One message, which is passed on by [`Mouth::go_on`].
    pub(crate) fn say(&mut self, line: Vec<u8>) {
        self.unsaid.line = Some(line);
    }

    /// What is not passed on yet need not be.
    pub(crate) fn unsay(&mut self) {
        self.unsaid.line = None;
    }

    /// Passes on what was said. Waits for room. If this is dropped before it is done, it can be called
    /// again.
    pub(crate) async fn go_on(&mut self) -> Result<(), Error> {
        self.chair.pass_on(&mut self.unsaid).await
    }

    /// Waits until everything that was asked is answered, for so long.
    pub(crate) async fn last_answers(&self, patience: Duration) {
        self.chair.last_answers(patience).await;
    }
}

/// By which a client hears. Dropped, the client has left, and what it waited for is cancelled.
#[derive(Debug)]
pub(crate) struct Ear {
    pub(super) chair: Arc<Chair>,
    pub(super) parcels: Parcels,
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
        self.fill_at_once(lines);
        true
    }

    /// Takes what is there, each with its line end. False if that is nothing.
    pub(crate) fn fill_at_once(&mut self, lines: &mut Vec<u8>) -> bool {
        while lines.len() < BATCH
            && let Some(parcel) = self.parcels.try_recv()
        {
            self.take(parcel, lines);
        }
        !lines.is_empty()
    }

    fn take(&self, parcel: Parcel, lines: &mut Vec<u8>) {
        let was_lent = parcel.is_lent();
        match lines.is_empty() {
            true => *lines = parcel.into_line(),
            false => {
                lines.extend_from_slice(parcel.line());
                drop(parcel);
            }
        }
        if was_lent {
            self.chair.go_on();
        }
    }

    /// Waits until the conversation was cut off: nothing that was said matters any more.
    #[cfg(all(target_os = "linux", feature = "cli"))]
    pub(crate) fn cut(&self) -> impl Future<Output = ()> + use<> {
        let mut life = self.chair.shared.life.subscribe();
        async move {
            // One that is not there any more was cut off as well.
            let _cut = life.wait_for(|life| *life == Life::Cut).await.map(|_| ());
        }
    }

    async fn next(&mut self, lines: &mut Vec<u8>) -> bool {
        let parcel = tokio::select! {
            biased;
            parcel = self.parcels.recv() => parcel,
            () = self.chair.queue.closed() => self.parcels.try_recv(),
        };
        let Some(parcel) = parcel else { return false };
        self.take(parcel, lines);
        true
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.chair.leave();
    }
}

/// What became of a line.
enum Passed {
    /// It is on its way, or waits for its turn; this is what its client is told at once.
    On(Vec<(Port, Vec<u8>)>),
    /// There was no room for it.
    Not(Vec<u8>),
}

/// A client's place.
#[derive(Debug)]
pub(super) struct Chair {
    pub(super) shared: Arc<Shared>,
    pub(super) port: Port,
    pub(super) queue: Queue,
    pub(super) left: AtomicBool,
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
    async fn serve(&self, reader: impl AsyncRead + Unpin, patience: Duration) -> Result<(), Error> {
        self.listen(reader).await?;
        self.last_answers(patience).await;
        Ok(())
    }

    /// It may have left all the same, so patience has an end. What is not answered by then is
    /// cancelled when the place is left.
    async fn last_answers(&self, patience: Duration) {
        let answered = timeout(patience, async {
            loop {
                let heard = self.shared.heard.notified();
                if !self.shared.lock().waits(self.port) {
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
                let mut line = error("null", INVALID_REQUEST, message);
                self.shared.deliver(self.port, &self.queue, &mut line).await;
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
        self.pass_on(&mut Unsaid { line: Some(line), told: VecDeque::new() }).await
    }

    async fn pass_on(&self, unsaid: &mut Unsaid) -> Result<(), Error> {
        while let Some(length) = unsaid.line.as_ref().map(Vec::len).filter(|length| *length > 0) {
            let stirred = self.queue.stirred();
            let is_stranger = self.shared.company == Company::Strangers;
            if is_stranger && self.queue.owes() && !self.queue.is_closed() {
                // It is to read first what it has asked for.
                stirred.await;
                continue;
            }
            let room = self.shared.queue.room(length).await.map_err(|_| Error::Closed)?;
            match self.pass(room, unsaid.line.take().unwrap_or_default())? {
                Passed::On(told) => unsaid.told.extend(told.into_iter().map(|(_, line)| line)),
                Passed::Not(back) => {
                    unsaid.line = Some(back);
                    stirred.await;
                }
            }
        }
        while let Some(line) = unsaid.told.front_mut() {
            self.shared.deliver(self.port, &self.queue, line).await;
            unsaid.told.pop_front();
        }
        Ok(())
    }

    /// Passes a line on, or lets it wait.
    fn pass(&self, room: Room, line: Vec<u8>) -> Result<Passed, Error> {
        let shared = &self.shared;
        let mut state = shared.lock();
        if !state.open || self.left.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        state.last = Instant::now();
        let turn = match shared.company {
            Company::Strangers => state.turn(self.port, line),
            Company::Kin => Turn::Go(line),
        };
        let line = match turn {
            Turn::Go(line) => line,
            Turn::Parked => return Ok(Passed::On(Vec::new())),
            Turn::Full(line) => return Ok(Passed::Not(line)),
        };
        let Routed { to_server, mut to_ports, .. } = state.mux.port_says(self.port, line);
        let mut lines = to_server.into_iter();
        let first = lines.next();
        let speaks = first.is_some();
        if let Some(line) = first {
            let _closing = shared.queue.push(room, line);
        }
        for line in lines {
            // Together they are as long as what there was room for.
            let _closing = shared.queue.lend(line);
        }
        state.beat();
        // It may have taken something back.
        to_ports.extend(shared.go_on(&mut state, self.port));
        if speaks && state.asleep {
            state.wanted = true;
            shared.wanted.notify_one();
        }
        Ok(Passed::On(to_ports))
    }

    /// It has read: what has waited for that may go on.
    pub(super) fn go_on(&self) {
        let told = self.shared.go_on(&mut self.shared.lock(), self.port);
        for (_, line) in told {
            // One that has left does not need it.
            let _left = self.queue.lend(line);
        }
    }

    /// It hears nothing more, and what it waited for is cancelled.
    fn leave(&self) {
        if self.left.swap(true, Ordering::Relaxed) {
            return;
        }
        self.shared.part_with(self.port);
        // Wakes whoever waits to tell it something.
        self.queue.close();
    }
}

impl Drop for Chair {
    fn drop(&mut self) {
        self.leave();
    }
}
