//! A server cannot tell from its surroundings that it is wrapped: environment, arguments, directory,
//! limits, signals and descriptors are those that the host gave. And what the host gave stays between
//! the two: no argument and no variable is written anywhere.
//!
//! Most tests ask the same question twice, bare and wrapped, through the same host. Hosts are played
//! by `env`, `sh` and `prlimit`, which change something and then become the wrapper.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host/finish.rs"]
mod finish;
#[path = "host/place.rs"]
mod place;

use finish::{finish, finish_with};
use place::{PATIENCE, Place};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use trials::until;

/// Every way of running that must look the same to a server.
/// Containers are left alone: a machine that has an engine must not decide what is seen here.
const MANNERS: [&[&str]; 4] = [
    &["--containers", "leave"],
    &["--containers", "leave", "--relay"],
    &["--containers", "leave", "--idle", "1h"],
    &["--containers", "leave", "--backend", "descent"],
];

#[test]
fn the_environment_is_the_hosts_byte_for_byte() {
    let place = Place::new();
    // `env` adds at the end what it is given, so the order is not that of the alphabet.
    let host = ["env", "ZZZ=last", "AAA=", "MMM=with = and \n and 'quotes'"];
    let prepare = |command: &mut Command| {
        command.env_clear().env("PATH", PATH).env("B", "first");
        // The same name twice, no name at all, and bytes that are no text.
        command.env("B=again", "second").env("", "nameless");
        command.env("RAW", OsStr::from_bytes(b"\xff\xfe\x01"));
    };
    let server = ["cat", "/proc/self/environ"];
    let (bare, wrapped) = twice(&place, &host, &server, prepare);
    assert!(contains(&bare, b"B=first\0B=again=second\0"), "{}", text(&bare));
    assert!(contains(&bare, b"ZZZ=last\0AAA=\0"), "{}", text(&bare));
    assert_same(&bare, &wrapped);
}

#[test]
fn an_engine_changes_one_variable_and_replaces_those_that_led_to_it() {
    let place = Place::new();
    let socket = place.path("engine.sock");
    let _engine = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let seen = |options: &[&str]| {
        let mut run = place.lariat("run");
        run.args(options).args(["--", "cat", "/proc/self/environ"]);
        run.env_clear().env("A", "1").env("DOCKER_CONTEXT", "gone").env("DOCKER_TLS", "");
        run.env("DOCKER_HOST", format!("unix://{}", socket.display())).env("Z", "2");
        let output = finish(&mut run);
        assert_eq!(text(&output.stderr), "");
        text(&output.stdout)
    };
    let held = seen(&[]);
    let ours = place.path("state/sessions").display().to_string();
    let path = held.strip_prefix("A=1\0Z=2\0DOCKER_HOST=unix://").expect(&held);
    assert!(path.starts_with(&ours) && path.ends_with(".sock\0"), "{path}");
    assert!(!Path::new(path.trim_end_matches('\0')).exists(), "the socket goes with the session");
    let left = seen(&["--containers", "leave"]);
    assert!(left.contains("\0DOCKER_CONTEXT=gone\0") && left.contains("engine.sock\0"), "{left}");
}

#[test]
fn an_empty_environment_stays_empty() {
    let place = Place::new();
    let host = ["env", "-i"];
    let server = ["/bin/cat", "/proc/self/environ"];
    let (bare, wrapped) = twice(&place, &host, &server, |_| {});
    assert_same(&bare, b"");
    assert_same(b"", &wrapped);
}

#[test]
fn six_variables_are_enough_and_stay_six() {
    let place = Place::new();
    let home = place.path("home");
    fs::create_dir(&home).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_lariat"));
    run.env_clear().env("HOME", &home).env("LOGNAME", "me").env("PATH", PATH);
    run.env("SHELL", "/bin/sh").env("TERM", "dumb").env("USER", "me");
    let output = finish(run.args(["run", "--containers", "leave", "--", "env"]));
    let expected = format!(
        "HOME={}\nLOGNAME=me\nPATH={PATH}\nSHELL=/bin/sh\nTERM=dumb\nUSER=me\n",
        home.display()
    );
    assert_eq!(text(&output.stdout), expected);
    assert_eq!(text(&output.stderr), "");
    assert!(home.join(".local/state/lariat/events.jsonl").exists());
}

#[test]
fn without_a_usable_home_the_password_file_knows_one() {
    let place = Place::new();
    let home = place.path("home of record");
    fs::create_dir(&home).unwrap();
    // A mount of our own makes the password file ours; who may not mount makes a namespace first.
    let root = rustix::process::getuid().is_root();
    let unshare: &[&str] = if root { &["unshare", "-m"] } else { &["unshare", "-r", "-m"] };
    let passwd =
        format!("# comment\n\nx:x:1:1::/bin:/bin/sh\nme:x:0:0::{}:/bin/sh\n", home.display());
    fs::write(place.path("passwd"), passwd).unwrap();
    let mount = "mount --bind passwd /etc/passwd && exec \"$@\"";
    let mount = |words: &[&str]| {
        let mut command = Command::new(unshare[0]);
        command.args(&unshare[1..]).args(["sh", "-c", mount, "sh"]).args(words);
        command.current_dir(place.path("")).env_clear().env("PATH", PATH);
        command
    };
    if !mount(&["true"]).status().unwrap().success() {
        return;
    }
    for home_is in [None, Some(""), Some("relative"), Some("./home")] {
        let mut run = mount(&[env!("CARGO_BIN_EXE_lariat"), "run", "--", "env"]);
        run.envs(home_is.map(|value| ("HOME", value)));
        let output = finish(&mut run);
        assert_eq!(text(&output.stderr), "", "HOME is {home_is:?}");
        assert_eq!(output.status.code(), Some(0));
        // The server still gets the HOME that the host gave, or none.
        let given = text(&output.stdout);
        let of_server = given.lines().find_map(|line| line.strip_prefix("HOME="));
        assert_eq!(of_server, home_is);
        let state = home.join(".local/state/lariat");
        assert!(state.join("events.jsonl").exists(), "HOME is {home_is:?}");
        fs::remove_dir_all(state).unwrap();
    }
    assert!(!place.path("relative").exists());
}

#[test]
fn arguments_are_the_hosts_byte_for_byte() {
    let place = Place::new();
    let raw = OsString::from_vec(b"\xff\xfe not text".to_vec());
    let plain = [
        "",
        "-",
        "--",
        "-x",
        "--relay",
        "--name",
        "",
        "--",
        "two words",
        "new\nline",
        "*",
        "$HOME",
    ];
    let mut server: Vec<OsString> = vec!["sh".into(), "-c".into()];
    server.extend(["cat /proc/$$/cmdline".into(), "name".into()]);
    server.extend(plain.map(OsString::from));
    server.push(raw);
    let mut expected = Vec::new();
    for word in &server {
        expected.extend_from_slice(word.as_bytes());
        expected.push(0);
    }
    for manner in MANNERS {
        let mut run = place.lariat("run");
        assert_same(&expected, &finish(run.args(manner).arg("--").args(&server)).stdout);
        // The first word that is no option begins the command, with or without the dashes.
        let mut run = place.lariat("run");
        assert_same(&expected, &finish(run.args(manner).args(&server)).stdout);
    }
}

#[test]
fn a_program_may_begin_with_a_dash() {
    let place = Place::new();
    let program = place.path("-server");
    fs::write(&program, "#!/bin/sh\necho \"$# $1\"\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{PATH}:{}", place.path("").display());
    let mut run = place.lariat("run");
    let output = finish(run.env("PATH", path).args(["--", "-server", "--"]));
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("1 --\n".into(), "".into()));
}

#[test]
fn the_directory_is_the_hosts() {
    let place = Place::new();
    let elsewhere = place.path("else where");
    fs::create_dir(&elsewhere).unwrap();
    let prepare = |command: &mut Command| {
        command.current_dir(&elsewhere);
    };
    let (bare, wrapped) = twice(&place, &["env"], &["readlink", "/proc/self/cwd"], prepare);
    assert_eq!(text(&bare).trim_end(), elsewhere.to_str().unwrap());
    assert_same(&bare, &wrapped);
}

#[test]
fn identity_and_signals_are_the_hosts() {
    let hosts: [&[&str]; 6] = [
        &["env"],
        &["env", "--ignore-signal=PIPE"],
        &["env", "--default-signal=PIPE", "--ignore-signal=HUP"],
        &["env", "--block-signal=USR1,TERM,CHLD", "--ignore-signal=INT"],
        &["env", "--block-signal", "--ignore-signal"],
        &["sh", "-c", "umask 0137; exec \"$@\"", "sh"],
    ];
    for host in hosts {
        let place = Place::new();
        let (bare, wrapped) = twice(&place, host, &["cat", "/proc/self/status"], |_| {});
        let (bare, wrapped) = (given_by_the_host(&bare), given_by_the_host(&wrapped));
        assert!(bare.contains("SigIgn") && bare.contains("Umask"), "{bare}");
        assert_eq!(bare, wrapped, "through {host:?}");
    }
}

#[test]
fn a_server_under_nohup_is_not_ended_by_a_hang_up() {
    let place = Place::new();
    let script = "kill -HUP $$; echo still here";
    let (bare, wrapped) = twice(&place, &["nohup"], &["sh", "-c", script], |_| {});
    assert_same(b"still here\n", &bare);
    assert_same(&bare, &wrapped);
}

#[test]
fn a_host_that_ignores_its_children_still_gets_the_exit_code() {
    for manner in MANNERS {
        let place = Place::new();
        let run = place.lariat("run");
        let mut host = Command::new("env");
        host.arg("--ignore-signal=CHLD").arg(run.get_program()).args(run.get_args());
        host.args(manner).args(["--", "sh", "-c", "sleep 0.1; exit 3"]);
        assert_eq!(finish(&mut host).status.code(), Some(3), "{manner:?}");
    }
}

#[test]
fn limits_are_the_hosts_but_for_the_mark() {
    let place = Place::new();
    let host =
        ["prlimit", "--nofile=321:654", "--core=4096:8192", "--stack=1048576:", "--nproc=4000:"];
    let (bare, wrapped) = twice(&place, &host, &["cat", "/proc/self/limits"], |_| {});
    let without_mark = |limits: &[u8]| {
        let text = text(limits);
        let lines = text.lines().filter(|line| !line.starts_with("Max realtime timeout"));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert!(text(&bare).contains("321"), "{}", text(&bare));
    assert_eq!(without_mark(&bare), without_mark(&wrapped));
    // The mark is a number beyond reach, under the host's own maximum.
    let (before, now) = (realtime(&bare), realtime(&wrapped));
    assert_eq!((before.0.as_str(), &now.1), ("unlimited", &before.1));
    assert!(now.0.parse::<u64>().unwrap() > 1 << 60, "{now:?}");
}

#[test]
fn a_real_time_limit_that_the_host_set_stays_and_the_mark_is_elsewhere() {
    let place = Place::new();
    let host = ["prlimit", "--rttime=1000000:2000000"];
    let (bare, wrapped) = twice(&place, &host, &["cat", "/proc/self/limits"], |_| {});
    assert_eq!(realtime(&bare), ("1000000".into(), "2000000".into()));
    let without_mark = |limits: &[u8]| {
        let text = text(limits);
        let lines = text.lines().filter(|line| !line.starts_with("Max file locks"));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(without_mark(&bare), without_mark(&wrapped));
    assert_ne!(bare, wrapped, "it is marked all the same");
}

#[test]
fn only_the_three_streams_are_inherited() {
    let place = Place::new();
    let host = ["sh", "-c", "exec 5</dev/null 7>/dev/null 9<.; exec \"$@\"", "sh"];
    // `ls` itself has the directory open as the first free number.
    let (bare, wrapped) = twice(&place, &host, &["ls", "/proc/self/fd"], |_| {});
    assert!(text(&bare).contains("5\n7\n9\n"), "{}", text(&bare));
    assert_eq!(text(&wrapped), "0\n1\n2\n3\n");
}

#[test]
fn a_closed_stream_does_not_become_somebody_elses() {
    let place = Place::new();
    // Whoever closes a stream gets /dev/null in its place, never a file of ours.
    for (closed, number) in [("0<&-", 0), ("1>&-", 1)] {
        let script = format!("exec {closed}; exec \"$@\"");
        let run = place.lariat("run");
        let mut host = Command::new("sh");
        host.args(["-c", &script, "sh"]).arg(run.get_program()).args(run.get_args());
        let look = format!("[ /proc/self/fd/{number} -ef /dev/null ] || exit 1");
        let output = finish(host.args(["--", "sh", "-c", &look]));
        assert_eq!(output.status.code(), Some(0), "{closed}");
    }
}

#[test]
fn stdout_carries_only_the_servers_bytes() {
    let place = Place::new();
    for manner in MANNERS {
        let mut run = place.lariat("run");
        run.args(manner).args(["--receipt", "receipt.json", "--grace", "10ms"]);
        run.args(["--", "sh", "-c", "printf 'a\\0b'; echo oops >&2; exit 9"]);
        // Hung up on, it would have those ten milliseconds for all of it.
        let output = finish_with(&mut run, Stdio::piped());
        assert_eq!(
            (output.stdout.as_slice(), output.stderr.as_slice()),
            (&b"a\0b"[..], &b"oops\n"[..])
        );
    }
}

#[test]
fn no_argument_and_no_variable_is_written_anywhere() {
    let servers: [&[&str]; 5] = [
        &["true", SECRET, "--token=s3cret-0f9d1c"],
        &["sh", "-c", "true s3cret-0f9d1c"],
        &["sh", "-c", "kill -9 $$", SECRET],
        &["/no/such/server", SECRET],
        &["/", SECRET],
    ];
    for server in servers {
        assert_kept(&Place::new(), server);
    }
}

#[test]
fn a_server_is_not_named_after_the_value_of_an_option() {
    let place = Place::new();
    let launcher = place.path("uvx");
    fs::write(&launcher, "#!/bin/sh\nexit 0\n").unwrap();
    fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755)).unwrap();
    let url = format!("https://user:{SECRET}@pypi.example");
    for option in [["--token", SECRET], ["--index-url", &url]] {
        assert_kept(&place, &[launcher.to_str().unwrap(), option[0], option[1], "package"]);
    }
}

#[test]
fn no_secret_is_written_while_the_server_runs() {
    let place = Place::new();
    let mut run = place.lariat("run");
    run.env("API_KEY", SECRET).args(["--", "sh", "-c", "cat; exit 4", SECRET]);
    let mut child = run.stdin(Stdio::piped()).spawn().unwrap();
    let events = place.path("state/events.jsonl");
    let opened = until(PATIENCE, || fs::read(&events).is_ok_and(|log| log.ends_with(b"\n")));
    let found = holders(&place.path(""), SECRET);
    child.stdin = None;
    assert_eq!(child.wait().unwrap().code(), Some(4));
    assert!(opened, "no start was written down");
    assert_eq!(found, [""; 0]);
}

#[test]
fn what_is_written_is_for_its_owner_alone() {
    let place = Place::new();
    let run = place.lariat("run");
    let mut host = Command::new("sh");
    host.args(["-c", "umask 0; exec \"$@\"", "sh"]).arg(run.get_program()).args(run.get_args());
    host.args(["--", "sh", "-c", "echo words >&2"]);
    assert_eq!(finish(&mut host).status.code(), Some(0));
    let mode = |name: &str| fs::metadata(place.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(["state", "state/logs", "state/sessions"].map(mode), [0o700; 3]);
    assert_eq!(["state/events.jsonl", "state/logs/sh.log"].map(mode), [0o600; 2]);
}

/// A word that stands nowhere else.
const SECRET: &str = "s3cret-0f9d1c";

/// Where the commands of these tests are.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// What a server prints when a host runs it bare, and what it prints wrapped, in every manner.
#[track_caller]
fn twice(
    place: &Place,
    host: &[&str],
    server: &[&str],
    prepare: impl Fn(&mut Command),
) -> (Vec<u8>, Vec<u8>) {
    let through_host = |words: &[&OsStr]| {
        let mut command = Command::new(host[0]);
        command.args(&host[1..]).args(words).current_dir(place.path(""));
        prepare(&mut command);
        let output = finish(&mut command);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        output.stdout
    };
    let server: Vec<&OsStr> = server.iter().map(OsStr::new).collect();
    let bare = through_host(&server);
    let wrapped = MANNERS.map(|manner| {
        let run = place.lariat("run");
        let mut words = vec![run.get_program()];
        words.extend(run.get_args());
        words.extend(manner.iter().map(OsStr::new));
        words.push(OsStr::new("--"));
        words.extend(&server);
        through_host(&words)
    });
    let [first, others @ ..] = wrapped;
    for other in others {
        // The mark is another one each time.
        assert_eq!(without_marks(&first), without_marks(&other), "manners differ");
    }
    (bare, first)
}

/// The lines of `/proc/PID/status` that come from whoever started a process.
fn given_by_the_host(status: &[u8]) -> String {
    let names = [
        "Umask",
        "Uid",
        "Gid",
        "Groups",
        "SigBlk",
        "SigIgn",
        "SigCgt",
        "ShdPnd",
        "CapInh",
        "CapPrm",
        "CapEff",
        "CapBnd",
        "CapAmb",
        "NoNewPrivs",
        "Seccomp",
        "Cpus_allowed",
        "Mems_allowed",
    ];
    let text = text(status);
    let given = |line: &&str| names.contains(&line.split(':').next().unwrap());
    text.lines().filter(given).collect::<Vec<_>>().join("\n")
}

/// Text without what differs from run to run: pids, counters and the mark.
fn without_marks(printed: &[u8]) -> String {
    let text = text(printed);
    if text.contains("SigIgn") {
        return given_by_the_host(printed);
    }
    let carriers = ["Max realtime timeout", "Max file locks"];
    let is_mark = |line: &&str| !carriers.iter().any(|carrier| line.starts_with(carrier));
    text.lines().filter(is_mark).collect::<Vec<_>>().join("\n")
}

/// Runs a server with the secret in its arguments and in a variable; nobody else gets to know it.
#[track_caller]
fn assert_kept(place: &Place, server: &[&str]) {
    let mut run = place.lariat("run");
    run.env("API_KEY", SECRET).args(["--receipt", "receipt.json", "--"]);
    let output = finish(run.args(server));
    assert!(!contains(&output.stderr, SECRET.as_bytes()), "{}", text(&output.stderr));
    assert!(place.path("receipt.json").exists() && place.path("state/events.jsonl").exists());
    assert_eq!(holders(&place.path(""), SECRET), [""; 0], "{server:?}");
}

/// Soft and hard real-time limit in `/proc/PID/limits`.
fn realtime(limits: &[u8]) -> (String, String) {
    let text = text(limits);
    let line = text.lines().find_map(|line| line.strip_prefix("Max realtime timeout"));
    let mut words = line.unwrap().split_whitespace().map(str::to_owned);
    (words.next().unwrap(), words.next().unwrap())
}

/// The files below whose name or text has the secret in it.
fn holders(dir: &Path, secret: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        let inside = fs::read(&path).is_ok_and(|bytes| contains(&bytes, secret.as_bytes()));
        if inside
            || path.file_name().is_some_and(|name| contains(name.as_bytes(), secret.as_bytes()))
        {
            found.push(path.display().to_string());
        }
        if path.is_dir() {
            found.extend(holders(&path, secret));
        }
    }
    found
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn assert_same(bare: &[u8], wrapped: &[u8]) {
    assert!(bare == wrapped, "bare {:?}\nwrapped {:?}", text(bare), text(wrapped));
}
