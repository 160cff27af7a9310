//! Windows: the mechanisms, a file each.
//!
//! There is no guardian. The owner holds the handle of the job, the kernel holds its members, and
//! the handle closing (also because the owner was killed) is what ends them.

pub(crate) mod bell;
mod console;
pub(crate) mod interrupt;
mod job;
pub(crate) mod launch;
pub(crate) mod machine;
pub(crate) mod mark;
pub(crate) mod member;
pub(crate) mod pipe;
pub(crate) mod roll;
pub(crate) mod stream;
pub(crate) mod tree;
pub(crate) mod vigil;

/// What holds a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// A job object that ends its members when its last handle closes.
    Job,
}

impl Backend {
    /// Its name in receipts and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Job => "job",
        }
    }

    /// The backend with this name.
    pub fn named(name: &str) -> Option<Backend> {
        (name == Backend::Job.name()).then_some(Backend::Job)
    }

    /// What it may miss, for whoever reads a receipt: nothing here.
    pub fn shortfall(self) -> Option<&'static str> {
        None
    }
}
