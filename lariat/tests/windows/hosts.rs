//! How hosts start a server on Windows: by the name of a script, through a shell, by a launcher that does not stay.

use crate::table::{CREATE_NO_WINDOW, PATIENCE, Place, exchange, leave, own, started};
use libtest_mimic::{Failed, Trial};
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::windows::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use trials::{Process, until};

const CREATE_SUSPENDED: u32 = 4;

/// What a person may have in a config. Percent signs are left to the library's trials: Wine reads them in its own way.
const WORDS: [&str; 7] =
    ["-y", "@scope/pkg@1.2", "two words", r#"say "hi""#, r"C:\a dir\", "a&b|c>d", "grüße 日本 🤠"];

pub(crate) fn tests() -> Vec<Trial> {
    type Test = fn() -> Result<(), Failed>;
    let tests: [(&str, Test); 4] = [
        ("shim::by-its-bare-name", by_name),
        ("shim::by-its-path-and-its-bytes-are-the-same", by_path),
        ("shim::through-a-shell", through_a_shell),
        ("launcher::who-left-first-is-no-host-that-died", launched),
    ];
    tests.into_iter().map(|(name, test)| Trial::test(name, test)).collect()
}

/// Plays a launcher if asked: starts the command, which gets its streams and does not run yet, says its number
/// and leaves.
pub(crate) fn launch_if_asked() {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_none_or(|verb| verb != "__launch") {
        return;
    }
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).creation_flags(CREATE_SUSPENDED | CREATE_NO_WINDOW);
    let Ok(child) = command.spawn() else { leave(6) };
    std::io::stderr().write_all(format!("{}\n", child.id()).as_bytes()).ok();
    leave(0)
}

/// A directory as a person may have one, with a script in it as package managers write them.
struct Shims {
    place: Place,
    directory: PathBuf,
}

impl Shims {
    fn new() -> Result<Shims, Failed> {
        let place = Place::new();
        let directory = place.0.join("naïve 日本 (x86) & co");
        fs::create_dir(&directory)?;
        let text = format!("@echo off\r\n\"{}\" %*\r\n", own().display());
        fs::write(directory.join("shim.cmd"), text)?;
        Ok(Shims { place, directory })
    }

    /// `lariat run` with these words, where the directory is one of those that are searched.
    #[expect(clippy::disallowed_methods, reason = "a host adds to the path that it has")]
    fn run(&self, words: &[&str]) -> Result<Command, Failed> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        // A shell and a server begin slowly on a busy machine, and their input has ended by then.
        let mut command = self.place.run_for(&words, "60s");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directories = std::env::split_paths(&path).chain([self.directory.clone()]);
        command.env("PATH", std::env::join_paths(directories)?);
        Ok(command)
    }

    /// The receipt says that all of it left by itself.
    fn assert_left(&self) {
        let receipt = self.place.receipt();
        assert_eq!(receipt["survivors"], serde_json::json!([]), "{receipt}");
        assert_eq!(receipt["processes"]["killed"], 0, "{receipt}");
        assert_eq!(self.place.pages(), 0, "the page is struck");
    }
}

fn said(output: (Vec<u8>, i32)) -> (String, i32) {
    (String::from_utf8_lossy(&output.0).into_owned(), output.1)
}

fn by_name() -> Result<(), Failed> {
    let shims = Shims::new()?;
    let words: Vec<&str> = ["shim", "__say"].into_iter().chain(WORDS).collect();
    let expected = (format!("{WORDS:?}\n"), 0);
    assert_eq!(said(exchange(shims.run(&words)?, Vec::new())), expected);
    shims.assert_left();
    // A server's code comes through a script, too.
    let (_, code) = exchange(shims.run(&["shim", "__exit", "7"])?, Vec::new());
    assert_eq!(code, 7);
    Ok(())
}

fn by_path() -> Result<(), Failed> {
    let shims = Shims::new()?;
    let script = shims.directory.join("shim.cmd");
    let script = script.to_str().ok_or("text")?;
    let bytes = b"{\"jsonrpc\":\"2.0\"}\r\n\xff\xfe half a line".to_vec();
    let (back, code) = exchange(shims.run(&[script, "__echo"])?, bytes.clone());
    assert_eq!((back, code), (bytes, 0));
    shims.assert_left();
    Ok(())
}

fn through_a_shell() -> Result<(), Failed> {
    let shims = Shims::new()?;
    let words = ["cmd", "/c", "shim", "__say", "-y", "@scope/pkg@1.2"];
    let expected = (format!("{:?}\n", &words[4..]), 0);
    assert_eq!(said(exchange(shims.run(&words)?, Vec::new())), expected);
    shims.assert_left();
    Ok(())
}

/// Whoever started the wrapper has gone before it runs: the end of input is what ends the session.
fn launched() -> Result<(), Failed> {
    let place = Place::new();
    let wrapper = place.echo();
    let mut launcher = Command::new(own());
    launcher.arg("__launch").arg(wrapper.get_program()).args(wrapper.get_args());
    launcher.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut launcher = started(launcher.creation_flags(CREATE_NO_WINDOW));
    let mut stdin = launcher.stdin.take().expect("a pipe");
    let mut stdout = BufReader::new(launcher.stdout.take().expect("a pipe"));
    let mut stderr = BufReader::new(launcher.stderr.take().expect("a pipe"));
    let mut line = String::new();
    let said = stderr.read_line(&mut line);
    assert_eq!(launcher.wait()?.code(), Some(0));
    said?;
    let wrapper = line.trim().parse().ok().and_then(Process::now).ok_or("no wrapper")?;
    assert!(wrapper.resume(), "it can run");
    let mut answers = || -> Result<(), Failed> {
        stdin.write_all(b"a line\n")?;
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        assert_eq!(line, "a line\n", "it answers");
        Ok(())
    };
    answers()?;
    // Long enough for a wrapper that takes its launcher for its host to see that it has gone.
    assert!(!until(Duration::from_secs(1), || !wrapper.is_alive()), "it has left");
    answers()?;
    drop(stdin);
    assert!(until(PATIENCE, || !wrapper.is_alive()), "it leaves at the end of input");
    let receipt = place.receipt();
    assert!(["stdin-closed", "exited"].iter().any(|why| receipt["reason"] == *why), "{receipt}");
    assert_eq!((&receipt["processes"]["killed"], place.pages()), (&0.into(), 0));
    Ok(())
}
