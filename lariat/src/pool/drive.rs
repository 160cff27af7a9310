//! What becomes of a process: started, asleep, started again, ended.
//!
//! Each has a task that is the only one to decide what becomes of it. A client that leaves is one
//! less; when nobody is left it ends. A process that nobody has needed for a while sleeps: it is
//! ended, and another takes its place when somebody speaks. One that leaves by itself takes its
//! clients with it, each of which sees what it would see of a server of its own.

use super::Handle;
use super::hub::{Hub, Parting, Resting, TOLD};
use super::seat::Over;
use super::verdict::Verdict;
use crate::mcp::connection::{Ended, Error, Opening, Wire};
use crate::start::local::{Receiver, Sender};
use crate::start::talk::{self, Departure, Heard, Household, Talk};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{sleep, sleep_until, timeout};

/// How soon to look again at one that could not sleep.
const LOOK: Duration = Duration::from_secs(5);

/// How long what a server said before it left may take to arrive.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Why a run is over.
enum Stop {
    /// Nobody needs it now.
    Slept,
    /// Nobody uses it.
    Unused,
    /// Nobody has waited for it to be ready.
    Unready,
    /// Its only client says nothing more.
    Parted(Parting),
    /// It was told to end.
    Told,
    /// Everything rests, and this has been left where others find it.
    Rested,
    /// It left, or never came to be.
    Left(Over),
}

/// Whoever drops the task, a runtime that ends included, ends the process.
struct EndsWithTask(Arc<Hub>);

impl Drop for EndsWithTask {
    fn drop(&mut self) {
        self.0.let_go();
        self.0.fail(Over { why: "the pool has ended".into(), code: TOLD });
        // Nobody will say how it ended, but whoever waits for that must not wait for ever.
        self.0.gone.send_if_modified(|gone| {
            let first = gone.is_none();
            gone.get_or_insert(Departure { unaccounted: true, ..Departure::default() });
            first
        });
    }
}

/// From where on a process is driven.
pub(super) enum Begin {
    /// There is none yet.
    New,
    /// It sleeps.
    Asleep,
    /// It runs.
    Running(Box<Run>),
}

/// A process that runs, and what is on its way to and from it.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) talk: Talk,
    pub(super) wire: Wire<Sender, Receiver>,
    /// Since when nobody has used it.
    pub(super) empty_since: Option<Instant>,
}

/// Drives one process to its end.
pub(super) async fn drive(hub: Arc<Hub>, household: Arc<Household>, pool: Handle, from: Begin) {
    let _ends = EndsWithTask(hub.clone());
    let mut from = Some(from);
    let mut again = false;
    loop {
        match from.take().unwrap_or(Begin::New) {
            Begin::Asleep => {}
            from => {
                let run = match from {
                    Begin::Running(run) => Some(*run),
                    _ => None,
                };
                let (stop, gone) = stay(&hub, &household, &pool, again, run).await;
                hub.account(gone);
                if !matches!(stop, Stop::Slept) {
                    break;
                }
                hub.enter("asleep");
                tell(&pool, &hub, "asleep");
            }
        }
        again = true;
        if !wakes(&hub, &pool).await {
            break;
        }
        hub.enter("starting");
        tell(&pool, &hub, "awake");
    }
    hub.fail(Over { why: "it was ended".into(), code: TOLD });
    let past = std::mem::take(&mut hub.inner().past);
    hub.gone.send_replace(Some(past));
    if let Some(pool) = pool.upgrade() {
        pool.forget(&hub);
    }
}

fn tell(pool: &Handle, hub: &Hub, event: &'static str) {
    if let Some(pool) = pool.upgrade() {
        pool.tell(hub, event, hub.verdict().to_string());
    }
}

async fn is_told(told: &mut watch::Receiver<bool>) {
    // The hub has the other end.
    let _told = told.wait_for(|told| *told).await.map(|_| ());
}

async fn is_parted(parted: &mut watch::Receiver<Option<Parting>>) -> Parting {
    let how = parted.wait_for(Option::is_some).await;
    // The hub has the other end.
    how.ok().and_then(|how| *how).unwrap_or(Parting::Said)
}

/// Waits until the only client has gone of a server that does not hear what it said last.
async fn is_unheard(parted: &mut watch::Receiver<Option<Parting>>) {
    // The hub has the other end.
    let _parted = parted.wait_for(|how| *how == Some(Parting::Unheard)).await.map(|_| ());
}

/// Waits, while it sleeps, until somebody needs it. False if nobody will.
async fn wakes(hub: &Arc<Hub>, pool: &Handle) -> bool {
    let mut told = hub.told.subscribe();
    loop {
        if hub.sessions() == 0 && pool.upgrade().is_none_or(|pool| pool.strike_unused(hub)) {
            return false;
        }
        tokio::select! {
            biased;
            () = is_told(&mut told) => return false,
            () = rests(pool) => drop(hub.rest(Resting::Asleep, pool).await),
            () = hub.connection.wanted() => return true,
            () = hub.connection.company_changed() => {}
        }
    }
}

/// Waits until everything is to rest.
async fn rests(pool: &Handle) {
    let Some(mut rest) = pool.upgrade().map(|pool| pool.rest.subscribe()) else {
        return std::future::pending().await;
    };
    // One that is gone calls nobody.
    if rest.wait_for(|rest| *rest).await.is_err() {
        std::future::pending().await
    }
}

/// Starts it, unless it runs, and stays with it until it is gone.
async fn stay(
    hub: &Arc<Hub>,
    household: &Arc<Household>,
    pool: &Handle,
    again: bool,
    run: Option<Run>,
) -> (Stop, Departure) {
    let started = match run {
        Some(run) => Ok(run),
        None => start(hub, household, pool, again).await,
    };
    let (mut run, stop) = match started {
        Ok(run) => (run, None),
        Err((Some(run), stop)) => (run, Some(stop)),
        Err((None, stop)) => return (stop, Departure::default()),
    };
    let stop = match stop {
        Some(stop) => stop,
        None => loop {
            let running = go_on(hub, &mut run.wire);
            let stop = attend(hub, pool, &mut run.talk, pin!(running), &mut run.empty_since).await;
            match stop {
                Stop::Rested => match hub.rest(Resting::Running(Box::new(run)), pool).await {
                    Some(Resting::Running(rested)) => run = *rested,
                    _ => {
                        return (
                            Stop::Told,
                            Departure { unaccounted: true, ..Departure::default() },
                        );
                    }
                },
                stop => break stop,
            }
        },
    };
    let Run { mut talk, mut wire, .. } = run;
    match &stop {
        Stop::Slept | Stop::Rested => {}
        Stop::Unused | Stop::Unready | Stop::Parted(_) => hub.enter("ending"),
        Stop::Told => {
            hub.enter("ending");
            hub.fail(Over { why: "its server was told to end".into(), code: TOLD });
        }
        Stop::Left(over) => {
            hub.enter("ending");
            if let Some(pool) = pool.upgrade() {
                pool.strike(hub);
            }
            hub.fail(over.clone());
        }
    }
    let gone = match stop {
        Stop::Parted(Parting::Said) => end_heard(&mut talk, go_on(hub, &mut wire)).await,
        Stop::Parted(Parting::Unheard) | Stop::Unready => {
            drop(wire);
            talk.hasten().await
        }
        _ => {
            // Closes the server's stdin.
            drop(wire);
            talk.end().await
        }
    };
    if let Stop::Parted(_) = stop {
        hub.finish(Over { why: talk.why_left().await, code: talk.code().unwrap_or(TOLD) });
    }
    let mut inner = hub.inner();
    inner.leash = None;
    inner.trace = None;
    drop(inner);
    (stop, gone)
}

/// The conversation with a process that was greeted.
async fn go_on(hub: &Hub, wire: &mut Wire<Sender, Receiver>) -> Ended {
    let (opened, _at_once) = oneshot::channel();
    hub.connection.run(wire, Opening::Straight, opened).await
}

/// From nothing to a process that was greeted; or as far as it came, and why no further.
async fn start(
    hub: &Arc<Hub>,
    household: &Arc<Household>,
    pool: &Handle,
    again: bool,
) -> Result<Run, (Option<Run>, Stop)> {
    let fail = |why: String, code| {
        let over = Over { why, code };
        if let Some(pool) = pool.upgrade() {
            pool.strike(hub);
            pool.started(&hub.key, Some((&over.why, over.code)));
        }
        hub.fail(over.clone());
        Stop::Left(over)
    };
    let (mut talk, theirs, streams) = Talk::new(household, hub.name())
        .map_err(|e| (None, fail(format!("its streams cannot be made: {e}"), 125)))?;
    {
        let mut inner = hub.inner();
        if inner.let_go {
            return Err((None, Stop::Told));
        }
        inner.leash = Some(talk.leash());
        (inner.trace, inner.since) = (Some(talk.trace()), Instant::now());
    }
    let (mut told, mut parted) = (hub.told.subscribe(), hub.parted.subscribe());
    let mut wire = Wire::new(streams.stdin, streams.stdout);
    let (opened, greeted) = oneshot::channel();
    let spec = &hub.server.spec;
    let started = async {
        let mut running = pin!(hub.connection.run(&mut wire, hub.opening(again), opened));
        // Waiting for others is not the server's own time.
        let turn = talk::turn().await;
        let begun = timeout(spec.startup_timeout, async {
            talk.begin(turn, theirs, spec, hub.server.environment.as_ref()).await?;
            greet(hub, &mut talk, running.as_mut(), greeted).await
        });
        match begun.await {
            Ok(begun) => begun,
            Err(_) => {
                let after = spec.startup_timeout.as_millis();
                Err(format!("it was not ready after {after} ms{}", talk.so_far()))
            }
        }
    };
    let started = tokio::select! {
        biased;
        () = is_told(&mut told) => Err(Stop::Told),
        started = started => Ok(started),
        () = is_unheard(&mut parted) => Err(Stop::Parted(Parting::Unheard)),
        () = is_unused(hub, pool) => Err(Stop::Unready),
    };
    let run = Run { talk, wire, empty_since: None };
    match started {
        Err(stop) => Err((Some(run), stop)),
        Ok(Err(why)) => {
            let Over { why, code } = left(hub, &run.talk, why);
            let stop = fail(why, code);
            Err((Some(run), stop))
        }
        Ok(Ok(())) => {
            hub.connection.show(streams.pulse);
            hub.enter("ready");
            hub.ready.send_replace(true);
            if let Some(pool) = pool.upgrade() {
                pool.started(&hub.key, None);
            }
            Ok(run)
        }
    }
}

/// Ends a server that knows that nothing more will be said to it. Its last words are still heard.
async fn end_heard(talk: &mut Talk, running: impl Future) -> Departure {
    let gone = Notify::new();
    let hearing = async {
        let rest = async {
            gone.notified().await;
            sleep(LAST_WORDS).await;
        };
        tokio::select! {
            _ended = running => {}
            () = rest => {}
        }
    };
    let ending = async {
        let ended = talk.end().await;
        gone.notify_one();
        ended
    };
    tokio::join!(ending, hearing).0
}

/// How a server left, as those may know who had it together.
fn left(hub: &Hub, talk: &Talk, why: String) -> Over {
    // Its last words may be about any of them.
    let is_shared = hub.verdict() == Verdict::Shared && hub.visitors.load(Ordering::Relaxed) > 1;
    let why = if is_shared { talk.plainly(why) } else { why };
    // Without a code of its own, whoever held it was killed, or it never came to be.
    Over { why, code: talk.code().unwrap_or(TOLD) }
}

/// Waits until a server that is still being started has no clients left, and is not to be there without any.
async fn is_unused(hub: &Arc<Hub>, pool: &Handle) {
    loop {
        if hub.sessions() == 0
            && !hub.is_warm()
            && hub.linger.is_zero()
            && pool.upgrade().is_none_or(|pool| pool.strike_unused(hub))
        {
            return;
        }
        hub.connection.company_changed().await;
    }
}

/// Why the conversation with a server is over.
async fn why_over(ended: Ended, talk: &mut Talk) -> String {
    match ended {
        Ended::TooLong => "it said a line that is longer than 64 MiB".into(),
        Ended::Output | Ended::Input => talk.why_left().await,
    }
}

/// Waits for the handshake, if there is one.
async fn greet(
    hub: &Hub,
    talk: &mut Talk,
    mut running: Pin<&mut impl Future<Output = Ended>>,
    mut greeted: oneshot::Receiver<Result<(), Error>>,
) -> Result<(), String> {
    loop {
        tokio::select! {
            biased;
            greeted = &mut greeted => return match greeted {
                Ok(Err(Error::Closed)) | Err(_) => Err(talk.why_left().await),
                Ok(greeted) => greeted.map_err(|e| e.to_string()),
            },
            ended = running.as_mut() => return Err(why_over(ended, talk).await),
            heard = talk.next() => if let Heard::Left(why) = heard {
                // What it said before it left is still heard, below.
                if hub.is_private() {
                    return Ok(());
                }
                return Err(why);
            },
        }
    }
}

/// Stays with a server that runs, until it leaves, is told to end, sleeps, or has had no client for long enough.
async fn attend(
    hub: &Arc<Hub>,
    pool: &Handle,
    talk: &mut Talk,
    mut running: Pin<&mut impl Future<Output = Ended>>,
    empty_since: &mut Option<Instant>,
) -> Stop {
    let mut told = hub.told.subscribe();
    let mut parted = hub.parted.subscribe();
    let mut known_hazard = false;
    loop {
        if let (Some(why), false, Some(pool)) =
            (hub.connection.hazard(), known_hazard, pool.upgrade())
        {
            known_hazard = true;
            if pool.unfit(&hub.key, hub.is_modern(), why) {
                pool.tell(hub, "unshared", why.into());
            }
        }
        let now = Instant::now();
        let wait = if hub.sessions() == 0 {
            let since = *empty_since.get_or_insert(now);
            let is_busy = !hub.connection.may_sleep() && since.elapsed() < hub.task_patience();
            let keeps = pool.upgrade().is_some_and(|pool| pool.keeps_warm(hub));
            match (since + hub.linger).checked_duration_since(now) {
                _ if keeps => None,
                Some(rest) if !rest.is_zero() => Some(rest),
                // Somebody may come back for what it has begun.
                _ if is_busy => Some(LOOK),
                _ if pool.upgrade().is_none_or(|pool| pool.strike_unused(hub)) => {
                    return Stop::Unused;
                }
                _ => Some(LOOK),
            }
        } else {
            *empty_since = None;
            match hub.patience() {
                None => None,
                Some(patience) => {
                    let idle = hub.connection.idle();
                    if idle < patience {
                        Some((patience - idle).max(Duration::from_millis(1)))
                    } else if hub.connection.fall_asleep() {
                        return Stop::Slept;
                    } else {
                        Some(LOOK)
                    }
                }
            }
        };
        let timer = async {
            match wait {
                Some(wait) => sleep_until((now + wait).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = is_told(&mut told) => return Stop::Told,
            how = is_parted(&mut parted) => return Stop::Parted(how),
            ended = running.as_mut() => {
                let why = why_over(ended, talk).await;
                return Stop::Left(left(hub, talk, why));
            }
            heard = talk.next() => if let Heard::Left(why) = heard {
                // What it said before it left is still to be heard, while its output is open.
                let _rest = timeout(LAST_WORDS, running.as_mut()).await;
                return Stop::Left(left(hub, talk, why));
            },
            () = rests(pool) => return Stop::Rested,
            () = hub.connection.company_changed() => {}
            () = timer => {}
        }
    }
}
