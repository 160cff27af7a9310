//! Which backend this machine allows, and what that backend guarantees, in words.

use super::cgroup::Leaf;
use super::mark::Mark;
use super::procfs;
use crate::choice::Choice;
use crate::limits::Enforced;
use crate::sys::Backend;
use std::path::PathBuf;

/// What was chosen and why.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The backend to use.
    pub backend: Backend,
    /// Where the leaf goes, for the `cgroup` backend.
    pub leaf: Option<PathBuf>,
    /// Why a better one is not in use, if that is so.
    pub why_not_better: Option<String>,
    /// What the backend guarantees.
    pub guarantee: &'static str,
}

impl Machine {
    /// Which limits the kernel itself would hold a tree to. The others are watched from outside.
    pub fn limits(&self) -> Enforced {
        self.leaf.as_deref().map(Leaf::would_limit).unwrap_or_default()
    }
}

/// Looks at this machine and chooses.
pub fn probe(choice: Choice, mark: Mark) -> Result<Machine, crate::Error> {
    procfs::check().map_err(|e| crate::Error::Spawn(crate::SpawnStage::Proc, e))?;
    let planned = match choice {
        Choice::Auto | Choice::Named(Backend::Cgroup) => Leaf::plan(mark),
        Choice::Named(_) => Err("not asked for".into()),
    };
    let (backend, leaf, why_not_better) = match (choice, planned) {
        (Choice::Named(Backend::Cgroup), Err(why)) => {
            return Err(crate::Error::Backend("cgroup", why));
        }
        (Choice::Auto | Choice::Named(Backend::Cgroup), Ok(leaf)) => {
            (Backend::Cgroup, Some(leaf), None)
        }
        (Choice::Auto, Err(why)) => (Backend::Descent, None, Some(why)),
        (Choice::Named(backend), _) => (backend, None, None),
    };
    Ok(Machine { backend, leaf, why_not_better, guarantee: guarantee(backend) })
}

fn guarantee(backend: Backend) -> &'static str {
    match backend {
        Backend::Cgroup => {
            "every process the server starts is in a cgroup of its own; the kernel kills it whole"
        }
        Backend::Descent => {
            "every process the server starts is found by descent while the wrapper or its guardian \
             lives; if both are killed at once, the next lariat command finishes the work"
        }
        Backend::Pidns => {
            "the kernel ends every process the server starts, even if all of Lariat is killed at \
             once; the server sees other pids and another /proc"
        }
    }
}
