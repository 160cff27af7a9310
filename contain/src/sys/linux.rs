//! Linux: the mechanisms, a file each.

mod bounds;
pub(crate) mod cgroup;
pub(crate) mod descent;
pub(crate) mod environ;
pub(crate) mod inherited;
pub(crate) mod launch;
pub(crate) mod mark;
mod member;
pub(crate) mod pidns;
pub(crate) mod procfs;
mod report;
pub(crate) mod signals;
pub(crate) mod socket;
pub(crate) mod text;
pub(crate) mod waits;

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

    /// What it may miss, for whoever reads a receipt: nothing here.
    pub fn shortfall(self) -> Option<&'static str> {
        None
    }
}
