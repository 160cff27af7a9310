//! What a session's life hangs on: a process, a connection, or both.
//!
//! Nothing is renewed and nothing expires. The kernel says when a process or a connection ends,
//! however it ends, and that is the end of the session.

#[cfg(target_os = "linux")]
pub(super) mod carried;
#[cfg(windows)]
#[path = "windows/kept.rs"]
pub(super) mod carried;
#[cfg(target_os = "linux")]
mod process;
#[cfg(windows)]
#[path = "windows/process.rs"]
mod process;

use super::api;
use contain::Member;
use process::Watched;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{OwnedSemaphorePermit, watch};

/// The number of the next connection.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// One connection, as long as it is open. It is open as long as somebody holds this.
#[derive(Debug)]
pub(super) struct Line {
    /// By which the program knows it that this process becomes.
    pub(super) number: u64,
    /// Who was at the other end when it was made.
    pub(super) peer: Option<Member>,
    /// Dropped with the line, which is what the sessions that hang on it wait for.
    open: watch::Sender<()>,
    /// One of the connections that there may be.
    permit: Option<OwnedSemaphorePermit>,
    /// Told when it is free again.
    changed: Arc<tokio::sync::Notify>,
}

impl Line {
    pub(super) fn new(
        peer: Option<Member>,
        permit: OwnedSemaphorePermit,
        changed: Arc<tokio::sync::Notify>,
    ) -> Line {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Line::numbered(number, peer, permit, changed)
    }

    fn numbered(
        number: u64,
        peer: Option<Member>,
        permit: OwnedSemaphorePermit,
        changed: Arc<tokio::sync::Notify>,
    ) -> Line {
        Line { number, peer, open: watch::Sender::new(()), permit: Some(permit), changed }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        drop(self.permit.take());
        self.changed.notify_one();
    }
}

/// What a session hangs on.
#[derive(Debug)]
pub(super) struct Lease {
    /// What is said about it.
    pub(super) owner: api::Owner,
    /// Who that is.
    pub(super) member: Option<Member>,
    process: Option<Watched>,
    connection: Option<watch::Receiver<()>>,
    /// The number of that connection.
    #[cfg_attr(windows, expect(dead_code, reason = "only on Linux a daemon becomes the next"))]
    line: Option<u64>,
}

/// Why there is no lease.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unowned {
    /// There is no such process.
    Nobody(i32),
    /// Who is at the other end cannot be seen from here.
    Unseen,
}

impl Lease {
    /// By the process that was named; by the connection, if that was wished; by both; else by the
    /// process at the other end, so that there is always something that ends the session.
    pub(super) fn new(
        line: &Line,
        owner_pid: Option<i32>,
        by_connection: bool,
    ) -> Result<Lease, Unowned> {
        let member = match (owner_pid, line.peer) {
            (Some(pid), _) => Some(Member::of(pid).ok_or(Unowned::Nobody(pid))?),
            (None, peer) => peer,
        };
        let process = match member {
            Some(_) if owner_pid.is_none() && by_connection => None,
            Some(member) => Some(Watched::of(member).ok_or(Unowned::Nobody(member.pid))?),
            None if by_connection => None,
            None => return Err(Unowned::Unseen),
        };
        let pid = member.map_or(0, |member| member.pid);
        let lease = if by_connection { api::Lease::Connection } else { api::Lease::Process };
        let owner = api::Owner { pid, command: process::name(member), lease };
        let connection = by_connection.then(|| line.open.subscribe());
        let line = by_connection.then_some(line.number);
        Ok(Lease { owner, member, process, connection, line })
    }

    /// Returns when the first of what the session hangs on has ended; says which.
    pub(super) async fn ended(&mut self) -> String {
        let api::Owner { pid, command, .. } = &self.owner;
        let process = async {
            match &self.process {
                Some(process) => process.ended().await,
                None => std::future::pending().await,
            }
        };
        let connection = async {
            match &mut self.connection {
                // Nothing is ever sent: it changes only by being dropped.
                Some(open) => while open.changed().await.is_ok() {},
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = process => format!("its owner, process {pid} ({command}), has ended"),
            () = connection => "the connection that it was opened by has ended".into(),
        }
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
