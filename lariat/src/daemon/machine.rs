//! What the daemon asks of the machine.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use tokio::net::TcpListener;

/// By which the kernel knows a listener.
pub(super) type Number = RawFd;

/// The number of this one, for as long as it is there.
pub(super) fn number(listener: &TcpListener) -> Number {
    listener.as_raw_fd()
}

/// So many bytes that nobody guesses, as a word.
pub(super) fn random<const STRENGTH: usize>() -> io::Result<String> {
    let mut bytes = [0; STRENGTH];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A file that is made is for its owner alone.
pub(super) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600)
}

/// What the machine is called.
pub(super) fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
