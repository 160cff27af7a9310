//! Linux: who holds a tree, and by which mechanisms, a file each.
//!
//! `tree`, `holder` and `hold` are on the owner's side (with `aside` for its helpers), `guardian` and `guard` on
//! the other. What they use: `procfs` (who is there), `descent` (who is below us), `mark` (who carries our mark),
//! `cgroup`, `bounds` and `pidns` (what the kernel holds for us), `launch` (the one fork), `inherited` (descriptors),
//! `environ`, `signals`, `socket`, `member` and `report` (what only Linux can say of those). For others: `probe` (what
//! this machine allows), `gauge` and `waits` (to measure), `stranger` (to end what is not ours), `text` (to give memory
//! back).

pub(crate) mod aside;
mod bounds;
pub(crate) mod cgroup;
pub(crate) mod descent;
pub(crate) mod environ;
pub(crate) mod gauge;
pub(crate) mod guard;
pub(crate) mod guardian;
pub(crate) mod hold;
pub(crate) mod holder;
pub(crate) mod inherited;
pub(crate) mod launch;
pub(crate) mod mark;
mod member;
pub(crate) mod pidns;
pub(crate) mod probe;
pub(crate) mod procfs;
mod report;
pub(crate) mod signals;
pub(crate) mod socket;
pub(crate) mod stranger;
pub(crate) mod text;
pub(crate) mod tree;
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
