//! The end of the pipe that a client speaks by.

use super::Error;
use std::os::windows::io::AsHandle;

/// A connection to a daemon.
pub type Stream = tokio::net::windows::named_pipe::NamedPipeClient;

/// Says if it is a stranger who listens. Nothing has been said to them by now.
pub(super) fn check(stream: &Stream) -> Result<(), Error> {
    let stranger = contain::pipe::stranger(stream.as_handle()).map_err(Error::Broken)?;
    stranger.map_or(Ok(()), |owner| Err(Error::Stranger(owner)))
}
