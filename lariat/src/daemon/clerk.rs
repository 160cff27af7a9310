//! Writes down what happens in the pool: the event log, and beside each process who uses it.

use crate::books::{Books, Sleeper};
use crate::id::{ServerName, SessionId};
use crate::pool::{self, Notice, Pool, View};
use crate::snapshot::{Sharing, Verdict};
use contain::Member;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::timeout;

/// A process that is being started has its name in the books after this time, or some more.
const SOON: Duration = Duration::from_millis(50);

/// Keeps the minutes until everything is over; what has happened by then is written down.
pub(super) async fn keep(pool: Pool, state_dir: &Path, over: &Notify) {
    // Books that cannot be written are no reason not to serve.
    let Ok(books) = Books::open(state_dir) else { return };
    let (mut notices, mut size) = (pool.notices(), pool.size());
    let mut told = BTreeMap::new();
    let mut dormitory =
        Dormitory { books: &books, pool: pool.id(), keeper: Member::current(), told: Vec::new() };
    loop {
        let views = pool.view();
        let nameless = tell(&books, &views, &mut told);
        dormitory.tell(&views);
        let next = async {
            match nameless {
                true => timeout(SOON, notices.recv()).await.ok(),
                false => Some(notices.recv().await),
            }
        };
        let next = tokio::select! {
            biased;
            next = next => next,
            // A process that slept may go without a word.
            Ok(()) = size.changed() => None,
            () = over.notified() => return,
        };
        match next {
            Some(Ok(notice)) => log(&books, &notice),
            // Too much happened at once: how it is now is told all the same.
            Some(Err(RecvError::Lagged(_))) | None => {}
            Some(Err(RecvError::Closed)) => return,
        }
        // What has happened at the same time is told once.
        loop {
            match notices.try_recv() {
                Ok(notice) => log(&books, &notice),
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
    }
}

/// Says who uses each process, where that has changed. True if one has no name in the books yet.
fn tell(books: &Books, views: &[View], told: &mut BTreeMap<SessionId, Sharing>) -> bool {
    let mut now = BTreeMap::new();
    for view in views {
        let Some(session) = &view.books else { continue };
        let sharing = sharing(&view.verdict, view.sessions);
        if told.get(session) != Some(&sharing) {
            books.tell_sharing(session, &sharing);
        }
        now.insert(session.clone(), sharing);
    }
    *told = now;
    views.iter().any(|view| view.books.is_none() && view.state == "starting")
}

/// Which servers sleep, of which nothing else is written anywhere.
struct Dormitory<'a> {
    books: &'a Books,
    pool: &'a SessionId,
    keeper: Option<Member>,
    told: Vec<Sleeper>,
}

impl Dormitory<'_> {
    /// Says so, where that has changed.
    fn tell(&mut self, views: &[View]) {
        let sleepers: Vec<Sleeper> = views.iter().filter_map(sleeper).collect();
        let Some(keeper) = self.keeper else { return };
        if !same(&sleepers, &self.told) {
            self.books.tell_sleepers(self.pool, keeper, &sleepers);
            self.told = sleepers;
        }
    }
}

impl Drop for Dormitory<'_> {
    fn drop(&mut self) {
        self.tell(&[]);
    }
}

/// True if nobody has fallen asleep or woken, come or gone. When it was is not compared: one clock is
/// told by another.
fn same(some: &[Sleeper], others: &[Sleeper]) -> bool {
    some.len() == others.len()
        && some.iter().zip(others).all(|(a, b)| (&a.session, &a.share) == (&b.session, &b.share))
}

fn sleeper(view: &View) -> Option<Sleeper> {
    let asleep = view.asleep.as_ref()?;
    let ms = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    Some(Sleeper {
        session: asleep.books.clone(),
        server: ServerName::given(&view.server)?,
        host: asleep.host.map(|host| (host.pid, host.start)),
        backend: asleep.backend.clone(),
        started_ms: ms(asleep.started) as u64,
        quiet_since_ms: ms(asleep.quiet_since) as u64,
        share: sharing(&view.verdict, view.sessions),
    })
}

fn sharing(verdict: &pool::Verdict, sessions: usize) -> Sharing {
    let (verdict, why) = match verdict {
        pool::Verdict::Shared => (Verdict::Shared, None),
        pool::Verdict::Private { why } => (Verdict::Private, Some(why.clone())),
    };
    Sharing { verdict, why, sessions }
}

fn log(books: &Books, notice: &Notice) {
    #[derive(Serialize)]
    struct Line<'a> {
        session: Option<&'a SessionId>,
        server: &'a str,
        sessions: usize,
        why: &'a str,
    }
    let Notice { server, books: session, event, sessions, why } = notice;
    let line = Line { session: session.as_ref(), server, sessions: *sessions, why };
    // An unwritable event log is no reason not to serve.
    let _unlogged = books.log(event, &line);
}
