//! Picks the platform. Each names its backends, and provides what its tree is made of.
//!
//! Linux: `procfs` (who is there), `descent` (who is below us), `mark` (who carries our mark),
//! `cgroup` and `pidns` (what the kernel holds for us), `launch` (the one fork), and `signals`.
//! Windows: `job` (what the kernel holds for us), `launch`, `console`, and the tree itself, which
//! needs no guardian there; `pipe` and `vigil` for who serves one user's programs and ends with them.
//! macOS: `process` (who is there), `events` (who forks and leaves), `mark`, and a guardian that
//! makes the best of them; `vigil` for what else a wrapper hears. Waiting is the same wherever there is
//! `poll`, and signals have the same names.

#[cfg(target_os = "linux")]
pub(crate) mod linux;
#[cfg(target_os = "macos")]
pub(crate) mod macos;
#[cfg(any(target_os = "linux", target_os = "macos"))]
pub(crate) mod named;
#[cfg(any(target_os = "linux", target_os = "macos"))]
pub(crate) mod wait;
#[cfg(windows)]
pub(crate) mod windows;

#[cfg(target_os = "linux")]
pub(crate) use linux::{
    cgroup, descent, inherited, launch, mark, pidns, procfs, signals, socket, text, waits,
};

#[cfg(target_os = "linux")]
pub use linux::Backend;
#[cfg(target_os = "macos")]
pub use macos::Backend;
#[cfg(windows)]
pub use windows::Backend;
