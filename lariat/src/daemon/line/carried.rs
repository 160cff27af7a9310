//! A connection by the socket, handed from one program to the next that this process becomes.

use super::{Resting, Speaking};
use crate::bytes::Bytes;
use crate::daemon::lease::Line;
use crate::daemon::lease::carried::Held;
use crate::daemon::telling::Telling;
use crate::session::Event;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use tokio::net::UnixStream;
use tokio::sync::broadcast::Receiver;

/// A connection.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) struct Carried {
    pub(in crate::daemon) stream: RawFd,
    pub(in crate::daemon) kept: Kept,
}

/// What it is in the middle of.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) enum Kept {
    Fresh,
    Speaking { line: Held, unread: Bytes, heard: bool },
    Telling { line: Held, chunked: bool, unwritten: Bytes },
}

impl Kept {
    /// Which connection it is, if it is one that something can hang on.
    pub(in crate::daemon) fn line(&self) -> Option<Held> {
        match self {
            Kept::Fresh => None,
            Kept::Speaking { line, .. } | Kept::Telling { line, .. } => Some(*line),
        }
    }
}

impl Resting {
    /// For the next program, while everything rests.
    pub(in crate::daemon) fn carry(&mut self, keep: &mut Vec<RawFd>) -> Carried {
        let (stream, kept) = match self {
            Resting::Fresh(stream) => (&*stream, Kept::Fresh),
            Resting::Speaking(Speaking { stream, line, unread, heard }) => {
                let (line, unread) = (line.carry(), Bytes(unread[..].into()));
                (&*stream, Kept::Speaking { line, unread, heard: *heard })
            }
            Resting::Telling(telling) => {
                telling.settle();
                let Telling { stream, line, chunked, unwritten, .. } = telling;
                let (line, unwritten) = (line.carry(), Bytes(unwritten.clone()));
                (&*stream, Kept::Telling { line, chunked: *chunked, unwritten })
            }
        };
        let stream = stream.as_raw_fd();
        keep.push(stream);
        Carried { stream, kept }
    }
}

impl Carried {
    /// The same from the program before: with its line, if it has one.
    pub(in crate::daemon) fn again(
        self,
        line: Option<Arc<Line>>,
        events: Receiver<Event>,
    ) -> io::Result<Resting> {
        let stream = stream(self.stream)?;
        let line = line.ok_or(io::ErrorKind::NotFound);
        Ok(match self.kept {
            Kept::Fresh => Resting::Fresh(stream),
            Kept::Speaking { unread, heard, .. } => {
                Resting::Speaking(Speaking { stream, line: line?, unread: unread.0.into(), heard })
            }
            Kept::Telling { chunked, unwritten, .. } => {
                let mut telling = Telling::new(stream, line?, events, chunked);
                telling.unwritten = unwritten.0;
                Resting::Telling(telling)
            }
        })
    }
}

/// The stream that the program before had under this number.
pub(in crate::daemon) fn stream(number: RawFd) -> io::Result<UnixStream> {
    let stream = contain::inherited(number).ok_or(io::ErrorKind::NotFound)?;
    let stream = std::os::unix::net::UnixStream::from(stream);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}
