//! Picks the platform. Each names its backends, and provides what its tree is made of.
//!
//! Linux: `procfs` (who is there), `descent` (who is below us), `mark` (who carries our mark),
//! `cgroup` and `pidns` (what the kernel holds for us), `launch` (the one fork), and `signals`.
//! Windows: `job` (what the kernel holds for us), `launch`, `console`, and the tree itself, which
//! needs no guardian there. macOS: `process` (who is there), `watch`, a guardian and a tree of its own.

#[cfg(target_os = "linux")]
pub(crate) mod linux;
#[cfg(target_os = "macos")]
pub(crate) mod macos;
#[cfg(windows)]
pub(crate) mod windows;

#[cfg(target_os = "linux")]
pub(crate) use linux::{
    cgroup, descent, inherited, launch, mark, pidns, procfs, signals, socket, text, wait,
};

#[cfg(target_os = "linux")]
pub use linux::Backend;
#[cfg(target_os = "macos")]
pub use macos::Backend;
#[cfg(windows)]
pub use windows::Backend;
