//! Lines on their way to somebody who may be slow. Every byte that waits has been paid for.
//!
//! The queue itself has no end; what ends is the room. Who can wait, waits for room before the line
//! is queued, first come first served. Who cannot (an answer that is made while reading, a
//! cancellation that is made while dropping) has a little room apart, and when that is used up the
//! line is lost: its receiver has not read for a very long time.

use std::sync::Arc;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that wait at most, and a longer line is alone.
const ROOM: usize = 256 << 10;

/// Bytes that could not wait. Enough to cancel everything that can be in flight.
const SPARE: usize = 1 << 20;

/// The near end of a queue.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    lines: UnboundedSender<Parcel>,
    room: Arc<Semaphore>,
    spare: Arc<Semaphore>,
}

/// Room for one line.
pub(super) type Room = OwnedSemaphorePermit;

/// A line, and the room that it takes.
#[derive(Debug)]
pub(super) struct Parcel {
    line: Vec<u8>,
    _room: Room,
}

/// The far end.
pub(super) type Parcels = UnboundedReceiver<Parcel>;

/// The queue was closed, or its far end is gone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Over;

impl Queue {
    /// An empty one.
    pub(super) fn new() -> (Queue, Parcels) {
        let (lines, parcels) = unbounded_channel();
        let [room, spare] = [ROOM, SPARE].map(|bytes| Arc::new(Semaphore::new(bytes)));
        (Queue { lines, room, spare }, parcels)
    }

    /// Waits until there is room for a line of this length.
    pub(super) async fn room(&self, length: usize) -> Result<Room, Over> {
        let bytes = length.clamp(1, ROOM) as u32;
        Arc::clone(&self.room).acquire_many_owned(bytes).await.map_err(|_| Over)
    }

    /// Queues a line for which there is room.
    pub(super) fn push(&self, room: Room, mut line: Vec<u8>) -> Result<(), Over> {
        line.push(b'\n');
        self.lines.send(Parcel { line, _room: room }).map_err(|_| Over)
    }

    /// Queues a line that cannot wait. False if it is lost.
    pub(super) fn squeeze(&self, line: Vec<u8>) -> bool {
        let bytes = line.len().clamp(1, SPARE) as u32;
        let room = Arc::clone(&self.spare).try_acquire_many_owned(bytes);
        room.is_ok_and(|room| self.push(room, line).is_ok())
    }

    /// Whoever waits for room, waits in vain. What is queued stays queued.
    pub(super) fn close(&self) {
        self.room.close();
        self.spare.close();
    }
}

/// Writes lines until there are no more.
pub(super) async fn write(
    to: &mut (impl AsyncWrite + Unpin),
    mut parcels: Parcels,
) -> std::io::Result<()> {
    while let Some(parcel) = parcels.recv().await {
        to.write_all(&parcel.line).await?;
        if parcels.is_empty() {
            to.flush().await?;
        }
    }
    Ok(())
}
