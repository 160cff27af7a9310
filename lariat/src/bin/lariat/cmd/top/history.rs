//! Memory over time, and its chart.

use std::collections::VecDeque;

/// So many looks are remembered of each session.
const MOST: usize = 240;

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 9] = [' ', '.', '.', ':', ':', '|', '|', '#', '#'];

/// What something used, look by look.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    samples: VecDeque<u64>,
}

impl History {
    pub(super) fn add(&mut self, sample: u64) {
        if self.samples.len() == MOST {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// The most it used in the last so many looks.
    pub(super) fn peak(&self, looks: usize) -> u64 {
        self.samples.iter().rev().take(looks).copied().max().unwrap_or(0)
    }

    /// A chart, one look a column, the last one to the right. Anything at all has a height.
    pub(super) fn chart(&self, width: usize, rows: usize, blocks: bool) -> Vec<String> {
        let levels = if blocks { BLOCKS } else { ASCII };
        let peak = self.peak(width).max(1);
        let steps = (rows * 8) as u128;
        let height =
            |sample: &u64| (u128::from(*sample) * steps).div_ceil(u128::from(peak)) as usize;
        let skip = self.samples.len().saturating_sub(width);
        let heights: Vec<usize> = self.samples.iter().skip(skip).map(height).collect();
        let empty = width - heights.len();
        let row = |row: usize| {
            let below = (rows - 1 - row) * 8;
            let bars = heights.iter().map(|height| levels[height.saturating_sub(below).min(8)]);
            std::iter::repeat_n(' ', empty).chain(bars).collect()
        };
        (0..rows).map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_is_as_high_as_its_peak_and_ends_now() {
        let mut history = History::default();
        assert_eq!(history.chart(3, 1, true), ["   "]);
        for sample in [0, 1, 50, 100] {
            history.add(sample);
        }
        assert_eq!(history.chart(6, 1, true), ["   ▁▄█"]);
        assert_eq!(history.chart(6, 2, true), ["     █", "   ▁██"]);
        assert_eq!(history.chart(2, 1, false), [":#"]);
        assert_eq!(history.chart(2, 0, false), [""; 0]);
        (0..1000).for_each(|_| history.add(7));
        assert_eq!((history.peak(1000), history.samples.len()), (7, MOST));
    }
}
