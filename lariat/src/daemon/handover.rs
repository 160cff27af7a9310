//! A daemon becomes the next one, and keeps what it holds.
//!
//! The next daemon does not take over from this one: this process becomes it. Whoever was started with
//! `--replace` passes its own executable, its command line and its streams; this daemon has everything rest,
//! writes down what it knows into memory that nobody else can read, and executes that program in its own
//! place. The descriptors stay open, so no host and no server notices; pid and start time stay, so what the
//! books say of the owner stays true, and holders stay its children. If it cannot be done, everything goes
//! on as before, and the daemon makes way in the older manner.
//!
//! Not carried over: sessions of clients on other machines, as TLS is between. While there are some, this is
//! declined.

mod heirs;
mod successor;

pub(super) use heirs::settle;

pub use successor::{Declined, Successor, succeed};

use super::handle::Desk;
use super::outside::Outside;
use super::{attached, gateway, joining, line, registry, visit};
use crate::bytes::Bytes;
use crate::pool::carried::Carried as CarriedPool;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;
use successor::{LONGEST, Request, VERSION, Word};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub(super) use successor::ASK;

/// How long what is being started, ended or answered is waited for.
const SETTLES: Duration = Duration::from_secs(5);

/// How long at a time connections stand still while somebody is answered: meanwhile nobody sees that one has
/// closed, and a session may hang on it.
const STANDS_STILL: Duration = Duration::from_millis(300);

/// How long everybody may take to lie down.
const LIES_DOWN: Duration = Duration::from_secs(1);

/// How soon to look again.
const AGAIN: Duration = Duration::from_millis(10);

/// Somebody wants this daemon to become the next one.
#[derive(Debug)]
pub(super) struct Asked {
    line: UnixStream,
    request: Request,
    program: OwnedFd,
    directory: OwnedFd,
    streams: [OwnedFd; 3],
}

/// What a daemon has beside what its clients have.
pub(super) struct Estate<'a> {
    pub(super) desk: &'a Desk,
    pub(super) listener: &'a UnixListener,
    /// The lock on the name.
    pub(super) lock: RawFd,
    pub(super) outside: Option<&'a Outside>,
}

impl Asked {
    /// Whether the successor is still there: it may have been told to leave, or been killed, meanwhile.
    fn is_waited_for(&self) -> bool {
        let mut fds = [PollFd::new(&self.line, PollFlags::RDHUP)];
        let now = Some(std::time::Instant::now());
        contain::wait(&mut fds, now) && fds[0].revents().is_empty()
    }
}

/// Why a hand-over is not done whose successor has left meanwhile.
const LEFT: &str = "whoever asked has left";

/// Everything that the next program has to know.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    version: u32,
    pool: CarriedPool,
    heirs: Heirs,
    listener: RawFd,
    lock: RawFd,
    /// Where it listens by TCP.
    doors: Vec<RawFd>,
    /// To whoever was started with `--replace`.
    line: RawFd,
    directory: RawFd,
    streams: [RawFd; 3],
    /// Every descriptor of somebody's.
    kept: Vec<RawFd>,
}

/// Those who hold something of this daemon's: what the next one has to know of each.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Heirs {
    /// Hosts that have joined the pool.
    seats: Vec<joining::Carried>,
    sessions: Vec<registry::carried::Carried>,
    /// Connections by the socket.
    lines: Vec<line::carried::Carried>,
    /// Those that speak MCP.
    attached: Vec<attached::carried::Carried>,
    /// Sessions by HTTP.
    clients: Vec<gateway::carried::Carried>,
    /// Connections by TCP.
    visits: Vec<visit::carried::Carried>,
}

/// What the program before has left to this one.
#[derive(Debug)]
pub struct Inheritance {
    /// Where the daemon listens, and the lock on its name.
    mooring: Option<(std::os::unix::net::UnixListener, OwnedFd)>,
    /// Where it listens by TCP.
    doors: Vec<TcpListener>,
    /// To whoever was started to replace it, and stands for it now.
    pub successor: std::os::unix::net::UnixStream,
    pub(super) pool: CarriedPool,
    pub(super) heirs: Heirs,
    pub(super) kept: Kept,
}

/// Descriptors that somebody has. Those that nobody has taken when it goes close with it.
#[derive(Debug)]
pub(super) struct Kept(Vec<RawFd>);

impl Drop for Kept {
    fn drop(&mut self) {
        for number in &self.0 {
            drop(contain::inherited(*number));
        }
    }
}

/// Hears what somebody wants that has [asked](ASK).
pub(super) async fn heard(mut line: UnixStream) -> io::Result<Asked> {
    let (text, given) = joining::message(&mut line, LONGEST).await?;
    let request = serde_json::from_slice(text.get(1..).unwrap_or_default())?;
    let given: [OwnedFd; 5] = given.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
    let [program, directory, stdin, stdout, stderr] = given;
    Ok(Asked { line, request, program, directory, streams: [stdin, stdout, stderr] })
}

/// Becomes the next daemon. If this returns, it could not be, and whoever asked knows why.
pub(super) async fn hand_over(estate: Estate<'_>, mut asked: Asked) {
    let word = match new_door(estate.desk, asked.request.http) {
        Err(why) => Word::No { why, stays: true },
        Ok(door) => match attempt(&estate, &asked, door.as_ref()).await {
            Ok(never) => match never {},
            // Who connects anew would not be known to the next daemon, and this one has no door then.
            Err(why) => Word::No { why, stays: estate.desk.web.has_clients() },
        },
    };
    // It may have left.
    let _unheard = asked.line.write_all(&word.line()).await;
}

/// Where the next daemon is to listen by TCP, unless this one does already: what cannot be had must be known before
/// there is no way back.
fn new_door(desk: &Desk, wanted: Option<SocketAddr>) -> Result<Option<TcpListener>, String> {
    match (wanted, desk.web.address()) {
        (None, Some(there)) if desk.web.has_clients() => {
            Err(format!("it has clients at http://{there}, and the next would not listen there"))
        }
        (Some(wanted), there) if there.is_none_or(|there| !fits(there, wanted)) => {
            let bound = TcpListener::bind(wanted);
            bound.map(Some).map_err(|e| format!("the next could not listen at {wanted}: {e}"))
        }
        _ => Ok(None),
    }
}

/// Whether a listener is where one is wanted.
fn fits(there: SocketAddr, wanted: SocketAddr) -> bool {
    wanted == there || (wanted.port() == 0 && wanted.ip() == there.ip())
}

async fn attempt(
    estate: &Estate<'_>,
    asked: &Asked,
    door: Option<&TcpListener>,
) -> Result<Infallible, String> {
    let Estate { desk, outside, .. } = estate;
    if asked.request.version != VERSION {
        return Err("it hands over what the next would not understand".into());
    }
    if asked.request.state_dir.0 != desk.defaults.session.state_dir.as_os_str().as_encoded_bytes() {
        return Err("its books are in another directory".into());
    }
    // What this relies on: while this task runs, no other does.
    if Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread {
        return Err("it has more than one thread".into());
    }
    let until = Instant::now() + SETTLES;
    loop {
        if !asked.is_waited_for() {
            return Err(LEFT.into());
        }
        // These may be there for hours.
        if outside.is_some_and(Outside::has_sessions) {
            return Err("it has sessions by HTTPS".into());
        }
        let why = match () {
            () if !desk.pool.is_settled() => "a server is being started or ended",
            () if !desk.registry.is_settled() => "a session is being changed or ended",
            () if desk.rest.is_arriving() => "a host is about to join",
            () => match rest(estate, asked, door, until).await {
                Ok(never) => return Ok(never),
                Err(Unable::Failed(why)) => return Err(why),
                Err(Unable::Busy(why)) => why,
            },
        };
        if Instant::now() > until {
            return Err(why.into());
        }
        sleep(AGAIN).await;
    }
}

/// Has everything rest, becomes the next, or has everything go on.
async fn rest(
    estate: &Estate<'_>,
    asked: &Asked,
    door: Option<&TcpListener>,
    until: Instant,
) -> Result<Infallible, Unable> {
    let desk = estate.desk;
    // Whoever has asked something is answered while servers still answer.
    let visits = &desk.web.visits;
    desk.lines.call(true);
    visits.call(true);
    let is_answered = async {
        while !(desk.lines.is_complete() && visits.is_complete()) {
            tokio::select! {
                () = desk.lines.changed() => {}
                () = visits.changed() => {}
            }
        }
    };
    let until = until.min(Instant::now() + STANDS_STILL);
    let became = match timeout_at(until, is_answered).await {
        Err(_) if !desk.lines.is_complete() => {
            Err(Unable::Busy("somebody waits for an answer by the socket"))
        }
        Err(_) => Err(Unable::Busy("somebody waits for an answer by HTTP")),
        Ok(()) => {
            desk.rest.call(true);
            desk.attached.call(true);
            desk.web.call(true);
            desk.pool.rest(true);
            let became = match timeout(LIES_DOWN, lain_down(desk)).await {
                Ok(()) => become_next(estate, asked, door),
                Err(_) => Err(Unable::Busy("somebody does not rest")),
            };
            desk.pool.rest(false);
            desk.web.call(false);
            desk.attached.call(false);
            desk.rest.call(false);
            became
        }
    };
    visits.call(false);
    desk.lines.call(false);
    became
}

/// Waits until every client, server and connection rests.
async fn lain_down(desk: &Desk) {
    while !rests(desk) {
        tokio::select! {
            () = desk.pool.rested() => {}
            () = desk.rest.changed() => {}
            () = desk.attached.changed() => {}
            // Whoever was about to rest may have left instead, and the clerk does not say when he is done.
            () = sleep(AGAIN) => {}
        }
    }
}

fn rests(desk: &Desk) -> bool {
    desk.pool.rests()
        && desk.pool.is_minuted()
        && desk.registry.rests()
        && desk.rest.is_complete()
        && desk.attached.is_complete()
        && desk.lines.is_complete()
        && desk.web.rests()
}

/// Why this process is still what it was.
enum Unable {
    /// Somebody is in the middle of what cannot be interrupted; a moment later it may work.
    Busy(&'static str),
    Failed(String),
}

fn become_next(
    estate: &Estate<'_>,
    asked: &Asked,
    door: Option<&TcpListener>,
) -> Result<Infallible, Unable> {
    let Estate { desk, listener, lock, .. } = estate;
    if !rests(desk) {
        return Err(Unable::Busy("somebody does not rest"));
    }
    // Nobody would stand for the next daemon, and it would end at once.
    if !asked.is_waited_for() {
        return Err(Unable::Failed(LEFT.into()));
    }
    let mut keep = Vec::new();
    let seats: Option<Vec<_>> =
        desk.rest.look(|seated| seated.carry(&mut keep)).into_iter().collect();
    let seats = seats.ok_or(Unable::Busy("a host is about to leave"))?;
    let sessions = desk.registry.carry(&mut keep);
    let sessions = sessions.ok_or(Unable::Busy("a session is being changed or ended"))?;
    let served = desk.web.carry(&mut keep);
    let (clients, visits) = served.ok_or(Unable::Busy("a client by HTTP is about to leave"))?;
    let places = seats.iter().map(joining::Carried::places).sum::<usize>()
        + sessions.iter().map(registry::carried::Carried::places).sum::<usize>()
        + clients.iter().map(gateway::carried::Carried::places).sum::<usize>()
        + visits.iter().map(visit::carried::Carried::places).sum::<usize>();
    if places != desk.pool.seats() {
        return Err(Unable::Busy("somebody is served by HTTPS"));
    }
    let lines = desk.lines.look(|line| line.carry(&mut keep));
    let attached = desk.attached.look(|one| one.carry(&mut keep));
    let heirs = Heirs { seats, sessions, lines, attached, clients, visits };
    let pool = desk.pool.carry(&mut keep);
    let pool = pool.ok_or(Unable::Busy("a server is about to leave"))?;
    let state = State {
        version: VERSION,
        pool,
        heirs,
        listener: listener.as_raw_fd(),
        lock: *lock,
        doors: desk.web.listener().into_iter().chain(door.map(AsRawFd::as_raw_fd)).collect(),
        line: asked.line.as_raw_fd(),
        directory: asked.directory.as_raw_fd(),
        streams: asked.streams.each_ref().map(AsRawFd::as_raw_fd),
        kept: keep.clone(),
    };
    keep.extend([state.listener, state.lock, state.line, state.directory]);
    keep.extend(state.streams);
    keep.extend(&state.doors);
    let failed = |e: io::Error| Unable::Failed(format!("it cannot be handed over: {e}"));
    let memory = written(&state).map_err(failed)?;
    keep.push(memory.as_raw_fd());
    let words = |bytes: &Bytes| CString::new(bytes.0.clone()).map_err(io::Error::from);
    let args: io::Result<Vec<_>> = asked.request.args.iter().map(words).collect();
    let mut args = args.map_err(failed)?;
    for word in ["--inherit".into(), memory.as_raw_fd().to_string()] {
        args.push(CString::new(word).map_err(|e| failed(e.into()))?);
    }
    let env: io::Result<Vec<_>> = asked.request.env.iter().map(words).collect();
    let env = env.map_err(failed)?;
    Err(failed(contain::turn_into(asked.program.as_fd(), &args, &env, &keep)))
}

/// Writes it down where nobody else can read it and nothing of it stays.
fn written(state: &State) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut memory = File::from(rustix::fs::memfd_create(c"lariat-state", flags)?);
    let bytes = serde_json::to_vec(state)?;
    // What cannot be read again must not be relied on.
    serde_json::from_slice::<State>(&bytes)?;
    memory.write_all(&bytes)?;
    let whole = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&memory, whole)?;
    Ok(memory)
}

impl Inheritance {
    /// Takes what the program before has left at this descriptor, its new streams and its directory first
    /// of all. To be called while this process has one thread.
    pub fn take(number: RawFd) -> io::Result<Inheritance> {
        let taken = |number| contain::inherited(number).ok_or(io::ErrorKind::NotFound);
        let mut memory = File::from(taken(number)?);
        let mut bytes = Vec::new();
        memory.rewind()?;
        memory.read_to_end(&mut bytes)?;
        drop(memory);
        let state: State = serde_json::from_slice(&bytes)?;
        let [stdin, stdout, stderr] = state.streams;
        rustix::stdio::dup2_stdin(taken(stdin)?)?;
        rustix::stdio::dup2_stdout(taken(stdout)?)?;
        rustix::stdio::dup2_stderr(taken(stderr)?)?;
        rustix::process::fchdir(taken(state.directory)?)?;
        let doors: Result<Vec<OwnedFd>, _> = state.doors.iter().map(|door| taken(*door)).collect();
        Ok(Inheritance {
            mooring: Some((taken(state.listener)?.into(), taken(state.lock)?)),
            doors: doors?.into_iter().map(TcpListener::from).collect(),
            successor: taken(state.line)?.into(),
            pool: state.pool,
            heirs: state.heirs,
            kept: Kept(state.kept),
        })
    }

    /// Where the daemon listens, and the lock on its name: once, so that whoever lets go of them has.
    pub fn mooring(&mut self) -> Option<(std::os::unix::net::UnixListener, OwnedFd)> {
        self.mooring.take()
    }

    /// A listener that is wanted and there already: whoever has come meanwhile waits in it.
    pub fn door(&mut self, wanted: SocketAddr) -> Option<TcpListener> {
        let is_it = |door: &TcpListener| door.local_addr().is_ok_and(|there| fits(there, wanted));
        let at = self.doors.iter().position(is_it)?;
        Some(self.doors.remove(at))
    }

    /// Closes the listeners that nobody wants any more, and says where they were.
    pub fn close_doors(&mut self) -> Vec<SocketAddr> {
        self.doors.drain(..).filter_map(|door| door.local_addr().ok()).collect()
    }

    /// Says to whoever was started to replace the daemon that it is there.
    pub fn announce(&self) -> io::Result<()> {
        self.successor.set_nonblocking(false)?;
        (&self.successor).write_all(&Word::Here.line())
    }
}

/// Says how it ended to whoever stands for a daemon.
pub fn farewell(mut successor: &std::os::unix::net::UnixStream, code: u8) {
    // It may have left.
    let _unheard = successor.write_all(&Word::Left { code }.line());
}

/// The same place under another name is another place here.
pub(crate) fn name_of(path: &Path) -> Bytes {
    Bytes(path.as_os_str().as_encoded_bytes().into())
}
