//! Whether an engine answers, and which one it is: for those who want to know before they rely on it.

use super::client::Client;
use super::endpoint::Endpoint;
use std::io;
use std::time::Duration;

/// The engine's version. Blocks, for as long as `patience` at most.
pub fn version(endpoint: &Endpoint, patience: Duration) -> io::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asked = async { tokio::time::timeout(patience, Client::new(endpoint).version()).await };
    match runtime.block_on(asked) {
        Ok(answered) => answered,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the engine does not answer")),
    }
}
