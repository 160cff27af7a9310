//! Looking at the sessions of the books, without finishing any.

use super::{Books, Page, member};
use crate::id::SessionId;
use crate::moment;
use crate::snapshot::{Host, Living, Process, State};
use contain::process::{below, descendants, look, name};
use contain::{Backend, Member};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant, SystemTime};

/// Somebody who looks again and again.
#[derive(Debug)]
pub struct Onlooker {
    books: Books,
    /// When each session was last looked at, and how much CPU time it had used.
    before: BTreeMap<SessionId, (Instant, u64)>,
}

impl Onlooker {
    /// Has not looked yet.
    pub fn new(books: &Books) -> Onlooker {
        Onlooker { books: books.clone(), before: BTreeMap::new() }
    }

    /// Every session that lives here, oldest first.
    pub fn look(&mut self) -> Vec<Living> {
        let pages = self.books.living().unwrap_or_default();
        let mut before = std::mem::take(&mut self.before);
        let now = Instant::now();
        let mut living = Vec::new();
        for page in &pages {
            let tree = tree(page);
            let cpu_ms: u64 = tree.iter().map(|one| one.cpu_ms).sum();
            let percent = |(then, used): (Instant, u64)| {
                let passed = (now - then).as_secs_f64() * 1000.0;
                (passed > 0.0).then(|| cpu_ms.saturating_sub(used) as f64 * 100.0 / passed)
            };
            let cpu_percent = before.remove(&page.session).and_then(percent);
            self.before.insert(page.session.clone(), (now, cpu_ms));
            living.push(Living { cpu_ms, cpu_percent, ..seen(page, tree) });
        }
        living
    }

    /// There is no engine that could be asked, and so nobody who has not answered.
    pub fn ask_engines(&self, _living: &mut [Living], _within: Duration) -> BTreeSet<SessionId> {
        BTreeSet::new()
    }
}

impl Books {
    /// Nobody can be asked here to end a session of its own: a wrapper hears only its host.
    pub fn ask_to_end(&self, session: &SessionId) -> io::Result<bool> {
        if self.living()?.iter().any(|page| page.session == *session) {
            let why = "on Windows only the host of a wrapper can end it";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        Ok(false)
    }
}

/// The processes of a session: all of them if this process has their job, or else those that the
/// server's descent shows.
fn tree(page: &Page) -> Vec<Process> {
    let Some(leader) = page.leader.map(member) else { return Vec::new() };
    let own = Member::current();
    let is_ours = own.is_some() && page.wrapper.map(member) == own;
    let members = if is_ours { below(leader.pid) } else { descendants(leader) };
    let one = |member: Member| {
        let seen = look(member)?;
        Some(Process {
            pid: member.pid,
            ppid: seen.parent,
            start: member.start,
            command: seen.name,
            rss_bytes: seen.resident,
            cpu_ms: seen.time.as_millis() as u64,
        })
    };
    let mut tree: Vec<Process> = members.into_iter().filter_map(one).collect();
    // Nobody is older than whoever started it.
    tree.sort_by_key(|one| one.start);
    tree
}

fn seen(page: &Page, tree: Vec<Process>) -> Living {
    let age = SystemTime::now().duration_since(page.began()).unwrap_or_default();
    Living {
        session: page.session.clone(),
        within: page.within.clone(),
        server: page.server.clone(),
        host: page.host.map(|host| Host { pid: host.0, name: name(member(host)) }),
        wrapper: page.wrapper.map_or(0, |wrapper| wrapper.0),
        state: if page.leader.is_some() { State::Ready } else { State::Starting },
        idle_s: None,
        evidence: Vec::new(),
        share: None,
        backend: Backend::Job.name().into(),
        started: moment::rfc3339(page.began()),
        age_s: age.as_secs_f64(),
        processes: tree.len(),
        rss_bytes: tree.iter().map(|one| one.rss_bytes).sum(),
        pss_bytes: None,
        cpu_ms: 0,
        cpu_percent: None,
        tree,
        containers: Vec::new(),
    }
}
