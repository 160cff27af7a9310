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
use crate::snapshot::{Container, Living, State};
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
    containers: Containers,
}

/// What engines said last, by session.
#[derive(Debug, Default)]
struct Containers(BTreeMap<SessionId, Said>);

#[derive(Debug)]
struct Said {
    /// It was about what the session left when it had ended.
    of_ended: bool,
    containers: Vec<Container>,
}

impl Containers {
    /// Whoever has no new answer has the last one. An engine that is late, or does not answer, has
    /// not removed anything; and what a receipt says of survivors is newer than what was before.
    fn recall(&mut self, living: &mut [Living], has_answered: impl Fn(&SessionId) -> bool) {
        let mut before = std::mem::take(&mut self.0);
        for one in living {
            let of_ended = one.state == State::Survivors;
            let said = before.remove(&one.session).filter(|said| said.of_ended == of_ended);
            if let Some(said) = said.filter(|_| !has_answered(&one.session)) {
                one.containers = said.containers;
            }
            let containers = one.containers.clone();
            self.0.insert(one.session.clone(), Said { of_ended, containers });
        }
    }
}

impl Eyes {
    /// Blocks, as long as an engine may take.
    fn look(&mut self) -> Vec<Living> {
        let mut living = self.onlooker.look();
        if self.asked.is_none_or(|asked| asked.elapsed() >= ENGINES) {
            let silent = self.onlooker.ask_engines(&mut living, ENGINE);
            self.containers.recall(&mut living, |session| !silent.contains(session));
            self.asked = Some(Instant::now());
        } else {
            self.containers.recall(&mut living, |_| false);
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
        // Not a patient one: the quiet would be looked at every fifth time, which is 50 s while nobody
        // watches, and a wrapper that its host does not wait for would seem to live for 2.5 s.
        let onlooker = Onlooker::new(&books);
        let eyes = Eyes { onlooker, asked: None, containers: Containers::default() };
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn living(state: &str, containers: &[&str]) -> [Living; 1] {
        let containers: Vec<_> =
            containers.iter().map(|id| json!({"id": id, "image": "redis"})).collect();
        let one = serde_json::from_value(json!({
            "session": "a", "within": null, "server": "git", "host": null, "wrapper": 8,
            "state": state, "idle_s": null, "evidence": [], "backend": "descent", "started": "t",
            "age_s": 1.0, "processes": 0, "rss_bytes": 0, "containers": containers,
        }));
        [one.unwrap()]
    }

    #[test]
    fn an_engine_that_says_nothing_has_removed_nothing() {
        let mut containers = Containers::default();
        let mut seen = |state: &str, found: &[&str], answers: bool| {
            let mut living = living(state, found);
            containers.recall(&mut living, |_| answers);
            let ids = living[0].containers.iter().map(|container| container.id.clone());
            ids.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(seen("ready", &[], false), "");
        assert_eq!(seen("ready", &["x"], true), "x");
        // Not asked, or asked in vain.
        assert_eq!(seen("ready", &[], false), "x");
        assert_eq!(seen("ready", &[], true), "");
        assert_eq!(seen("ready", &[], false), "");
        // Ended: what the receipt says, until the engine says otherwise.
        assert_eq!(seen("survivors", &["x"], false), "x");
        assert_eq!(seen("survivors", &["x"], false), "x");
        assert_eq!(seen("survivors", &[], true), "");
        assert_eq!(seen("survivors", &["x"], false), "");
        assert!(containers.0.len() == 1);
        containers.recall(&mut [], |_| false);
        assert!(containers.0.is_empty());
    }
}
