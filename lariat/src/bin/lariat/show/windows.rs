//! Words on stderr.

use std::io::Write;

pub(super) fn say(text: &str) {
    // If stderr is closed there is nobody to tell; the exit code still says it.
    let _closed = std::io::stderr().write_all(text.as_bytes());
}
