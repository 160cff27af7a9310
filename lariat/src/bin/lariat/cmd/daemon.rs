//! `lariat daemon`: sessions for whoever can speak HTTP.

mod offer;
mod outside;
mod replace;

use super::run::{Containers, Holding};
use crate::summon::{self, Whereabouts};
use crate::{env, shelf, show};
use lariat::daemon::handover::{self, Inheritance};
use lariat::daemon::{self, Access, Defaults, Door, Doors, Farewell, Name, config};
use lariat::duration;
use lariat::journal::make_private_dir;
use lariat::session::Config;
use lariat::spec::Servers;
use offer::{Admits, loopback, offer};
use outside::Outside;
use replace::Elder;
use rustix::fs::{FlockOperation, Mode, flock};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Descriptors enough for as many sessions and connections as there may be.
const DESCRIPTORS: u64 = 65_536;

/// Serves sessions over HTTP on a unix socket, to this user alone.
///
/// Runs in the foreground and prints one line when it listens. `lariat session open` starts one by
/// itself if none runs, and so does --start, for programs that speak HTTP themselves. A session ends
/// with its owner: the process that is named as such, the connection it was opened by, or else the
/// process that opened it. SIGTERM, SIGINT and SIGHUP end all sessions and then the daemon; a second
/// one leaves the rest to their guardians. Exit code 0 if nothing is left, 1 if something survived or
/// the daemon could not begin.
///
/// With --http there is also a page for a browser and /metrics for Prometheus, on this machine alone:
/// every session with its processes and what they cost, `lariat run` included. `lariat open` prints a
/// link that lets a browser in, and opens the page of a daemon that was started without.
///
/// With --config there are MCP servers as well, for any client that speaks Streamable HTTP: each at
/// /servers/NAME/mcp and all of them together at /mcp. Programs show the token as `Authorization:
/// Bearer`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat daemon
  lariat daemon --print-socket
  lariat daemon --http
  lariat daemon --http --config lariat.toml
  lariat daemon --http 127.0.0.1:9000 --token-file ~/.config/lariat/token
  curl --unix-socket \"$(lariat daemon --start)\" http://lariat/v1/openapi.json")]
pub(crate) struct Args {
    /// Where to listen [default: daemon.sock in the state directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Only print where a daemon that is started on demand listens
    #[arg(long)]
    print_socket: bool,
    /// Start one in the background unless one runs, and print where it listens when it does
    #[arg(long, conflicts_with_all = ["print_socket", "http", "config", "warm", "https", "token_file", "no_token", "idle", "max_sessions", "max_servers",
        "max_servers_per_session", "max_processes_per_session", "max_processes", "grace", "term_grace", "backend", "containers",
        "max_containers"])]
    start: bool,
    /// Take over from the daemon that listens there, with its servers and with whoever has joined it.
    /// Where that cannot be, they stay with it, newcomers come here, and it ends when its last has left;
    /// while it has sessions of the API or clients by HTTP that is refused, and nothing changes
    #[arg(long, conflicts_with_all = ["print_socket", "start"])]
    replace: bool,
    /// What the program has left that this process was before
    #[arg(long, hide = true, value_name = "N")]
    inherit: Option<i32>,
    /// Serve the page and /metrics by TCP as well, at an address of this machine alone; port 0 for any
    /// that is free [default address: 127.0.0.1:7457]
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, require_equals = false,
        default_missing_value = "127.0.0.1:7457", value_parser = loopback)]
    http: Option<SocketAddr>,
    /// The file that says which servers can be reached by HTTP: each as [servers.NAME], at
    /// /servers/NAME/mcp, and all of them at /mcp
    #[arg(long, value_name = "FILE")]
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
    #[command(flatten)]
    outside: Outside,
    #[command(flatten)]
    hold: Holding,
}

impl Args {
    /// Where it was told that the books are.
    pub(crate) fn state_dir(&self) -> Option<&PathBuf> {
        self.hold.state_dir.as_ref()
    }
}

/// Why there is no daemon.
enum Refusal {
    /// Somebody else has the lock.
    Taken,
    /// What is there is no socket.
    NoSocket,
    /// Something else.
    Io(&'static str, PathBuf, io::Error),
    /// Somebody else listens where the page is to be.
    PortTaken(SocketAddr),
    /// There can be no page there.
    NoPage(SocketAddr, Access, io::Error),
}

/// The socket, and the lock that makes it ours.
struct Mooring {
    path: PathBuf,
    /// Which file the socket is, so that nobody else's is removed.
    identity: Option<(u64, u64)>,
    /// Held as long as the daemon lives.
    lock: File,
}

/// Listens and serves.
pub(crate) fn run(args: Args) -> ExitCode {
    // First of all, so that whatever there is to say is said where it is heard.
    let mut inheritance = match args.inherit.map(Inheritance::take).transpose() {
        Ok(inheritance) => inheritance,
        Err(error) => {
            let advice = "what the daemon before held ends now";
            show::failure("cannot go on where the daemon before was", Some(&error), advice);
            return ExitCode::FAILURE;
        }
    };
    let state_dir = match shelf::place(args.hold.state_dir.as_ref()) {
        Ok(dir) => dir,
        Err(code) => return code,
    };
    let path = args.socket.clone().map_or_else(|| summon::place(&state_dir), env::absolute);
    if args.print_socket {
        return ExitCode::from(u8::from(!show::out(&format!("{}\n", path.display()))));
    }
    if args.start {
        return start(&path, args.socket, args.hold.state_dir);
    }
    if args.config.is_some() && args.http.is_none() && !args.outside.is_wanted() {
        let advice = "add --http for this machine, or --https for others";
        show::failure("nobody could reach the servers of --config", None, advice);
        return ExitCode::FAILURE;
    }
    let offer = match args.config.as_deref().map(|path| offer(path, &args.warm)).transpose() {
        Ok(offer) => offer.unwrap_or_default(),
        // Whoever has joined is served all the same.
        Err(_) if inheritance.is_some() => config::Config::default(),
        Err(code) => return code,
    };
    // Before anybody makes way for it.
    if let Err(code) = args.outside.check() {
        return code;
    }
    // What it is called in `ps`, however it was started.
    let _unnamed = rustix::thread::set_name(c"lariat-daemon");
    if args.replace && inheritance.is_none() {
        match replace::make_way(&path, &state_dir, args.http) {
            Ok(Elder::Gone) => {}
            Ok(Elder::Became(successor)) => return replace::stand_for(successor),
            Err(code) => return code,
        }
    }
    let is_taken = |refusal: &Refusal| matches!(refusal, Refusal::Taken | Refusal::PortTaken(_));
    let sat = match &mut inheritance {
        Some(left) => resume(&path, left),
        None => replace::patiently(args.replace, || sit(&path, &state_dir), is_taken),
    };
    let (mooring, listener) = match sat {
        Ok(seated) => seated,
        Err(refusal) => return refused(&path, &refusal),
    };
    let access = match (args.no_token, args.token_file.clone()) {
        (true, _) => Access::Anyone,
        (false, Some(file)) => Access::Token(env::absolute(file)),
        (false, None) => Access::Token(state_dir.join("token")),
    };
    let page =
        args.http.map(|address| match inheritance.as_mut().and_then(|left| left.door(address)) {
            // Whoever came meanwhile waits in it.
            Some(there) => opened(there, address, &access),
            None => replace::patiently(args.replace, || door(address, &access), is_taken),
        });
    let door = match page.transpose() {
        Ok(door) => door,
        Err(refusal) => {
            let code = refused(&path, &refusal);
            if inheritance.is_none() {
                return code;
            }
            // Whoever has joined is served all the same.
            None
        }
    };
    for closed in inheritance.iter_mut().flat_map(Inheritance::close_doors) {
        show::note(&format!("nobody listens at {closed} any more"), "--http says where to listen");
    }
    if door.is_some() {
        warn_of_readers(&access);
    }
    let gate = match args.outside.gate(args.replace) {
        Ok(gate) => gate,
        Err(_) if inheritance.is_some() => None,
        Err(code) => return code,
    };
    let raised = raise_descriptors();
    if let Err(error) = raised {
        show::failure(
            "cannot raise the limit on open files",
            Some(&error),
            "there will be fewer sessions",
        );
    }
    let defaults = Defaults {
        session: Config {
            ladder: args.hold.ladder(),
            backend: args.hold.backend,
            docker: (args.hold.containers == Containers::Reap).then(env::docker),
            max_containers: args.hold.max_containers,
            ..Config::new(state_dir, Servers::new())
        },
        limits: args.admits.limits(),
        idle: args.idle,
        access,
        offer,
    };
    let successor = inheritance.as_ref().and_then(|left| left.successor.try_clone().ok());
    let name = Name { lock: mooring.lock.as_raw_fd(), inheritance };
    let served =
        tokio::runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| {
            runtime.block_on(serve(mooring, listener, name, Doors { page: door, gate }, defaults))
        });
    let (code, left) = ended(served);
    if let Some(successor) = successor {
        handover::farewell(&successor, left);
    }
    code
}

/// Says how it ended, and with what to end.
fn ended(served: io::Result<Option<Farewell>>) -> (ExitCode, u8) {
    let code = match served {
        Ok(Some(farewell)) => {
            for survivor in &farewell.survivors {
                show::survivor(survivor);
            }
            u8::from(!farewell.survivors.is_empty())
        }
        Ok(None) => {
            show::failure("ended before its sessions did", None, "their guardians end them now");
            1
        }
        Err(error) => {
            show::failure("cannot serve", Some(&error), "`lariat doctor` says what is wrong here");
            1
        }
    };
    (ExitCode::from(code), code)
}

/// Has a daemon listen there, whoever started it. It has the usual options, like any on demand.
fn start(path: &Path, socket: Option<PathBuf>, state_dir: Option<PathBuf>) -> ExitCode {
    // Where it usually is, the directory is made with it.
    let there = Whereabouts { socket, state_dir };
    match there.summon() {
        Ok(_stream) => ExitCode::from(u8::from(!show::out(&format!("{}\n", path.display())))),
        Err(code) => code,
    }
}

/// Serves until the first signal has been followed, or a second one comes.
async fn serve(
    mooring: Mooring,
    listener: UnixListener,
    name: Name,
    doors: Doors,
    defaults: Defaults,
) -> io::Result<Option<Farewell>> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let (count, mut signals) = watch::channel(0);
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        let (mut heard, count) = (signal(kind)?, count.clone());
        tokio::spawn(async move {
            while heard.recv().await.is_some() {
                count.send_modify(|count| *count += 1);
            }
        });
    }
    // Whoever started this may not read it.
    let page = doors.page.as_ref().map(|door| format!("page at http://{}/\n", door.address()));
    let gate = doors.gate.as_ref().map(|gate| format!("MCP at https://{}/\n", gate.address()));
    let (page, gate) = (page.unwrap_or_default(), gate.unwrap_or_default());
    let mut replaced = signal(SignalKind::user_defined2())?;
    if name.inheritance.is_some() {
        // What came while there was nobody to hear it is heard now.
        contain::hear_signals();
    }
    let left = name.inheritance.as_ref().map(replace::announce);
    show::out(&format!("listening on {}\n{page}{gate}", mooring.path.display()));
    let mut second = signals.clone();
    let first = async move {
        // The sender is there as long as this waits.
        let told = async { signals.wait_for(|count| *count >= 1).await.map(|_| ()) };
        tokio::select! {
            _counted = told => {}
            // Whoever was to stand for it was killed before it could be told.
            () = async {}, if matches!(left, Some(None)) => {}
            () = replace::left(left.flatten()) => {}
        }
    };
    let retired = async move {
        if replaced.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
        // The name is the next one's.
        drop(mooring);
    };
    let served = tokio::select! {
        farewell = daemon::run(listener, name, doors, defaults, first, retired) => Some(farewell?),
        _ = second.wait_for(|count| *count >= 2) => None,
    };
    drop(count);
    Ok(served)
}

/// Takes the lock, clears away what a crash left, and listens. To be called while this process has
/// one thread: the mode that new files get belongs to all of them.
fn sit(path: &Path, state_dir: &Path) -> Result<(Mooring, UnixListener), Refusal> {
    let at = |what, path: &Path| {
        let path = path.to_owned();
        move |error| Refusal::Io(what, path, error)
    };
    make_private_dir(state_dir).map_err(at("make the state directory", state_dir))?;
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    // Never removed: a lock on a file that somebody replaces is no lock.
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
        .open(&name)
        .map_err(at("open", &name))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(Refusal::Taken),
        Err(error) => return Err(Refusal::Io("lock", name, error.into())),
    }
    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => return Err(Refusal::NoSocket),
        // Whoever listened there had the lock, and does not any more.
        Ok(_) => fs::remove_file(path).map_err(at("replace", path))?,
        Err(_) => {}
    }
    // For this user alone from the first moment, not after a chmod.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = bound.map_err(at("listen on", path))?;
    Ok((Mooring { path: path.to_owned(), identity: identity(path), lock }, listener))
}

/// The same where the program before had done so.
fn resume(path: &Path, left: &mut Inheritance) -> Result<(Mooring, UnixListener), Refusal> {
    let (listener, lock) = left.mooring().ok_or(Refusal::Taken)?;
    Ok((Mooring { path: path.to_owned(), identity: identity(path), lock: lock.into() }, listener))
}

/// Listens where the page is to be.
fn door(address: SocketAddr, access: &Access) -> Result<Door, Refusal> {
    let bound = std::net::TcpListener::bind(address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Refusal::PortTaken(address),
        _ => Refusal::NoPage(address, Access::Anyone, error),
    });
    opened(bound?, address, access)
}

fn opened(
    listener: std::net::TcpListener,
    address: SocketAddr,
    access: &Access,
) -> Result<Door, Refusal> {
    Door::new(listener, access).map_err(|error| Refusal::NoPage(address, access.clone(), error))
}

/// Says so if others may read the token.
fn warn_of_readers(access: &Access) {
    let Access::Token(path) = access else { return };
    if fs::metadata(path).is_ok_and(|meta| meta.mode() & 0o077 != 0) {
        let shown = path.display();
        let what = format!("others may read the token in {shown}");
        show::failure(&show::plain(&what), None, &show::plain(&format!("chmod 600 {shown}")));
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|there| (there.dev(), there.ino()))
}

impl Drop for Mooring {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // If it stays, the next daemon replaces it.
            let _stays = fs::remove_file(&self.path);
        }
    }
}

fn refused(path: &Path, refusal: &Refusal) -> ExitCode {
    let shown = path.display();
    match refusal {
        Refusal::Taken => {
            let what = format!("another daemon listens on {shown}");
            show::failure(&what, None, "use that one, end it, or choose another --socket PATH");
        }
        Refusal::NoSocket => {
            let what = format!("{shown} is there and is no socket");
            show::failure(&what, None, "move it away, or choose another --socket PATH");
        }
        Refusal::PortTaken(address) => {
            let what = format!("somebody else listens on {address}");
            let advice = "choose another with --http 127.0.0.1:PORT; port 0 is any that is free";
            show::failure(&what, None, advice);
        }
        Refusal::NoPage(address, Access::Anyone, error) => {
            let what = format!("there can be no page at {address}");
            show::failure(&what, Some(error), "choose another with --http 127.0.0.1:PORT");
        }
        Refusal::NoPage(_, Access::Token(path), error) => {
            let what = format!("cannot use the token in {}", path.display());
            let advice = "remove it, and it is made anew; or name another with --token-file FILE";
            show::failure(&show::plain(&what), Some(error), advice);
        }
        Refusal::Io(what, path, error) => {
            let what = format!("cannot {what} {}", path.display());
            show::failure(&what, Some(error), "choose another --socket PATH or --state-dir DIR");
        }
    }
    ExitCode::FAILURE
}

/// Each session needs a few descriptors, and the usual limit is for a program that has one.
fn raise_descriptors() -> Result<(), rustix::io::Errno> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    if current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })?;
    }
    Ok(())
}
