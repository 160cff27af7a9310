//! Standing still, before a hand-over. A server of a session stays as it is for a moment: its task leaves what it holds where it can be looked
//! at, and takes it back when it is to go on. Only those do that whose session has a pool, which says when.

use super::House;
use super::server::View;
use super::shared::Bridge;
use crate::mcp::Connection;
use crate::mcp::connection::{OnlyRun, Wire};
use crate::start::local::{Receiver, Sender};
use crate::start::talk::{Departure, Talk};
use std::sync::Arc;
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// What a server's task leaves.
#[derive(Debug)]
pub(super) struct Rested {
    #[cfg_attr(
        not(all(target_os = "linux", feature = "cli")),
        expect(dead_code, reason = "only a daemon on Linux becomes the next")
    )]
    pub(super) course: Course,
    pub(super) what: Resting,
}

/// What has become of a server so far.
#[derive(Debug, Clone)]
pub(super) struct Course {
    /// How often it has left in a row.
    pub(super) crashes: u32,
    /// What must not be forgotten of earlier runs.
    pub(super) debts: Departure,
    /// When its last run began.
    pub(super) began: Instant,
}

/// How a server rests.
#[derive(Debug)]
pub(super) enum Resting {
    /// It runs.
    Running(Box<Own>),
    /// It is the pool's.
    Shared(Box<Shared>),
    /// It has left and is about to be started again.
    Pausing { until: Instant, gone: Departure },
    /// It has left for good.
    Failed { gone: Departure },
}

/// A server of the session's own, and what is on its way to and from it.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) talk: Talk,
    pub(super) connection: Connection,
    pub(super) life: OnlyRun,
    pub(super) wire: Wire<Sender, Receiver>,
    /// How often it had said that its tools are others when they were listed.
    pub(super) listed: u64,
}

/// By what a session speaks with a server of the pool.
pub(super) type Near = Wire<WriteHalf<DuplexStream>, ReadHalf<DuplexStream>>;

/// A place at a server of the pool, and what is on its way to and from it.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) bridge: Bridge,
    pub(super) connection: Connection,
    pub(super) life: OnlyRun,
    pub(super) wire: Near,
}

impl House {
    /// Waits until everything is to stay as it is.
    pub(super) async fn called_to_rest(&self) {
        match &self.pool {
            Some(pool) => pool.called_to_rest().await,
            None => std::future::pending().await,
        }
    }
}

impl View {
    /// Leaves this where others find it until nothing has to rest any more.
    pub(super) async fn rest(&self, house: &House, what: Rested) -> Option<Resting> {
        *self.resting() = Some(what);
        if let Some(pool) = &house.pool {
            pool.lie_down().await;
        }
        self.resting().take().map(|rested| rested.what)
    }
}

/// The conversation's task. It ends with whoever holds this.
pub(super) struct Conversation<I, O> {
    task: JoinHandle<Option<(OnlyRun, Wire<I, O>)>>,
    halt: Arc<Notify>,
    over: bool,
}

impl<I, O> Conversation<I, O>
where
    I: AsyncWrite + Send + Unpin + 'static,
    O: AsyncRead + Send + Unpin + 'static,
{
    pub(super) fn of(life: OnlyRun, mut wire: Wire<I, O>) -> Conversation<I, O> {
        let halt = Arc::new(Notify::new());
        let halted = halt.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                biased;
                _ended = life.go_on(&mut wire) => {}
                () = halted.notified() => return Some((life, wire)),
            }
            life.end(wire);
            None
        });
        Conversation { task, halt, over: false }
    }

    /// Waits until it is over.
    pub(super) async fn ended(&mut self) {
        if !self.over {
            // It is not halted meanwhile.
            let _ended = (&mut self.task).await;
            self.over = true;
        }
    }

    /// Stops it where it is, so that it can go on; nothing if it is over.
    pub(super) async fn halt(&mut self) -> Option<(OnlyRun, Wire<I, O>)> {
        if self.over {
            return None;
        }
        self.halt.notify_one();
        let halted = (&mut self.task).await;
        self.over = true;
        halted.ok().flatten()
    }
}

impl<I, O> Drop for Conversation<I, O> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
