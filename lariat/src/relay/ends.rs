//! Both ends of a conversation: what the server gets and what stays with us.

use super::outlet::{Outlet, Sink};
use super::pump::Pump;
use super::watch::Watch;
use crate::start::wire::Control;
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The ends of the conversation that stay with us.
#[derive(Debug)]
pub(super) enum Ends<'a> {
    /// The server has the host's own streams; these copies are only watched.
    Direct { stdin: Option<OwnedFd>, stdout: Option<OwnedFd> },
    /// Bytes pass through here.
    Relayed { up: Pump, down: Pump },
    /// Bytes pass through here and are looked at; the server may come and go.
    Watched(&'a mut Watch),
    /// The host has them; we have its word.
    Held(&'a mut Control),
}

/// The server's streams and ours.
pub(super) struct Streams {
    pub(super) server_stdin: OwnedFd,
    pub(super) server_stdout: OwnedFd,
    pub(super) server_stderr: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) ends: Ends<'static>,
}

impl Streams {
    pub(super) fn open(relayed: bool) -> Result<Streams, rustix::io::Errno> {
        let copy = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 3);
        let (stderr, server_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        set_nonblocking(&stderr)?;
        let (stdin, stdout) = (copy(io::stdin().as_fd())?, copy(io::stdout().as_fd())?);
        if !relayed {
            let ends = Ends::Direct {
                stdin: Some(copy(stdin.as_fd())?),
                stdout: Some(copy(stdout.as_fd())?),
            };
            return Ok(Streams {
                server_stdin: stdin,
                server_stdout: stdout,
                server_stderr,
                stderr,
                ends,
            });
        }
        let (server_stdin, to_server) = pipe_with(PipeFlags::CLOEXEC)?;
        let (from_server, server_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        set_nonblocking(&to_server)?;
        set_nonblocking(&from_server)?;
        let ends = Ends::Relayed {
            up: Pump::new(stdin, Sink::Own(to_server)),
            down: Pump::new(from_server, Sink::Host(Outlet::new(stdout.as_fd())?)),
        };
        Ok(Streams { server_stdin, server_stdout, server_stderr, stderr, ends })
    }
}

/// Only for pipes of ours: the flag belongs to the description, which nobody else shares.
pub(super) fn set_nonblocking(fd: &OwnedFd) -> Result<(), rustix::io::Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)
}
