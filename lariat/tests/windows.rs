//! `lariat run` on Windows: the table against the real binary, and its bytes.

#[cfg(windows)]
#[path = "windows/table.rs"]
mod table;

#[cfg(not(windows))]
mod table {
    pub(crate) fn main() {}
}

fn main() {
    table::main();
}
