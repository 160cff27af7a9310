//! Which revisions of the protocol we speak.

/// The newest revision of each era that we speak.
pub(crate) const LEGACY: &str = "2025-11-25";
pub(crate) const MODERN: &str = "2026-07-28";

/// More pages than this is a server that never ends its list.
pub(crate) const PAGES: usize = 1000;
