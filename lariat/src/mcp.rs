//! Speaking MCP over two byte streams. Knows streams, not processes.
//!
//! Two eras: *legacy* (up to 2025-11-25: `initialize`, then a stateful conversation) and *modern*
//! (2026-07-28: no handshake, everything in each request's `_meta`).
//!
//! [`Connection`] is a conversation that lasts: our own requests and any number of attached clients
//! share one server. What they say goes through byte for byte, except for the few tokens by which
//! answers find their way back. [`Client`] is a small client that waits; it asks what a server
//! offers and goes.
//!
//! ```text
//! frame, envelope, reply < mux   lines, what they say, and who gets them (all pure)
//! queue < connection             streams, room and waiting
//! lookout, outline < conversation  what is open between a host and a server that we only overhear
//! client                         the probe
//! ```

mod client;
pub mod connection;
#[cfg(target_os = "linux")]
pub(crate) mod conversation;
#[cfg_attr(
    all(windows, not(feature = "cli")),
    expect(dead_code, reason = "part of it is for the daemon")
)]
pub(crate) mod envelope;
#[cfg_attr(windows, expect(dead_code, reason = "part of it is for what only Linux has"))]
mod frame;
#[cfg(target_os = "linux")]
pub(crate) mod lookout;
mod mux;
#[cfg(target_os = "linux")]
mod outline;
#[cfg_attr(windows, expect(dead_code, reason = "part of it is for what only Linux has"))]
mod queue;
pub(crate) mod reply;
mod revision;

pub use client::{Client, Error, Offer, Wire};
pub use connection::{Connection, Hello, Rules};
pub(crate) use frame::Frames;
pub(crate) use mux::Company;
#[cfg(all(target_os = "linux", feature = "cli"))]
pub(crate) use mux::{Port, hazard};
pub(crate) use reply::refusal;
pub(crate) use revision::{LEGACY, MODERN, PAGES};
