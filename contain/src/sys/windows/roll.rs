//! The trees of this process, for those who only look: by the command that each was started with.

use super::job::Job;
use crate::member::Member;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

static TREES: Mutex<Vec<(Member, Weak<Job>)>> = Mutex::new(Vec::new());

fn trees() -> MutexGuard<'static, Vec<(Member, Weak<Job>)>> {
    // Nothing that is done under this lock can leave it half done.
    let mut trees = TREES.lock().unwrap_or_else(PoisonError::into_inner);
    trees.retain(|(_, job)| job.strong_count() > 0);
    trees
}

/// A tree that is being held from now on, for as long as its owner has it.
pub(super) fn enter(leader: Member, job: &Arc<Job>) {
    trees().push((leader, Arc::downgrade(job)));
}

/// Everyone in the tree that this process was started with, if this process holds that tree. The
/// number is the leader's as long as the tree is held, also if the leader has left.
pub fn below(leader: i32) -> Vec<Member> {
    let held = trees().iter().find(|(of, _)| of.pid == leader).and_then(|(_, job)| job.upgrade());
    held.and_then(|job| job.members().ok()).unwrap_or_default()
}
