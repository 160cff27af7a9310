//! Where the daemon is, and how to have one: connecting, and starting one if nobody listens.

#[path = "../summon/explain.rs"]
mod explain;

pub(crate) use explain::explain;

use crate::{env, show};
use lariat::contain::{self, Choice, Ladder, Spec, Stream};
use lariat::daemon::client::{self, Client, Error};
use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::net::windows::named_pipe::ClientOptions;
use tokio::runtime::{Builder, Runtime};

/// What every pipe's name begins with.
const PREFIX: &str = r"\\.\pipe\";

/// How long starting a daemon may take, also if others start one at the same time.
const STARTING: Duration = Duration::from_secs(15);

/// How long to wait before looking again for a daemon that somebody else may be starting, or that has
/// no end of its pipe free; longer each time.
const AGAIN: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(2);

/// How long a daemon that nobody uses stays.
const IDLE: &str = "60s";

/// What the system says while no end of a pipe is free.
const PIPE_BUSY: i32 = 231;

/// Where the daemon is.
#[derive(Clone, clap::Args)]
pub(crate) struct Whereabouts {
    /// The daemon's pipe [default: one of this user's for the state directory]
    #[arg(long, alias = "pipe", value_name = "NAME")]
    pub(crate) socket: Option<String>,
    /// Where the books and logs are [default: AppData\Local\lariat of the user]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// A daemon that is there.
pub(crate) struct Found {
    stream: client::Stream,
    /// In which the stream was made.
    runtime: Runtime,
}

/// Why there is no daemon.
enum Absent {
    /// Nobody listens.
    Nobody,
    /// Something is there that cannot be connected to.
    Unreachable(io::Error),
    /// None came in time.
    NoneCame(Option<String>),
}

impl Whereabouts {
    /// The pipe. Says why there is none.
    pub(crate) fn address(&self) -> Result<String, ExitCode> {
        if let Some(name) = &self.socket {
            return Ok(full(name));
        }
        let dir = env::state_dir(self.state_dir.clone()).ok_or_else(no_home)?;
        place(&dir)
    }

    /// Connects to the daemon that runs. Says why not.
    pub(crate) fn find(&self) -> Result<Found, ExitCode> {
        let name = self.address()?;
        connect(&name, Instant::now() + STARTING).map_err(|absent| refused(&name, &absent))
    }

    /// Connects to the daemon, starting one if nobody listens. Says why not.
    pub(crate) fn summon(&self) -> Result<Found, ExitCode> {
        let name = self.address()?;
        let deadline = Instant::now() + STARTING;
        let mut again = AGAIN;
        loop {
            match connect(&name, deadline) {
                Err(Absent::Nobody) => {}
                found => return found.map_err(|absent| refused(&name, &absent)),
            }
            // Of several that are started at once one gets the lock, and the others leave.
            let heard = self.start(&name, deadline);
            if Instant::now() >= deadline {
                return Err(refused(&name, &Absent::NoneCame(heard.err())));
            }
            if !matches!(heard, Ok(true)) {
                std::thread::park_timeout(again);
                again = (again * 2).min(LONGEST);
            }
        }
    }

    /// Starts a daemon that belongs to nobody. True if it says that it listens.
    fn start(&self, name: &str, deadline: Instant) -> Result<bool, String> {
        let plain = |error: io::Error| error.to_string();
        let (heard, saying) = io::pipe().map_err(plain)?;
        let mut args =
            ["daemon", "--detached", "--idle", IDLE, "--socket", name].map(Into::into).to_vec();
        if let Some(dir) = env::state_dir(self.state_dir.clone()) {
            args.extend(["--state-dir".into(), dir.into_os_string()]);
        }
        let daemon = Spec {
            program: std::env::current_exe().map_err(plain)?.into_os_string(),
            args,
            env: Some(env::for_daemon()),
            // Nowhere in particular, so that no directory is kept from being removed.
            cwd: std::env::home_dir().filter(|home| home.is_dir()),
            stdin: Stream::null(),
            stdout: Stream::from(saying),
            stderr: Stream::null(),
            backend: Choice::Auto,
            ladder: Ladder::default(),
        };
        let is_free = contain::detach(daemon).map_err(|error| error.to_string())?;
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(heard).read_line(&mut line);
            // Who waited for it may have left.
            let _late = tell.send(read.is_ok_and(|length| length > 0));
        });
        let listens = told.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let listens = listens.unwrap_or(false);
        if listens && !is_free {
            let what = "the daemon is in a job that this command is in, and ends with it";
            show::note(what, "`lariat daemon`, started from elsewhere, stays");
        }
        Ok(listens)
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absent::Nobody => f.write_str("no daemon listens"),
            Absent::Unreachable(_) => f.write_str("cannot connect"),
            Absent::NoneCame(_) => f.write_str("no daemon came to listen"),
        }
    }
}

/// The pipe of the daemon that has its state in this directory. Says why there is none.
pub(crate) fn place(state_dir: &Path) -> Result<String, ExitCode> {
    contain::pipe::name("lariat", state_dir).map_err(|error| {
        let advice = "name a pipe with --socket NAME";
        show::failure("cannot find out which user this is", Some(&error), advice);
        ExitCode::FAILURE
    })
}

/// A pipe's name with what all of them begin with.
pub(crate) fn full(name: &str) -> String {
    if name.starts_with(r"\\") { name.into() } else { format!("{PREFIX}{name}") }
}

/// Says that there is no place for the books.
pub(crate) fn no_home() -> ExitCode {
    show::failure("this user has no home directory", None, "name one with --state-dir DIR");
    ExitCode::FAILURE
}

fn connect(name: &str, deadline: Instant) -> Result<Found, Absent> {
    let runtime =
        Builder::new_current_thread().enable_all().build().map_err(Absent::Unreachable)?;
    let mut again = AGAIN;
    loop {
        let inside = runtime.enter();
        let opened = ClientOptions::new().open(name);
        drop(inside);
        match opened {
            Ok(stream) => return Ok(Found { stream, runtime }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Absent::Nobody),
            Err(error) if error.raw_os_error() != Some(PIPE_BUSY) || Instant::now() >= deadline => {
                return Err(Absent::Unreachable(error));
            }
            Err(_) => {}
        }
        std::thread::park_timeout(again);
        again = (again * 2).min(LONGEST);
    }
}

fn refused(name: &str, absent: &Absent) -> ExitCode {
    let what = show::plain(&format!("{absent} on {name}"));
    match absent {
        Absent::Nobody => {
            let advice = "so there are no sessions; `lariat session open` starts one";
            show::failure(&what, None, advice);
        }
        Absent::Unreachable(error) => {
            show::failure(&what, Some(error), "name the daemon's pipe with --socket NAME");
        }
        Absent::NoneCame(why) => {
            let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            let advice = "`lariat daemon` in the foreground says why";
            show::failure(&format!("{what}{why}"), None, advice);
        }
    }
    ExitCode::FAILURE
}

/// Speaks with a daemon in a runtime of its own.
pub(crate) fn speak<T>(
    found: Found,
    words: impl AsyncFnOnce(Client) -> Result<T, Error>,
) -> Result<T, Error> {
    let Found { stream, runtime } = found;
    runtime.block_on(async { words(Client::over(stream).await?).await })
}
