//! Work that goes on after its request was answered, and whose it is. Pure.

use super::{Port, kept};
use crate::mcp::envelope::Token;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// What is remembered for one client. The oldest is forgotten first: its client is then told that
/// there is no such task.
const REMEMBERED: usize = 1_000;

#[derive(Debug, Serialize, Deserialize)]
struct Task {
    /// `None` if its client is gone and it may be anybody's.
    port: Option<Port>,
    /// The client's own progress token, which holds until the end.
    token: Option<Token>,
    is_open: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Tasks {
    by_id: HashMap<Arc<str>, Task>,
    by_request: HashMap<u64, Arc<str>>,
    #[serde(with = "kept::pairs")]
    of: BTreeMap<Option<Port>, BTreeSet<u64>>,
    open: usize,
}

impl Tasks {
    /// A request was answered with a task. One that is there already stays whose it is.
    pub(super) fn begin(
        &mut self,
        port: Port,
        own: u64,
        id: &str,
        token: Option<Token>,
        is_open: bool,
    ) {
        if self.by_id.contains_key(id) || self.by_request.contains_key(&own) {
            return;
        }
        let id: Arc<str> = id.into();
        self.by_request.insert(own, Arc::clone(&id));
        self.by_id.insert(id, Task { port: Some(port), token, is_open });
        self.open += usize::from(is_open);
        self.enlist(Some(port), own);
    }

    fn enlist(&mut self, port: Option<Port>, own: u64) {
        let its = self.of.entry(port).or_default();
        its.insert(own);
        if its.len() > REMEMBERED
            && let Some(oldest) = its.pop_first()
        {
            self.forget(oldest);
        }
    }

    fn forget(&mut self, own: u64) {
        let id = self.by_request.remove(&own);
        if id.and_then(|id| self.by_id.remove(&id)).is_some_and(|task| task.is_open) {
            self.open -= 1;
        }
    }

    /// Whose it is. `Some(None)` if it may be anybody's.
    pub(super) fn owner(&self, id: &str) -> Option<Option<Port>> {
        self.by_id.get(id).map(|task| task.port)
    }

    pub(super) fn is_for(&self, id: &str, port: Port) -> bool {
        self.owner(id).is_some_and(|owner| owner.is_none_or(|owner| owner == port))
    }

    /// Whose progress this is, and under which token there.
    pub(super) fn progress(&self, own: u64) -> Option<(Port, &Token)> {
        let task = self.by_id.get(self.by_request.get(&own)?).filter(|task| task.is_open)?;
        task.port.zip(task.token.as_ref())
    }

    /// The server says how far it is.
    pub(super) fn status(&mut self, id: &str, status: &str) {
        if is_end(status) {
            self.finish(id);
        }
    }

    pub(super) fn finish(&mut self, id: &str) {
        if let Some(task) = self.by_id.get_mut(id).filter(|task| task.is_open) {
            task.is_open = false;
            self.open -= 1;
        }
    }

    /// True if none is still going on, as far as we were told.
    pub(super) fn are_done(&self) -> bool {
        self.open == 0
    }

    /// A client is gone. Its tasks go with it, or become anybody's.
    pub(super) fn depart(&mut self, port: Port, keep: bool) {
        for own in self.of.remove(&Some(port)).unwrap_or_default() {
            if !keep {
                self.forget(own);
                continue;
            }
            if let Some(id) = self.by_request.get(&own)
                && let Some(task) = self.by_id.get_mut(id)
            {
                (task.port, task.token) = (None, None);
                self.enlist(None, own);
            }
        }
    }
}

/// True if a task with this status does nothing any more.
pub(super) fn is_end(status: &str) -> bool {
    matches!(status, "completed" | "failed" | "cancelled")
}

/// Who was sent to which page, for when the server says that the visit is over.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Elicitations {
    by_id: HashMap<Arc<str>, Port>,
    order: VecDeque<Arc<str>>,
}

impl Elicitations {
    /// One that is there already stays whose it is. Beyond the bound the oldest is forgotten.
    pub(super) fn begin(&mut self, port: Port, id: &str) {
        if self.by_id.contains_key(id) {
            return;
        }
        let id: Arc<str> = id.into();
        self.by_id.insert(Arc::clone(&id), port);
        self.order.push_back(id);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
    }

    pub(super) fn of(&self, id: &str) -> Option<Port> {
        self.by_id.get(id).copied()
    }
}
