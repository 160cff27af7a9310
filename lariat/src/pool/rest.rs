//! Standing still, before a hand-over: everything of a pool stays as it is for a moment, and so do those who hold servers beside it.

use super::Pool;

impl Pool {
    /// Waits until everything is to stay as it is.
    pub(crate) async fn called_to_rest(&self) {
        // The other end is here.
        let _called = self.0.rest.subscribe().wait_for(|rest| *rest).await.map(|_| ());
    }

    /// One more rests. Done when nothing has to any more.
    pub(crate) async fn lie_down(&self) {
        let mut rest = self.0.rest.subscribe();
        self.0.rested.notify_one();
        // The other end is here.
        let _up = rest.wait_for(|rest| !*rest).await.map(|_| ());
    }
}
