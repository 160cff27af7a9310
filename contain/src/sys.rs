//! Picks the platform and names the backends.
//!
//! A platform provides: `procfs` (who is there), `descent` (who is below us), `mark` (who carries
//! our mark), `cgroup` and `pidns` (what the kernel holds for us), `launch` (the one fork), and
//! `signals`.

pub(crate) mod linux;

pub(crate) use linux::{
    cgroup, descent, inherited, launch, mark, pidns, procfs, signals, socket, text, wait,
};

/// What holds a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// A cgroup v2 leaf of its own, plus descent.
    Cgroup,
    /// Subreapers and walking down `/proc`.
    Descent,
    /// A pid namespace whose first process is the guardian.
    Pidns,
}

impl Backend {
    /// Its name in receipts and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Cgroup => "cgroup",
            Backend::Descent => "descent",
            Backend::Pidns => "pidns",
        }
    }

    /// The backend with this name.
    pub fn named(name: &str) -> Option<Backend> {
        [Backend::Cgroup, Backend::Descent, Backend::Pidns].into_iter().find(|b| b.name() == name)
    }
}
