//! Speaking MCP over two byte streams, on macOS: what the probe asks a server, and no more yet.

mod client;
mod revision;

pub use client::{Client, Error, Offer, Wire};
use revision::{LEGACY, MODERN, PAGES};
