//! What a person reads: errors and tables. The only file that writes to the terminal, apart from
//! the demo's stage.

use std::error::Error;
use std::io::{IsTerminal, Write};

/// Says what failed, why, and what to do about it.
pub(crate) fn failure(what: &str, cause: Option<&dyn Error>, advice: &str) {
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
pub(crate) fn usage(error: &clap::Error) {
    // As above.
    let _closed = error.print();
}

/// Writes text to stdout. False if nobody reads it.
pub(crate) fn out(text: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}

/// Writes bytes to stdout as they are. False if nobody reads them.
pub(crate) fn raw(bytes: &[u8]) -> bool {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).is_ok()
}

/// True if a person reads what is written.
pub(crate) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// True if what is written to stdout may have colours.
pub(crate) fn colours() -> bool {
    std::io::stdout().is_terminal() && crate::env::wants_colour()
}

/// Asks a person, who has to say yes. Nothing if there is nobody to ask.
pub(crate) fn ask(question: &str) -> Option<bool> {
    let (stdin, mut stderr) = (std::io::stdin(), std::io::stderr());
    if !stdin.is_terminal() || !stderr.is_terminal() {
        return None;
    }
    write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush()).ok()?;
    let mut answer = String::new();
    stdin.read_line(&mut answer).ok()?;
    Some(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// Writes a line of progress to stderr if a person is watching.
pub(crate) fn progress(text: &str) {
    let mut stderr = std::io::stderr().lock();
    if stderr.is_terminal() {
        // Cosmetic: the next line overwrites this one.
        let _closed = write!(stderr, "\r\x1b[2K{text}").and_then(|()| stderr.flush());
    }
}

/// A size as people read it.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{} KiB", n / 1024),
        _ => format!("{:.1} MiB", n as f64 / 1_048_576.0),
    }
}

/// `1 server`, `2 servers`, `2 processes`.
pub(crate) fn count(n: usize, what: &str) -> String {
    let ending = match (n, what.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{n} {what}{ending}")
}

/// Somebody else's text without control characters: a name must not move the cursor.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
