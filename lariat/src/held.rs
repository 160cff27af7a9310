//! Proof that what a session held is gone.

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

impl From<Emptied> for Gone {
    fn from(_proof: Emptied) -> Gone {
        Gone { _observed: () }
    }
}
