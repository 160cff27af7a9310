//! macOS: a session, events of exits, and looking for who is there. Type-checked, never run.
//!
//! There is no subreaper and nothing like a cgroup: a process that leaves its session, its parent and
//! its environment is not found again. So the guarantee is weaker than elsewhere, and its name in the
//! receipt, `session`, says so.

pub(crate) mod guardian;
pub(crate) mod process;
pub(crate) mod tree;
mod watch;

/// What holds a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// A session of its own, parentage while it lasts, and a mark in the environment.
    Session,
}

impl Backend {
    /// Its name in receipts and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Session => "session",
        }
    }

    /// The backend with this name.
    pub fn named(name: &str) -> Option<Backend> {
        (name == Backend::Session.name()).then_some(Backend::Session)
    }
}
