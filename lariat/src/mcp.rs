//! Speaking MCP over two byte streams. Knows streams, not processes.
//!
//! Two eras: *legacy* (up to 2025-11-25: `initialize`, then a stateful conversation) and *modern*
//! (2026-07-28: no handshake, everything in each request's `_meta`). [`Client`] is a small client
//! that waits; it asks what a server offers and goes.

mod client;
mod frame;

pub use client::{Client, Error, Offer};
