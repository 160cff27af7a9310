//! What a person reads, on Windows. The only file here that writes to the terminal.

use std::error::Error;
use std::io::Write;

/// Says what failed, why, and what to do about it.
pub(super) fn failure(what: &str, cause: Option<&dyn Error>, advice: &str) {
    let mut text = format!("lariat: {what}");
    let mut cause = cause;
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    if !advice.is_empty() {
        text.push_str(&format!("\n  {advice}"));
    }
    // If stderr is closed there is nobody to tell; the exit code still says it.
    let _closed = writeln!(std::io::stderr(), "{text}");
}

/// Prints help or a usage error.
pub(super) fn usage(error: &clap::Error) {
    // As above.
    let _closed = error.print();
}

/// Writes text to stdout. False if nobody reads it.
pub(super) fn out(text: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}

/// Somebody else's text without control characters: a name must not move the cursor.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
