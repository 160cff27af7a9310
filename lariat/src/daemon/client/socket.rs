//! The socket that a client speaks by.

use super::Error;

/// A connection to a daemon.
pub type Stream = tokio::net::UnixStream;

/// Says if it is another user who listens.
pub(super) fn check(stream: &Stream) -> Result<(), Error> {
    let peer = stream.peer_cred().map_err(Error::Broken)?.uid();
    if peer == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(Error::Stranger(peer.to_string()))
}
