//! What the page shows of one moment: a row for each server, and the sums. Plain data.
//!
//! A row has no clocks in it: one that nothing happened to is the same text as before, and need not
//! be sent again.

use super::api;
use super::ledger::{Counts, Filed};
use crate::snapshot::{Container, Living};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// A look that says nearly the same about since when a server is quiet says the same.
const SAME_MOMENT: u64 = 1_500;

/// How much of the CPU's share is the last look's alone: shares that jump cannot be read.
const FRESH: f64 = 0.4;

/// After this long an earlier share says nothing.
const LONG: Duration = Duration::from_secs(5);

/// The last five minutes are kept to the second, the last hour to ten.
const FINE: (u64, usize) = (1_000, 300);
const COARSE: (u64, usize) = (10_000, 360);

/// A look may come a little early.
const EARLY: u64 = 100;

/// One moment.
#[derive(Debug, Default)]
pub(super) struct Picture {
    pub(super) now_ms: u64,
    /// Rows by their keys, as JSON.
    pub(super) rows: BTreeMap<String, Arc<str>>,
    pub(super) point: Point,
    pub(super) survivors: usize,
    pub(super) receipts: Arc<VecDeque<Filed>>,
    pub(super) sums: Sums,
}

/// What the charts show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) ms: u64,
    pub(super) servers: usize,
    pub(super) processes: usize,
    pub(super) rss_bytes: u64,
}

/// What the metrics say beside.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) sessions: usize,
    pub(super) states: BTreeMap<String, usize>,
    pub(super) containers: usize,
    pub(super) counts: Counts,
}

/// One server.
#[derive(Debug, Serialize)]
struct Row<'a> {
    key: &'a str,
    /// What the end button ends: a session of the daemon's with all its servers, or this one's own.
    /// Other sessions of several servers are in a program that nobody can ask.
    session: &'a str,
    /// What its owner called it.
    name: Option<&'a str>,
    server: String,
    host: Option<Host>,
    state: &'a str,
    /// Why it is not ready.
    why: Option<String>,
    evidence: Vec<&'static str>,
    /// Who uses it, if that can be more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    share: Option<String>,
    backend: &'a str,
    started: &'a str,
    quiet_since_ms: Option<u64>,
    processes: usize,
    rss_bytes: u64,
    pss_bytes: Option<u64>,
    /// In tenths of a percent of one CPU.
    cpu: u64,
    tree: Vec<Process>,
    containers: &'a [Container],
}

/// Who wanted it.
#[derive(Debug, Serialize)]
struct Host {
    pid: i32,
    name: Option<String>,
}

/// One process: its pid, its parent, its name, its memory and its time.
#[derive(Debug, Serialize)]
struct Process(i32, i32, String, u64, u64);

/// What is known of a server from earlier looks.
#[derive(Debug, Clone, Copy)]
struct Before {
    share: f64,
    quiet_since_ms: Option<u64>,
}

/// Makes pictures, and remembers what one alone does not say.
#[derive(Debug, Default)]
pub(super) struct Painter {
    before: HashMap<String, Before>,
    last_ms: u64,
    fine: VecDeque<Point>,
    coarse: VecDeque<Point>,
}

impl Painter {
    /// What is there now: who lives as the books have it, and what the daemon's own sessions are.
    pub(super) fn paint(
        &mut self,
        now_ms: u64,
        living: &[Living],
        own: &[api::Session],
    ) -> Picture {
        let passed = Duration::from_millis(now_ms.saturating_sub(self.last_ms));
        let mut picture = Picture { now_ms, ..Picture::default() };
        let mut now = HashMap::new();
        let mut sessions = std::collections::BTreeSet::new();
        for one in living {
            let key = one.session.as_str();
            let known = self.before.get(key).copied();
            let after = Before {
                share: share(known, one.cpu_percent, passed),
                quiet_since_ms: quiet(known, now_ms, one.idle_s),
            };
            let within = one.within.as_ref().map(|within| within.as_str());
            let owner = own.iter().find(|session| Some(session.id.as_str()) == within);
            let row = row(one, owner, after);
            sessions.insert(within.unwrap_or(key));
            picture.add(key, row.state, &row);
            picture.point.processes += one.processes;
            picture.point.rss_bytes += one.rss_bytes;
            picture.sums.containers += one.containers.len();
            now.insert(key.to_owned(), after);
        }
        for session in own {
            sessions.insert(&session.id);
            for (name, server) in &session.servers {
                // What runs is in the books.
                let is_there = living.iter().any(|one| {
                    one.within.as_ref().is_some_and(|w| w.as_str() == session.id)
                        && one.server.to_string() == *name
                });
                if !is_there && matches!(server.state.as_str(), "failed" | "restarting") {
                    let key = format!("{}/{name}", session.id);
                    picture.add(&key, &server.state, &absent(&key, session, name, server));
                }
            }
        }
        picture.sums.sessions = sessions.len();
        picture.point.ms = now_ms;
        picture.point.servers = picture.rows.len();
        (self.before, self.last_ms) = (now, now_ms);
        keep(&mut self.fine, FINE, picture.point);
        keep(&mut self.coarse, COARSE, picture.point);
        picture
    }

    /// The last hour, oldest first.
    pub(super) fn history(&self) -> Vec<Point> {
        let begin = self.fine.front().map_or(u64::MAX, |point| point.ms);
        let older = self.coarse.iter().filter(|point| point.ms < begin);
        older.chain(&self.fine).copied().collect()
    }
}

impl Picture {
    fn add(&mut self, key: &str, state: &str, row: &Row<'_>) {
        // Text and numbers can always be written.
        let text = serde_json::to_string(row).unwrap_or_default();
        self.rows.insert(key.into(), text.into());
        *self.sums.states.entry(state.into()).or_default() += 1;
    }
}

fn row<'a>(one: &'a Living, owner: Option<&'a api::Session>, after: Before) -> Row<'a> {
    let host = match owner {
        Some(session) => {
            Some(Host { pid: session.owner.pid, name: Some(plain(&session.owner.command)) })
        }
        None => one
            .host
            .as_ref()
            .map(|host| Host { pid: host.pid, name: host.name.as_deref().map(plain) }),
    };
    let process = |p: &crate::snapshot::Process| {
        Process(p.pid, p.ppid, plain(&p.command), p.rss_bytes, p.cpu_ms)
    };
    Row {
        key: one.session.as_str(),
        session: owner.map_or(one.session.as_str(), |session| &session.id),
        name: owner.and_then(|session| session.name.as_deref()),
        server: plain(&one.server.to_string()),
        host,
        state: one.state.word(),
        why: None,
        evidence: one.evidence.iter().map(|evidence| evidence.word()).collect(),
        share: one.share.as_ref().map(|share| plain(&share.words())),
        backend: &one.backend,
        started: &one.started,
        quiet_since_ms: after.quiet_since_ms,
        processes: one.processes,
        rss_bytes: one.rss_bytes,
        pss_bytes: one.pss_bytes,
        cpu: (after.share * 10.0).round() as u64,
        tree: one.tree.iter().map(process).collect(),
        containers: &one.containers,
    }
}

/// A server of a session of ours that does not run, and why.
fn absent<'a>(
    key: &'a str,
    session: &'a api::Session,
    name: &str,
    server: &'a api::Server,
) -> Row<'a> {
    Row {
        key,
        session: &session.id,
        name: session.name.as_deref(),
        server: plain(name),
        host: Some(Host { pid: session.owner.pid, name: Some(plain(&session.owner.command)) }),
        state: &server.state,
        why: server.error.as_deref().map(plain),
        evidence: Vec::new(),
        share: None,
        backend: "",
        started: "",
        quiet_since_ms: None,
        processes: 0,
        rss_bytes: 0,
        pss_bytes: None,
        cpu: 0,
        tree: Vec::new(),
        containers: &[],
    }
}

/// The share of one CPU in percent, smoothed.
fn share(before: Option<Before>, percent: Option<f64>, passed: Duration) -> f64 {
    let Some(now) = percent else { return 0.0 };
    // After a long pause there is nothing to smooth.
    let before = before.filter(|_| passed <= LONG).map_or(now, |before| before.share);
    let share = now * FRESH + before * (1.0 - FRESH);
    if share < 0.05 { 0.0 } else { share }
}

fn quiet(before: Option<Before>, now_ms: u64, idle_s: Option<f64>) -> Option<u64> {
    let since = now_ms.saturating_sub((idle_s? * 1000.0) as u64);
    let earlier = before.and_then(|before| before.quiet_since_ms);
    Some(earlier.filter(|earlier| earlier.abs_diff(since) < SAME_MOMENT).unwrap_or(since))
}

fn keep(ring: &mut VecDeque<Point>, (every, most): (u64, usize), point: Point) {
    // A clock that was set back begins anew.
    if ring.back().is_some_and(|last| last.ms > point.ms) {
        ring.clear();
    }
    if ring.back().is_some_and(|last| last.ms + every > point.ms + EARLY) {
        return;
    }
    ring.push_back(point);
    let oldest = point.ms.saturating_sub(every * most as u64);
    while ring.len() > most || ring.front().is_some_and(|first| first.ms < oldest) {
        ring.pop_front();
    }
}

/// Somebody else's text without control characters, and without those that turn text around.
fn plain(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || turns(c) { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests;
