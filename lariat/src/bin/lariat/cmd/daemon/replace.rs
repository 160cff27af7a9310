//! `lariat daemon --replace`: the daemon that runs becomes the next one, or makes way for it.
//!
//! It becomes the next one if it can: the same process executes this program, and whoever has joined it
//! does not notice. This process then stands for it: what it is told, the daemon is told, and it ends when
//! that does. Otherwise whoever has joined the daemon before stays with it: their servers and what is in
//! flight are where they were, and not a message is lost. Its name is free for the next, which is where
//! newcomers go. It ends when the last of its own has left.

use crate::{env, show, summon};
use lariat::contain::{self, Member};
use lariat::daemon::client::Error;
use lariat::daemon::handover::{Declined, Inheritance, Successor, succeed};
use rustix::net::sockopt::socket_peercred;
use rustix::process::Signal;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;

/// How long it may take to make way.
const MAKES_WAY: Duration = Duration::from_secs(5);

/// How often it is asked to become this program, and how soon again.
const ASKED: u32 = 4;
const SOON: Duration = Duration::from_millis(100);

/// How long to wait before looking again.
const AGAIN: Duration = Duration::from_millis(10);

/// What has become of the daemon before.
pub(super) enum Elder {
    /// It has made way, or there was none.
    Gone,
    /// It is this program now.
    Became(Successor),
}

/// Asks the daemon that listens there to become this one, or to make way, if there is one. Says why not.
pub(super) fn make_way(
    path: &Path,
    state_dir: &Path,
    http: Option<SocketAddr>,
) -> Result<Elder, ExitCode> {
    // Whatever keeps us from connecting is said by who wants to listen there.
    let Ok(stream) = UnixStream::connect(path) else { return Ok(Elder::Gone) };
    let failed = |what: String, advice: &str| {
        show::failure(&what, None, advice);
        ExitCode::FAILURE
    };
    let shown = path.display();
    let peer = socket_peercred(&stream).ok();
    let peer = peer.filter(|peer| peer.uid == rustix::process::geteuid());
    let Some(elder) = peer.and_then(|peer| Member::of(peer.pid.as_raw_pid())) else {
        let what = format!("the daemon on {shown} is not ours to replace");
        return Err(failed(what, "choose another --socket PATH"));
    };
    drop(stream);
    let declined = match become_this(path, elder, state_dir, http) {
        Ok(successor) => return Ok(Elder::Became(successor)),
        Err(Declined::Stays(why)) => {
            let what = format!("the daemon on {shown} stays what it is: {}", show::plain(&why));
            let advice = "try again, give --http and --config as it has them, or stop it first";
            return Err(failed(what, advice));
        }
        Err(Declined::Refused(why)) => Some(show::plain(&why)),
        // It is one from before there was such a thing, or is leaving.
        Err(Declined::Unable(_)) => None,
    };
    // Its sessions could not be reached by their names any more.
    let count = match sessions(path) {
        Ok(count) => count,
        Err(_) if !elder.is_alive() => 0,
        Err(error) => {
            return Err(summon::explain(&format!("cannot replace the daemon on {shown}"), &error));
        }
    };
    if count > 0 {
        let sessions = show::count(count, "session");
        let why = declined.map(|why| format!(": {why}")).unwrap_or_default();
        let what = format!("the daemon on {shown} keeps {sessions} that only it can end{why}");
        return Err(failed(what, "try again, or close them; `lariat session list` shows them"));
    }
    if let Some(why) = declined {
        let what = format!("the daemon before is not handed over: {why}");
        show::note(&what, "it ends with the last that has joined it");
    }
    // It may have left by itself just now.
    let _gone = elder.signal(Signal::USR2);
    Ok(Elder::Gone)
}

/// How many sessions the daemon has, if there is one.
fn sessions(path: &Path) -> Result<usize, Error> {
    // One that does not listen any more has left, and they with it.
    let Ok(stream) = UnixStream::connect(path) else { return Ok(0) };
    summon::speak(stream, async |mut client| Ok(client.list().await?.sessions.len()))
}

/// Asks it to become this program. One that is just becoming another's does not answer, and is asked again.
fn become_this(
    path: &Path,
    elder: Member,
    state_dir: &Path,
    http: Option<SocketAddr>,
) -> Result<Successor, Declined> {
    let mut asked = 0;
    loop {
        let line = UnixStream::connect(path).map_err(Declined::Unable);
        let args = std::env::args_os().collect();
        asked += 1;
        match line.and_then(|line| succeed(line, elder, state_dir, args, env::all(), http)) {
            Err(Declined::Unable(_)) if asked < ASKED && elder.is_alive() => {
                contain::wait(&mut [], Some(Instant::now() + SOON));
            }
            answer => return answer,
        }
    }
}

/// Stays for as long as the daemon lives that the one before has become.
pub(super) fn stand_for(successor: Successor) -> ExitCode {
    match successor.stay() {
        Ok(code) => ExitCode::from(code),
        Err(_) => {
            show::failure("the daemon was killed", None, "its servers end by their guardians");
            ExitCode::FAILURE
        }
    }
}

/// Says that the daemon is there to whoever was started to replace it. Gives the way to that, if it is
/// there to hear it.
pub(super) fn announce(left: &Inheritance) -> Option<UnixStream> {
    left.announce().ok().and_then(|()| left.successor.try_clone().ok())
}

/// Returns when whoever stands for this daemon is gone: it was told to end so that nobody could hear it.
pub(super) async fn left(successor: Option<UnixStream>) {
    let stream = successor.and_then(|line| {
        line.set_nonblocking(true).ok()?;
        tokio::net::UnixStream::from_std(line).ok()
    });
    match stream {
        Some(mut stream) => {
            // It says nothing: what there is to hear is its end.
            let _end = stream.read_u8().await;
        }
        None => std::future::pending().await,
    }
}

/// Tries until it succeeds or the other has had its time.
pub(super) fn patiently<T, E>(
    patient: bool,
    mut attempt: impl FnMut() -> Result<T, E>,
    is_taken: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let deadline = Instant::now() + MAKES_WAY;
    loop {
        match attempt() {
            Err(error) if patient && is_taken(&error) && Instant::now() < deadline => {
                contain::wait(&mut [], Some(Instant::now() + AGAIN));
            }
            done => return done,
        }
    }
}
