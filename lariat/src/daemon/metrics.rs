//! The picture and the counts as Prometheus reads them.

use super::ledger::BOUNDS;
use super::picture::Picture;
use crate::snapshot::State;
use std::fmt::Write;

/// What the text is, in the words of its format.
pub(super) const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// States that are always there, so that a graph of one that is rare has a zero to start from. Those
/// of the daemon's own sessions that no process has are beside them.
const STATES: [State; 8] = [
    State::Starting,
    State::Ready,
    State::Busy,
    State::Superseded,
    State::Asleep,
    State::Waking,
    State::Ending,
    State::Survivors,
];
const BODILESS: [&str; 2] = ["failed", "restarting"];

/// Everything, in the text format.
pub(super) fn text(picture: &Picture) -> String {
    let Picture { point, sums, survivors, .. } = picture;
    let counts = &sums.counts;
    let mut page = Page(String::new());
    page.family("lariat_build_info", "gauge", "Which lariat this is.");
    page.line("lariat_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.one("lariat_sessions", "gauge", "Sessions that live.", sums.sessions);
    page.family("lariat_servers", "gauge", "Servers that live, by what they are doing.");
    for state in STATES.map(State::word).into_iter().chain(BODILESS) {
        let count = sums.states.get(state).copied().unwrap_or(0);
        page.line("lariat_servers", &[("state", state)], count);
    }
    page.one("lariat_processes", "gauge", "Processes of all servers.", point.processes);
    page.one("lariat_containers", "gauge", "Containers of all servers.", sums.containers);
    let help = "Resident memory of all servers' processes.";
    page.one("lariat_resident_bytes", "gauge", help, point.rss_bytes);
    let help = "What sessions left behind that could not be ended and is still there.";
    page.one("lariat_survivors", "gauge", help, survivors);
    let help = "Servers that were started, with or without the daemon, since it looks.";
    page.one("lariat_starts_total", "counter", help, counts.starts);
    page.family("lariat_ends_total", "counter", "Servers that have ended, by why.");
    for (reason, count) in &counts.ends {
        page.line("lariat_ends_total", &[("reason", reason)], count);
    }
    let help = "What sessions have left behind, whether or not it has gone since.";
    page.one("lariat_survivors_total", "counter", help, counts.survivors);
    let help = "Sessions that somebody came across after whoever held them had died.";
    page.one("lariat_sweeps_total", "counter", help, counts.sweeps);
    let name = "lariat_teardown_seconds";
    page.family(name, "histogram", "How long ends took, until nothing was there any more.");
    for (bound, count) in BOUNDS.into_iter().zip(counts.within) {
        page.line(&format!("{name}_bucket"), &[("le", &seconds(bound))], count);
    }
    page.line(&format!("{name}_bucket"), &[("le", "+Inf")], counts.teardowns);
    page.line(&format!("{name}_sum"), &[], seconds(counts.teardown_ms));
    page.line(&format!("{name}_count"), &[], counts.teardowns);
    page.0
}

fn seconds(ms: u64) -> String {
    format!("{}", ms as f64 / 1000.0)
}

struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // A string takes everything.
        let _never = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, kind, help);
        self.line(name, &[], value);
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let label = |(name, value): &(&str, &str)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{name}=\"{value}\"")
        };
        let labels: Vec<String> = labels.iter().map(label).collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        // A string takes everything.
        let _never = writeln!(self.0, "{name}{labels} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_is_announced_once_and_labels_cannot_break_out() {
        let mut picture = Picture::default();
        picture.sums.counts.ends.insert("failed:a\"b\\c\nd".into(), 2);
        picture.sums.counts.teardown_ms = 1_250;
        let text = text(&picture);
        assert!(
            text.contains("lariat_ends_total{reason=\"failed:a\\\"b\\\\c\\nd\"} 2\n"),
            "{text}"
        );
        assert!(text.contains("lariat_teardown_seconds_sum 1.25\n"), "{text}");
        assert!(text.contains("lariat_teardown_seconds_bucket{le=\"0.005\"} 0\n"), "{text}");
        let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let names: Vec<&str> = names.filter_map(|line| line.split(' ').next()).collect();
        let mut once = names.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), names.len());
        assert_eq!(text.lines().filter(|line| line.starts_with("# HELP ")).count(), names.len());
        assert!(text.ends_with('\n'));
    }
}
