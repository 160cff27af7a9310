//! `lariat daemon --replace`: the daemon that runs makes way for the next.
//!
//! Whoever has joined it stays with it: their servers and what is in flight are where they were, and
//! not a message is lost. Its name is free for the next, which is where newcomers go. It ends when the
//! last of its own has left.

use crate::{show, summon};
use lariat::contain::{self, Member};
use rustix::net::sockopt::socket_peercred;
use rustix::process::Signal;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long it may take to make way.
const MAKES_WAY: Duration = Duration::from_secs(5);

/// How long to wait before looking again.
const AGAIN: Duration = Duration::from_millis(10);

/// Asks the daemon that listens there to make way, if there is one. Says why not.
pub(super) fn make_way(path: &Path) -> Result<(), ExitCode> {
    // Whatever keeps us from connecting is said by who wants to listen there.
    let Ok(stream) = UnixStream::connect(path) else { return Ok(()) };
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
    let listed = summon::speak(stream, async |mut client| Ok(client.list().await?.sessions.len()));
    match listed {
        Ok(0) => {}
        // By their names they could not be reached any more.
        Ok(count) => {
            let sessions = show::count(count, "session");
            let what = format!("the daemon on {shown} has {sessions} that only it can end");
            return Err(failed(what, "close them first; `lariat session list` shows them"));
        }
        Err(error) => {
            return Err(summon::explain(&format!("cannot replace the daemon on {shown}"), &error));
        }
    }
    // It may have left by itself just now.
    let _gone = elder.signal(Signal::USR2);
    Ok(())
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
