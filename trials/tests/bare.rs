//! The kit tried on itself: it must see what is left, who was harmed and what never happened.
//!
//! Every finding that a verdict can hold is provoked here once, with no wrapper or with a few
//! words of shell in place of one. A check that cannot fail would pass for ever.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use trials::{Cell, Death, Misbehaviour, Moment, Process, Subject, Verdict, run, until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_misbehave");

fn play(subject: &Subject, misbehaviour: Misbehaviour, death: Death, moment: Moment) -> Verdict {
    let cell = Cell { misbehaviour, death, moment };
    assert!(cell.applies_to(subject), "{} does not apply", cell.name());
    run(&cell, subject)
}

/// A wrapper of shell: the script has the server's command line as its arguments.
fn shell(script: &str) -> Subject {
    Subject {
        patience: Duration::from_millis(500),
        ..Subject::wrapped(PROGRAM, ["/bin/sh", "-c", script, "sh"])
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// The pids at the beginning of each description.
fn pids(descriptions: &[String]) -> Vec<i32> {
    let first = |text: &String| text.split(' ').next().and_then(|pid| pid.parse().ok());
    descriptions.iter().filter_map(first).collect()
}

#[test]
fn a_polite_server_leaves_nothing() {
    for &moment in Moment::ALL {
        for death in [Death::StdinEof, Death::HostClosesPipes, Death::SigkillHost] {
            let verdict = play(&Subject::bare(PROGRAM), Misbehaviour::Polite, death, moment);
            assert!(verdict.passed(), "{death} {moment}: {verdict}");
            assert_eq!(verdict.wrapper_exit, death.spares_host().then_some(0));
        }
    }
}

#[test]
fn without_a_wrapper_children_survive_and_are_cleaned_up() {
    for misbehaviour in [
        Misbehaviour::SetsidChild,
        Misbehaviour::DoubleForkLeaderExits,
        Misbehaviour::EmptyEnv,
        Misbehaviour::NonDumpable,
        Misbehaviour::MainThreadExits,
        Misbehaviour::StoppedMembers,
        Misbehaviour::TracedMember,
        Misbehaviour::VforkLimbo,
        Misbehaviour::ReExecs,
        Misbehaviour::Disguised,
    ] {
        let bare = Subject::bare(PROGRAM);
        let verdict = play(&bare, misbehaviour, Death::SigkillHost, Moment::Ready);
        assert!(!verdict.survivors.is_empty(), "{misbehaviour}: {verdict}");
        assert!(verdict.harmed.is_empty() && verdict.hung.is_none(), "{misbehaviour}: {verdict}");
        assert!(verdict.unbuilt.is_none(), "{misbehaviour}: {verdict}");
        assert!(!verdict.to_string().contains("unkillable"), "{misbehaviour}: {verdict}");
        for pid in pids(&verdict.survivors) {
            let gone = || Process::now(pid).is_none_or(|process| !process.is_alive());
            assert!(until(Duration::from_secs(2), gone), "{misbehaviour} left {pid}: {verdict}");
        }
    }
}

#[test]
fn somebody_who_hops_from_pid_to_pid_is_not_missed() {
    for misbehaviour in [Misbehaviour::Rabbit, Misbehaviour::RabbitEmptyEnv] {
        let bare = Subject::bare(PROGRAM);
        let verdict = play(&bare, misbehaviour, Death::SigkillGroup, Moment::Ready);
        assert!(!verdict.survivors.is_empty(), "{misbehaviour}: {verdict}");
        assert!(verdict.unbuilt.is_none(), "{misbehaviour}: {verdict}");
    }
}

#[test]
fn whoever_is_born_on_sigterm_is_seen() {
    let bare = Subject::bare(PROGRAM);
    let exits = play(&bare, Misbehaviour::TermForksAndExits, Death::Sigterm, Moment::InCall);
    assert_eq!(exits.survivors.len(), 1, "{exits}");
    let stays = play(&bare, Misbehaviour::TermForksAndStays, Death::Sigterm, Moment::Ready);
    assert_eq!(stays.survivors.len(), 2, "{stays}");
}

#[test]
fn a_host_that_does_not_read_stderr_hangs_a_server_that_writes_much() {
    let deaf = Subject { drains_stderr: false, ..Subject::bare(PROGRAM) };
    let verdict = play(&deaf, Misbehaviour::FloodsStderr, Death::SigkillGroup, Moment::Ready);
    assert!(verdict.hung.is_some() && !verdict.passed(), "{verdict}");
    let verdict = play(&deaf, Misbehaviour::Polite, Death::StdinEof, Moment::Ready);
    assert!(verdict.passed(), "{verdict}");
}

#[test]
fn a_wrapper_that_never_starts_the_server_proves_nothing() {
    let fake = r#"read line; echo '{"protocolVersion":1}'; cat >/dev/null"#;
    let verdict = play(&shell(fake), Misbehaviour::SetsidChild, Death::StdinEof, Moment::Ready);
    assert!(verdict.unbuilt.is_some() && !verdict.passed(), "{verdict}");
    assert!(verdict.survivors.is_empty(), "{verdict}");
}

/// A wrapper that, once the server has ended, does something to everybody whose command line has
/// the server's token in it, except itself.
fn guesser(what: &str) -> Subject {
    let each = r#""$@"; for f in $(grep -ls "$4" /proc/[0-9]*/cmdline); do q=${f#/proc/}; q=${q%/cmdline}; [ $q = $$ ] || "#;
    let script = format!("{each} {{ {what}; }} 2>/dev/null; done; :");
    Subject { patience: Duration::from_secs(3), ..shell(&script) }
}

#[test]
fn a_wrapper_that_goes_by_the_command_line_harms_bystanders() {
    let wrapper = guesser("kill -USR1 $q");
    let verdict = play(&wrapper, Misbehaviour::Polite, Death::StdinEof, Moment::Ready);
    assert_eq!(verdict.harmed.len(), 3, "{verdict}");
    assert!(verdict.harmed[0].contains("signal [10]"), "{verdict}");
    assert!(!verdict.passed());
}

#[test]
fn a_wrapper_that_stops_and_continues_a_bystander_is_caught() {
    let wrapper = guesser("kill -STOP $q && kill -CONT $q");
    let verdict = play(&wrapper, Misbehaviour::Polite, Death::StdinEof, Moment::Ready);
    assert_eq!(verdict.harmed.len(), 3, "{verdict}");
}

#[test]
fn a_wrapper_that_kills_its_host_is_caught() {
    let rude = r#""$@"; kill -KILL $PPID"#;
    let verdict = play(&shell(rude), Misbehaviour::Polite, Death::StdinEof, Moment::Ready);
    assert_eq!(verdict.harmed, ["the host was ended or stopped"], "{verdict}");
}

#[test]
fn the_guardian_is_found_and_killed() {
    let subject = Subject { guardian: true, ..shell(r#"( "$@"; : ); exit 3"#) };
    let death = Death::SigkillGuardian;
    let verdict = play(&subject, Misbehaviour::Polite, death, Moment::Ready);
    assert!(verdict.hung.is_none(), "{verdict}");
    // The subshell alone was killed: the server lives on, the outer shell has gone.
    assert_eq!(verdict.survivors.len(), 1, "{verdict}");
    assert_eq!(verdict.wrapper_exit, Some(3), "{verdict}");
}

#[test]
fn the_sweep_is_run_when_both_are_killed() {
    let subject = Subject {
        guardian: true,
        sweep: Some(vec!["/bin/sh".into(), "-c".into(), "echo swept > \"$HOME/swept\"".into()]),
        ..shell(r#"( "$@"; : ); exit 3"#)
    };
    let verdict = play(&subject, Misbehaviour::Polite, Death::SigkillBoth, Moment::Ready);
    assert!(verdict.hung.is_none(), "{verdict}");
    assert_eq!(verdict.survivors.len(), 1, "{verdict}");
    let missing = Subject { sweep: Some(vec!["/nonexistent".into()]), ..subject };
    let verdict = play(&missing, Misbehaviour::Polite, Death::SigkillBoth, Moment::Ready);
    assert!(verdict.hung.is_some_and(|why| why.contains("sweep")));
}

#[test]
fn a_cgroup_left_behind_is_named_and_removed() {
    let mount = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mount.lines().find(|line| line.contains(" - cgroup2 "));
    let Some(mount) = mount.and_then(|line| line.split(' ').nth(4)).filter(|_| is_root()) else {
        eprintln!("skipped: needs root and cgroup2");
        return;
    };
    let leaf = format!("{mount}/left-{}", std::process::id());
    let script = format!(r#"mkdir {leaf}; echo $$ > {leaf}/cgroup.procs; exec "$@""#);
    let verdict = play(&shell(&script), Misbehaviour::Polite, Death::StdinEof, Moment::Ready);
    assert_eq!(verdict.left_cgroups.len(), 1, "{verdict}");
    assert!(verdict.survivors.is_empty() && !verdict.passed(), "{verdict}");
    assert!(!Path::new(&leaf).exists());
}

#[test]
fn sockets_serve_as_well_as_pipes() {
    let sockets = Subject { socketpair: true, ..Subject::bare(PROGRAM) };
    for death in [Death::StdinEof, Death::HostClosesPipes, Death::SigkillHost] {
        let verdict = play(&sockets, Misbehaviour::Polite, death, Moment::InCall);
        assert!(verdict.passed(), "{death}: {verdict}");
    }
}

#[test]
fn another_user_can_be_played() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let script = r#"test "$(id -u):$(id -G)" = 65534:65534 && test -O "$HOME" && exec "$@""#;
    let nobody = Subject { user: Some(65534), ..shell(script) };
    let verdict = play(&nobody, Misbehaviour::Polite, Death::StdinEof, Moment::Ready);
    assert!(verdict.passed(), "{verdict}");
    let verdict = play(&nobody, Misbehaviour::NonDumpable, Death::Sigterm, Moment::Ready);
    assert_eq!(verdict.survivors.len(), 1, "{verdict}");
}

#[test]
fn a_program_out_of_that_users_reach_is_copied() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let closed = std::env::temp_dir().join(format!("closed-{}", std::process::id()));
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
    let hidden = closed.join("hidden");
    fs::copy(PROGRAM, &hidden).unwrap();
    let nobody = Subject { user: Some(65534), ..Subject::bare(&hidden) };
    let verdict = play(&nobody, Misbehaviour::Polite, Death::StdinEof, Moment::Ready);
    fs::remove_dir_all(&closed).unwrap();
    assert!(verdict.passed(), "{verdict}");
}

#[test]
fn owners_are_told_to_close() {
    let script = r#"shift; "$@" >/dev/null & echo up; read order; [ $order = close ] && kill -KILL $!; wait"#;
    let owner = Subject {
        patience: Duration::from_millis(500),
        ..Subject::owner(PROGRAM, ["/bin/sh", "-c", script, "sh"])
    };
    let verdict = play(&owner, Misbehaviour::IgnoresEof, Death::Close, Moment::Ready);
    assert!(verdict.passed(), "{verdict}");
    let verdict = play(&owner, Misbehaviour::IgnoresEof, Death::SigkillHost, Moment::Ready);
    assert_eq!(verdict.survivors.len(), 1, "{verdict}");
}

#[test]
fn cells_do_not_disturb_each_other() {
    let verdicts: Vec<Verdict> = thread::scope(|scope| {
        let one = || {
            let bare = Subject::bare(PROGRAM);
            play(&bare, Misbehaviour::LeaderLeavesChild, Death::SigkillGroup, Moment::Ready)
        };
        let running: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
        running.into_iter().map(|cell| cell.join().unwrap()).collect()
    });
    for verdict in verdicts {
        assert!(verdict.passed(), "{verdict}");
        assert_eq!(verdict.peak, 2, "{verdict}");
    }
}

#[test]
fn a_pid_namespace_that_dies_with_its_parent_passes() {
    let wrap = "bwrap --die-with-parent --unshare-pid --dev-bind / / --proc /proc --";
    let bwrap = Subject::wrapped(PROGRAM, wrap.split(' '));
    let mut rehearsal = std::process::Command::new("bwrap");
    rehearsal.args(wrap.split(' ').skip(1)).arg("true");
    let Ok(status) = rehearsal.status() else {
        eprintln!("skipped: bwrap is not installed");
        return;
    };
    assert!(status.success());
    for misbehaviour in [
        Misbehaviour::SetsidChild,
        Misbehaviour::DoubleForkLeaderExits,
        Misbehaviour::EmptyEnv,
        Misbehaviour::Namespaces,
        Misbehaviour::Rabbit,
        Misbehaviour::WideTree,
        Misbehaviour::ForksDuringKill,
        Misbehaviour::StoppedMembers,
        Misbehaviour::VforkLimbo,
    ] {
        let verdict = play(&bwrap, misbehaviour, Death::SigkillHost, Moment::Ready);
        assert!(verdict.passed(), "{misbehaviour}: {verdict}");
    }
}
