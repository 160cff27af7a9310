//! What `lease/carried.rs` is on Linux. A daemon on Windows never becomes the next program, so nothing is kept.

use super::Lease;

/// Nothing.
#[derive(Debug)]
pub(in crate::daemon) struct Kept;

impl Lease {
    /// For the next program.
    pub(in crate::daemon) fn carry(&self) -> Kept {
        Kept
    }
}
