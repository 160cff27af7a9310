//! Which backend is wanted.

use crate::sys::Backend;

/// What a user asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The best this machine allows without changing the server's world.
    Auto,
    /// This one or an error.
    Named(Backend),
}
