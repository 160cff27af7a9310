//! `lariat connect`: MCP with a server of a session, on standard input and output.

use crate::show;
use crate::summon::{self, Whereabouts};
use lariat::contain;
use lariat::daemon::client::{Attached, Error};
use rustix::event::{PollFd, PollFlags};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

/// Bytes that are passed on at once.
const BUFFER: usize = 64 << 10;

/// Speaks MCP with a server of a session, on standard input and output.
///
/// What any MCP client can be given as a server's command. The server goes on when this ends; it ends
/// with its session. Bytes are passed on as they are. Exit code 0 when either side has ended, 1 if
/// there was nothing to connect to.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat connect --session \"$S\" github")]
pub(crate) struct Args {
    /// Which session
    #[arg(long, value_name = "ID")]
    session: String,
    #[command(flatten)]
    daemon: Whereabouts,
    /// Which of its servers
    #[arg(value_name = "SERVER")]
    server: String,
}

impl Args {
    /// Where it was told that the books are.
    pub(crate) fn state_dir(&self) -> Option<&PathBuf> {
        self.daemon.state_dir.as_ref()
    }
}

/// Connects, and copies until either side has enough.
pub(crate) fn run(args: Args) -> ExitCode {
    let Args { session, server, daemon } = args;
    let stream = match daemon.find() {
        Ok(stream) => stream,
        Err(code) => return code,
    };
    let attached = summon::speak(stream, async |client| {
        let Attached { stream, heard } = client.attach(&session, &server).await?;
        Ok((stream.into_std().map_err(Error::Broken)?, heard))
    });
    let (stream, heard) = match attached {
        Ok(attached) => attached,
        Err(error) => {
            let what = format!("cannot connect to {server} of session {session}");
            return summon::explain(&show::plain(&what), &error);
        }
    };
    match copy(stream, &heard) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            show::failure("the connection broke", Some(&error), "did the session end?");
            ExitCode::FAILURE
        }
    }
}

fn copy(stream: UnixStream, heard: &[u8]) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    // Not std's, which hold back what is no whole line.
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let to_server = stream.try_clone()?;
    // Ends with this process at the latest: it waits for whoever writes to us.
    std::thread::spawn(move || {
        // Whether the input ended or the server did: no more will be said.
        let _ended = drain(&input, &to_server);
        let _ended = to_server.shutdown(Shutdown::Write);
    });
    match pass_on(&stream, &output, heard) {
        // Who was to read it has left, or the daemon has: an end like any other.
        Err(error) if is_end(&error) => Ok(()),
        other => other,
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Passes on what we are told, until its end.
fn drain(input: &File, mut to_server: &UnixStream) -> io::Result<()> {
    let mut space = vec![0; BUFFER];
    loop {
        contain::wait(&mut [PollFd::new(input, PollFlags::IN)], None);
        match read(input, &mut space)? {
            Some(0) => return Ok(()),
            Some(n) => to_server.write_all(&space[..n])?,
            None => {}
        }
    }
}

/// Passes on what the server says, until it or the reader has ended.
fn pass_on(stream: &UnixStream, output: &File, heard: &[u8]) -> io::Result<()> {
    write(output, heard)?;
    let mut space = vec![0; BUFFER];
    loop {
        let mut fds = [PollFd::new(stream, PollFlags::IN), PollFd::new(output, PollFlags::empty())];
        contain::wait(&mut fds, None);
        if !fds[0].revents().is_empty() {
            match read(stream, &mut space)? {
                Some(0) => return Ok(()),
                Some(n) => write(output, &space[..n])?,
                None => {}
            }
        } else if !fds[1].revents().is_empty() {
            return Ok(());
        }
    }
}

/// Nothing if there is nothing yet: a host may have given us streams that do not wait.
fn read(mut from: impl Read, space: &mut [u8]) -> io::Result<Option<usize>> {
    match from.read(space) {
        Ok(n) => Ok(Some(n)),
        Err(error) if is_later(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn write(mut to: &File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if is_later(&error) => {
                contain::wait(&mut [PollFd::new(&to, PollFlags::OUT)], None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
