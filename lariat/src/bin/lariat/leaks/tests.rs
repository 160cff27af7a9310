//! The decision, tried on tables and on pictures at random.

use super::*;

const AFTER: Duration = Duration::from_secs(60);
const INIT: i32 = 1;

fn configured() -> Vec<Configured> {
    let one = |host: &'static str, server: &str| Configured {
        host,
        server: server.into(),
        command: "node".into(),
        args: vec![format!("/srv/{server}.js")],
        wrapped: false,
    };
    vec![one("codex", "a"), one("codex", "b"), one("cursor", "a")]
}

fn hosts() -> Vec<KnownHost> {
    let one = |name: &str| KnownHost { name: name.into(), programs: vec![name.into()] };
    vec![one("codex"), one("cursor")]
}

fn picture(processes: Vec<Process>) -> Picture {
    let init = Process { pid: INIT, uid: 0, ..Process::default() };
    let processes = [vec![init], processes].concat();
    Picture { uid: 7, own: 9999, now: 1_000_000, ticks: 100, processes }
}

fn process(pid: i32, parent: i32, line: &str) -> Process {
    let argv: Vec<String> = line.split(' ').map(String::from).collect();
    Process {
        pid,
        parent,
        start: 1000 + pid as u64 * 10_000,
        uid: 7,
        program: argv[0].clone(),
        argv,
        rss_bytes: 10,
        ..Process::default()
    }
}

/// Codex as process 10, with the writing ends of these pipes.
fn codex(pipes: &[u64]) -> Process {
    let ends = pipes.iter().map(|pipe| End::Writing(*pipe)).collect();
    Process { ends, ..process(10, INIT, "/usr/bin/codex") }
}

/// A server, talked to through this pipe.
fn server(pid: i32, parent: i32, pipe: u64) -> Process {
    let stdin = Stream::To(End::Writing(pipe));
    Process { stdin, setting: 5, ..process(pid, parent, "node /srv/a.js") }
}

fn orphan(pid: i32) -> Process {
    let (stdin, stdout) = (Stream::Closed, Stream::Closed);
    Process { stdin, stdout, ..process(pid, INIT, "node /srv/a.js") }
}

fn found(processes: Vec<Process>) -> Vec<Finding> {
    find(&picture(processes), &configured(), &hosts(), AFTER)
}

fn kinds(processes: Vec<Process>) -> Vec<(i32, Kind)> {
    let mut kinds: Vec<_> = found(processes).iter().map(|f| (f.pid, f.kind)).collect();
    kinds.sort();
    kinds
}

#[test]
fn the_newest_is_in_use_and_the_older_ones_are_not() {
    let copies = vec![codex(&[1, 2, 3]), server(11, 10, 1), server(12, 10, 2), server(13, 10, 3)];
    let all = found(copies.clone());
    assert_eq!(
        kinds(copies),
        [(11, Kind::Superseded), (12, Kind::Superseded), (13, Kind::Running)]
    );
    assert_eq!(
        all[0].evidence,
        [Evidence::Config, Evidence::ChildOfHost, Evidence::PipeToHost, Evidence::Superseded]
    );
    assert_eq!((all[0].generation, all[0].host_pid), ([1, 3], Some(10)));
    assert_eq!((all[0].hosts.clone(), all[0].server.as_str()), (vec!["codex".into()], "a"));
}

#[test]
fn a_copy_elsewhere_supersedes_nobody() {
    let other_place = Process { setting: 6, ..server(12, 10, 2) };
    let other_server =
        Process { argv: vec!["node".into(), "/srv/b.js".into()], ..server(12, 10, 2) };
    // Started so soon after that both may be meant.
    let soon = Process { start: server(11, 10, 1).start + 5900, ..server(12, 10, 2) };
    // Somebody's shell in the same host runs it by hand.
    let by_hand = server(12, 30, 2);
    for second in [other_place, other_server, soon, by_hand] {
        let shell = process(30, 10, "bash");
        let all = vec![codex(&[1, 2]), server(11, 10, 1), second, shell];
        assert_eq!(kinds(all), [(11, Kind::Running), (12, Kind::Running)]);
    }
    // Another window of the same host.
    let window = Process { pid: 20, ends: [End::Writing(2)].into(), ..codex(&[]) };
    let all = vec![codex(&[1]), window, server(11, 10, 1), server(12, 20, 2)];
    assert_eq!(kinds(all), [(11, Kind::Running), (12, Kind::Running)]);
}

#[test]
fn an_orphan_with_a_closed_stdin_is_a_leak_of_whoever_may_have_started_it() {
    let all = found(vec![orphan(11)]);
    assert_eq!(all.len(), 1);
    assert_eq!(
        (all[0].kind, &all[0].hosts[..]),
        (Kind::Orphaned, &["codex".into(), "cursor".into()][..])
    );
    let alone = [Evidence::Orphaned, Evidence::StdinClosed, Evidence::StdoutClosed];
    assert_eq!(all[0].evidence, [&[Evidence::Config][..], &alone].concat());
    // Whoever stands in for init is no other.
    let manager = process(5, INIT, "/usr/lib/systemd/systemd --user");
    let adopted = Process { parent: 5, ..orphan(11) };
    assert_eq!(kinds(vec![manager, adopted]), [(11, Kind::Orphaned)]);
}

#[test]
fn a_living_host_that_has_closed_the_pipe_has_forgotten_it() {
    let closed = Process { stdin: Stream::Closed, ..server(11, 10, 1) };
    assert_eq!(kinds(vec![codex(&[]), closed.clone()]), [(11, Kind::Forgotten)]);
    // It may be about to leave.
    let young = Process { start: 999_000, ..closed };
    assert_eq!(kinds(vec![codex(&[]), young]), [(11, Kind::Running)]);
}

#[test]
fn the_innocent_are_left_alone() {
    let shell = process(30, INIT, "bash");
    let somebodys = process(31, INIT, "python3 mine.py");
    for innocent in [
        // A person's own, in a terminal, in the background, at the end of a pipe, as a service.
        Process { stdin: Stream::Plain, ..process(11, 30, "node /srv/a.js") },
        Process { stdin: Stream::Plain, ..process(11, INIT, "node /srv/a.js") },
        Process { stdin: Stream::Closed, ..process(11, 30, "node /srv/a.js") },
        server(11, 30, 77),
        server(11, INIT, 77),
        // A program of somebody's that closed its stdin and waits.
        Process { stdin: Stream::Closed, ..process(11, 31, "node /srv/a.js") },
        // Unreadable, and so not known to be closed.
        Process { stdin: Stream::Unseen, ..orphan(11) },
        // Somebody reads what it says; it says it to a file or a terminal; nobody can tell.
        Process { stdout: Stream::To(End::Reading(5)), ..orphan(11) },
        Process { stdout: Stream::Plain, ..orphan(11) },
        Process { stdout: Stream::Unseen, ..orphan(11) },
        // A script has just left it; it lives in a room of its own.
        Process { start: 999_000, ..orphan(11) },
        Process { is_apart: true, ..orphan(11) },
        // Others come to it by the network.
        Process { listens: true, ..orphan(11) },
        Process { listens: true, stdin: Stream::Closed, ..server(11, 10, 1) },
        Process { is_apart: true, stdin: Stream::Closed, ..server(11, 10, 1) },
        // A tool of the host's: its child, and not its server.
        Process { stdin: Stream::Unseen, ..process(11, 10, "node /srv/a.js") },
        Process { stdin: Stream::Plain, ..process(11, 10, "node /srv/a.js") },
    ] {
        let all = vec![shell.clone(), somebodys.clone(), codex(&[1]), innocent.clone()];
        assert_eq!(kinds(all), [(11, Kind::Unsure)], "{innocent:?}");
    }
    for nobody in [
        Process { uid: 8, ..orphan(11) },
        Process { is_dead: true, ..orphan(11) },
        Process { is_held: true, ..orphan(11) },
        Process { is_elsewhere: true, ..orphan(11) },
        Process { argv: vec!["node".into()], ..orphan(11) },
        Process { argv: vec!["node".into(), "/srv/c.js".into()], ..orphan(11) },
        // A language server: child and pipes of the host, and in nobody's configuration.
        Process { argv: vec!["node".into(), "/srv/lsp.js".into()], ..server(11, 10, 1) },
    ] {
        let all = vec![codex(&[1]), nobody.clone()];
        assert_eq!(kinds(all), [], "{nobody:?}");
    }
    // What Lariat holds is below one of its own.
    let wrapper = Process { is_held: true, ..process(40, 10, "lariat run") };
    assert_eq!(kinds(vec![codex(&[1]), wrapper, server(11, 40, 1)]), []);
}

#[test]
fn a_host_that_is_dead_or_somebody_elses_vouches_for_nobody() {
    let dead = Process { is_dead: true, ..codex(&[1, 2]) };
    let foreign = Process { uid: 8, ..codex(&[1, 2]) };
    let other = Process { argv: vec!["cursor".into()], program: "cursor".into(), ..codex(&[1, 2]) };
    let b = |pid, pipe| Process {
        argv: vec!["node".into(), "/srv/b.js".into()],
        ..server(pid, 10, pipe)
    };
    for host in [dead, foreign, other] {
        let all = vec![host, b(11, 1), b(12, 2)];
        assert_eq!(kinds(all), [(11, Kind::Unsure), (12, Kind::Unsure)]);
    }
}

#[test]
fn launchers_and_children_are_one_tree() {
    let npm = Process { stdin: Stream::Closed, ..orphan(11) };
    let shell = process(12, 11, "sh -c thing");
    let leaf = process(13, 12, "node /srv/a.js");
    let all = found(vec![npm, shell.clone(), leaf.clone()]);
    assert_eq!((all.len(), all[0].pid, all[0].processes, all[0].rss_bytes), (1, 11, 3, 30));
    // The launcher is gone, its shell waits.
    let (stdin, stdout) = (Stream::Closed, Stream::Closed);
    let shell = Process { parent: INIT, stdin, stdout, ..shell };
    let leaf = Process { stdin: Stream::Closed, ..leaf };
    let all = found(vec![shell.clone(), leaf.clone()]);
    assert_eq!((all[0].kind, all[0].pid, all[0].processes), (Kind::Orphaned, 12, 2), "{all:?}");
    // Somebody's own shell is not the server's.
    let interactive = Process { argv: vec!["bash".into()], ..shell };
    assert_eq!(kinds(vec![interactive, leaf]), [(13, Kind::Unsure)]);
}

#[test]
fn nobody_saws_off_the_branch_it_sits_on() {
    let me = Process { pid: 9999, ..process(99, 11, "lariat reap") };
    assert_eq!(kinds(vec![orphan(11), me]), [(11, Kind::Running)]);
}

#[test]
fn a_number_that_was_given_out_again_is_another_finding() {
    let before = found(vec![orphan(11)]);
    let after = found(vec![Process { start: 5, ..orphan(11) }]);
    assert_ne!(before[0].root(), after[0].root());
}

/// Random pictures: whatever they look like, some things never happen.
#[test]
fn whatever_the_picture_no_one_is_accused_without_two_kinds_of_evidence() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut roll = move |sides: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % sides
    };
    let mut leaks = 0;
    for _ in 0..2000 {
        let lines = [
            "node /srv/a.js",
            "node /srv/a.js",
            "node /srv/b.js",
            "node",
            "/usr/bin/codex",
            "cursor",
            "bash",
            "sh -c x",
        ];
        let count = 2 + roll(20);
        let mut all = Vec::new();
        for n in 0..count {
            let line = lines[roll(lines.len() as u64) as usize];
            let stdin = match roll(5) {
                0 => Stream::Unseen,
                1 => Stream::Plain,
                2 => Stream::Closed,
                _ => Stream::To(End::Writing(roll(6))),
            };
            let ends = (0..roll(4)).map(|_| End::Writing(roll(6))).collect();
            // Any parent, also one that is not there, itself, or below it.
            let parent = if roll(3) > 0 { INIT } else { 2 + roll(count) as i32 };
            all.push(Process {
                stdin,
                stdout: if roll(4) == 0 { Stream::Plain } else { Stream::Closed },
                ends,
                start: roll(1_000_000),
                uid: if roll(8) == 0 { 8 } else { 7 },
                is_dead: roll(10) == 0,
                is_held: roll(40) == 0,
                setting: roll(2),
                ..process(2 + n as i32, parent, line)
            });
        }
        let by_pid: HashMap<i32, Process> = all.iter().map(|p| (p.pid, p.clone())).collect();
        let found = found(all.clone());
        all.reverse();
        assert_eq!(found, self::found(all), "the order of the picture matters");
        for one in found.iter().filter(|one| one.kind.is_leak()) {
            leaks += 1;
            let process = &by_pid[&one.pid];
            assert!(one.evidence.contains(&Evidence::Config) && one.evidence.len() >= 3, "{one:?}");
            assert!(process.uid == 7 && !process.is_dead && !process.is_held);
            assert!(!matches!(process.stdin, Stream::Unseen | Stream::Plain), "{one:?}");
            assert!(one.kind != Kind::Orphaned || process.stdout == Stream::Closed, "{one:?}");
            let [number, of] = one.generation;
            assert!(one.kind != Kind::Superseded || number < of, "the newest was accused");
        }
    }
    assert!(leaks > 500, "only {leaks}: this proves little");
}
