//! What is on the screen: the list, the chosen server, what the person is asked. From plain data to a
//! canvas; nothing here looks at the machine.

use super::canvas::{Canvas, Tone};
use super::history::History;
use super::sort::Sort;
use super::terminal::Key;
use crate::cmd::ps::{cpu, host, share, time};
use crate::cmd::tree::{ASCII, BOXES, branches};
use crate::show;
use lariat::id::SessionId;
use lariat::snapshot::{Living, State};
use std::collections::HashMap;
use std::time::Duration;

/// Fewer rows than this have no room for more than the list.
const LOW: usize = 16;

/// Fewer columns than this have no room for a chart beside the processes.
const NARROW: usize = 72;

/// A chart is no higher than this.
const CHART: usize = 6;

/// No server's name is shown longer than this.
const NAME: usize = 28;

const KEYS: &str = "arrows choose  s sort  r reverse  e end  ? help  q quit";

const HELP: [&str; 12] = [
    "arrows, page up, page down, home, end: choose a server",
    "s, S      sort by the next column, by the one before",
    "m c p     sort by memory, CPU, processes",
    "n h a i t sort by name, host, age, idle time, state",
    "r         reverse the order",
    "e, k      end the chosen server; asks first",
    "Ctrl-L    draw everything anew",
    "q, Ctrl-C leave",
    "",
    "%CPU is of one CPU. The quiet are looked at in turn.",
    "Ending a server ends its session, with a receipt,",
    "and its host sees it leave.",
];

/// What a person wants that is not done here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wish {
    Nothing,
    Leave,
    Suspend,
    Redraw,
    /// To be asked whether this one is to end.
    Doubt(SessionId),
    /// This one is to end.
    End(SessionId),
}

#[derive(Debug, Default)]
enum Mode {
    #[default]
    List,
    Help,
    Confirm(SessionId, String),
}

/// Everything that is shown.
#[derive(Default)]
pub(super) struct View {
    living: Vec<Living>,
    chosen: Option<SessionId>,
    /// The first line of the list that is seen.
    first: usize,
    sort: Sort,
    reversed: bool,
    mode: Mode,
    message: Option<(Tone, String)>,
    histories: HashMap<SessionId, History>,
    total: History,
    /// Whether blocks and boxes can be shown.
    pub(super) blocks: bool,
    /// How many lines of the list there were room for.
    page: usize,
}

impl View {
    pub(super) fn new(sort: Sort, blocks: bool) -> View {
        View { sort, blocks, ..View::default() }
    }

    /// Those who live now.
    pub(super) fn update(&mut self, living: Vec<Living>) {
        self.total.add(living.iter().map(|one| one.rss_bytes).sum());
        let mut before = std::mem::take(&mut self.histories);
        for one in &living {
            let mut history = before.remove(&one.session).unwrap_or_default();
            history.add(one.rss_bytes);
            self.histories.insert(one.session.clone(), history);
        }
        self.living = living;
        self.arrange();
    }

    fn arrange(&mut self) {
        let was_at = self.at();
        self.sort.arrange(&mut self.living, self.reversed);
        let is_there = self.chosen.as_ref().is_some_and(|chosen| self.find(chosen).is_some());
        if !is_there {
            // Whoever is now where the chosen one was.
            let at = was_at.unwrap_or(0).min(self.living.len().saturating_sub(1));
            self.chosen = self.living.get(at).map(|one| one.session.clone());
        }
    }

    pub(super) fn find(&self, session: &SessionId) -> Option<&Living> {
        self.living.iter().find(|one| one.session == *session)
    }

    fn at(&self) -> Option<usize> {
        let chosen = self.chosen.as_ref()?;
        self.living.iter().position(|one| one.session == *chosen)
    }

    /// Says something in the last line, until the next key.
    pub(super) fn say(&mut self, tone: Tone, text: &str) {
        self.message = Some((tone, show::plain(text)));
    }

    /// Asks whether this one is to end.
    pub(super) fn ask(&mut self, session: SessionId, question: &str) {
        self.mode = Mode::Confirm(session, show::plain(question));
    }

    /// A key was pressed.
    pub(super) fn key(&mut self, key: Key) -> Wish {
        self.message = None;
        match std::mem::take(&mut self.mode) {
            Mode::Confirm(session, _) if matches!(key, Key::Char('y' | 'Y')) => {
                return Wish::End(session);
            }
            Mode::Confirm(..) => {
                self.say(Tone::Dim, "nothing was ended");
                return if key == Key::Interrupt { Wish::Leave } else { Wish::Nothing };
            }
            Mode::Help if key != Key::Interrupt => return Wish::Nothing,
            Mode::Help | Mode::List => {}
        }
        let page = self.page.max(1) as isize;
        match key {
            Key::Up => self.step(-1),
            Key::Down => self.step(1),
            Key::PageUp => self.step(-page),
            Key::PageDown => self.step(page),
            Key::Home => self.step(isize::MIN),
            Key::End => self.step(isize::MAX),
            Key::Char('q') | Key::Interrupt => return Wish::Leave,
            Key::Suspend => return Wish::Suspend,
            Key::Redraw => return Wish::Redraw,
            Key::Char('?') => self.mode = Mode::Help,
            Key::Char('s') => self.sort_by(self.sort.next()),
            Key::Char('S') => self.sort_by(self.sort.before()),
            Key::Char('r') => {
                self.reversed = !self.reversed;
                self.arrange();
            }
            Key::Char('e' | 'k') => {
                return self.chosen.clone().map_or(Wish::Nothing, Wish::Doubt);
            }
            Key::Char(letter) => {
                if let Some(sort) = Sort::by_letter(letter) {
                    self.sort_by(sort);
                }
            }
            Key::Enter | Key::Escape => {}
        }
        Wish::Nothing
    }

    fn sort_by(&mut self, sort: Sort) {
        (self.sort, self.reversed) = (sort, false);
        self.arrange();
    }

    fn step(&mut self, by: isize) {
        let last = self.living.len().saturating_sub(1) as isize;
        let at = (self.at().unwrap_or(0) as isize).saturating_add(by).clamp(0, last.max(0));
        self.chosen = self.living.get(at as usize).map(|one| one.session.clone());
    }

    /// Draws all of it. `now` is the time since boot.
    pub(super) fn draw(&mut self, canvas: &mut Canvas, now: Duration) {
        canvas.clear();
        let (width, height) = (canvas.width(), canvas.height());
        if height == 0 || width == 0 {
            return;
        }
        let pane = if height >= LOW { (height / 3).clamp(5, 12) } else { 0 };
        let head = if height >= LOW { 2 } else { usize::from(height >= 4) };
        self.draw_head(canvas, head);
        let foot = usize::from(height >= 2);
        if let Mode::Help = self.mode {
            for (row, line) in HELP.iter().enumerate().take(height.saturating_sub(head + 1)) {
                canvas.put(head + row, 1, Tone::Plain, line);
            }
            canvas.put(height - 1, 0, Tone::Dim, " any key goes back");
            return;
        }
        self.draw_list(canvas, head, height.saturating_sub(head + foot + pane));
        if pane > 0 {
            self.draw_pane(canvas, height - foot - pane, pane, now);
        }
        if foot > 0 {
            self.draw_foot(canvas, height - 1);
        }
    }

    fn draw_head(&self, canvas: &mut Canvas, rows: usize) {
        if rows == 0 {
            return;
        }
        let mut at = canvas.put(0, 0, Tone::Bold, " lariat ");
        at = canvas.put(0, at, Tone::Plain, &show::count(self.living.len(), "session"));
        for state in STATES {
            let count = self.living.iter().filter(|one| one.state == state).count();
            if count > 0 {
                at = canvas.put(0, at, Tone::Dim, "  ");
                at = canvas.put(0, at, tone(state), &format!("{count} {}", state.word()));
            }
        }
        if rows < 2 {
            return;
        }
        let processes: usize = self.living.iter().map(|one| one.processes).sum();
        let memory = self.living.iter().map(|one| one.rss_bytes).sum();
        // Nothing at all adds up to less than nothing.
        let used = self.living.iter().filter_map(|one| one.cpu_percent).sum::<f64>() + 0.0;
        let text = format!(
            " {}  {}  {used:.1} %CPU  ",
            show::count(processes, "process"),
            show::bytes(memory)
        );
        let at = canvas.put(1, 0, Tone::Plain, &text);
        let room = canvas.width().saturating_sub(at + 1).min(60);
        if let [line] = &self.total.chart(room, 1, self.blocks)[..] {
            canvas.put(1, at, Tone::Cool, line);
        }
    }

    fn draw_list(&mut self, canvas: &mut Canvas, top: usize, rows: usize) {
        self.page = rows.saturating_sub(1);
        if rows == 0 {
            return;
        }
        let lines = if rows > 1 { rows - 1 } else { 1 };
        let at = self.at().unwrap_or(0);
        self.first = self.first.min(at).max((at + 1).saturating_sub(lines));
        self.first = self.first.min(self.living.len().saturating_sub(lines));
        let seen = &self.living[self.first..self.living.len().min(self.first + lines)];
        if seen.is_empty() {
            canvas.put(top, 1, Tone::Dim, "no sessions");
            return;
        }
        let columns = Sort::COLUMNS.iter().map(|sort| {
            let cells: Vec<String> = seen.iter().map(|one| cell(one, *sort)).collect();
            let arrow = if *sort == self.sort { self.arrow() } else { "" };
            let head = format!("{}{arrow}", sort.head());
            let widest = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
            (*sort, widest.max(head.chars().count()), head, cells)
        });
        let (mut left, row) = (1, top + usize::from(rows > 1));
        for (sort, width, head, cells) in columns.collect::<Vec<_>>() {
            if left > 1 && left + width > canvas.width() {
                continue;
            }
            let aligned = |text: &str| match sort.is_number() {
                true => format!("{text:>width$}"),
                false => text.to_string(),
            };
            if rows > 1 {
                let tone = if sort == self.sort { Tone::Bold } else { Tone::Dim };
                canvas.put(top, left, tone, &aligned(&head));
            }
            for (line, (cell, one)) in cells.iter().zip(seen).enumerate() {
                let tone = if sort == Sort::State { tone(one.state) } else { Tone::Plain };
                canvas.put(row + line, left, tone, &aligned(cell));
            }
            left += width + 2;
        }
        canvas.tint(row + at - self.first, Tone::Chosen);
    }

    fn arrow(&self) -> &'static str {
        match (self.sort.is_descending() != self.reversed, self.blocks) {
            (true, true) => "↓",
            (false, true) => "↑",
            (true, false) => "v",
            (false, false) => "^",
        }
    }

    fn draw_pane(&self, canvas: &mut Canvas, top: usize, rows: usize, now: Duration) {
        let Some(one) = self.chosen.as_ref().and_then(|chosen| self.find(chosen)) else { return };
        let rule = if self.blocks { "─" } else { "-" }.repeat(canvas.width());
        canvas.put(top, 0, Tone::Dim, &rule);
        let mut title = format!(
            " {}  {}  {}  held by {}, pid {} ",
            one.server,
            one.session,
            one.state.word(),
            one.backend,
            one.wrapper
        );
        title += &format!(" CPU {}  age {} ", cpu(one.cpu_ms), time(one.age_s));
        let evidence: Vec<&str> = one.evidence.iter().map(|evidence| evidence.word()).collect();
        if !evidence.is_empty() {
            title += &format!(" {} ", evidence.join(", "));
        }
        if let Some(share) = &one.share {
            title += &format!(" {} ", show::plain(&share.words()));
        }
        canvas.put(top, 2, Tone::Bold, &title);
        let (width, rows) = (canvas.width(), rows - 1);
        let half = width * 3 / 5;
        let beside = width >= NARROW;
        let lines = branches(&one.tree, if self.blocks { &BOXES } else { &ASCII }, now);
        let room = if beside { rows } else { rows - 1 };
        for (row, line) in lines.iter().take(room).enumerate() {
            let line: String = line.chars().take(if beside { half } else { width }).collect();
            canvas.put(top + 1 + row, 1, Tone::Plain, &line);
        }
        if lines.len() > room {
            let more = format!(" and {} more, see `lariat tree` ", lines.len() + 1 - room);
            canvas.put(top + room, 1, Tone::Dim, &format!("{more:<half$}"));
        }
        if lines.is_empty() {
            canvas.put(top + 1, 1, Tone::Dim, "no processes");
        }
        let Some(history) = self.histories.get(&one.session) else { return };
        let (left, chart_rows) = if beside { (half + 2, (rows - 1).min(CHART)) } else { (1, 1) };
        let wide = (width - left).saturating_sub(1);
        let chart = history.chart(wide, chart_rows, self.blocks);
        let label = format!(
            "memory {}, peak {}",
            show::bytes(one.rss_bytes),
            show::bytes(history.peak(wide))
        );
        if beside {
            canvas.put(top + 1, left, Tone::Dim, &label);
        }
        let chart_top = if beside { top + 2 } else { top + rows };
        for (row, line) in chart.iter().enumerate() {
            canvas.put(chart_top + row, left, Tone::Cool, line);
        }
    }

    fn draw_foot(&self, canvas: &mut Canvas, row: usize) {
        match (&self.mode, &self.message) {
            (Mode::Confirm(_, question), _) => {
                canvas.put(row, 0, Tone::Bad, &format!(" {question} y/N "));
            }
            (_, Some((tone, message))) => {
                canvas.put(row, 0, *tone, &format!(" {message}"));
            }
            _ => {
                canvas.put(row, 0, Tone::Dim, &format!(" {KEYS}"));
            }
        }
    }
}

const STATES: [State; 8] = [
    State::Survivors,
    State::Busy,
    State::Ready,
    State::Superseded,
    State::Starting,
    State::Waking,
    State::Asleep,
    State::Ending,
];

fn tone(state: State) -> Tone {
    match state {
        State::Ready => Tone::Good,
        State::Busy | State::Superseded => Tone::Warn,
        State::Starting | State::Waking => Tone::Cool,
        State::Asleep | State::Ending => Tone::Dim,
        State::Survivors => Tone::Bad,
    }
}

fn cell(one: &Living, column: Sort) -> String {
    match column {
        Sort::Name => show::plain(one.server.as_str()).chars().take(NAME).collect(),
        Sort::State => one.state.word().into(),
        Sort::Memory => show::bytes(one.rss_bytes),
        Sort::Cpu => share(one.cpu_percent),
        Sort::Processes => one.processes.to_string(),
        Sort::Idle => one.idle_s.map_or_else(|| "-".into(), time),
        Sort::Age => time(one.age_s),
        Sort::Host => host(one.host.as_ref()),
    }
}

#[cfg(test)]
mod tests;
