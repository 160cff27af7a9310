//! Lariat ties every MCP server to the session that started it.
//!
//! When the session ends, for whatever reason, the server's whole process tree is gone, nothing
//! else was touched, and there is a receipt. This crate is the library behind the `lariat` command;
//! process trees themselves are held by [`contain`]. Authors of hosts begin with [`session::Manager`].
//!
//! The modules form layers, each naming only those below it (checked by `tests/house.rs`):
//!
//! ```text
//! serve   relay, probe < holder < daemon
//! share   pool < session
//! speak   mcp
//! start   start
//! own     docker, journal < held < books
//! words   bytes, duration, id, moment, receipt, spec, snapshot
//! ```
//!
//! The library prints nothing and reads no environment variable; the binary does both.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

pub mod books;
mod bytes;
#[cfg(feature = "cli")]
pub mod daemon;
#[cfg(test)]
mod dice;
pub mod docker;
pub mod duration;
pub mod held;
mod holder;
pub mod id;
pub mod journal;
pub mod mcp;
pub mod moment;
pub mod pool;
pub mod probe;
pub mod receipt;
pub mod relay;
pub mod session;
pub mod snapshot;
pub mod spec;
pub mod start;

pub use contain;
pub use holder::main_if_asked;
#[cfg(feature = "rmcp")]
pub use rmcp;
