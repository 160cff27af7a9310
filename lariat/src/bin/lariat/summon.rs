//! Where the daemon is, and how to have one: connecting, and starting one if nobody listens.

mod explain;

pub(crate) use explain::explain;

use crate::shelf::no_home;
use crate::{env, show};
use lariat::contain;
use lariat::daemon::client::{Client, Error};
use rustix::event::{PollFd, PollFlags};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// What a unix socket's address can hold, with the null that ends it.
const LONGEST_ADDRESS: usize = 108;

/// How long starting a daemon may take, also if others start one at the same time.
const STARTING: Duration = Duration::from_secs(15);

/// How long to wait before looking again for a daemon that somebody else may be starting; longer each
/// time, as it may also be that none can be started.
const AGAIN: Duration = Duration::from_millis(50);

/// How long a daemon that nobody uses stays.
const IDLE: &str = "60s";

/// Where the daemon is.
#[derive(Clone, clap::Args)]
pub(crate) struct Whereabouts {
    /// The daemon's socket [default: daemon.sock in the state directory]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Where the books and logs are [default: ~/.local/state/lariat]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// Why there is no daemon.
pub(crate) enum Absent {
    /// There is no home directory to find it in.
    NoHome,
    /// Something is there that cannot be connected to.
    Unreachable(PathBuf, io::Error),
    /// None came in time.
    NoneCame(PathBuf, Option<io::Error>),
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absent::NoHome => f.write_str("there is no home directory"),
            Absent::Unreachable(socket, error) => {
                write!(f, "cannot connect to {}: {error}", socket.display())
            }
            Absent::NoneCame(socket, None) => {
                write!(f, "no daemon came to listen on {}", socket.display())
            }
            Absent::NoneCame(socket, Some(error)) => {
                write!(f, "no daemon came to listen on {}: {error}", socket.display())
            }
        }
    }
}

impl Whereabouts {
    /// The socket; `None` if there is no home directory to find it in.
    pub(crate) fn address(&self) -> Option<PathBuf> {
        match &self.socket {
            Some(socket) => Some(env::absolute(socket.clone())),
            None => Some(place(&env::state_dir(self.state_dir.clone())?)),
        }
    }

    /// Connects to the daemon that runs. Says why not.
    pub(crate) fn find(&self) -> Result<UnixStream, ExitCode> {
        let socket = self.address().ok_or_else(no_home)?;
        UnixStream::connect(&socket).map_err(|error| {
            if is_absent(&error) {
                let what = format!("no daemon listens on {}", socket.display());
                show::failure(
                    &what,
                    None,
                    "so there are no sessions; `lariat session open` starts one",
                );
            } else {
                unreachable(&socket, &error);
            }
            ExitCode::FAILURE
        })
    }

    /// Connects to the daemon, starting one if nobody listens. Says why not. To be called while this
    /// process has one thread.
    pub(crate) fn summon(&self) -> Result<UnixStream, ExitCode> {
        self.have().map_err(|absent| {
            match absent {
                Absent::NoHome => return no_home(),
                Absent::Unreachable(socket, error) => unreachable(&socket, &error),
                Absent::NoneCame(socket, error) => {
                    let what = format!("no daemon came to listen on {}", socket.display());
                    let cause = error.as_ref().map(|e| e as &dyn std::error::Error);
                    show::failure(&what, cause, "`lariat daemon` in the foreground says why");
                }
            }
            ExitCode::FAILURE
        })
    }

    /// The same without a word.
    pub(crate) fn have(&self) -> Result<UnixStream, Absent> {
        let socket = self.address().ok_or(Absent::NoHome)?;
        if self.socket.is_some() && !socket.parent().is_some_and(Path::is_dir) {
            // Nobody could listen there.
            return Err(Absent::Unreachable(socket, io::ErrorKind::NotFound.into()));
        }
        let deadline = Instant::now() + STARTING;
        let mut again = AGAIN;
        loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => return Ok(stream),
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(Absent::Unreachable(socket, error)),
            }
            // Of several that are started at once one gets the lock, and the others leave.
            let heard = self.start(&socket, deadline);
            if Instant::now() >= deadline {
                return Err(Absent::NoneCame(socket, heard.err()));
            }
            if !matches!(heard, Ok(true)) {
                contain::wait(&mut [], Some(Instant::now() + again));
                again = (again * 2).min(Duration::from_secs(2));
            }
        }
    }

    /// Starts a daemon that belongs to nobody. True if it says that it listens.
    fn start(&self, socket: &Path, deadline: Instant) -> io::Result<bool> {
        let (heard, saying) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("lariat").args(["daemon", "--idle", IDLE, "--socket"]).arg(socket);
        if let Some(dir) = env::state_dir(self.state_dir.clone()) {
            command.arg("--state-dir").arg(dir);
        }
        command.env_clear().envs(env::for_daemon());
        // Nowhere in particular, so that no directory is kept from being unmounted.
        command.current_dir(env::home().filter(|home| home.is_dir()).unwrap_or("/".into()));
        command.stdin(Stdio::null()).stderr(Stdio::null());
        contain::detach(c"lariat-daemon", &[saying.as_fd()], || {
            // A descriptor that the command had before would be closed in there.
            let Ok(output) = saying.try_clone() else { return 125 };
            // Returns only if there is no such program any more; the pipe then closes.
            let _error = command.stdout(output).exec();
            127
        })?;
        drop((command, saying));
        let mut fds = [PollFd::new(&heard, PollFlags::IN)];
        contain::wait(&mut fds, Some(deadline));
        if fds[0].revents().is_empty() {
            return Ok(false);
        }
        let mut line = String::new();
        BufReader::new(File::from(heard)).read_line(&mut line)?;
        Ok(!line.is_empty())
    }
}

/// Where the daemon listens that has its state in this directory: there, if that is not too long a
/// name for a socket. Elsewhere anybody could listen first, so both ends look who is at the other.
pub(crate) fn place(state_dir: &Path) -> PathBuf {
    let beside = state_dir.join("daemon.sock");
    if beside.as_os_str().len() < LONGEST_ADDRESS {
        return beside;
    }
    // FNV-1a: the same directory must have the same name in every version.
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = state_dir.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step);
    let uid = rustix::process::getuid().as_raw();
    format!("/tmp/lariat-{uid}-{hash:016x}.sock").into()
}

/// True if nobody listens there.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn unreachable(socket: &Path, error: &io::Error) {
    let what = format!("cannot connect to {}", socket.display());
    show::failure(&what, Some(error), "name the daemon's socket with --socket PATH");
}

/// Speaks with a daemon in a runtime of its own.
pub(crate) fn speak<T>(
    stream: UnixStream,
    words: impl AsyncFnOnce(Client) -> Result<T, Error>,
) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Error::Broken)?.block_on(async {
        stream.set_nonblocking(true).map_err(Error::Broken)?;
        let stream = tokio::net::UnixStream::from_std(stream).map_err(Error::Broken)?;
        words(Client::over(stream).await?).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_in_the_state_directory_if_its_name_fits() {
        assert_eq!(place(Path::new("/a/b")), Path::new("/a/b/daemon.sock"));
        let deep = PathBuf::from("/").join("d".repeat(150));
        let placed = place(&deep);
        assert!(placed.as_os_str().len() < LONGEST_ADDRESS, "{placed:?}");
        assert_eq!(placed, place(&deep));
        assert_ne!(placed, place(&deep.join("e")));
    }
}
