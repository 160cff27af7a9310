//! What many sessions of the same four servers hold, shared and each with its own.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use crate::Options;
use crate::daemon::{Daemon, memory};
use crate::peer::{Peer, Workshop, Wrapper, token};
use crate::report::Report;

/// Servers of a session. They differ in an argument that none of them looks at.
const SERVERS: usize = 4;
/// Sessions before which a daemon is not what it is.
const FIRST: usize = 2;
/// What a session may add to the daemon, and to its wrapper, in units of 1000 bytes.
const IN_DAEMON: f64 = 50.0;
const IN_WRAPPER: f64 = 1000.0;
/// How many private ones of a real server are started to know what one takes.
const SAMPLE: usize = 2;

pub(crate) fn measure(shop: &Workshop, options: &Options, report: &mut Report) -> io::Result<()> {
    for (name, server) in shop.servers() {
        let is_stub = name == "stub";
        // A real one so often does not fit anywhere: what a few take is multiplied.
        let sample = if is_stub { options.sessions } else { SAMPLE.min(options.sessions) };
        let wrapper = Wrapper { name: "alone".into(), words: shop.lariat_run(&[]) };
        let mut crowd = Vec::new();
        gather(&mut crowd, &wrapper, &server, sample, &token("memory"))?;
        let alone = Held::by(shop, &crowd, None);
        drop(crowd);
        let daemon = Daemon::start(shop, &format!("memory-{name}"), &[])?;
        // One word for all: who has another environment has another server.
        let (wrapper, token) = (daemon.sharing(shop), token("memory"));
        let mut crowd = Vec::new();
        // The first few pay for what all of them use.
        gather(&mut crowd, &wrapper, &server, FIRST, &token)?;
        let before = memory(daemon.pid())[0];
        gather(&mut crowd, &wrapper, &server, options.sessions.saturating_sub(FIRST), &token)?;
        let shared = Held::by(shop, &crowd, Some(daemon.pid()));
        let added = (crowd.len() - FIRST * SERVERS) as f64;
        let in_daemon = (memory(daemon.pid())[0] - before) / added;
        let in_wrapper = shared.wrappers / crowd.len() as f64;
        let factor = options.sessions as f64 / sample as f64;
        let row = |name: &str, held: &Held, factor: f64| {
            let (servers, total) = (held.servers as f64 * factor, held.total * factor);
            (name.to_owned(), vec![servers, total / 1000.0, total / crowd.len() as f64])
        };
        let rows = [row("each its own", &alone, factor), row("shared", &shared, 1.0)];
        let how = if is_stub { "all counted" } else { "its own: eight counted, and multiplied" };
        let sessions = options.sessions;
        let title = format!("{sessions} sessions × {SERVERS} of {name}: PSS of everything, {how}");
        report.table(&title, &["servers", "MB", "kB each"], &rows);
        let trees = shared.servers as f64;
        report.bar(&format!("{name}: servers of {sessions} sessions"), trees, SERVERS as f64, "");
        report.bar(&format!("{name}: a session in the daemon"), in_daemon, IN_DAEMON, "kB");
        report.bar(&format!("{name}: its wrapper, private"), in_wrapper, IN_WRAPPER, "kB");
    }
    Ok(())
}

/// Starts that many sessions of four servers each, all of which are greeted and called once.
fn gather(
    crowd: &mut Vec<Peer>,
    wrapper: &Wrapper,
    server: &[String],
    sessions: usize,
    token: &str,
) -> io::Result<()> {
    for number in (0..sessions).flat_map(|_| 0..SERVERS) {
        let mut words: Vec<String> = wrapper.words.iter().chain(server).cloned().collect();
        words.push(number.to_string());
        let mut peer = Peer::start(&words, token)?;
        peer.introduce()?;
        crowd.push(peer);
    }
    Ok(())
}

/// What processes hold, in units of 1000 bytes.
struct Held {
    servers: usize,
    /// Everybody's share of everything.
    total: f64,
    /// What the wrappers have to themselves.
    wrappers: f64,
}

impl Held {
    /// By wrappers, by a daemon, and by everybody below them.
    fn by(shop: &Workshop, crowd: &[Peer], daemon: Option<u32>) -> Held {
        let wrappers: BTreeSet<u32> = crowd.iter().map(Peer::pid).collect();
        let mut held = Held { servers: 0, total: 0.0, wrappers: 0.0 };
        for pid in below(wrappers.iter().copied().chain(daemon).collect()) {
            let [private, share] = memory(pid);
            held.total += share;
            let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            if wrappers.contains(&pid) {
                held.wrappers += private;
            } else if program != Path::new(&shop.lariat) {
                held.servers += 1;
            }
        }
        held
    }
}

/// What a process and everybody below it hold, in units of 1000 bytes.
pub(crate) fn everybody(root: u32) -> f64 {
    below([root].into()).into_iter().map(|pid| memory(pid)[1]).sum()
}

/// These and everybody who descends from them.
fn below(mut found: BTreeSet<u32>) -> BTreeSet<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    loop {
        let before = found.len();
        found.extend(
            parents
                .iter()
                .filter(|(_, of)| found.contains(of))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if found.len() == before {
            return found;
        }
    }
}

/// After the name, which may hold anything: the parent is field 4.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}
