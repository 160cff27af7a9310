//! One server and its host, on Windows, for as long as the host wants it.
//!
//! Bytes are copied as they come, unchanged, by a thread for each stream. This thread waits for
//! whatever ends a session: the server's own end, the end of input, a host that is gone or reads
//! no more, an interruption. Nothing that must happen depends on this process living: with it goes
//! the handle of the job, and with that the server's whole tree.

#[path = "windows/backlog.rs"]
mod backlog;
mod lean;
#[path = "windows/pump.rs"]
mod pump;

pub use crate::start::Failure;
pub use lean::{Outcome, Run};

use crate::receipt::Reason;
use contain::process::Handle;
use contain::{Ask, Bell, Choice, Event, Interrupts, Report, Spec, Tree};
use pump::Pumps;
use std::os::windows::io::AsHandle;

/// Runs a server until its session ends. Returns when its tree has.
pub fn run(run: Run) -> Result<Outcome, Failure> {
    let bell = Bell::new().map_err(Failure::Streams)?;
    // Without a console nobody interrupts us.
    let mut interrupts = Interrupts::watch(&bell).ok();
    // A launcher that has gone already is nobody to watch; the end of input is.
    let host = contain::process::parent();
    let member = host.as_ref().map(Handle::member);
    let (opened, log) = run.plan(member).open()?;
    let (pumps, streams) = Pumps::new(&bell).map_err(Failure::Streams)?;
    let spec = Spec {
        program: run.program,
        args: run.args,
        env: None,
        cwd: None,
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
        backend: Choice::Auto,
        ladder: run.ladder,
    };
    let (mut tree, entry) = opened.launch(spec)?;
    let pumps = pumps.start(log);
    let (reason, report) = serve(&mut tree, &pumps, &bell, host.as_ref(), &mut interrupts);
    // Who has left by itself had something to say to a host that has not died.
    pumps.finish(|| reason == Reason::Exited && host.as_ref().is_none_or(Handle::is_alive));
    Ok(Outcome::settled(entry, &reason, &report))
}

/// Waits for the end, and says why it came.
fn serve(
    tree: &mut Tree,
    pumps: &pump::Running,
    bell: &Bell,
    mut host: Option<&Handle>,
    interrupts: &mut Option<Interrupts>,
) -> (Reason, Report) {
    let mut reason = None;
    let mut interrupted = false;
    loop {
        match tree.event() {
            Some(Event::Ended(report)) => return (reason.unwrap_or(Reason::Exited), report),
            Some(Event::Exited(_)) => {
                reason.get_or_insert(Reason::Exited);
                continue;
            }
            Some(_) => continue,
            None => {}
        }
        if host.is_some_and(|host| !host.is_alive()) {
            // Forgotten, because what has happened once wakes whoever waits for it for ever.
            host = None;
            reason.get_or_insert(Reason::HostDied);
            tree.ask(Ask::OwnerDied);
        }
        if let Some(signal) = interrupts.as_mut().and_then(Interrupts::heard) {
            reason.get_or_insert(Reason::Signal(signal));
            // The second one skips the grace.
            tree.ask(if interrupted { Ask::Kill } else { Ask::Signal(signal) });
            interrupted = true;
        }
        if pumps.host_is_done() {
            reason.get_or_insert(Reason::StdinClosed);
            tree.ask(Ask::Closed);
        }
        let handles: Vec<_> =
            host.into_iter().map(AsHandle::as_handle).chain([bell.as_handle()]).collect();
        tree.wait(&handles, None);
    }
}
