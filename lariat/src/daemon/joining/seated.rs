//! The daemon's side: a wrapper at the door, and its host's seat in the pool.

use super::ends::{Inlet, Outlet};
use super::wire::{Brief, KNOCK, LONGEST, TAKEN, VERSION, Word};
use crate::daemon::handle::Desk;
use crate::mcp::Frames;
use crate::mcp::reply::{INVALID_REQUEST, error};
use crate::pool::{Ear, Environment, Mouth, Seat, Server, Want};
use crate::spec::{Restart, ServerSpec};
use contain::Member;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

/// How long a host that has closed its end is answered: as long as a server of its own would have.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// How long a wrapper may take to say what it wants, and to let go of the streams.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// How long a server may take to shake hands, unless told otherwise: a first `npx` downloads it.
const STARTUP: Duration = Duration::from_secs(60);

/// True if whoever is at the door is a wrapper: what it says first, without taking it.
pub(in crate::daemon) async fn is_knock(stream: &UnixStream) -> io::Result<bool> {
    loop {
        stream.readable().await?;
        let mut byte = [0];
        let peeked = stream.try_io(Interest::READABLE, || {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            Ok(rustix::net::recv(stream, &mut byte, flags)?.1)
        });
        match peeked {
            Ok(count) => return Ok(count == 1 && byte[0] == KNOCK),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
}

/// How a host's session ended.
struct Parting {
    code: u8,
    why: Option<String>,
}

/// Serves a wrapper until it, its host or its server is gone.
pub(in crate::daemon) async fn serve(
    desk: &Desk,
    mut line: UnixStream,
    place: Option<OwnedSemaphorePermit>,
) {
    let Ok(Ok((brief, streams))) = timeout(INTRODUCTION, introduced(&mut line)).await else {
        return;
    };
    let most = desk.defaults.limits.servers;
    let admitted = match place {
        None => Err("too many hosts have joined the daemon already".into()),
        Some(_) if *desk.pool.size().borrow() >= most => {
            Err(format!("the daemon has {most} servers, as many as it may"))
        }
        Some(_) => admit(brief, streams),
    };
    let (want, inlet, outlet) = match admitted {
        Ok(admitted) => admitted,
        Err(why) => {
            // It may have left.
            let _unheard = line.write_all(&Word::Refused { why }.line()).await;
            return;
        }
    };
    let taken = async {
        line.write_all(&Word::Welcome.line()).await?;
        line.read_u8().await
    };
    // Until it has let go of them, the streams are not ours to read.
    if !matches!(timeout(INTRODUCTION, taken).await, Ok(Ok(TAKEN))) {
        return;
    }
    let Parting { code, why } = converse(desk.pool.join(want), inlet, outlet, &mut line).await;
    let _unheard = line.write_all(&Word::Left { code, why }.line()).await;
}

/// What a wrapper wants, and its host's streams.
async fn introduced(line: &mut UnixStream) -> io::Result<(Brief, [OwnedFd; 2])> {
    let mut text = vec![0; 16 << 10];
    let (count, streams) = loop {
        line.readable().await?;
        match line.try_io(Interest::READABLE, || receive(line, &mut text)) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            received => break received?,
        }
    };
    text.truncate(count);
    while text.last() != Some(&b'\n') {
        if text.len() > LONGEST || line.read_buf(&mut text).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let brief = serde_json::from_slice(text.get(1..).unwrap_or_default())?;
    let streams = streams.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
    Ok((brief, streams))
}

fn receive(line: &UnixStream, text: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(line, &mut [IoSliceMut::new(text)], &mut ancillary, flags)?;
    let streams = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(streams) => Some(streams.collect::<Vec<OwnedFd>>()),
        _ => None,
    });
    Ok((received.bytes, streams.flatten().collect()))
}

/// What it wants of the pool, if it can have it. Otherwise a sentence.
fn admit(brief: Brief, streams: [OwnedFd; 2]) -> Result<(Want, Inlet, Outlet), String> {
    if brief.version != VERSION {
        return Err("the daemon that runs is of another version".into());
    }
    let [stdin, stdout] = streams;
    let unusable = |what| move |e| format!("the host's {what} cannot be passed on: {e}");
    let inlet = Inlet::new(stdin).map_err(unusable("stdin"))?;
    let outlet = Outlet::new(stdout).map_err(unusable("stdout"))?;
    Ok((want(brief), inlet, outlet))
}

fn want(brief: Brief) -> Want {
    let spec = ServerSpec {
        cwd: Some(PathBuf::from(OsString::from(brief.cwd))),
        share: brief.share,
        idle: brief.idle,
        startup_timeout: brief.startup_timeout.unwrap_or(STARTUP),
        // Its host sees it leave, and starts it again or does not.
        restart: Restart::Never,
        ..ServerSpec::new(brief.command).args(brief.args)
    };
    let variables = brief.env.into_iter().map(|(name, value)| (name.into(), value.into()));
    let environment = Environment { variables: variables.collect(), umask: brief.umask };
    let name = brief.server.to_string();
    Want {
        share: spec.share,
        server: Arc::new(Server { name, spec, environment: Some(environment) }),
        // The user's own hosts are one.
        principal: "".into(),
        host: brief.host.map(|(pid, start)| Member { pid, start }),
        // Whoever runs a server this way expects that it ends with its session.
        linger: Duration::ZERO,
    }
}

/// Why a conversation is over.
enum End {
    /// Whoever wanted it does not any more.
    Wished,
    /// The server is gone.
    Server,
    /// The host said a line that nobody can hold.
    TooLong,
}

/// Keeps the conversation going. The streams are closed when it returns.
async fn converse(seat: Seat, inlet: Inlet, outlet: Outlet, line: &mut UnixStream) -> Parting {
    let (mouth, mut ear) = seat.split();
    let answered = Notify::new();
    let parted = AtomicBool::new(false);
    let listening = async {
        match listen(inlet, mouth).await {
            Heard::All => answered.notify_one(),
            Heard::TooLong => return End::TooLong,
            Heard::Together => parted.store(true, Ordering::Relaxed),
            // What the server said before it left is still the host's.
            Heard::Nobody => {}
        }
        std::future::pending().await
    };
    let end = tokio::select! {
        end = tell(&mut ear, &outlet, &answered) => end,
        end = listening => end,
        () = outlet.refused() => End::Wished,
        // It says nothing more: what there is to hear is its end.
        _ = line.read_u8() => End::Wished,
    };
    match end {
        End::Wished => Parting { code: 0, why: None },
        End::Server => {
            let over = ear.over().cloned().unwrap_or_default();
            // A server that leaves with its host has nothing to explain.
            let is_odd = over.code != 0 && !parted.load(Ordering::Relaxed);
            Parting { code: over.code, why: is_odd.then_some(over.why) }
        }
        End::TooLong => {
            drop(ear);
            let mut answer = error("null", INVALID_REQUEST, "this line is too long");
            answer.push(b'\n');
            // It may have left.
            let _untold = timeout(INTRODUCTION, outlet.write(&answer)).await;
            Parting { code: 1, why: Some("the host said a line that is too long".into()) }
        }
    }
}

/// Why there is nothing more to pass on.
enum Heard {
    /// The host has closed its end, and what it had asked is answered.
    All,
    /// It said a line that nobody can hold.
    TooLong,
    /// The host has closed its end, and its server leaves with it.
    Together,
    /// Nobody takes it.
    Nobody,
}

/// Passes on what the host says.
async fn listen(mut inlet: Inlet, mut mouth: Mouth) -> Heard {
    let mut frames = Frames::default();
    let mut patience = None;
    loop {
        while let Some(line) = frames.next() {
            match say(&inlet, &mut mouth, line, &mut patience).await {
                Said::Yes => {}
                Said::ToNobody => return Heard::Nobody,
                // It is gone, or there is nobody who could be told.
                Said::InVain if mouth.part(true) => return Heard::Together,
                Said::InVain => return Heard::All,
            }
        }
        if frames.is_empty() {
            // A host that says nothing holds nothing.
            frames = Frames::default();
        }
        match inlet.read(&mut frames).await {
            Ok(true) => {}
            Err(e) if e.kind() == io::ErrorKind::FileTooLarge => return Heard::TooLong,
            // A stream that cannot be read has ended too.
            Ok(false) | Err(_) => break,
        }
    }
    if let Some(line) = frames.rest()
        && mouth.say(line).await.is_err()
    {
        return Heard::Nobody;
    }
    if mouth.part(false) {
        // As a server of its own would, it leaves in its own time and is heard until then.
        return Heard::Together;
    }
    mouth.finish(LAST_ANSWERS).await;
    Heard::All
}

/// What became of a line.
enum Said {
    Yes,
    /// There is no server any more.
    ToNobody,
    /// It was not taken in time.
    InVain,
}

/// Passes a line on. Whoever takes nothing, because it does not read or is not ready, keeps a host
/// waiting for as long as that likes; one that is gone, no longer than a server of its own would.
async fn say(
    inlet: &Inlet,
    mouth: &mut Mouth,
    line: Vec<u8>,
    patience: &mut Option<Instant>,
) -> Said {
    let mut saying = pin!(mouth.say(line));
    let said = tokio::select! {
        biased;
        said = &mut saying => Ok(said),
        () = inlet.hung_up() => {
            let until = *patience.get_or_insert_with(|| Instant::now() + LAST_ANSWERS);
            timeout_at(until, saying).await
        }
    };
    match said {
        Ok(Ok(())) => Said::Yes,
        Ok(Err(_)) => Said::ToNobody,
        Err(_) => Said::InVain,
    }
}

/// Passes on what the server says, as much at once as is there.
async fn tell(ear: &mut Ear, outlet: &Outlet, answered: &Notify) -> End {
    loop {
        let mut lines = Vec::new();
        tokio::select! {
            biased;
            more = ear.fill(&mut lines) => if !more {
                return End::Server;
            },
            () = answered.notified() => return End::Wished,
        }
        if outlet.write(&lines).await.is_err() {
            return End::Wished;
        }
    }
}
