//! Picks the platform. Each names its backends, and provides what its tree is made of.
//!
//! Linux and macOS: a guardian, and what it finds and ends its tree with. Windows: a job object, which needs no
//! guardian. Each platform's own page has the index of its files. Waiting is the same wherever there is `poll`, and
//! signals have the same names.

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
pub use linux::Backend;
#[cfg(target_os = "macos")]
pub use macos::Backend;
#[cfg(windows)]
pub use windows::Backend;
