//! A screen full of characters, of which only what has changed is written.

use crate::show;
use std::fmt::Write;

/// How a character looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Tone {
    #[default]
    Plain,
    Bold,
    Dim,
    Good,
    Warn,
    Bad,
    Cool,
    /// The chosen line.
    Chosen,
}

impl Tone {
    /// As terminals are told. Without colour there is still bold, dim and reverse.
    fn code(self, colour: bool) -> &'static str {
        match self {
            Tone::Plain => "\x1b[0m",
            Tone::Bold => "\x1b[0;1m",
            Tone::Dim => "\x1b[0;2m",
            Tone::Chosen => "\x1b[0;7m",
            Tone::Bad if !colour => "\x1b[0;1m",
            _ if !colour => "\x1b[0m",
            Tone::Good => "\x1b[0;32m",
            Tone::Warn => "\x1b[0;33m",
            Tone::Bad => "\x1b[0;1;31m",
            Tone::Cool => "\x1b[0;36m",
        }
    }
}

type Cell = (char, Tone);

/// What is on the screen and what is to be.
pub(super) struct Canvas {
    width: usize,
    height: usize,
    next: Vec<Cell>,
    /// What is there now; nothing if that is not known.
    shown: Vec<Cell>,
    colour: bool,
}

impl Canvas {
    pub(super) fn new((width, height): (usize, usize), colour: bool) -> Canvas {
        let next = vec![(' ', Tone::Plain); width * height];
        Canvas { width, height, next, shown: Vec::new(), colour }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn height(&self) -> usize {
        self.height
    }

    /// Forgets what is on the screen: something else may have drawn there.
    pub(super) fn forget(&mut self) {
        self.shown.clear();
    }

    /// Begins with nothing.
    pub(super) fn clear(&mut self) {
        self.next.fill((' ', Tone::Plain));
    }

    /// Puts text somewhere, cut where the line ends. Returns the column after it.
    pub(super) fn put(&mut self, row: usize, column: usize, tone: Tone, text: &str) -> usize {
        let mut at = column;
        for char in text.chars() {
            if row >= self.height || at >= self.width {
                break;
            }
            self.next[row * self.width + at] = (one_column(char), tone);
            at += 1;
        }
        at
    }

    /// Gives a whole line one tone.
    pub(super) fn tint(&mut self, row: usize, tone: Tone) {
        if row < self.height {
            for cell in &mut self.next[row * self.width..(row + 1) * self.width] {
                cell.1 = tone;
            }
        }
    }

    /// What has to be written so that the screen looks as it should.
    pub(super) fn changes(&mut self) -> String {
        let mut out = String::new();
        if self.shown.len() != self.next.len() {
            out.push_str("\x1b[0m\x1b[2J");
            self.shown = vec![(' ', Tone::Plain); self.next.len()];
        }
        let mut tone = None;
        for row in 0..self.height {
            let mut pen = None;
            for column in 0..self.width {
                let at = row * self.width + column;
                if self.next[at] == self.shown[at] {
                    continue;
                }
                if pen != Some(column) {
                    // A String takes whatever is written to it.
                    let _never = write!(out, "\x1b[{};{}H", row + 1, column + 1);
                }
                let (char, wanted) = self.next[at];
                if tone != Some(wanted) {
                    out.push_str(wanted.code(self.colour));
                    tone = Some(wanted);
                }
                out.push(char);
                pen = Some(column + 1);
            }
        }
        self.shown.clone_from(&self.next);
        out
    }

    /// Writes it. False if nobody is there any more.
    pub(super) fn show(&mut self) -> bool {
        let changes = self.changes();
        changes.is_empty() || show::out(&changes)
    }

    /// The lines as they will be, for tests.
    #[cfg(test)]
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |cells: &[Cell]| cells.iter().map(|(char, _)| char).collect::<String>();
        self.next.chunks(self.width.max(1)).map(|cells| line(cells).trim_end().into()).collect()
    }
}

/// The character, if it is certain that it takes one column and moves nothing.
fn one_column(char: char) -> char {
    match char {
        ' '..='~' | '\u{a1}'..='\u{ac}' | '\u{ae}'..='\u{2ff}' | '\u{370}'..='\u{482}' => char,
        '\u{48a}'..='\u{52f}' | '…' | '\u{2190}'..='\u{21ff}' | '\u{2500}'..='\u{25ff}' => char,
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_changed_is_written() {
        let mut canvas = Canvas::new((10, 3), true);
        canvas.put(1, 2, Tone::Good, "abc");
        let first = canvas.changes();
        assert!(first.contains("\x1b[2J") && first.contains("\x1b[2;3H\x1b[0;32mabc"), "{first:?}");
        assert_eq!(canvas.changes(), "");
        canvas.clear();
        canvas.put(1, 2, Tone::Good, "axc");
        assert_eq!(canvas.changes(), "\x1b[2;4H\x1b[0;32mx");
        canvas.forget();
        assert!(canvas.changes().contains("axc"));
    }

    #[test]
    fn nothing_is_drawn_outside_or_out_of_step() {
        let mut canvas = Canvas::new((4, 1), false);
        assert_eq!(canvas.put(0, 2, Tone::Bad, "long"), 4);
        canvas.put(7, 0, Tone::Bad, "below");
        assert_eq!(canvas.lines(), ["  lo"]);
        canvas.put(0, 0, Tone::Good, "\u{1b}漢e\u{301}");
        assert_eq!(canvas.lines(), ["??e?"]);
        assert!(!canvas.changes().contains("\x1b[0;32m"), "colour though there is to be none");
        Canvas::new((0, 0), true).changes();
    }
}
