//! A connection by TCP, handed from one program to the next that this process becomes.

use super::{Events, Visit};
use crate::bytes::Bytes;
use crate::daemon::flow::Idle;
use crate::daemon::gateway::Gateway;
use crate::daemon::gateway::carried::CarriedSource;
use crate::pool::carried::Hubs;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use tokio::net::TcpStream;

/// A connection.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) struct Carried {
    stream: RawFd,
    unread: Bytes,
    heard: bool,
    known: bool,
    events: Option<(bool, CarriedSource)>,
}

impl Carried {
    /// How many places in the pool it has.
    pub(in crate::daemon) fn places(&self) -> usize {
        self.events.as_ref().map_or(0, |(_, source)| source.places())
    }

    /// Nobody serves it any more.
    pub(in crate::daemon) fn close(self) {
        drop(contain::inherited(self.stream));
    }

    /// The same from the program before. One that is told something which nobody can say any more is gone.
    pub(in crate::daemon) fn again(self, gateway: &Gateway, hubs: &mut Hubs) -> io::Result<Visit> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let stream = contain::inherited(self.stream).ok_or_else(gone)?;
        let stream = std::net::TcpStream::from(stream);
        stream.set_nonblocking(true)?;
        let events = match self.events {
            None => None,
            Some((chunked, source)) => {
                let source = gateway.source(source, hubs).ok_or_else(gone)?;
                Some(Events { chunked, source })
            }
        };
        let stream = TcpStream::from_std(stream)?;
        let idle = Idle { stream, unread: self.unread.0.into(), heard: self.heard };
        Ok(Visit { idle, known: self.known, events })
    }
}

impl Visit {
    /// For the next program, while everything rests. `None` if it cannot be handed over.
    pub(in crate::daemon) fn carry(
        &mut self,
        gateway: &Gateway,
        keep: &mut Vec<RawFd>,
    ) -> Option<Carried> {
        let events = match &mut self.events {
            None => None,
            Some(Events { chunked, source }) => Some((*chunked, gateway.carry_source(source)?)),
        };
        let stream = self.idle.stream.as_raw_fd();
        keep.push(stream);
        let unread = Bytes(self.idle.unread[..].into());
        Some(Carried { stream, unread, heard: self.idle.heard, known: self.known, events })
    }
}
