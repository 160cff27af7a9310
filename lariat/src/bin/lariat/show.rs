//! What a person reads: errors and tables. The only file that writes to the terminal, apart from
//! the demo's stage.

#[cfg(unix)]
#[path = "show/unix.rs"]
mod voice;
#[cfg(windows)]
#[path = "show/windows.rs"]
mod voice;

use lariat::receipt::Survivor;
use std::error::Error;
use std::fmt::Display;
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
    voice::say(&(text + "\n"));
}

/// Says what is worth knowing although nothing failed, and what to do about it.
pub(crate) fn note(what: &str, advice: &str) {
    voice::say(&format!("lariat: note: {what}\n  {advice}\n"));
}

/// Says who is left, and why.
pub(crate) fn survivor(survivor: &Survivor) {
    let what = plain(&format!("{survivor} survived: {}", survivor.why));
    failure(&what, None, "`lariat ps` tries again, and says who is left");
}

/// Prints help or a usage error; gives the exit code.
pub(crate) fn usage(error: &clap::Error) -> u8 {
    // If nobody reads it there is nobody to tell; the exit code still says it.
    let _closed = error.print();
    let wraps = std::env::args_os().nth(1).is_some_and(|verb| verb == "run");
    match (error.use_stderr(), wraps) {
        (false, _) => 0,
        // A wrapper's own failures must not look like the server's.
        (true, true) => 125,
        (true, false) => 2,
    }
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

/// So many of them, as people write it: `1 process`, `2 processes`.
pub(crate) fn count<N: Display + PartialEq + From<u8>>(n: N, what: &str) -> String {
    let end = match (n == N::from(1), what.ends_with('s')) {
        (true, _) => "",
        (false, true) => "es",
        (false, false) => "s",
    };
    format!("{n} {what}{end}")
}

/// Somebody else's text without control characters: a name must not move the cursor, nor turn around
/// what is written beside it.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if is_unruly(c) { '?' } else { c }).collect()
}

/// True if a character does something to the text around it instead of being part of it.
pub(crate) fn is_unruly(c: char) -> bool {
    let turns = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_one_and_more_are_more() {
        assert_eq!(count(1_usize, "server"), "1 server");
        assert_eq!([0_u32, 2].map(|n| count(n, "server")), ["0 servers", "2 servers"]);
        assert_eq!([1_u64, 2].map(|n| count(n, "process")), ["1 process", "2 processes"]);
    }

    #[test]
    fn a_name_neither_moves_the_cursor_nor_turns_text_around() {
        let evil = "a\u{1b}[2Jb\u{9b}c\u{202e}d\u{2066}e\u{200f}f\u{61c}g";
        assert_eq!(plain(evil), "a?[2Jb?c?d?e?f?g");
        // What people write stays, also from right to left.
        assert_eq!(plain("naïve — שלום 服务"), "naïve — שלום 服务");
    }
}
