//! Lines on their way to somebody who may be slow. Every byte that waits has been paid for.
//!
//! The queue itself has no end; what ends is the room. Who can wait, waits for room before the line
//! is queued, first come first served. Who cannot (an answer that is made while reading, a
//! cancellation that is made while dropping) has a little room apart, and when that is used up the
//! line is lost: its receiver has not read for a very long time. Who must not wait, because others
//! would wait with it, lends: see [`Queue::lend`].
//!
//! Whoever will say nothing more [ends](Queue::end) it; what was queued before is still written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Bytes that wait at most, and a longer line is alone.
const ROOM: usize = 256 << 10;

/// Bytes that could not wait. Enough to cancel everything that can be in flight.
const SPARE: usize = 1 << 20;

/// Bytes that were lent. Enough for the longest line and what comes beside it.
const LOAN: usize = 96 << 20;

/// Lines that are ready together are written together, up to this many bytes.
const BATCH: usize = 64 << 10;

/// The near end of a queue.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    lines: UnboundedSender<Parcel>,
    room: Arc<Semaphore>,
    spare: Arc<Semaphore>,
    lent: Arc<Lent>,
}

/// Room for one line.
pub(super) type Room = OwnedSemaphorePermit;

/// What waits although there was no room for it, and what else its receiver may want to know.
#[derive(Debug, Default)]
struct Lent {
    bytes: AtomicUsize,
    closed: AtomicBool,
    /// Something of this has changed.
    changed: Notify,
}

/// A line, and the room that it takes.
#[derive(Debug)]
pub(super) struct Parcel {
    /// With its line end; empty if it says that nothing more will come.
    line: Vec<u8>,
    _room: Option<Room>,
    lent: Option<Arc<Lent>>,
}

impl Parcel {
    /// The line, with its end.
    pub(super) fn line(&self) -> &[u8] {
        &self.line
    }

    /// True if there was no room for it.
    pub(super) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// The same, to keep.
    pub(super) fn into_line(mut self) -> Vec<u8> {
        self.settle();
        std::mem::take(&mut self.line)
    }

    fn settle(&mut self) {
        if let Some(lent) = self.lent.take() {
            lent.bytes.fetch_sub(self.line.len(), Ordering::Relaxed);
            lent.changed.notify_waiters();
        }
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        self.settle();
    }
}

/// The far end.
#[derive(Debug)]
pub(super) struct Parcels {
    coming: UnboundedReceiver<Parcel>,
    /// Taken out to be written, the next first. Their room is given back when they are written.
    taken: VecDeque<Parcel>,
    /// How much of the first is written.
    written: usize,
}

impl Parcels {
    /// The next, once there is one; nothing when there will be none. Nothing is lost if this is dropped
    /// before it is done.
    pub(super) async fn recv(&mut self) -> Option<Parcel> {
        match self.taken.pop_front() {
            Some(parcel) => Some(parcel),
            None => self.coming.recv().await,
        }
    }

    /// The next, if there is one.
    pub(super) fn try_recv(&mut self) -> Option<Parcel> {
        self.taken.pop_front().or_else(|| self.coming.try_recv().ok())
    }

    fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.coming.is_empty()
    }

    async fn first(&mut self) -> Option<&Parcel> {
        if self.taken.is_empty() {
            let parcel = self.coming.recv().await?;
            self.taken.push_back(parcel);
        }
        self.taken.front()
    }

    /// Takes out what can be written together with the first. Says how many that are.
    fn gather(&mut self) -> usize {
        let mut bytes: usize = self.taken.iter().map(|parcel| parcel.line.len()).sum();
        while bytes < BATCH
            && self.taken.back().is_none_or(|last| !last.line.is_empty())
            && let Ok(parcel) = self.coming.try_recv()
        {
            bytes += parcel.line.len();
            self.taken.push_back(parcel);
        }
        self.taken.len()
    }

    /// What is not written of the first, if anything.
    fn rest(&self) -> Option<&[u8]> {
        self.lines().next().filter(|rest| !rest.is_empty())
    }

    /// What is taken out and not written.
    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        let skip = |at| if at == 0 { self.written } else { 0 };
        self.taken.iter().enumerate().map(move |(at, parcel)| &parcel.line[skip(at)..])
    }

    fn wrote(&mut self, count: usize) -> std::io::Result<()> {
        if count == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        self.written += count;
        while let Some(first) = self.taken.front().filter(|first| !first.line.is_empty())
            && let Some(more) = self.written.checked_sub(first.line.len())
        {
            self.written = more;
            self.taken.pop_front();
        }
        Ok(())
    }

    /// Everything that waits here, in order and with its line ends; what is empty says that nothing
    /// more comes. It still waits after that.
    pub(super) fn waiting(&mut self) -> impl Iterator<Item = &[u8]> {
        while let Ok(parcel) = self.coming.try_recv() {
            self.taken.push_back(parcel);
        }
        self.lines()
    }
}

/// The queue was closed, or its far end is gone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Over;

impl Queue {
    /// An empty one.
    pub(super) fn new() -> (Queue, Parcels) {
        let (lines, coming) = unbounded_channel();
        let [room, spare] = [ROOM, SPARE].map(|bytes| Arc::new(Semaphore::new(bytes)));
        let parcels = Parcels { coming, taken: VecDeque::new(), written: 0 };
        (Queue { lines, room, spare, lent: Arc::default() }, parcels)
    }

    /// True if nothing waits, and nobody is about to queue something.
    pub(super) fn is_empty(&self) -> bool {
        let is_full = |room: &Semaphore, most| room.available_permits() == most;
        is_full(&self.room, ROOM) && is_full(&self.spare, SPARE) && !self.owes()
    }

    /// Waits until there is room for a line of this length.
    pub(super) async fn room(&self, length: usize) -> Result<Room, Over> {
        let bytes = length.clamp(1, ROOM) as u32;
        Arc::clone(&self.room).acquire_many_owned(bytes).await.map_err(|_| Over)
    }

    /// Queues a line for which there is room.
    pub(super) fn push(&self, room: Room, line: Vec<u8>) -> Result<(), Over> {
        self.send(line, Some(room), None)
    }

    /// Queues a line that cannot wait. False if it is lost.
    pub(super) fn squeeze(&self, line: Vec<u8>) -> bool {
        let bytes = line.len().clamp(1, SPARE) as u32;
        let room = Arc::clone(&self.spare).try_acquire_many_owned(bytes);
        room.is_ok_and(|room| self.push(room, line).is_ok())
    }

    /// Queues a line also where there is no room, up to a limit: whoever asked for so much and does
    /// not read it is to be parted with. What keeps this small is that its owner asks for nothing
    /// more while it is in debt.
    pub(super) fn lend(&self, line: Vec<u8>) -> Result<(), Over> {
        let bytes = line.len().clamp(1, ROOM) as u32;
        if let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(bytes) {
            return self.push(room, line);
        }
        if self.room.is_closed() || self.debt() + line.len() > LOAN {
            return Err(Over);
        }
        let length = line.len() + 1;
        self.lent.bytes.fetch_add(length, Ordering::Relaxed);
        self.send(line, None, Some(self.lent.clone()))
    }

    fn debt(&self) -> usize {
        self.lent.bytes.load(Ordering::Relaxed)
    }

    /// True while something is lent.
    pub(super) fn owes(&self) -> bool {
        self.debt() > 0
    }

    /// Wakes who waits for [`Queue::stirred`].
    pub(super) fn stir(&self) {
        self.lent.changed.notify_waiters();
    }

    /// Done when something has changed since this was called.
    pub(super) fn stirred(&self) -> impl Future<Output = ()> + '_ {
        self.lent.changed.notified()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lent.closed.load(Ordering::Relaxed)
    }

    /// Waits until it is closed.
    pub(super) async fn closed(&self) {
        loop {
            let stirred = self.stirred();
            if self.is_closed() {
                return;
            }
            stirred.await;
        }
    }

    fn send(
        &self,
        mut line: Vec<u8>,
        room: Option<Room>,
        lent: Option<Arc<Lent>>,
    ) -> Result<(), Over> {
        line.push(b'\n');
        self.lines.send(Parcel { line, _room: room, lent }).map_err(|_| Over)
    }

    /// Queues again what waited at another far end, as [`Parcels::waiting`] has given it.
    pub(super) fn restore(&self, line: Vec<u8>) {
        let bytes = line.len().clamp(1, ROOM) as u32;
        let room = Arc::clone(&self.room).try_acquire_many_owned(bytes).ok();
        let owed = room.is_none() && !line.is_empty();
        let lent = owed.then(|| self.lent.clone());
        if owed {
            self.lent.bytes.fetch_add(line.len(), Ordering::Relaxed);
        }
        // Whoever restores has the far end.
        let _gone = self.lines.send(Parcel { line, _room: room, lent });
    }

    /// True if nobody has the far end.
    #[cfg(all(target_os = "linux", feature = "cli"))]
    pub(super) fn is_deaf(&self) -> bool {
        self.lines.is_closed()
    }

    /// Nothing that is queued after this is written.
    pub(super) fn end(&self) {
        // Without a far end there is nobody to be told.
        let _gone = self.lines.send(Parcel { line: Vec::new(), _room: None, lent: None });
    }

    /// Whoever waits for room, waits in vain. What is queued stays queued.
    pub(super) fn close(&self) {
        self.room.close();
        self.spare.close();
        self.lent.closed.store(true, Ordering::Relaxed);
        self.stir();
    }
}

/// Writes lines until there are no more, or until it was said that there are no more. If this is dropped
/// before it is done, whatever is not written yet is still at the far end.
pub(super) async fn write(
    to: &mut (impl AsyncWrite + Unpin),
    parcels: &mut Parcels,
) -> std::io::Result<()> {
    let mut batch = Vec::new();
    while let Some(first) = parcels.first().await {
        if first.line.is_empty() {
            return to.flush().await;
        }
        if parcels.gather() == 1 {
            while let Some(rest) = parcels.rest() {
                let count = to.write(rest).await?;
                parcels.wrote(count)?;
            }
        } else {
            batch.clear();
            parcels.lines().for_each(|line| batch.extend_from_slice(line));
            let mut rest = &batch[..];
            while !rest.is_empty() {
                let count = to.write(rest).await?;
                parcels.wrote(count)?;
                rest = &rest[count..];
            }
        }
        if parcels.is_empty() {
            to.flush().await?;
            batch = Vec::new();
        }
    }
    Ok(())
}
