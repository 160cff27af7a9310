//! The daemon's side: a wrapper at the door, and its host's seat in the pool.

use super::ends::{self, Inlet, Outlet};
use super::wire::{Brief, LONGEST, TAKEN, VERSION, Word};
use crate::bytes::Bytes;
use crate::daemon::handle::Desk;
use crate::mcp::Frames;
use crate::mcp::reply::{INVALID_REQUEST, error};
use crate::pool::carried::{Hubs, Sitting};
use crate::pool::{Ear, Environment, Mouth, Pool, Seat, Server, Want};
use crate::spec::{Restart, ServerSpec};
use contain::Member;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

/// How long a host that has closed its end is answered: as long as a server of its own would have.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long a wrapper may take to say what it wants, and to let go of the streams.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// How long a server may take to shake hands, unless told otherwise: a first `npx` downloads it.
const STARTUP: Duration = Duration::from_secs(60);

/// What whoever is at the door says first, without taking it: a wrapper knocks.
pub(in crate::daemon) async fn first_byte(stream: &UnixStream) -> io::Result<Option<u8>> {
    loop {
        stream.readable().await?;
        let mut byte = [0];
        let peeked = stream.try_io(Interest::READABLE, || {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            Ok(rustix::net::recv(stream, &mut byte, flags)?.1)
        });
        match peeked {
            Ok(count) => return Ok((count == 1).then_some(byte[0])),
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
    let arriving = desk.rest.arrive();
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
    drop(arriving);
    stay(desk, Seated::new(desk.pool.join(want), inlet, outlet, line)).await;
}

/// Stays with a host until it, its wrapper or its server is gone.
pub(in crate::daemon) async fn stay(desk: &Desk, seated: Seated) {
    let _counted = desk.rest.come();
    let (mut line, Parting { code, why }) = seated.stay(desk).await;
    let _unheard = line.write_all(&Word::Left { code, why }.line()).await;
}

/// What a wrapper wants, and its host's streams.
async fn introduced(line: &mut UnixStream) -> io::Result<(Brief, [OwnedFd; 2])> {
    let (text, streams) = message(line, LONGEST).await?;
    let brief = serde_json::from_slice(text.get(1..).unwrap_or_default())?;
    let streams = streams.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
    Ok((brief, streams))
}

/// A line, with its first byte and what that carries.
pub(in crate::daemon) async fn message(
    line: &mut UnixStream,
    longest: usize,
) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
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
        if text.len() > longest || line.read_buf(&mut text).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((text, streams))
}

fn receive(line: &UnixStream, text: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
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
    /// The wrapper was told to leave, or is dead.
    Dismissed,
    /// The server is gone.
    Server,
    /// The host said a line that nobody can hold.
    TooLong,
}

/// A host in the pool, for the next program that this process becomes.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) struct Carried {
    line: RawFd,
    inlet: ends::Carried,
    outlet: ends::Carried,
    /// What the host has said that is not a whole line yet.
    heard: Bytes,
    so_far: SoFar,
    /// What it is told and has not taken.
    told: Bytes,
    sitting: Sitting,
}

/// A host in the pool, and what is on its way to and from it. A conversation that was dropped has left it
/// as it is, and can go on.
#[derive(Debug)]
pub(in crate::daemon) struct Seated {
    pub(super) line: UnixStream,
    pub(super) speaking: Speaking,
    pub(super) hearing: Hearing,
    pub(super) outlet: Outlet,
}

/// What the host says.
#[derive(Debug)]
pub(super) struct Speaking {
    pub(super) inlet: Inlet,
    pub(super) frames: Frames,
    pub(super) mouth: Mouth,
    pub(super) so_far: SoFar,
    /// Until when a host that is gone waits for its last words to be taken.
    pub(super) patience: Option<Instant>,
}

/// How much of what a host says has been heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SoFar {
    /// There may be more.
    Some,
    /// The host has closed its end; what it has asked may not be answered yet.
    All,
    /// It has closed its end, and what it had asked is answered.
    Answered,
    /// It has closed its end, and its server leaves with it.
    Together,
    /// Nobody takes it.
    Nobody,
    /// It said a line that nobody can hold.
    TooLong,
}

/// What the host is told.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    pub(super) ear: Option<Ear>,
    pub(super) lines: Vec<u8>,
    /// So much of them is written.
    pub(super) written: usize,
}

impl Carried {
    /// How many places it has.
    pub(in crate::daemon) fn places(&self) -> usize {
        self.sitting.places()
    }
}

impl Seated {
    fn new(seat: Seat, inlet: Inlet, outlet: Outlet, line: UnixStream) -> Seated {
        let (mouth, ear) = seat.split();
        let (frames, so_far, patience) = (Frames::default(), SoFar::Some, None);
        let hearing = Hearing { ear: Some(ear), ..Hearing::default() };
        Seated {
            line,
            speaking: Speaking { inlet, frames, mouth, so_far, patience },
            hearing,
            outlet,
        }
    }

    /// For the next program, while everything rests. `None` if it cannot be handed over.
    pub(in crate::daemon) fn carry(&mut self, keep: &mut Vec<RawFd>) -> Option<Carried> {
        let Seated { line, speaking, hearing, outlet } = self;
        let ear = hearing.ear.as_mut()?;
        let mut sitting = Seat::carry(&speaking.mouth, ear, &mut hearing.lines)?;
        if !Seat::carry_joining(&mut speaking.mouth, &mut sitting) {
            return None;
        }
        keep.push(line.as_raw_fd());
        Some(Carried {
            line: line.as_raw_fd(),
            inlet: speaking.inlet.carry(keep)?,
            outlet: outlet.carry(keep),
            heard: Bytes(speaking.frames.waiting().into()),
            so_far: speaking.so_far,
            told: Bytes(hearing.lines[hearing.written..].into()),
            sitting,
        })
    }

    /// The same from the program before.
    pub(in crate::daemon) fn carried(
        pool: &Pool,
        hubs: &mut Hubs,
        from: Carried,
    ) -> io::Result<Seated> {
        let line = contain::inherited(from.line).ok_or(io::ErrorKind::NotFound)?;
        let line = std::os::unix::net::UnixStream::from(line);
        line.set_nonblocking(true)?;
        let (inlet, outlet) = (Inlet::carried(from.inlet)?, Outlet::carried(from.outlet)?);
        let mut seated = Seated::new(
            pool.sit_again(hubs, from.sitting),
            inlet,
            outlet,
            UnixStream::from_std(line)?,
        );
        seated.speaking.frames = Frames::of(from.heard.0);
        seated.speaking.so_far = from.so_far;
        seated.hearing.lines = from.told.0;
        Ok(seated)
    }

    /// True if it can stay as it is for a while: its server is there, or none is needed yet.
    fn may_rest(&self) -> bool {
        matches!(self.speaking.so_far, SoFar::Some | SoFar::All | SoFar::Answered)
    }

    /// Keeps the conversation going until it is over, or rests when everything does.
    async fn stay(mut self, desk: &Desk) -> (UnixStream, Parting) {
        loop {
            let end = tokio::select! {
                biased;
                end = self.converse() => Some(end),
                () = desk.rest.called() => None,
            };
            let end = match end {
                Some(end) => end,
                None if self.may_rest() => {
                    self.speaking.inlet.settle().await;
                    self = desk.rest.lie_down(self).await;
                    continue;
                }
                // It is about to be over.
                None => self.converse().await,
            };
            let parting = self.part(end).await;
            return (self.line, parting);
        }
    }

    async fn converse(&mut self) -> End {
        let Seated { line, speaking, hearing, outlet } = self;
        let answered = Notify::new();
        let listening = async {
            listen(speaking).await;
            match speaking.so_far {
                SoFar::Answered => answered.notify_one(),
                SoFar::TooLong => return End::TooLong,
                // What the server said before it left is still the host's.
                _ => {}
            }
            std::future::pending().await
        };
        tokio::select! {
            end = tell(hearing, outlet, &answered) => end,
            end = listening => end,
            () = outlet.refused() => End::Wished,
            // It says nothing more: what there is to hear is its end.
            _ = line.read_u8() => End::Dismissed,
        }
    }

    /// How it ended. The streams are not used any more.
    async fn part(&mut self, end: End) -> Parting {
        match end {
            End::Wished => Parting { code: 0, why: None },
            End::Dismissed => {
                if let Some(ear) = &mut self.hearing.ear {
                    // The wrapper waits, if it can: then nobody is left when it has gone.
                    ear.dismiss().await;
                }
                Parting { code: 0, why: None }
            }
            End::Server => {
                let over = self.hearing.ear.as_ref().and_then(|ear| ear.over().cloned());
                let over = over.unwrap_or_default();
                // A server that leaves with its host has nothing to explain.
                let is_odd = over.code != 0 && self.speaking.so_far != SoFar::Together;
                Parting { code: over.code, why: is_odd.then_some(over.why) }
            }
            End::TooLong => {
                self.hearing.ear = None;
                let mut answer = error("null", INVALID_REQUEST, "this line is too long");
                answer.push(b'\n');
                // It may have left.
                let _untold = timeout(INTRODUCTION, self.outlet.write(&answer, &mut 0)).await;
                Parting { code: 1, why: Some("the host said a line that is too long".into()) }
            }
        }
    }
}

/// Passes on what the host says, until there is nothing more to pass on.
async fn listen(speaking: &mut Speaking) {
    let Speaking { inlet, frames, mouth, so_far, patience } = speaking;
    while *so_far == SoFar::Some {
        // What was about to be said before it rested.
        match say(inlet, mouth, patience).await {
            Said::Yes => {}
            Said::ToNobody => *so_far = SoFar::Nobody,
            // It is gone, or there is nobody who could be told.
            Said::InVain if mouth.part(true) => *so_far = SoFar::Together,
            Said::InVain => *so_far = SoFar::Answered,
        }
        if *so_far != SoFar::Some {
            return;
        }
        if let Some(line) = frames.next() {
            mouth.put(line);
            continue;
        }
        if frames.is_empty() {
            // A host that says nothing holds nothing.
            *frames = Frames::default();
        }
        match inlet.read(frames).await {
            Ok(true) => {}
            Err(e) if e.kind() == io::ErrorKind::FileTooLarge => *so_far = SoFar::TooLong,
            // A stream that cannot be read has ended too.
            Ok(false) | Err(_) => {
                if let Some(line) = std::mem::take(frames).rest() {
                    mouth.put(line);
                }
                *so_far = SoFar::All;
            }
        }
    }
    if *so_far != SoFar::All {
        return;
    }
    let said = say(inlet, mouth, patience).await;
    *so_far = match said {
        Said::ToNobody => SoFar::Nobody,
        // As a server of its own would, it leaves in its own time and is heard until then.
        Said::Yes if mouth.part(false) => SoFar::Together,
        Said::InVain if mouth.part(true) => SoFar::Together,
        Said::InVain => SoFar::Answered,
        Said::Yes => {
            mouth.finish(LAST_WORDS).await;
            SoFar::Answered
        }
    };
}

/// What became of a line.
enum Said {
    Yes,
    /// There is no server any more.
    ToNobody,
    /// It was not taken in time.
    InVain,
}

/// Passes on what is to be said. Whoever takes nothing, because it does not read or is not ready, keeps a
/// host waiting for as long as that likes; one that is gone, no longer than a server of its own would.
async fn say(inlet: &Inlet, mouth: &mut Mouth, patience: &mut Option<Instant>) -> Said {
    let mut saying = pin!(mouth.go_on());
    let said = tokio::select! {
        biased;
        said = &mut saying => Ok(said),
        () = inlet.hung_up() => {
            let until = *patience.get_or_insert_with(|| Instant::now() + LAST_WORDS);
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
async fn tell(hearing: &mut Hearing, outlet: &Outlet, answered: &Notify) -> End {
    let Hearing { ear: Some(ear), lines, written } = hearing else { return End::Wished };
    loop {
        if outlet.write(lines, written).await.is_err() {
            return End::Wished;
        }
        (*lines, *written) = (Vec::new(), 0);
        tokio::select! {
            biased;
            more = ear.fill(lines) => if !more {
                return End::Server;
            },
            () = answered.notified() => return End::Wished,
        }
    }
}
