//! Bytes between a thread that may block and a task that may not, with room for so many and no more.
//!
//! A pipe of Windows can be waited for by a thread alone. So each has one, and this is between that
//! thread and the task that speaks with the server: whoever has no room waits, as at a pipe.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much waits at most.
const ROOM: usize = 64 << 10;

/// What both ends have.
#[derive(Debug, Default)]
struct Duct {
    state: Mutex<State>,
    /// The thread's end has something to do.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    bytes: VecDeque<u8>,
    /// Nothing more will come.
    ended: bool,
    /// Nobody takes anything any more.
    unheard: bool,
    /// The task that waits at its end.
    task: Option<Waker>,
}

impl Duct {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that is done under this lock can leave it half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something, and wakes whoever waits for that.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let task = state.task.take();
        drop(state);
        self.changed.notify_all();
        if let Some(task) = task {
            task.wake();
        }
    }

    fn end(&self) {
        self.change(|state| state.ended = true);
    }

    fn close(&self) {
        self.change(|state| {
            state.unheard = true;
            state.bytes = VecDeque::new();
        });
    }
}

/// From a task to a thread: a server's stdin. Dropped, it closes behind what was written.
#[derive(Debug)]
pub(crate) struct Sender(Arc<Duct>);

/// The thread's end of that.
#[derive(Debug)]
pub(super) struct Outlet(Arc<Duct>);

/// From a thread to a task: a server's stdout.
#[derive(Debug)]
pub(crate) struct Receiver(Arc<Duct>);

/// The thread's end of that. Dropped, it ends behind what was put in.
#[derive(Debug)]
pub(super) struct Inlet(Arc<Duct>);

/// What ends the wait of a thread at its end, because the other side of it has gone.
#[derive(Debug)]
pub(super) struct Stopper(Arc<Duct>);

/// From a task to a thread.
pub(super) fn outward() -> (Sender, Outlet) {
    let duct = Arc::new(Duct::default());
    (Sender(duct.clone()), Outlet(duct))
}

/// From a thread to a task.
pub(super) fn inward() -> (Inlet, Receiver) {
    let duct = Arc::new(Duct::default());
    (Inlet(duct.clone()), Receiver(duct))
}

impl AsyncWrite for Sender {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.state();
        if state.unheard || state.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = ROOM.saturating_sub(state.bytes.len()).min(bytes.len());
        if room == 0 && !bytes.is_empty() {
            state.task = Some(context.waker().clone());
            return Poll::Pending;
        }
        state.bytes.extend(&bytes[..room]);
        drop(state);
        self.0.changed.notify_all();
        Poll::Ready(Ok(room))
    }

    /// As at a pipe: what is in it is on its way.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.end();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Outlet {
    /// Waits for bytes; nothing once there will be no more.
    pub(super) fn take(&self) -> Option<Vec<u8>> {
        let mut state = self.0.state();
        while state.bytes.is_empty() && !state.ended && !state.unheard {
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.bytes.is_empty() {
            return None;
        }
        let mut taken = Vec::new();
        drop(state);
        self.0.change(|state| taken = std::mem::take(&mut state.bytes).into());
        Some(taken)
    }

    /// For whoever knows that the server is gone.
    pub(super) fn stopper(&self) -> Stopper {
        Stopper(self.0.clone())
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Stopper {
    /// Nobody takes anything any more.
    pub(super) fn stop(&self) {
        self.0.close();
    }
}

impl AsyncRead for Receiver {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.0.state();
        if state.bytes.is_empty() && !state.ended {
            state.task = Some(context.waker().clone());
            return Poll::Pending;
        }
        let (first, _) = state.bytes.as_slices();
        let n = first.len().min(to.remaining());
        to.put_slice(&first[..n]);
        state.bytes.drain(..n);
        if state.bytes.is_empty() && state.bytes.capacity() > 4096 {
            // One that says nothing is to cost nothing.
            state.bytes = VecDeque::new();
        }
        drop(state);
        self.0.changed.notify_all();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Inlet {
    /// Puts bytes in, after waiting for room. False if nobody takes them any more.
    pub(super) fn put(&self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let mut state = self.0.state();
            while state.bytes.len() >= ROOM && !state.unheard {
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.unheard {
                return false;
            }
            let room = (ROOM - state.bytes.len()).min(bytes.len());
            drop(state);
            let (now, later) = bytes.split_at(room);
            self.0.change(|state| state.bytes.extend(now));
            bytes = later;
        }
        true
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// More than fits, and of no even length.
    fn much() -> Vec<u8> {
        (0..ROOM * 5 + 7).map(|i| (i * i) as u8).collect()
    }

    #[tokio::test]
    async fn everything_arrives_at_the_thread_in_order() {
        let (mut sender, outlet) = outward();
        let taker = thread::spawn(move || {
            std::iter::from_fn(|| outlet.take()).inspect(|some| assert!(some.len() <= ROOM)).fold(
                Vec::new(),
                |mut all, some| {
                    all.extend(some);
                    all
                },
            )
        });
        sender.write_all(&much()).await.unwrap();
        drop(sender);
        assert!(taker.join().unwrap() == much());
    }

    #[tokio::test]
    async fn everything_arrives_at_the_task_in_order() {
        let (inlet, mut receiver) = inward();
        let giver = thread::spawn(move || much().chunks(1000).all(|some| inlet.put(some)));
        let mut all = Vec::new();
        receiver.read_to_end(&mut all).await.unwrap();
        assert!(giver.join().unwrap() && all == much());
    }

    #[tokio::test]
    async fn whoever_waits_for_one_who_has_gone_is_told() {
        let (mut sender, outlet) = outward();
        let stopper = outlet.stopper();
        let taker = thread::spawn(move || outlet.take());
        stopper.stop();
        assert_eq!(taker.join().unwrap(), None);
        assert!(sender.write_all(b"x").await.is_err());
        let (inlet, receiver) = inward();
        let giver = thread::spawn(move || inlet.put(&much()));
        drop(receiver);
        assert!(!giver.join().unwrap());
    }
}
