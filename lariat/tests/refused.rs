//! When `lariat run` cannot begin: the exit code says whose fault it is, stderr says what to do,
//! stdout is empty, and nothing was started or left.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host/books.rs"]
mod books;
#[path = "host/finish.rs"]
mod finish;
#[path = "host/place.rs"]
mod place;

use books::{assert_nothing_left, events};
use finish::{finish, finish_with};
use place::Place;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use trials::Witness;

/// Options of every mode: each begins in its own way, and has to fail in the same.
const MODES: [&[&str]; 3] = [&[], &["--relay"], &["--idle", "1h"]];

/// Nobody's uid, for what root may do and others may not.
const NOBODY: u32 = 65_534;

#[test]
fn a_command_that_is_not_there_is_127() {
    for mode in MODES {
        for command in ["/no/such/server", "no-such-server", "./server", ""] {
            let case = Case::new();
            let output = case.run(mode, &[command]);
            case.assert_refused(&output, 127, &["cannot find", command, "PATH"]);
            assert_eq!(case.reason(), "failed:not-found");
        }
    }
}

#[test]
fn a_command_that_cannot_be_executed_is_126() {
    let case = Case::new();
    let plain = case.place.path("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    for mode in MODES {
        let directory = case.place.path("");
        for (command, why) in [(&plain, "check its permissions"), (&directory, "is a directory")] {
            let command = command.to_str().unwrap();
            let output = case.run(mode, &[command]);
            case.assert_refused(&output, 126, &["cannot execute", command, why]);
            assert_eq!(case.reason(), "failed:not-executable");
        }
    }
}

#[test]
fn a_command_line_that_makes_no_sense_is_125() {
    for (options, says) in [
        (&["--no-such-option"][..], &["--no-such-option", "--help"][..]),
        (&["--grace", "2y"], &["--grace", "write 150ms, 2s or 5m"]),
        (&["--grace", "soon"], &["--grace", "write 150ms, 2s or 5m"]),
        (&["--term-grace", "-1s"], &["--help"]),
        (&["--grace", "99h"], &["--grace", "at most 24h"]),
        (&["--backend", "rope"], &["rope", "auto, cgroup, descent or pidns"]),
        (&["--name", ".."], &["`..` is not a name", "--name github"]),
        (&["--name", ""], &["is not a name", "--name github"]),
        (&["--receipt", ""], &["--receipt"]),
    ] {
        let case = Case::new();
        let output = case.run(options, &["touch", "started"]);
        case.assert_refused(&output, 125, says);
    }
}

#[test]
fn no_command_is_125() {
    let case = Case::new();
    for words in [&[][..], &["--"], &["--name", "x"], &["--name", "x", "--"]] {
        let output = finish(case.place.lariat("run").args(words));
        case.assert_refused(&output, 125, &["COMMAND", "--help"]);
    }
}

#[test]
fn a_state_directory_that_cannot_be_written_is_125() {
    let case = Case::new();
    let locked = case.locked();
    let mut run = case.by_nobody();
    run.arg("run").arg("--state-dir").arg(locked.join("state"));
    let output = finish(run.args(["--", "touch", "started"]));
    case.assert_refused(&output, 125, &[text(&locked), "--state-dir DIR"]);
    assert_eq!(fs::read_dir(&locked).unwrap().count(), 0);
}

#[test]
fn a_state_directory_behind_a_file_is_125() {
    let case = Case::new();
    let file = case.place.path("file");
    fs::write(&file, "").unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_lariat"));
    run.arg("run").arg("--state-dir").arg(file.join("state"));
    let output = finish(run.args(["--", "touch", "started"]));
    case.assert_refused(&output, 125, &[text(&file), "--state-dir DIR"]);
}

#[test]
fn a_log_directory_that_cannot_be_written_is_125() {
    let case = Case::new();
    let locked = case.locked();
    for mode in MODES {
        let mut run = case.by_nobody();
        run.arg("run").arg("--state-dir").arg(case.open_to_all("state"));
        run.arg("--log-dir").arg(&locked).args(mode);
        let output = finish(run.args(["--", "touch", "started"]));
        case.assert_refused(&output, 125, &[text(&locked), "--log-dir DIR"]);
    }
}

#[test]
fn a_receipt_that_cannot_be_written_is_125() {
    let case = Case::new();
    let locked = case.locked();
    let (absent, file) = (case.place.path("absent"), case.place.path("file"));
    fs::write(&file, "").unwrap();
    for dir in [locked, absent, file] {
        let mut run = case.by_nobody();
        run.arg("run").arg("--state-dir").arg(case.open_to_all("state"));
        run.arg("--receipt").arg(dir.join("receipt.json"));
        let output = finish(run.args(["--", "touch", "started"]));
        case.assert_refused(&output, 125, &[text(&dir), "directory that you can write"]);
    }
}

#[test]
fn a_receipt_that_names_a_directory_is_125() {
    let case = Case::new();
    let dir = case.open_to_all("dir");
    let output = case.run(&["--receipt", text(&dir)], &["touch", "started"]);
    case.assert_refused(&output, 125, &[text(&dir), "receipt"]);
}

#[test]
fn a_receipt_whose_name_is_not_utf8_is_written() {
    let case = Case::new();
    let path = case.place.path("").join(OsStr::from_bytes(b"r\xff.json"));
    let mut run = case.place.lariat("run");
    run.arg("--receipt").arg(&path).args(["--", "echo", "fine"]);
    let output = finish(&mut run);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.stdout, b"fine\n");
    assert!(path.exists());
}

#[test]
fn a_backend_that_this_user_has_not_is_125_only_if_asked_for() {
    let case = Case::new();
    let books = case.open_to_all("state");
    let run = |backend: &str| {
        let mut run = case.by_nobody();
        run.arg("run").arg("--state-dir").arg(&books);
        run.args(["--backend", backend, "--", "echo", "fine"]);
        finish(&mut run)
    };
    assert_eq!(run("auto").stdout, b"fine\n");
    let cgroup = run("cgroup");
    if cgroup.status.code() == Some(0) {
        // A delegated subtree: then it holds.
        assert_eq!(cgroup.stdout, b"fine\n");
    } else {
        case.assert_refused(&cgroup, 125, &["cgroup", "--backend auto"]);
    }
}

#[test]
fn a_proc_of_another_pid_namespace_is_125() {
    let case = Case::new();
    let root = rustix::process::getuid().is_root();
    let unshare: &[&str] = if root { &["-p", "-f"] } else { &["-r", "-p", "-f"] };
    let within = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(unshare).args(words);
        command
    };
    if !within(&["true"]).status().unwrap().success() {
        return;
    }
    let state = case.place.path("state");
    let lariat = env!("CARGO_BIN_EXE_lariat");
    let mut run = within(&[lariat, "run", "--state-dir", text(&state), "--", "true"]);
    let output = finish(&mut run);
    // In there the same numbers are other processes: signalling them would harm strangers.
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("another pid namespace"), "{said}");
    // Nobody would be found there, which is not that there is nobody.
    for verb in ["ps", "tree", "reap"] {
        let output = finish(&mut within(&[lariat, verb, "--state-dir", text(&state)]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{verb}: {said}");
        assert!(said.contains("another pid namespace"), "{verb}: {said}");
    }
}

#[test]
fn a_user_without_a_home_is_told_to_name_a_directory() {
    let case = Case::new();
    // Root can become a uid that /etc/passwd does not know; others have a home.
    if !rustix::process::getuid().is_root() {
        return;
    }
    let mut run = case.by_nobody();
    run.uid(4_000_000_000).env_clear().args(["run", "--", "touch", "started"]);
    let output = finish(&mut run);
    case.assert_refused(&output, 125, &["no home directory", "--state-dir DIR"]);
    // 125 tells a wrapper's failure from its server's; nobody else has a server to be mistaken for.
    for verb in [
        "ps",
        "tree",
        "logs",
        "events",
        "doctor",
        "reap",
        "hosts",
        "install",
        "uninstall",
        "daemon",
    ] {
        let mut look = case.by_nobody();
        look.uid(4_000_000_000).env_clear().arg(verb);
        let output = finish(&mut look);
        case.assert_refused(&output, 1, &["no home directory", "--state-dir DIR"]);
    }
}

#[test]
fn a_refusal_names_no_argument_of_the_server() {
    let secret = "hunter2-in-an-argument";
    let case = Case::new();
    for command in ["/no/such/server", "/"] {
        let output = case.run(&[], &[command, "--token", secret]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains(secret), "{said}");
        let events = fs::read_to_string(case.place.path("state/events.jsonl")).unwrap();
        assert!(!events.contains(secret), "{events}");
    }
}

/// One test's place, and a word by which its processes are known.
struct Case {
    place: Place,
    token: String,
}

impl Case {
    fn new() -> Case {
        let place = Place::new();
        fs::set_permissions(place.path(""), Permissions::from_mode(0o777)).unwrap();
        let token = place.path("").to_str().unwrap().to_owned();
        Case { place, token }
    }

    fn run(&self, options: &[&str], command: &[&str]) -> Output {
        let mut run = self.place.lariat("run");
        // A host that has hung up already is not told what could not be started.
        finish_with(run.args(options).arg("--").args(command), Stdio::piped())
    }

    /// A copy of the wrapper that an ordinary user can start, started by one.
    fn by_nobody(&self) -> Command {
        let copy = self.place.path("lariat");
        // By a process of its own: a file that is open for writing somewhere cannot be executed.
        let mut cp = Command::new("cp");
        cp.arg("-f").arg(env!("CARGO_BIN_EXE_lariat")).arg(&copy);
        assert!(cp.status().unwrap().success());
        let mut command = Command::new(copy);
        command.current_dir(self.place.path(""));
        if rustix::process::getuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// A directory in which an ordinary user can write nothing.
    fn locked(&self) -> PathBuf {
        let path = self.place.path("locked");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o555)).unwrap();
        path
    }

    fn open_to_all(&self, name: &str) -> PathBuf {
        let path = self.place.path(name);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        path
    }

    /// The reason of the last event.
    fn reason(&self) -> String {
        events(&self.place).last().unwrap()["reason"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    fn assert_refused(&self, output: &Output, code: i32, says: &[&str]) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
        for part in says {
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
        assert!(!said.contains("panicked"), "{said}");
        assert!(!self.place.path("started").exists(), "the server ran");
        // It has returned: there is nothing to wait for.
        assert_eq!(Witness::new(&self.token, &[]).look(), []);
        assert_nothing_left(&self.place);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
