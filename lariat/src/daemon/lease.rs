//! What a session's life hangs on: a process, a connection, or both.
//!
//! Nothing is renewed and nothing expires. The kernel says when a process or a connection ends,
//! however it ends, and that is the end of the session.

use super::api;
use contain::Member;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedSemaphorePermit, watch};

/// How often to look at a process for which there is no descriptor.
const LOOK: Duration = Duration::from_millis(250);

/// One connection, as long as it is open. It is open as long as somebody holds this.
#[derive(Debug)]
pub(super) struct Line {
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
        Line { peer, open: watch::Sender::new(()), permit: Some(permit), changed }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        drop(self.permit.take());
        self.changed.notify_one();
    }
}

/// A process whose end can be waited for.
#[derive(Debug)]
pub(super) struct Watched {
    member: Member,
    /// Absent where the kernel has none to give; then the process is looked at now and then.
    pidfd: Option<AsyncFd<OwnedFd>>,
}

impl Watched {
    /// This very process, if it lives.
    pub(super) fn of(member: Member) -> Option<Watched> {
        // The descriptor first: one that was opened for a dead process says so when it is waited for.
        #[expect(
            deprecated,
            reason = "its successor wants a promise that this crate forbids itself to give in writing: \
                      that the descriptor stays open. An OwnedFd keeps it by being one"
        )]
        let pidfd = member.pidfd().and_then(|fd| AsyncFd::new(fd).ok());
        member.is_alive().then_some(Watched { member, pidfd })
    }

    /// Returns when it has ended.
    async fn ended(&self) {
        if let Some(pidfd) = &self.pidfd
            && pidfd.readable().await.is_ok()
        {
            return;
        }
        while self.member.is_alive() {
            tokio::time::sleep(LOOK).await;
        }
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
        let owner = api::Owner { pid, command: contain::process::name(pid), lease };
        let connection = by_connection.then(|| line.open.subscribe());
        Ok(Lease { owner, member, process, connection })
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
mod tests;
