//! Looks at what is there: often while somebody watches, seldom while nobody does.
//!
//! It begins when the page is first wanted. A daemon without one looks at nothing.

use super::api;
use super::ledger::Ledger;
use super::picture::{Painter, Picture, Point};
use super::registry::Registry;
use crate::books::{Books, Onlooker};
use crate::id::SessionId;
use crate::moment;
use crate::snapshot::{Container, Living};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// How often to look while somebody watches: an end is to be seen within a second.
const NEAR: Duration = Duration::from_millis(500);

/// How often while nobody does: the chart of the last hour has a point for each.
const FAR: Duration = Duration::from_secs(10);

/// How often engines are asked for containers, and how long they may take: an end is to be seen within
/// a second, also while an engine hangs.
const ENGINES: Duration = Duration::from_secs(5);
const ENGINE: Duration = Duration::from_millis(300);

/// Looking takes at most this part of one CPU, however much there is to look at.
const SHARE: u32 = 5;

/// Who looks.
#[derive(Debug)]
pub(super) struct Lookout {
    eyes: Arc<Mutex<Eyes>>,
    registry: Arc<Registry>,
    memory: Arc<Mutex<Memory>>,
    picture: watch::Sender<Arc<Picture>>,
    /// How many watch.
    watchers: watch::Sender<usize>,
    /// When the last look began. Whoever looks holds it.
    looked: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct Memory {
    ledger: Ledger,
    painter: Painter,
}

/// What is seen, and what was seen of the engines.
#[derive(Debug)]
struct Eyes {
    onlooker: Onlooker,
    asked: Option<Instant>,
    containers: BTreeMap<SessionId, Vec<Container>>,
}

impl Eyes {
    /// Blocks, as long as an engine may take.
    fn look(&mut self) -> Vec<Living> {
        let mut living = self.onlooker.look();
        if self.asked.is_none_or(|asked| asked.elapsed() >= ENGINES) {
            self.onlooker.ask_engines(&mut living, ENGINE);
            let of = living.iter().filter(|one| !one.containers.is_empty());
            self.containers = of.map(|one| (one.session.clone(), one.containers.clone())).collect();
            self.asked = Some(Instant::now());
        } else {
            for one in &mut living {
                one.containers = self.containers.get(&one.session).cloned().unwrap_or_default();
            }
        }
        living
    }
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is half read after a panic is read again.
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lookout {
    pub(super) fn new(books: Books, registry: Arc<Registry>) -> Lookout {
        let ledger = Ledger::new(books.events());
        let memory = Memory { ledger, painter: Painter::default() };
        let onlooker = Onlooker::new(&books);
        let eyes = Eyes { onlooker, asked: None, containers: BTreeMap::new() };
        Lookout {
            eyes: Arc::new(Mutex::new(eyes)),
            registry,
            memory: Arc::new(Mutex::new(memory)),
            picture: watch::Sender::default(),
            watchers: watch::Sender::default(),
            looked: tokio::sync::Mutex::default(),
        }
    }

    /// Looks until it is stopped.
    pub(super) async fn keep(&self, mut stopped: watch::Receiver<bool>) {
        let mut watchers = self.watchers.subscribe();
        loop {
            let cost = self.look().await;
            let watched = *watchers.borrow_and_update() > 0;
            let pause = if watched { NEAR.max(cost * SHARE).min(FAR) } else { FAR };
            let come = async {
                // Somebody who comes does not wait for the next look; who leaves changes nothing.
                if watched || watchers.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = come => {}
                _ = stopped.wait_for(|stopped| *stopped) => return,
            }
        }
    }

    /// Looks, unless somebody else has begun to since this was called. Returns how long it took.
    async fn look(&self) -> Duration {
        let asked = Instant::now();
        let mut looked = self.looked.lock().await;
        if looked.is_some_and(|begun| begun > asked) {
            return asked.elapsed();
        }
        let begun = Instant::now();
        let own: Vec<api::Session> = self.registry.all().iter().map(|entry| entry.view()).collect();
        let (eyes, memory) = (self.eyes.clone(), self.memory.clone());
        let painting = tokio::task::spawn_blocking(move || {
            let living = locked(&eyes).look();
            let mut memory = locked(&memory);
            let Memory { ledger, painter } = &mut *memory;
            ledger.read_on();
            let mut picture = painter.paint(moment::millis(SystemTime::now()), &living, &own);
            picture.survivors = ledger.survivors();
            picture.sums.counts = ledger.counts.clone();
            picture.receipts = Arc::new(ledger.receipts.clone());
            picture
        });
        if let Ok(picture) = painting.await {
            self.picture.send_replace(Arc::new(picture));
        }
        *looked = Some(begun);
        begun.elapsed()
    }

    /// How it is now.
    pub(super) async fn now(&self) -> Arc<Picture> {
        self.look().await;
        self.picture.borrow().clone()
    }

    /// How it was in the last hour.
    pub(super) fn history(&self) -> Vec<Point> {
        locked(&self.memory).painter.history()
    }

    /// How it will be, for as long as this is kept.
    pub(super) fn watch(self: &Arc<Lookout>) -> Watcher {
        let pictures = self.picture.subscribe();
        self.watchers.send_modify(|count| *count += 1);
        Watcher { lookout: self.clone(), pictures }
    }
}

/// Somebody who watches.
#[derive(Debug)]
pub(super) struct Watcher {
    lookout: Arc<Lookout>,
    pub(super) pictures: watch::Receiver<Arc<Picture>>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.lookout.watchers.send_modify(|count| *count -= 1);
    }
}
