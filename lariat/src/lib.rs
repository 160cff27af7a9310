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
//! has which module is decided here and at the head of a module, never inside a function. Windows has no
//! containers, and needs no `held`: the kernel keeps the job. macOS has what `run`, `probe`, `ps` and
//! `doctor` need. Where a platform does the same in another way there is a file `windows.rs` or `macos.rs`;
//! what those two share and Linux does not have is called `lean`.
#![cfg(any(target_os = "linux", target_os = "macos", windows))]
#![forbid(unsafe_code)]

pub mod duration;
pub mod id;
pub mod moment;
pub mod receipt;

// Linux and Windows.
#[cfg(any(target_os = "linux", windows))]
mod bytes;
#[cfg(all(test, any(target_os = "linux", windows)))]
mod dice;
#[cfg(any(target_os = "linux", windows))]
pub mod mcp;
#[cfg(any(target_os = "linux", windows))]
pub mod pool;
#[cfg(any(target_os = "linux", windows))]
pub mod session;
#[cfg(any(target_os = "linux", windows))]
pub mod snapshot;
#[cfg(any(target_os = "linux", windows))]
pub mod spec;

// Linux and macOS.
#[cfg(any(target_os = "linux", target_os = "macos"))]
pub mod journal;

// Linux.
#[cfg(target_os = "linux")]
pub mod books;
#[cfg(all(target_os = "linux", feature = "cli"))]
pub mod daemon;
#[cfg(target_os = "linux")]
pub mod docker;
#[cfg(target_os = "linux")]
pub mod held;
#[cfg(target_os = "linux")]
mod holder;
#[cfg(target_os = "linux")]
pub mod probe;
#[cfg(target_os = "linux")]
pub mod relay;
#[cfg(target_os = "linux")]
pub mod start;

// Windows.
#[cfg(all(windows, feature = "cli"))]
#[path = "daemon/windows.rs"]
pub mod daemon;
#[cfg(windows)]
#[path = "docker/windows.rs"]
pub mod docker;
#[cfg(windows)]
#[path = "holder/windows.rs"]
mod holder;
#[cfg(windows)]
#[path = "journal/windows.rs"]
pub mod journal;
#[cfg(windows)]
#[path = "relay/windows.rs"]
pub mod relay;
#[cfg(windows)]
#[path = "start/windows.rs"]
pub mod start;

// macOS.
#[cfg(target_os = "macos")]
#[path = "holder/macos.rs"]
mod holder;
#[cfg(target_os = "macos")]
#[path = "mcp/macos.rs"]
pub mod mcp;
#[cfg(target_os = "macos")]
#[path = "relay/macos.rs"]
pub mod relay;
#[cfg(target_os = "macos")]
#[path = "start/macos.rs"]
pub mod start;

// Windows and macOS.
#[cfg(any(target_os = "macos", windows))]
#[path = "books/lean.rs"]
pub mod books;
#[cfg(any(target_os = "macos", windows))]
#[path = "probe/lean.rs"]
pub mod probe;

// The same file on Linux, for its tests alone.
#[cfg(all(test, target_os = "linux"))]
#[path = "books/lean.rs"]
pub mod lean_books;

pub use contain;
pub use holder::main_if_asked;
#[cfg(all(feature = "rmcp", any(target_os = "linux", windows)))]
pub use rmcp;
