//! The columns of the list, and its order by each of them.

use lariat::snapshot::Living;
use std::cmp::Ordering;

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Sort {
    Name,
    State,
    #[default]
    Memory,
    Cpu,
    Processes,
    Idle,
    Age,
    Host,
}

impl Sort {
    /// From left to right; what there is no room for is left out.
    pub(super) const COLUMNS: [Sort; 8] = [
        Sort::Name,
        Sort::State,
        Sort::Memory,
        Sort::Cpu,
        Sort::Processes,
        Sort::Idle,
        Sort::Age,
        Sort::Host,
    ];

    pub(super) fn head(self) -> &'static str {
        match self {
            Sort::Name => "SERVER",
            Sort::State => "STATE",
            Sort::Memory => "RSS",
            Sort::Cpu => "%CPU",
            Sort::Processes => "PROC",
            Sort::Idle => "IDLE",
            Sort::Age => "AGE",
            Sort::Host => "HOST",
        }
    }

    pub(super) fn by_letter(letter: char) -> Option<Sort> {
        Some(match letter {
            'n' => Sort::Name,
            't' => Sort::State,
            'm' => Sort::Memory,
            'c' => Sort::Cpu,
            'p' => Sort::Processes,
            'i' => Sort::Idle,
            'a' => Sort::Age,
            'h' => Sort::Host,
            _ => return None,
        })
    }

    pub(super) fn next(self) -> Sort {
        self.away(1)
    }

    pub(super) fn before(self) -> Sort {
        self.away(Sort::COLUMNS.len() - 1)
    }

    fn away(self, by: usize) -> Sort {
        let at = Sort::COLUMNS.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::COLUMNS[(at + by) % Sort::COLUMNS.len()]
    }

    pub(super) fn is_number(self) -> bool {
        !matches!(self, Sort::Name | Sort::State | Sort::Host)
    }

    /// The largest number is what people look for; names begin with the first.
    pub(super) fn is_descending(self) -> bool {
        self.is_number()
    }

    pub(super) fn arrange(self, living: &mut [Living], reversed: bool) {
        let host = |one: &Living| one.host.as_ref().map(|host| (host.name.clone(), host.pid));
        let by = |a: &Living, b: &Living| match self {
            Sort::Name => a.server.as_str().cmp(b.server.as_str()),
            Sort::State => a.state.word().cmp(b.state.word()),
            Sort::Memory => a.rss_bytes.cmp(&b.rss_bytes),
            Sort::Cpu => a.cpu_percent.unwrap_or(0.0).total_cmp(&b.cpu_percent.unwrap_or(0.0)),
            Sort::Processes => a.processes.cmp(&b.processes),
            Sort::Idle => a.idle_s.unwrap_or(-1.0).total_cmp(&b.idle_s.unwrap_or(-1.0)),
            Sort::Age => a.age_s.total_cmp(&b.age_s),
            Sort::Host => host(a).cmp(&host(b)),
        };
        let descending = self.is_descending() != reversed;
        let turned = |order: Ordering| if descending { order.reverse() } else { order };
        // The same order at each look among those that are alike.
        let same = |a: &Living, b: &Living| a.session.as_str().cmp(b.session.as_str());
        living.sort_by(|a, b| turned(by(a, b)).then_with(|| same(a, b)));
    }
}
