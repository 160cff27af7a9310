//! Joining the pool from a host that knows only stdin and stdout.
//!
//! `lariat run --share` passes the host's streams to the daemon, which reads and writes them itself:
//! one hop between the host and a server that others use as well. The wrapper stays as what the host
//! sees of the server: a process whose end is the end of the session, either way.

mod ends;
mod guest;
mod seated;
mod wire;

pub use guest::{Declined, Guest, Parted};
pub use wire::{Brief, Text};

pub(super) use seated::{Carried, Seated, first_byte, message, serve, stay};
pub(super) use wire::KNOCK;
