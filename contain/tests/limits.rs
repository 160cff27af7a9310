//! Trees that want more than they may have. Only Linux holds them to it so far.
#![cfg_attr(
    target_os = "linux",
    expect(clippy::print_stderr, reason = "a test runner says what it skips")
)]

#[cfg(target_os = "linux")]
#[path = "limits/linux.rs"]
mod table;

#[cfg(not(target_os = "linux"))]
mod table {
    pub(crate) fn main() {}
}

fn main() -> impl std::process::Termination {
    table::main()
}
