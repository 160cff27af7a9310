//! Standing still, before a hand-over. Everything stays as it is for a moment: each task that has to do with hosts leaves what it holds where
//! it can be looked at, and takes it back when it is to go on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// Where tasks rest that have something of this kind.
#[derive(Debug)]
pub(super) struct Rest<T> {
    called: watch::Sender<bool>,
    lying: Mutex<(u64, BTreeMap<u64, T>)>,
    /// How many have something, resting or not.
    all: Arc<AtomicUsize>,
    /// How many are about to have something.
    arriving: Arc<AtomicUsize>,
    changed: Arc<Notify>,
}

/// One that counts until this is dropped.
#[derive(Debug)]
pub(super) struct Counted(Arc<AtomicUsize>, Arc<Notify>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
        self.1.notify_one();
    }
}

impl<T> Rest<T> {
    pub(super) fn new() -> Rest<T> {
        Rest {
            called: watch::Sender::new(false),
            lying: Mutex::new((0, BTreeMap::new())),
            all: Arc::default(),
            arriving: Arc::default(),
            changed: Arc::default(),
        }
    }

    fn count(&self, what: &Arc<AtomicUsize>) -> Counted {
        what.fetch_add(1, Ordering::Relaxed);
        Counted(what.clone(), self.changed.clone())
    }

    /// One more is about to have something.
    pub(super) fn arrive(&self) -> Counted {
        self.count(&self.arriving)
    }

    /// One more has something.
    pub(super) fn come(&self) -> Counted {
        self.count(&self.all)
    }

    /// Calls everybody to rest, or to go on.
    pub(super) fn call(&self, rest: bool) {
        self.called.send_replace(rest);
    }

    /// Whether everybody is to rest.
    pub(super) fn calls(&self) -> watch::Receiver<bool> {
        self.called.subscribe()
    }

    /// Waits until everybody is to rest.
    pub(super) async fn called(&self) {
        // The other end is here.
        let _called = self.called.subscribe().wait_for(|called| *called).await.map(|_| ());
    }

    /// Lies down with this, and gets up with it.
    pub(super) async fn lie_down(&self, what: T) -> T {
        let key = {
            let (last, lying) = &mut *self.lying();
            *last += 1;
            lying.insert(*last, what);
            *last
        };
        self.changed.notify_one();
        let mut called = self.called.subscribe();
        loop {
            // The other end is here.
            let _up = called.wait_for(|called| !*called).await.map(|_| ());
            if let Some(what) = self.lying().1.remove(&key) {
                return what;
            }
            // It is being looked at.
            tokio::task::yield_now().await;
        }
    }

    fn lying(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, T>)> {
        // Nothing that is done under this lock can leave it half done.
        self.lying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if everybody rests and nobody is about to come.
    pub(super) fn is_complete(&self) -> bool {
        !self.is_arriving() && self.lying().1.len() == self.all.load(Ordering::Relaxed)
    }

    /// True if somebody is about to come.
    pub(super) fn is_arriving(&self) -> bool {
        self.arriving.load(Ordering::Relaxed) > 0
    }

    /// Waits until one more rests, or has come or gone.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Looks at all that rest.
    pub(super) fn look<R>(&self, look: impl FnMut(&mut T) -> R) -> Vec<R> {
        self.lying().1.values_mut().map(look).collect()
    }
}
