//! macOS: the mechanisms, a file each.
//!
//! The kernel offers neither subreapers nor anything that holds processes whole. What there is:
//! sessions, a list of all processes, word of forks and exits, and the environment that a process
//! was started with. `docs/design/containment.md` says what that is worth.

mod events;
mod guard;
pub(crate) mod guardian;
mod herd;
pub(crate) mod mark;
pub(crate) mod probe;
pub(crate) mod process;
mod socket;
pub(crate) mod tree;
pub(crate) mod vigil;

/// What holds a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// A session of its own, descent, and a mark in the environment.
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

    /// What it may miss, for whoever reads a receipt.
    pub fn shortfall(self) -> Option<&'static str> {
        Some(self.guarantee())
    }

    /// What it holds and what it does not.
    pub fn guarantee(self) -> &'static str {
        match self {
            Backend::Session => {
                "every process that stays in the server's session or below a process of it is \
                 found; one that leaves both before it is seen is found by its environment, \
                 unless it cleared that or is a program of the system; one that was not found \
                 is not in the receipt"
            }
        }
    }
}
