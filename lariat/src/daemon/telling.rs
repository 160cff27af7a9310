//! A connection by which somebody is told what happens, after it has rested: its answer has begun already,
//! so the rest of it is written here.

use super::handle::{self, Desk};
use super::lease::Line;
use super::line::Resting;
use super::{flow, rest};
use crate::session::Event;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

/// Somebody who is told what happens.
#[derive(Debug)]
pub(super) struct Telling {
    pub(super) stream: UnixStream,
    pub(super) line: Arc<Line>,
    /// Each line has its length before it.
    pub(super) chunked: bool,
    events: Receiver<Event>,
    /// What is to be written first.
    pub(super) unwritten: Vec<u8>,
}

impl Telling {
    pub(super) fn new(
        stream: UnixStream,
        line: Arc<Line>,
        events: Receiver<Event>,
        chunked: bool,
    ) -> Telling {
        Telling { stream, line, chunked, events, unwritten: Vec::new() }
    }

    /// Tells until it leaves or nothing more can happen, or rests when everything does.
    pub(super) async fn stay(mut self, desk: &Desk, _counted: rest::Counted) {
        loop {
            tokio::select! {
                biased;
                () = self.tell(desk) => return,
                () = desk.lines.called() => {}
            }
            match desk.lines.lie_down(Resting::Telling(self)).await {
                Resting::Telling(up) => self = up,
                // Nobody else takes it.
                Resting::Fresh(_) | Resting::Speaking(_) => return,
            }
        }
    }

    /// Takes in what has happened.
    pub(super) fn settle(&mut self) {
        loop {
            match self.events.try_recv() {
                Ok(event) => self.add(&handle::line(&event)),
                Err(TryRecvError::Lagged(count)) => self.add(&handle::missed(count)),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    fn add(&mut self, line: &[u8]) {
        flow::add(&mut self.unwritten, line, self.chunked);
    }

    /// Nothing is lost if this is dropped before it is done.
    async fn tell(&mut self, desk: &Desk) {
        let mut stopped = desk.stopped.subscribe();
        loop {
            let mut ignored = [0; 256];
            let (mut reader, mut writer) = self.stream.split();
            let is_written = self.unwritten.is_empty();
            let event = tokio::select! {
                written = writer.write(&self.unwritten), if !is_written => match written {
                    Ok(count) if count > 0 => {
                        self.unwritten.drain(..count);
                        continue;
                    }
                    _ => return,
                },
                event = self.events.recv(), if is_written => event,
                // It is being told to the end; what else it wants is its next connection's.
                read = reader.read(&mut ignored) => match read {
                    Ok(count) if count > 0 => continue,
                    _ => return,
                },
                _ = stopped.wait_for(|stopped| *stopped) => break,
            };
            match event {
                Ok(event) => self.add(&handle::line(&event)),
                Err(RecvError::Lagged(count)) => self.add(&handle::missed(count)),
                Err(RecvError::Closed) => break,
            }
        }
        // The last ones have been said; they are still to be read.
        self.settle();
        if self.chunked {
            self.unwritten.extend_from_slice(b"0\r\n\r\n");
        }
        // It may have left.
        let _left = self.stream.write_all(&self.unwritten).await;
        let _left = self.stream.shutdown().await;
    }
}
