//! `lariat daemon` on Windows: sessions for whoever can speak HTTP.

#[path = "../cmd/daemon/offer.rs"]
mod offer;

use crate::summon::{self, Whereabouts};
use crate::{env, show};
use lariat::contain::Ladder;
use lariat::daemon::{self, Access, Defaults, Door, Farewell, Pipe};
use lariat::duration;
use lariat::session::Config;
use lariat::spec::Servers;
use offer::{Admits, loopback, offer};
use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_logoff, ctrl_shutdown};
use tokio::sync::watch;

/// Serves sessions over HTTP on a named pipe, to this user alone.
///
/// Runs in the foreground and prints one line when it listens. `lariat session open` starts one by
/// itself if none runs, and so does --start, for programs that speak HTTP themselves. A session ends
/// with its owner: the process that is named as such, the connection it was opened by, or else the
/// process that opened it. Ctrl-C, Ctrl-Break and the closing of its console end all sessions and then
/// the daemon; a second one leaves the rest to their jobs. However the daemon ends, its servers are
/// gone. Exit code 0 if nothing is left, 1 if something survived or the daemon could not begin.
///
/// With --http there is also a page for a browser and /metrics for Prometheus, on this machine alone.
/// `lariat open` prints a link that lets a browser in, and opens the page of a daemon that was started
/// without. With --config there are MCP servers as well, for any client that speaks Streamable HTTP: each
/// at /servers/NAME/mcp and all of them together at /mcp. Programs show the token as `Authorization:
/// Bearer`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat daemon
  lariat daemon --print-socket
  lariat daemon --idle 10m
  lariat daemon --http --config lariat.toml")]
pub(super) struct Args {
    #[command(flatten)]
    there: Whereabouts,
    /// Only print where a daemon that is started on demand listens
    #[arg(long)]
    print_socket: bool,
    /// Start one in the background unless one runs, and print where it listens when it does
    #[arg(long, conflicts_with_all = ["print_socket", "http", "config", "warm", "token_file", "no_token", "idle", "max_sessions", "max_servers",
        "max_servers_per_session", "max_processes_per_session", "max_processes", "grace", "term_grace"])]
    start: bool,
    /// It was started on demand, with a console of its own
    #[arg(long, hide = true)]
    detached: bool,
    /// Serve the page and /metrics by TCP as well, at an address of this machine alone; port 0 for any
    /// that is free [default address: 127.0.0.1:7457]
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, require_equals = false,
        default_missing_value = "127.0.0.1:7457", value_parser = loopback)]
    http: Option<SocketAddr>,
    /// The file that says which servers can be reached by HTTP: each as [servers.NAME], at
    /// /servers/NAME/mcp, and all of them at /mcp
    #[arg(long, value_name = "FILE", requires = "http")]
    config: Option<PathBuf>,
    /// Keep a process of this server of --config ready for whoever comes next, as `warm = true` in the
    /// file does (repeatable)
    #[arg(long, value_name = "NAME", requires = "config")]
    warm: Vec<String>,
    /// The file with the token that lets programs in, made if it is not there [default: token in the
    /// state directory]
    #[arg(long, value_name = "FILE", conflicts_with = "no_token")]
    token_file: Option<PathBuf>,
    /// Let everybody in who is on this machine, whichever user they are
    #[arg(long, requires = "http")]
    no_token: bool,
    /// End after this time without a session and a connection [default: never]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    idle: Option<Duration>,
    #[command(flatten)]
    admits: Admits,
    /// Time to leave after standard input closed, before Ctrl-Break
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    grace: Duration,
    /// Time to leave after Ctrl-Break, before the kill
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    term_grace: Duration,
}

/// Why there is no daemon.
enum Refusal {
    /// Somebody else has the lock.
    Taken,
    /// Somebody else has the pipe.
    Squatted,
    /// There can be no page there.
    NoPage(SocketAddr, io::Error),
    /// Something else.
    Io(&'static str, PathBuf, io::Error),
}

/// Listens and serves.
pub(super) fn run(args: Args) -> ExitCode {
    serve(args).unwrap_or_else(|code| code)
}

fn serve(args: Args) -> Result<ExitCode, ExitCode> {
    let name = args.there.address()?;
    if args.print_socket {
        return Ok(ExitCode::from(u8::from(!show::out(&format!("{name}\n")))));
    }
    if args.start {
        drop(args.there.summon()?);
        return Ok(ExitCode::from(u8::from(!show::out(&format!("{name}\n")))));
    }
    let state_dir = env::state_dir(args.there.state_dir).ok_or_else(summon::no_home)?;
    let offer = args.config.as_deref().map(|path| offer(path, &args.warm)).transpose()?;
    let lock = lock(&name, &state_dir).map_err(|refusal| refused(&name, &refusal))?;
    let access = match (args.no_token, args.token_file) {
        (true, _) => Access::Anyone,
        (false, Some(file)) => Access::Token(env::absolute(file)),
        (false, None) => Access::Token(state_dir.join("token")),
    };
    let page = args.http.map(|address| door(address, &access)).transpose();
    let page = page.map_err(|refusal| refused(&name, &refusal))?;
    let ladder = Ladder { grace: args.grace, term_grace: args.term_grace, ..Ladder::default() };
    let defaults = Defaults {
        session: Config { ladder, ..Config::new(state_dir, Servers::new()) },
        limits: args.admits.limits(),
        idle: args.idle,
        access,
        offer: offer.unwrap_or_default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime
        .and_then(|runtime| runtime.block_on(until_told(&name, page, defaults, args.detached)));
    drop(lock);
    Ok(match served {
        Ok(Ok(Some(farewell))) => {
            for survivor in &farewell.survivors {
                show::survivor(survivor);
            }
            ExitCode::from(u8::from(!farewell.survivors.is_empty()))
        }
        Ok(Ok(None)) => {
            show::failure("ended before its sessions did", None, "their jobs end them now");
            ExitCode::FAILURE
        }
        Ok(Err(refusal)) => refused(&name, &refusal),
        Err(error) => {
            show::failure("cannot serve", Some(&error), "nothing was started");
            ExitCode::FAILURE
        }
    })
}

/// Serves until it has been told once and has followed, or is told a second time.
async fn until_told(
    name: &str,
    page: Option<Door>,
    defaults: Defaults,
    detached: bool,
) -> io::Result<Result<Option<Farewell>, Refusal>> {
    let pipe = match Pipe::listen(name) {
        Ok(pipe) => pipe,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Ok(Err(Refusal::Squatted));
        }
        Err(error) => return Ok(Err(Refusal::Io("listen on", name.into(), error))),
    };
    let (count, mut told) = watch::channel(0);
    let (mut c, mut ctrl_break) = (ctrl_c()?, ctrl_break()?);
    let (mut close, mut logoff, mut shutdown) = (ctrl_close()?, ctrl_logoff()?, ctrl_shutdown()?);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                // Only a server of its own can press a key on a console that nobody sees.
                _told = c.recv(), if !detached => {}
                _told = ctrl_break.recv(), if !detached => {}
                _told = close.recv() => {}
                _told = logoff.recv() => {}
                _told = shutdown.recv() => {}
            }
            count.send_modify(|count| *count += 1);
        }
    });
    // Whoever started this may not read it.
    let there = page.as_ref().map(|door| format!("page at http://{}/\n", door.address()));
    show::out(&format!("listening on {name}\n{}", there.unwrap_or_default()));
    let mut again = told.clone();
    let first = async move {
        // The sender is there as long as this waits.
        let _told = told.wait_for(|count| *count >= 1).await.map(|_| ());
    };
    tokio::select! {
        farewell = daemon::run(pipe, page, defaults, first) => Ok(Ok(Some(farewell?))),
        _again = again.wait_for(|count| *count >= 2) => Ok(Ok(None)),
    }
}

/// Listens where the page is to be.
fn door(address: SocketAddr, access: &Access) -> Result<Door, Refusal> {
    let bound = TcpListener::bind(address).and_then(|bound| Door::new(bound, access));
    bound.map_err(|error| Refusal::NoPage(address, error))
}

/// Takes the lock that goes with the pipe: of two daemons that begin at once, one has it.
fn lock(name: &str, state_dir: &Path) -> Result<File, Refusal> {
    let at = |what, path: &Path| {
        let path = path.to_owned();
        move |error| Refusal::Io(what, path, error)
    };
    fs::create_dir_all(state_dir).map_err(at("make the state directory", state_dir))?;
    let last = name.rsplit('\\').next().unwrap_or(name);
    let fits = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let path = state_dir.join(format!("{}.lock", last.chars().map(fits).collect::<String>()));
    // Never removed: a lock on a file that somebody replaces is no lock.
    let file = File::options().write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(at("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Refusal::Taken),
        Err(TryLockError::Error(error)) => Err(Refusal::Io("lock", path, error)),
    }
}

fn refused(name: &str, refusal: &Refusal) -> ExitCode {
    match refusal {
        Refusal::Taken => {
            let what = format!("another daemon listens on {name}");
            show::failure(&what, None, "use that one, end it, or choose another --socket NAME");
        }
        Refusal::Squatted => {
            let what = format!("somebody else has the pipe {name}");
            show::failure(&what, None, "find out who that is, or choose another --socket NAME");
        }
        Refusal::NoPage(address, error) => {
            let what = format!("there can be no page at {address}");
            let advice = "choose another with --http 127.0.0.1:PORT; port 0 is any that is free";
            show::failure(&what, Some(error), advice);
        }
        Refusal::Io(what, path, error) => {
            let what = format!("cannot {what} {}", path.display());
            show::failure(&what, Some(error), "choose another --socket NAME or --state-dir DIR");
        }
    }
    ExitCode::FAILURE
}
