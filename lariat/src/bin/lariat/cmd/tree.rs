//! `lariat tree`: whose is what, from hosts down to processes and containers.

use super::ps::{self, ENGINES, cpu, time};
use crate::{env, shelf, show};
use lariat::books::Onlooker;
use lariat::contain;
use lariat::snapshot::{Living, Process};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Shows hosts, their servers and the processes of those as a tree.
///
/// Each process has its pid, the kernel's short name for it, its memory, the CPU time it has used;
/// each server its state and its age. Containers that a server has started are below its processes.
/// Arguments are never shown: they can be secrets.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat tree
  lariat tree github
  lariat tree 3f0c9 --json")]
pub(crate) struct Args {
    /// Only these: sessions by the beginning of their id, or servers by their name
    #[arg(value_name = "SESSION")]
    which: Vec<String>,
    /// Print them as JSON, as `lariat ps` does
    #[arg(long)]
    json: bool,
    /// Where the books are [default: ~/.local/state/lariat]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// Looks and prints.
pub(crate) fn run(args: &Args) -> ExitCode {
    let mut living = match shelf::find(args.state_dir.as_ref()) {
        Ok((_, None)) => Vec::new(),
        Ok((_, Some(books))) => {
            let mut onlooker = Onlooker::new(&books);
            let mut living = onlooker.sweep_and_look();
            onlooker.ask_engines(&mut living, ENGINES);
            living
        }
        Err(code) => return code,
    };
    for which in &args.which {
        if !living.iter().any(|one| is_named(one, which)) {
            let what = format!("no session or server is called {which}");
            show::failure(&show::plain(&what), None, "`lariat ps` shows those there are");
            return ExitCode::FAILURE;
        }
    }
    if !args.which.is_empty() {
        living.retain(|one| args.which.iter().any(|which| is_named(one, which)));
    }
    let lines = if env::speaks_utf8() { &BOXES } else { &ASCII };
    let text = if args.json { ps::json(&living) } else { tree(&living, lines, since_boot()) };
    ExitCode::from(u8::from(!show::out(&text)))
}

/// The clock by which processes are born.
pub(super) fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn is_named(one: &Living, which: &str) -> bool {
    !which.is_empty() && (one.session.as_str().starts_with(which) || one.server.as_str() == which)
}

/// What branches are drawn with: another one, the last one, and what goes on beside and below them.
pub(super) struct Lines {
    another: &'static str,
    last: &'static str,
    beside: &'static str,
    below: &'static str,
}

pub(super) const BOXES: Lines =
    Lines { another: "├─ ", last: "└─ ", beside: "│  ", below: "   " };
pub(super) const ASCII: Lines = Lines { another: "|- ", last: "`- ", beside: "|  ", below: "   " };

/// Something with things below it.
struct Node {
    text: String,
    below: Vec<Node>,
}

impl Node {
    fn draw(&self, before: &str, lines: &Lines, out: &mut Vec<String>) {
        for (at, node) in self.below.iter().enumerate() {
            let is_last = at + 1 == self.below.len();
            let (own, under) = match is_last {
                true => (lines.last, lines.below),
                false => (lines.another, lines.beside),
            };
            out.push(format!("{before}{own}{}", node.text));
            node.draw(&format!("{before}{under}"), lines, out);
        }
    }
}

fn tree(living: &[Living], lines: &Lines, now: Duration) -> String {
    if living.is_empty() {
        return "no sessions\n".into();
    }
    let mut hosts: Vec<(String, Vec<&Living>)> = Vec::new();
    for one in living {
        let host = one.host.as_ref().map_or_else(
            || "no host".into(),
            |host| match &host.name {
                Some(name) => show::plain(&format!("{name} ({})", host.pid)),
                None => format!("a host that has gone ({})", host.pid),
            },
        );
        match hosts.iter_mut().find(|(known, _)| *known == host) {
            Some((_, of_host)) => of_host.push(one),
            None => hosts.push((host, vec![one])),
        }
    }
    let mut out = Vec::new();
    for (host, servers) in hosts {
        let node =
            Node { text: host, below: servers.into_iter().map(|one| server(one, now)).collect() };
        out.push(node.text.clone());
        node.draw("", lines, &mut out);
    }
    out.join("\n") + "\n"
}

fn server(one: &Living, now: Duration) -> Node {
    let idle = one.idle_s.map(|idle| format!(", idle {}", time(idle))).unwrap_or_default();
    let text = format!(
        "{}  {}  {}{idle}  {}  CPU {}  age {}",
        one.server,
        one.session,
        one.state.word(),
        show::bytes(one.rss_bytes),
        cpu(one.cpu_ms),
        time(one.age_s),
    );
    let mut below = processes(&one.tree, now);
    below.extend(one.containers.iter().map(|container| {
        let text = format!("container {:.12}  {:.19}", container.id, container.image);
        Node { text: show::plain(text.trim_end()), below: Vec::new() }
    }));
    Node { text: show::plain(&text), below }
}

/// A server's processes as lines, each below its parent.
pub(super) fn branches(tree: &[Process], lines: &Lines, now: Duration) -> Vec<String> {
    let mut out = Vec::new();
    Node { text: String::new(), below: processes(tree, now) }.draw("", lines, &mut out);
    out
}

fn processes(tree: &[Process], now: Duration) -> Vec<Node> {
    let there: BTreeSet<i32> = tree.iter().map(|process| process.pid).collect();
    let is_root =
        |process: &&Process| !there.contains(&process.ppid) || process.ppid == process.pid;
    tree.iter().filter(is_root).map(|root| process(root, tree, tree.len(), now)).collect()
}

/// One with its children; no deeper than there are processes, whatever their parents are said to be.
fn process(one: &Process, tree: &[Process], deep: usize, now: Duration) -> Node {
    let children = tree.iter().filter(|other| other.ppid == one.pid && other.pid != one.pid);
    let children = children.filter(|_| deep > 0);
    let text = format!(
        "{} {}  {}  CPU {}  age {}",
        one.pid,
        one.command,
        show::bytes(one.rss_bytes),
        cpu(one.cpu_ms),
        time(now.saturating_sub(contain::process::time(one.start)).as_secs_f64()),
    );
    Node {
        text: show::plain(&text),
        below: children.map(|child| process(child, tree, deep - 1, now)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: Duration = Duration::from_secs(60);

    fn living() -> Vec<Living> {
        let process = |pid: i32, ppid: i32, command: &str| {
            json!({"pid": pid, "ppid": ppid, "start": 1, "command": command, "rss_bytes": 2 << 20,
                "cpu_ms": 100})
        };
        let one = |session: &str, server: &str, host: &str, tree| {
            json!({
                "session": session, "within": null, "server": server,
                "host": {"pid": 7, "name": host}, "wrapper": 8, "state": "ready", "idle_s": null,
                "evidence": [], "backend": "descent", "started": "2026-11-15T20:23:00.125Z",
                "age_s": 60.0, "processes": 3, "rss_bytes": 6 << 20, "cpu_ms": 300, "tree": tree,
                "containers": [{"id": "0123456789abcdef", "image": "alpine"}],
            })
        };
        let tree =
            json!([process(10, 9, "npx"), process(11, 10, "no\u{7}de"), process(12, 9, "x")]);
        let all = json!([
            one("0123456789abcde", "github", "codex", tree),
            one("1123456789abcde", "time", "codex", json!([])),
            one("2123456789abcde", "other", "cursor", json!([process(20, 20, "self")])),
        ]);
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn everything_is_below_whom_it_belongs_to() {
        let text = tree(&living()[..2], &BOXES, NOW);
        let expected = "\
codex (7)
├─ github  0123456789abcde  ready  6.0 MiB  CPU 0.3s  age 1m00s
│  ├─ 10 npx  2.0 MiB  CPU 0.1s  age 59s
│  │  └─ 11 no?de  2.0 MiB  CPU 0.1s  age 59s
│  ├─ 12 x  2.0 MiB  CPU 0.1s  age 59s
│  └─ container 0123456789ab  alpine
└─ time  1123456789abcde  ready  6.0 MiB  CPU 0.3s  age 1m00s
   └─ container 0123456789ab  alpine
";
        assert_eq!(text, expected);
        assert!(tree(&living(), &ASCII, NOW).is_ascii());
        assert!(tree(&living(), &ASCII, NOW).contains("\ncursor (7)\n`- other"));
        assert_eq!(tree(&[], &BOXES, NOW), "no sessions\n");
    }

    #[test]
    fn one_is_named_by_its_server_or_the_beginning_of_its_session() {
        let one = &living()[0];
        for which in ["github", "0123", "0123456789abcde"] {
            assert!(is_named(one, which), "{which}");
        }
        for which in ["git", "123", ""] {
            assert!(!is_named(one, which), "{which}");
        }
    }
}
