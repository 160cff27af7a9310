//! What the daemon asks of the machine.

use std::fs::OpenOptions;
use std::io;
use std::os::windows::io::{AsRawSocket, RawSocket};
use tokio::net::TcpListener;

/// By which the kernel knows a listener.
pub(super) type Number = RawSocket;

/// The number of this one, for as long as it is there.
pub(super) fn number(listener: &TcpListener) -> Number {
    listener.as_raw_socket()
}

/// So many bytes that nobody guesses, as a word.
pub(super) fn random<const STRENGTH: usize>() -> io::Result<String> {
    let mut bytes = [0; STRENGTH];
    contain::machine::random(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A file that is made in the user's own directories is for the user alone.
pub(super) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

/// What the machine is called.
pub(super) fn name() -> String {
    contain::machine::name().unwrap_or_default()
}
