//! What signals are called.

/// The name of a signal as receipts spell it, `TERM` for 15.
pub fn name(signal: i32) -> String {
    let known = match signal {
        libc::SIGHUP => "HUP",
        libc::SIGINT => "INT",
        libc::SIGQUIT => "QUIT",
        libc::SIGABRT => "ABRT",
        libc::SIGKILL => "KILL",
        libc::SIGUSR1 => "USR1",
        libc::SIGUSR2 => "USR2",
        libc::SIGSEGV => "SEGV",
        libc::SIGPIPE => "PIPE",
        libc::SIGTERM => "TERM",
        other => return other.to_string(),
    };
    known.into()
}
