//! The npm packages: made, installed from their tarballs without a network, and started.

use super::{Test, heard, lariat, root, said};
use crate::place::{PATIENCE, Place};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use trials::{Process, until};

pub(crate) const TESTS: &[Test] = &[("npm package", &["npm", "npx", "node", "strip"], package)];

fn package() {
    let place = Place::new();
    let tarballs = build(&place);
    assert_eq!(tarballs.len(), 2, "{tarballs:?}");
    for tarball in &tarballs {
        let list = said(Command::new("tar").arg("-tzf").arg(tarball));
        assert!(list.contains("package/LICENSE-MIT\n"), "{list}");
    }
    fs::write(place.path("package.json"), r#"{"name": "somebodys", "private": true}"#).unwrap();
    // The launcher alone says what is missing.
    heard(npm(&place, "npm").arg("install").arg(tarballs.last().unwrap()));
    let alone = launcher(&place).arg("--version").output().unwrap();
    assert_eq!(alone.status.code(), Some(125));
    let why = String::from_utf8(alone.stderr).unwrap();
    assert!(why.contains("there is no package @lariat/linux-"), "{why}");

    heard(npm(&place, "npm").arg("install").args(&tarballs));
    let version = said(lariat().arg("--version"));
    assert_eq!(heard(npm(&place, "npx").args(["lariat", "--version"])).0, version);
    assert_eq!(said(launcher(&place).arg("--version")), version);

    let code = |server: &str| run(&place).args(["sh", "-c", server]).status().unwrap().code();
    assert_eq!(code("exit 7"), Some(7));
    assert_eq!(code("kill -9 $$"), Some(137));
    nobody_outlives_the_launcher(&place);
}

/// SIGKILL cannot be passed on; both pipes stay open, so it is the death of the parent that is seen.
fn nobody_outlives_the_launcher(place: &Place) {
    let mut run = run(place);
    run.args(["sh", "-c", "echo $$; exec sleep 60"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut launcher = run.spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(launcher.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let server = Process::now(line.trim().parse().unwrap());
    launcher.kill().unwrap();
    let stdin = launcher.stdin.take();
    launcher.wait().unwrap();
    let server = server.unwrap();
    assert!(until(PATIENCE, || !server.is_alive()), "the server outlives its launcher");
    drop((stdin, stdout));
}

fn build(place: &Place) -> Vec<PathBuf> {
    let platform = match std::env::consts::ARCH {
        "aarch64" => "linux-arm64",
        _ => "linux-x64",
    };
    let mut build = npm(place, root("packaging/npm/build").to_str().unwrap());
    build.arg(place.path("tarballs"));
    build.arg(format!("{platform}={}", env!("CARGO_BIN_EXE_lariat")));
    heard(&mut build).0.lines().map(PathBuf::from).collect()
}

/// A command that asks npm, whose settings and cache are here and nobody else's.
fn npm(place: &Place, program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(place.path("")).env("HOME", place.path("")).env("TMPDIR", place.path(""));
    command.env("npm_config_cache", place.path("cache"));
    command.env("npm_config_userconfig", place.path("npmrc"));
    for (name, value) in [
        ("audit", "false"),
        ("fund", "false"),
        ("ignore_scripts", "true"),
        ("offline", "true"),
        ("update_notifier", "false"),
    ] {
        command.env(format!("npm_config_{name}"), value);
    }
    command
}

fn launcher(place: &Place) -> Command {
    let mut command = Command::new(place.path("node_modules/.bin/lariat"));
    command.current_dir(place.path(""));
    command
}

/// What stands before the command of a server.
fn run(place: &Place) -> Command {
    let mut command = launcher(place);
    command.arg("run").arg("--state-dir").arg(place.path("state"));
    command.args(["--grace", "100ms", "--"]).stdin(Stdio::null());
    command
}
