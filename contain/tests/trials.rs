//! The table against the library: an owner that embeds it and closes, drops, panics or is killed.

#[cfg(target_os = "linux")]
#[path = "trials/linux.rs"]
mod table;
#[cfg(target_os = "macos")]
#[path = "trials/macos.rs"]
mod table;
#[cfg(windows)]
#[path = "trials/windows.rs"]
mod table;

fn main() {
    table::main();
}
