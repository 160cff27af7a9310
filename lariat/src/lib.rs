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
//! The library prints nothing and reads no environment variable; the binary does both. Which platform
//! has which of them is decided here: on Windows there are the words, and `journal`, `books`, `mcp`,
//! `probe` and `relay` of its own.
#![cfg(any(target_os = "linux", windows))]
#![forbid(unsafe_code)]

pub mod duration;
pub mod id;
pub mod moment;
pub mod receipt;

#[cfg(target_os = "linux")]
pub mod books;
#[cfg(target_os = "linux")]
mod bytes;
#[cfg(all(target_os = "linux", feature = "cli"))]
pub mod daemon;
#[cfg(all(target_os = "linux", test))]
mod dice;
#[cfg(target_os = "linux")]
pub mod docker;
#[cfg(target_os = "linux")]
pub mod held;
#[cfg(target_os = "linux")]
mod holder;
#[cfg(target_os = "linux")]
pub mod journal;
#[cfg(target_os = "linux")]
pub mod mcp;
#[cfg(target_os = "linux")]
pub mod pool;
#[cfg(target_os = "linux")]
pub mod probe;
#[cfg(target_os = "linux")]
pub mod relay;
#[cfg(target_os = "linux")]
pub mod session;
#[cfg(target_os = "linux")]
pub mod snapshot;
#[cfg(target_os = "linux")]
pub mod spec;
#[cfg(target_os = "linux")]
pub mod start;

#[cfg(windows)]
#[path = "books/windows.rs"]
pub mod books;
#[cfg(windows)]
#[path = "journal/windows.rs"]
pub mod journal;
#[cfg(windows)]
#[path = "mcp/windows.rs"]
pub mod mcp;
#[cfg(windows)]
#[path = "probe/windows.rs"]
pub mod probe;
#[cfg(windows)]
#[path = "relay/windows.rs"]
pub mod relay;

pub use contain;
#[cfg(target_os = "linux")]
pub use holder::main_if_asked;
#[cfg(all(target_os = "linux", feature = "rmcp"))]
pub use rmcp;
