//! Where a stream of events comes from, and where that is kept while everything rests.

use super::modern::Call;
use super::session::Listening;
use crate::daemon::web::Busy;
use hyper::body::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use tokio::sync::{mpsc, watch};

/// What has something to say.
#[derive(Debug)]
pub(in crate::daemon) enum Source {
    /// A stream of a legacy client's session.
    Session(Listening),
    /// A request of a modern client.
    Call(Box<Call>),
}

/// The way of events from their source to a connection.
pub(in crate::daemon) struct Course {
    pub(super) lines: mpsc::Sender<Bytes>,
    /// The daemon ends.
    pub(super) stopped: watch::Receiver<bool>,
    /// Everything is to rest.
    pub(super) called: watch::Receiver<bool>,
    /// Where the source is then.
    pub(super) spring: Arc<Spring>,
    pub(super) _busy: Busy,
}

/// Where a source is while it rests.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Spring(Mutex<Still>);

#[derive(Debug, Default)]
pub(super) struct Still {
    /// With the near end of its way, so that the far end does not see it close.
    pub(super) source: Option<(Source, mpsc::Sender<Bytes>)>,
    /// Whoever waits for it to be here.
    pub(super) waker: Option<Waker>,
}

impl Source {
    /// Says what there is to say, until that is all, or nobody reads it, or the daemon ends, or it rests.
    pub(in crate::daemon) async fn flow(self, course: Course) {
        match self {
            Source::Session(listening) => listening.pump(course).await,
            Source::Call(call) => call.tell(course).await,
        }
    }
}

impl Spring {
    pub(super) fn still(&self) -> MutexGuard<'_, Still> {
        // Nothing in here can be left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a source that has nothing on its way any more but what is in these lines.
    pub(super) fn keep(&self, source: Source, lines: mpsc::Sender<Bytes>) {
        let waker = {
            let mut still = self.still();
            still.source = Some((source, lines));
            still.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
