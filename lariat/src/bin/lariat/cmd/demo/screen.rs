//! What a person sees of the demo: rows redrawn in place on a terminal, plain lines anywhere else.
//!
//! There is no alternate screen and no hidden cursor: what was drawn last stays in the scrollback,
//! and there is nothing to restore when the demo is interrupted. Each frame is one write, for the
//! same reason. Colour follows `NO_COLOR`; rows are cut to the terminal's width, so none wraps.

use crate::env;
use std::io::{self, IsTerminal, Write};
use std::iter;
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

use super::chart::Row;

/// Columns before the chart: an indent and the label.
const LABEL: usize = 10;

/// Columns after the chart: a gap and the text.
const TEXT: usize = 40;

/// The widest line of prose.
const PROSE: usize = 80;

/// Below this width there is no room for a chart.
const NARROW: usize = 60;

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 9] = [' ', '.', '.', ':', ':', '|', '|', '#', '#'];

const PLAIN: &str = "\x1b[0m";
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";

/// What a row of a table is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    /// The names of the columns.
    Head,
    /// Good news.
    Good,
    /// Bad news.
    Bad,
}

/// Where the demo is shown.
pub(super) struct Screen {
    out: Box<dyn Write>,
    live: bool,
    colour: bool,
    levels: [char; 9],
    width: fn() -> usize,
    drawn: usize,
}

impl Screen {
    /// The screen on stdout, or on stderr when stdout is for a program.
    pub(super) fn open(on_stderr: bool) -> Self {
        let capable = env::terminal_can_draw();
        let (out, terminal, width): (Box<dyn Write>, bool, fn() -> usize) = if on_stderr {
            (Box::new(io::stderr()), io::stderr().is_terminal(), || columns(io::stderr()))
        } else {
            (Box::new(io::stdout()), io::stdout().is_terminal(), || columns(io::stdout()))
        };
        let live = terminal && capable;
        Self {
            out,
            live,
            colour: live && env::wants_colour(),
            levels: if env::speaks_utf8() { BLOCKS } else { ASCII },
            width,
            drawn: 0,
        }
    }

    /// Whether rows are redrawn in place.
    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    /// A heading.
    pub(super) fn title(&mut self, text: &str) -> io::Result<()> {
        self.prose(BOLD, text)
    }

    /// A line of explanation.
    pub(super) fn note(&mut self, text: &str) -> io::Result<()> {
        self.prose(DIM, text)
    }

    /// A line of plain text.
    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        self.prose("", text)
    }

    /// A line that says what went wrong.
    pub(super) fn alarm(&mut self, text: &str) -> io::Result<()> {
        self.prose(RED, text)
    }

    /// A line for a screen that cannot be redrawn, where it stands for a moment of the chart.
    pub(super) fn event(&mut self, text: &str) -> io::Result<()> {
        if self.live { Ok(()) } else { self.line("", &format!("  {text}")) }
    }

    /// Draws the rows over the ones drawn last, if nothing was written since.
    pub(super) fn draw(&mut self, rows: &[&Row]) -> io::Result<()> {
        if !self.live {
            return Ok(());
        }
        let width = (self.width)();
        let lines: Vec<String> = rows.iter().flat_map(|row| self.row(row, width)).collect();
        let mut frame = String::new();
        if self.drawn > 0 {
            frame.push_str(&format!("\r\x1b[{}A", self.drawn));
        }
        for line in &lines {
            frame.push_str(line);
            frame.push_str("\x1b[K\n");
        }
        self.drawn = lines.len();
        self.put(&frame)
    }

    /// Writes a table; drops the columns in `spare`, one by one, if it is too wide.
    pub(super) fn table(
        &mut self,
        rows: &[(Mood, Vec<String>)],
        spare: &[usize],
    ) -> io::Result<()> {
        let room = if self.live { (self.width)() } else { usize::MAX };
        let columns = rows.first().map_or(0, |(_, row)| row.len());
        let wide = |column: usize| {
            let cells = rows.iter().map(|(_, row)| row[column].chars().count());
            cells.max().unwrap_or(0) + 2
        };
        let mut keep: Vec<usize> = (0..columns).collect();
        for column in spare {
            if keep.iter().map(|kept| wide(*kept)).sum::<usize>() > room {
                keep.retain(|kept| kept != column);
            }
        }
        for (mood, row) in rows {
            let cell = |column: &usize| format!("  {:<1$}", row[*column], wide(*column) - 2);
            let line: String = keep.iter().map(cell).collect();
            let tone = match mood {
                Mood::Head => DIM,
                Mood::Good => GREEN,
                Mood::Bad => RED,
            };
            self.line(tone, line.trim_end())?;
        }
        Ok(())
    }

    /// The lines of one row: two with a chart, one where there is no room for it.
    fn row(&self, row: &Row, width: usize) -> Vec<String> {
        let label = self.tone(BOLD, &format!("  {:<8}", row.label));
        if width < NARROW {
            let text = cut(&row.headline, width.saturating_sub(LABEL + 1));
            return vec![format!("{label}{text}")];
        }
        let chart = width - LABEL - TEXT;
        let heights = row.heights(chart);
        let text = |text: &str| cut(text, TEXT - 3).to_owned();
        let upper = heights.iter().map(|height| self.upper(*height));
        let lower = heights.iter().map(|height| self.lower(*height));
        let (upper, lower) = (self.bars(row, upper, chart), self.bars(row, lower, chart));
        let status = self.status(row, &text(&row.status));
        vec![
            format!("{label}{upper}  {}", text(&row.headline)),
            format!("{:LABEL$}{lower}  {status}", ""),
        ]
    }

    fn upper(&self, height: usize) -> char {
        self.levels[height.saturating_sub(8)]
    }

    /// The lower half of a column; dots go on where nothing lives, so that time is seen to pass.
    fn lower(&self, height: usize) -> char {
        match height {
            0 if self.levels == BLOCKS => '·',
            _ => self.levels[height.min(8)],
        }
    }

    /// One line of a chart; what lives after the host's end has another colour.
    fn bars(&self, row: &Row, chars: impl Iterator<Item = char>, width: usize) -> String {
        let end = row.host_ended.map_or(width, |at| row.column(at, width) + 1);
        let mut runs: Vec<(&str, String)> = Vec::new();
        for (column, char) in chars.chain(iter::repeat(' ')).take(width).enumerate() {
            let tone = match char {
                ' ' => "",
                '·' => DIM,
                _ if column < end => YELLOW,
                _ => RED,
            };
            match runs.last_mut() {
                Some((last, run)) if *last == tone => run.push(char),
                _ => runs.push((tone, char.to_string())),
            }
        }
        runs.iter().map(|(tone, run)| self.tone(tone, run)).collect()
    }

    /// The words of a row, in the colour of what they say.
    fn status(&self, row: &Row, text: &str) -> String {
        let alive = row.samples.last().is_some_and(|(_, count)| *count > 0);
        match (row.host_ended, alive) {
            (None, _) => self.tone(DIM, text),
            (Some(_), true) => self.tone(RED, text),
            (Some(_), false) => self.tone(GREEN, text),
        }
    }

    fn tone(&self, tone: &str, text: &str) -> String {
        if self.colour && !tone.is_empty() && !text.is_empty() {
            format!("{tone}{text}{PLAIN}")
        } else {
            text.to_owned()
        }
    }

    /// Writes a line, folded where it is too long to read.
    fn prose(&mut self, tone: &str, text: &str) -> io::Result<()> {
        let width = if self.live { (self.width)().min(PROSE) } else { PROSE };
        fold(text, width).iter().try_for_each(|line| self.line(tone, line))
    }

    /// Writes a line as it is; from here on nothing above is redrawn.
    fn line(&mut self, tone: &str, text: &str) -> io::Result<()> {
        self.drawn = 0;
        let line = format!("{}\n", self.tone(tone, text));
        self.put(&line)
    }

    fn put(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

/// Memory as people say it.
pub(super) fn mib(kib: u64) -> String {
    if kib == 0 || kib >= 10 << 10 {
        format!("{} MiB", (kib + 512) >> 10)
    } else {
        format!("{:.1} MiB", kib as f64 / 1024.0)
    }
}

/// The width to draw for: the terminal's, but no wider than is good to read.
fn columns(terminal: impl AsFd) -> usize {
    let columns = tcgetwinsize(terminal).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { 80 } else { columns.min(100) }
}

/// Folds a line at spaces; what goes below keeps the indent.
fn fold(text: &str, width: usize) -> Vec<String> {
    let (indent, _) = text.split_at(text.len() - text.trim_start().len());
    let mut lines = Vec::new();
    let mut line = text.to_owned();
    while line.chars().count() > width {
        let space = cut(&line, width + 1).rfind(' ');
        let Some(end) = space.filter(|end| *end > indent.len()) else {
            break;
        };
        let rest = format!("{indent}{}", line[end..].trim_start());
        line.truncate(end);
        lines.push(std::mem::replace(&mut line, rest));
    }
    lines.push(line);
    lines
}

fn cut(text: &str, width: usize) -> &str {
    text.char_indices().nth(width).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_rounded_but_never_to_nothing() {
        assert_eq!(mib(0), "0 MiB");
        assert_eq!(mib(900), "0.9 MiB");
        assert_eq!(mib(20 << 10), "20 MiB");
    }

    #[test]
    fn a_folded_line_keeps_its_indent() {
        assert_eq!(fold("  one two three", 9), ["  one two", "  three"]);
        assert_eq!(fold("  unbreakable", 5), ["  unbreakable"]);
        assert_eq!(fold("", 5), [""]);
    }

    #[test]
    fn a_cut_falls_between_characters() {
        assert_eq!(cut("▁▂▃", 2), "▁▂");
        assert_eq!(cut("ab", 9), "ab");
    }
}
