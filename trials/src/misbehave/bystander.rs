//! The bystander's part: do nothing, and remember every signal.

use super::process::{block, end_at, leave, now_ns, read, write_all};

/// Whether this process is a bystander. Its command line is the server's, so its stdin tells: a
/// kind of socket that no host uses.
pub(super) fn is_asked() -> bool {
    let mut kind: libc::c_int = 0;
    let mut size = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    // SAFETY: `kind` and `size` are writable for the whole call, and `size` is the size of `kind`.
    let asked = unsafe {
        let (kind, size) = (&raw mut kind, &raw mut size);
        libc::getsockopt(0, libc::SOL_SOCKET, libc::SO_TYPE, kind.cast(), size)
    };
    asked == 0 && kind == libc::SOCK_SEQPACKET
}

/// Stands by until the runner closes its end. Blocked signals stay pending, for all to read.
pub(super) fn stand() -> ! {
    block(&[]);
    // Stopped by a wrapper whose runner was then killed, it could not leave by itself.
    end_at(now_ns() + 180_000_000_000);
    write_all(0, format!("{}\n", std::process::id()).as_bytes());
    let mut word = [0; 16];
    while read(0, &mut word).is_some() {}
    leave(0)
}
