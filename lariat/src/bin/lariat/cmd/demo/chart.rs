//! The row of one half: what is drawn of it, and the shape of its chart. How it is drawn is `screen`'s.

use std::time::Duration;

/// One half as it is drawn: a chart over time, a line of numbers and a line of words.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) label: &'static str,
    most: usize,
    duration: Duration,
    pub(super) samples: Vec<(Duration, usize)>,
    pub(super) host_ended: Option<Duration>,
    pub(super) headline: String,
    pub(super) status: String,
}

impl Row {
    /// A row for a half that shows at most `most` processes and takes about `duration`.
    pub(super) fn new(label: &'static str, most: usize, duration: Duration) -> Self {
        Self {
            label,
            most,
            duration,
            samples: Vec::new(),
            host_ended: None,
            headline: String::new(),
            status: String::new(),
        }
    }

    /// The column of a moment in a chart of `width` columns.
    pub(super) fn column(&self, at: Duration, width: usize) -> usize {
        let part = at.as_secs_f64() / self.duration.as_secs_f64();
        ((part * width as f64) as usize).min(width.saturating_sub(1))
    }

    /// The height of each column in sixteenths, as far as time has come.
    ///
    /// A column shows its largest sample; a column without one, what the column before ended with.
    /// Anything alive has a height.
    pub(super) fn heights(&self, width: usize) -> Vec<usize> {
        let mut heights: Vec<usize> = Vec::with_capacity(width);
        let mut last = 0;
        for (at, count) in &self.samples {
            let column = self.column(*at, width);
            let height = (count * 16).div_ceil(self.most.max(1)).min(16);
            if heights.len() > column {
                heights[column] = heights[column].max(height);
            } else {
                heights.resize(column, last);
                heights.push(height);
            }
            last = height;
        }
        heights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_keeps_peaks_and_fills_gaps() {
        let mut row = Row::new("bare", 16, Duration::from_secs(4));
        let at = Duration::from_millis;
        row.samples = vec![(at(0), 0), (at(100), 16), (at(200), 2), (at(2100), 1), (at(9000), 0)];
        assert_eq!(row.heights(4), [16, 2, 1, 0]);
    }
}
