//! Speaking MCP over two byte streams, on Windows: only the small client that waits, so far.

mod client;
mod revision;

pub use client::{Client, Error, Offer, Wire};
pub(crate) use revision::{LEGACY, MODERN, PAGES};
