//! Servers that nobody holds, as `doctor` and `reap` show them.

use crate::cmd::ps;
use crate::hosts::table::HOSTS;
use crate::hosts::{Entry, shown};
use crate::leaks::{Finding, Kind, KnownHost, find, look};
use crate::{env, hosts, show};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Extensions of editors: their servers are children of the editor.
const IN_EDITORS: [&str; 2] = ["cline", "roo"];
const EDITORS: [&str; 3] = ["vscode", "cursor", "windsurf"];

/// How many servers the hosts have configured, and which of their files nobody can read.
#[derive(Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Hosts(BTreeMap<&'static str, Count>);

#[derive(Default, Serialize)]
struct Count {
    wrapped: usize,
    not_wrapped: usize,
    unreadable: Vec<Unreadable>,
}

/// A config that cannot be read: what is in it is not looked for.
#[derive(Serialize)]
struct Unreadable {
    file: PathBuf,
    /// With line and column, where there are any.
    error: String,
}

/// What was found.
#[derive(Serialize)]
pub(crate) struct Servers {
    pub(crate) leaks: Vec<Finding>,
    running: Vec<Finding>,
    unsure: Vec<Finding>,
}

/// Reads the hosts' configurations and looks at everyone.
pub(crate) fn search(after: Duration) -> (Hosts, Servers) {
    let project = std::env::current_dir().ok();
    let configs = env::hosts(project).map(|around| hosts::configs(&around)).unwrap_or_default();
    let mut counts = Hosts::default();
    let mut servers = Vec::new();
    for config in configs {
        let count = counts.0.entry(config.host).or_default();
        match config.servers {
            Ok(entries) => entries.into_iter().for_each(|entry| count.add(entry, &mut servers)),
            Err(problem) => {
                let error = shown::problem(&problem).trim_start_matches([':', ' ']).into();
                count.unreadable.push(Unreadable { file: config.file, error });
            }
        }
    }
    let known = known_hosts();
    let picture = look::look(&servers, &known);
    let mut found = Servers::of(find(&picture, &servers, &known, after));
    look::weigh(&mut found.leaks);
    look::count(&mut found.leaks);
    (counts, found)
}

fn known_hosts() -> Vec<KnownHost> {
    let programs = |id: &str| {
        let of = HOSTS.iter().filter(|host| host.id == id).flat_map(|host| host.programs);
        of.map(|program| program.to_string()).collect::<Vec<_>>()
    };
    let known = |host: &hosts::table::Host| {
        let editors = EDITORS.iter().filter(|_| IN_EDITORS.contains(&host.id));
        let programs = [host.id].iter().chain(editors).flat_map(|id| programs(id)).collect();
        KnownHost { name: host.id.into(), programs }
    };
    HOSTS.iter().map(known).collect()
}

impl Servers {
    fn of(found: Vec<Finding>) -> Servers {
        let (leaks, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|f| f.kind.is_leak());
        let (running, unsure) = others.into_iter().partition(|f| f.kind == Kind::Running);
        Servers { leaks, running, unsure }
    }

    pub(super) fn text(&self) -> String {
        let mut text = table(&self.leaks);
        if self.leaks.is_empty() {
            text += "  no leaks\n";
        } else {
            text += &format!(
                "  {} leaked. `lariat reap` asks, and ends what leaked\n",
                cost(&self.leaks)
            );
        }
        if !self.running.is_empty() {
            let names = names(&self.running);
            text += &format!("  {} in use and not wrapped ({names})", cost(&self.running));
            text += ": `lariat install` holds such servers\n";
        }
        if !self.unsure.is_empty() {
            let pids: Vec<String> = self.unsure.iter().take(8).map(|f| f.pid.to_string()).collect();
            let more = if self.unsure.len() > 8 { " …" } else { "" };
            text += &format!(
                "  not sure: {} with a configured command of which too little says that \
                 nobody uses them; nobody touches them (pid {}{more})\n",
                show::count(self.unsure.len(), "process"),
                pids.join(", ")
            );
        }
        text
    }
}

impl Count {
    fn add(&mut self, entry: Entry, servers: &mut Vec<hosts::Configured>) {
        match entry {
            Entry::Here(server) => {
                *if server.wrapped { &mut self.wrapped } else { &mut self.not_wrapped } += 1;
                servers.push(server);
            }
            Entry::Elsewhere => self.not_wrapped += 1,
        }
    }
}

impl Hosts {
    /// True if there is a config that nobody can read.
    pub(super) fn has_unreadable(&self) -> bool {
        self.0.values().any(|count| !count.unreadable.is_empty())
    }

    pub(super) fn text(&self) -> String {
        let home = env::hosts(None).map(|around| around.home).unwrap_or_default();
        let line = |(host, count): (&&str, &Count)| {
            let Count { wrapped, not_wrapped, unreadable } = count;
            let all = wrapped + not_wrapped;
            let servers = show::count(all, "server");
            let read = match all {
                0 => String::new(),
                _ => format!("  {host:16} {servers}, {wrapped} of them wrapped\n"),
            };
            let unread = unreadable.iter().map(|one| one.line(host, &home));
            [read].into_iter().chain(unread).collect::<String>()
        };
        let text: String = self.0.iter().map(line).collect();
        if text.is_empty() { "  no host has a server configured\n".into() } else { text }
    }
}

impl Unreadable {
    /// `FILE:LINE:COLUMN: why`, as editors and people follow it.
    fn line(&self, host: &str, home: &Path) -> String {
        let file = shown::path(&self.file, home);
        let gap = if self.error.starts_with(|c: char| c.is_ascii_digit()) { ":" } else { ": " };
        format!("  {host:16} cannot be read: {file}{gap}{}\n", show::plain(&self.error))
    }
}

/// `12 servers (30 processes, 1.2 MiB, 4s of CPU)`.
pub(crate) fn cost(found: &[Finding]) -> String {
    let sum = |part: fn(&Finding) -> u64| found.iter().map(part).sum::<u64>();
    format!(
        "{} ({}, {}, {} of CPU)",
        show::count(found.len(), "server"),
        show::count(sum(|f| f.processes as u64) as usize, "process"),
        show::bytes(sum(memory)),
        ps::time(sum(|f| f.cpu_ms) as f64 / 1000.0)
    )
}

/// What it takes, fairly where that is known.
fn memory(finding: &Finding) -> u64 {
    finding.pss_bytes.unwrap_or(finding.rss_bytes)
}

fn names(found: &[Finding]) -> String {
    let mut names: Vec<&str> = found.iter().map(|f| f.server.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let more = if names.len() > 6 { ", …" } else { "" };
    names.truncate(6);
    show::plain(&names.join(", ")) + more
}

const HEADER: [&str; 9] =
    ["LEAK", "HOST", "SERVER", "COPIES", "PROC", "MEMORY", "CPU", "OLDEST", "EVIDENCE"];

/// One line for all that are the same of the same server.
pub(crate) fn table(leaks: &[Finding]) -> String {
    let mut groups: BTreeMap<(Kind, &[String], &str), Vec<&Finding>> = BTreeMap::new();
    for leak in leaks {
        groups.entry((leak.kind, &leak.hosts, &leak.server)).or_default().push(leak);
    }
    let rows: Vec<[String; 9]> = groups.iter().map(|(key, of)| row(key, of)).collect();
    if rows.is_empty() {
        return String::new();
    }
    let widths: [usize; 9] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).max(HEADER[column].len())
    });
    let mut text = String::new();
    for row in [HEADER.map(String::from)].iter().chain(&rows) {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text += &format!("  {}\n", line.trim_end());
    }
    if leaks.iter().any(|leak| leak.kind == Kind::Superseded) {
        text += "  superseded: the host has started a newer one. With several conversations open in it, an\n";
        text +=
            "  older one may still be in use; `lariat reap --only orphaned` leaves those alone\n";
    }
    text
}

fn row((kind, hosts, server): &(Kind, &[String], &str), of: &[&Finding]) -> [String; 9] {
    let sum = |part: fn(&Finding) -> u64| of.iter().map(|f| part(f)).sum::<u64>();
    let mut evidence: Vec<_> = of.iter().flat_map(|f| f.evidence.clone()).collect();
    evidence.sort_unstable();
    evidence.dedup();
    let words: Vec<&str> = evidence.iter().map(|one| one.word()).collect();
    let alive = of.first().and_then(|f| f.host_pid).map(|pid| format!(" {pid}"));
    [
        kind.word().into(),
        show::plain(&hosts.join(" or ")) + &alive.unwrap_or_default(),
        show::plain(server),
        of.len().to_string(),
        sum(|f| f.processes as u64).to_string(),
        show::bytes(sum(memory)),
        ps::time(sum(|f| f.cpu_ms) as f64 / 1000.0),
        ps::time(of.iter().map(|f| f.age_s).max().unwrap_or(0) as f64),
        words.join(","),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_editors_of_extensions_are_known() {
        let known = known_hosts();
        for id in IN_EDITORS {
            let host = known.iter().find(|host| host.name == id).unwrap();
            assert!(host.programs.iter().any(|program| program == "code"), "{id}");
        }
        assert!(EDITORS.iter().all(|id| HOSTS.iter().any(|host| host.id == *id)));
    }
}
