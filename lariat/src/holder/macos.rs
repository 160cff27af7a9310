//! The holder on macOS, which is the guardian itself.

/// Becomes a guardian if the command line says so, and then never returns. Call it first thing in `main`,
/// before there is any thread.
pub fn main_if_asked() {
    contain::main_if_asked();
}
