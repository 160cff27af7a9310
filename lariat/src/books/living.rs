//! Who lives, as the books and the kernel have it now. Looking changes nothing.

use super::{Books, Page, Place, status};
use crate::moment;
use crate::snapshot::{Host, Living, Process, State};
use contain::{Member, process};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

impl Books {
    /// Every session that lives here, oldest first. Not those of another machine or container that
    /// shares the directory: its pids mean nothing here.
    pub fn living(&self) -> Vec<Living> {
        let here = Place::here();
        let files = fs::read_dir(self.sessions()).into_iter().flatten().flatten();
        let paths = files.map(|file| file.path());
        let pages = paths.filter(|path| path.extension().is_some_and(|e| e == "json"));
        let held = pages.filter_map(|path| held(&path).map(|page| (path, page)));
        let mut held: Vec<(PathBuf, Page)> = held.filter(|(_, page)| page.place == here).collect();
        held.sort_by_key(|(_, page)| (page.started_ms, page.mark));
        let now = SystemTime::now();
        held.into_iter().map(|(path, page)| look(&path, page, now)).collect()
    }
}

/// What a file says, if somebody holds it.
fn held(path: &Path) -> Option<Page> {
    let file = File::open(path).ok()?;
    let meta = file.metadata().ok()?;
    if meta.uid() != rustix::process::geteuid().as_raw() || meta.nlink() == 0 {
        return None;
    }
    // Shared, and for a moment only: whoever wants to finish a crash tries again.
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn look(path: &Path, page: Page, now: SystemTime) -> Living {
    let since = |ms: u64| {
        let then = UNIX_EPOCH + Duration::from_millis(ms);
        // To the millisecond, which is what was written down.
        now.duration_since(then).unwrap_or_default().as_millis() as f64 / 1000.0
    };
    let (pid, start) = page.wrapper;
    let wrapper = Member { pid, start };
    let tree: Vec<Process> = tree(wrapper).into_iter().filter_map(picture).collect();
    let status = status::of(path);
    let state = match &status {
        // Its guardian holds the page, and is ending the tree.
        _ if !wrapper.is_alive() => State::Ending,
        Some(status) => status.state,
        None if tree.is_empty() => State::Starting,
        None => State::Ready,
    };
    Living {
        session: page.session,
        within: page.within,
        server: page.server,
        host: page.host.map(|(pid, start)| Host { pid, name: name_of(Member { pid, start }) }),
        wrapper: pid,
        state,
        idle_s: status.as_ref().and_then(|status| status.quiet_since_ms).map(since),
        evidence: status.map(|status| status.evidence).unwrap_or_default(),
        backend: page.backend,
        started: moment::rfc3339(UNIX_EPOCH + Duration::from_millis(page.started_ms)),
        age_s: since(page.started_ms),
        processes: tree.len(),
        rss_bytes: tree.iter().map(|process| process.rss_bytes).sum(),
        pss_bytes: None,
        cpu_ms: tree.iter().map(|process| process.cpu_ms).sum(),
        tree,
        containers: Vec::new(),
    }
}

/// What the kernel says of one process; `None` if it has gone.
fn picture(member: Member) -> Option<Process> {
    let stat = process::stat(member.pid).filter(|stat| stat.start == member.start)?;
    Some(Process {
        pid: member.pid,
        ppid: stat.ppid,
        start: member.start,
        command: process::name(member.pid),
        rss_bytes: process::resident(member.pid).unwrap_or(0),
        cpu_ms: process::time(stat.cpu_ticks).as_millis() as u64,
    })
}

/// The server's processes: everyone below the wrapper but those of our own that hold the server.
/// Nobody if the number has come to mean somebody else.
fn tree(wrapper: Member) -> Vec<Member> {
    let program = |pid: i32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let ours = program(wrapper.pid);
    // Guardian and helpers are forks of the wrapper; the server is the guardian's child.
    let is_ours = |member: &Member| {
        let is_child = process::stat(member.pid).is_some_and(|stat| stat.ppid == wrapper.pid);
        is_child && program(member.pid) == ours
    };
    let mut below = process::below(wrapper.pid);
    below.retain(|member| !is_ours(member));
    if wrapper.is_alive() { below } else { Vec::new() }
}

fn name_of(host: Member) -> Option<String> {
    let name = process::name(host.pid);
    host.is_alive().then_some(name)
}
