//! Proof that what a session held is gone.

use crate::docker::sweep::Removed;
use contain::Emptied;

/// Everything a session held was observed gone. The books are struck only with one.
///
/// ```compile_fail
/// let forged = lariat::held::Gone { _observed: () };
/// ```
#[derive(Debug)]
#[must_use = "strike the books with it"]
pub struct Gone {
    _observed: (),
}

impl Gone {
    /// The processes are gone, and so is what they started in an engine.
    pub fn proven(_processes: Emptied, _containers: Removed) -> Gone {
        Gone { _observed: () }
    }
}
