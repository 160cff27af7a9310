//! What the receipt says of each way to leave, and that a command gets what was meant for it.
//!
//! Under a console, which is needed to interrupt anybody: the binary starts itself with one and the
//! name of the test.

use lariat_contain::{Ask, Choice, Error, Event, Exit, Ladder, Report, Spec, Stream, Tree};
use libtest_mimic::{Failed, Trial};
use std::ffi::OsString;
use std::fs;
use std::io::{PipeWriter, Read, Write};
use std::os::windows::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PLAY: &str = "__receipt";
const SAY: &str = "__say";
/// A console without a window.
const CREATE_NO_WINDOW: u32 = 0x0800_0000;
const DETACHED_PROCESS: u32 = 0x0000_0008;

/// The one that Wine cannot play: its Ctrl-Break is an error.
const INTERRUPTED: &str = "who-is-interrupted-was-asked";

type Part = (&'static str, fn());

const PARTS: &[Part] = &[
    ("who-leaves-by-itself-was-not-asked", polite),
    (INTERRUPTED, interrupted),
    ("who-is-deaf-was-killed", deaf),
    ("a-second-ask-skips-the-grace", hastened),
    ("members-are-listed", listed),
    ("the-exit-code-is-the-commands-own", exit_code),
    ("what-is-not-there-is-not-found", missing),
    ("what-is-no-program-is-not-executed", no_program),
    ("arguments-arrive-as-they-were", arguments),
    ("arguments-arrive-through-a-script", script),
    ("a-line-break-for-a-script-is-refused", refused),
    ("the-environment-and-directory-are-those-given", surroundings),
];

pub(crate) fn tests() -> Vec<Trial> {
    let part = |&(name, _): &Part| {
        let trial = Trial::test(format!("receipts::{name}"), move || play(name, CREATE_NO_WINDOW));
        trial.with_ignored_flag(name == INTERRUPTED && is_wine())
    };
    let mut tests: Vec<Trial> = PARTS.iter().map(part).collect();
    // Nobody can be interrupted without a console, and the receipt does not say that anybody was.
    tests.push(Trial::test("receipts::without-a-console-nobody-is-asked", || {
        play("without-a-console-nobody-is-asked", DETACHED_PROCESS)
    }));
    tests
}

fn play(name: &str, flags: u32) -> Result<(), Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([PLAY, name]).creation_flags(flags).stdin(Stdio::null());
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned().into())
}

/// Plays one part, or says what it was given, if asked.
pub(crate) fn play_if_asked() {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some(PLAY) => {
            let name = args.next().unwrap_or_default();
            match PARTS.iter().find(|(part, _)| *part == name) {
                Some((_, part)) => part(),
                None => unasked(),
            }
            leave()
        }
        Some(SAY) => {
            let words: Vec<String> = args.collect();
            let variable = std::env::vars().find(|(name, _)| name == "SAID");
            let text = format!("{words:?}\n{:?}\n{variable:?}\n", std::env::current_dir());
            std::io::stdout().write_all(text.as_bytes()).expect("somebody reads");
            leave()
        }
        _ => {}
    }
}

#[expect(clippy::disallowed_methods, clippy::exit, reason = "the part is over")]
fn leave() -> ! {
    std::process::exit(0)
}

/// Whether this is Wine, which can do less than Windows.
fn is_wine() -> bool {
    std::env::vars_os().any(|(name, _)| name == "WINEPREFIX")
}

const RUNG: Duration = Duration::from_millis(400);

fn spec(program: impl Into<OsString>, args: &[&str]) -> Spec {
    Spec {
        program: program.into(),
        args: args.iter().map(OsString::from).collect(),
        env: None,
        cwd: None,
        stdin: Stream::null(),
        stdout: Stream::null(),
        stderr: Stream::null(),
        backend: Choice::Auto,
        ladder: Ladder { grace: RUNG, term_grace: RUNG, ..Ladder::default() },
    }
}

fn own() -> PathBuf {
    std::env::current_exe().expect("a path")
}

/// A server of the kit with its input; its tree is complete when this returns.
fn server(verb: &str, members: usize) -> (Tree, PipeWriter, Roll) {
    let (stdin, open) = std::io::pipe().expect("a pipe");
    let roll = Roll::new(verb);
    let path = roll.0.to_str().expect("text").to_owned();
    let mut spec = spec(own(), &["__misbehave", verb, "receipt", &path]);
    spec.stdin = stdin.into();
    let tree = Tree::spawn(spec).expect("the tree starts");
    let up = || fs::read_to_string(&roll.0).unwrap_or_default().lines().count() >= members;
    assert!(trials::until(Duration::from_secs(40), up), "the tree never came up");
    (tree, open, roll)
}

struct Roll(PathBuf);

impl Roll {
    fn new(verb: &str) -> Roll {
        let path =
            std::env::temp_dir().join(format!("lariat-receipt-{}-{verb}", std::process::id()));
        fs::write(&path, "").expect("a file");
        Roll(path)
    }
}

impl Drop for Roll {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

fn close(tree: Tree) -> Report {
    tree.close().expect("nobody survives").report().clone()
}

fn polite() {
    let (tree, open, _roll) = server("polite", 1);
    drop(open);
    let report = close(tree);
    assert_eq!((report.seen, report.left, report.asked, report.killed), (1, 1, 0, 0));
    assert_eq!(report.exit, Some(Exit::Code(0)));
}

fn interrupted() {
    let (tree, _open, _roll) = server("ignores-eof", 1);
    let report = close(tree);
    assert_eq!((report.seen, report.left, report.asked, report.killed), (1, 0, 1, 0));
}

fn deaf() {
    let (tree, _open, _roll) = server("detached", 2);
    let report = close(tree);
    assert_eq!((report.seen, report.left, report.asked, report.killed), (2, 0, 0, 2));
    assert_eq!(report.exit, Some(Exit::Code(137)));
    // Who cannot be asked is not waited for.
    let rungs = if is_wine() { 1 } else { 2 };
    assert!(report.took >= rungs * RUNG, "the rungs were waited for: {:?}", report.took);
}

fn unasked() {
    let (tree, _open, _roll) = server("ignores-eof", 1);
    let report = close(tree);
    assert_eq!(report.asked, 0, "{report:?}");
    assert!(report.killed >= 1, "{report:?}");
}

fn hastened() {
    let (mut tree, _open, _roll) = server("ignores-break", 1);
    tree.ask(Ask::Closed);
    tree.ask(Ask::Kill);
    tree.ask(Ask::Closed);
    let (mut exited, began) = (None, Instant::now());
    let report = loop {
        match tree.event() {
            Some(Event::Ended(report)) => break report,
            Some(Event::Exited(exit)) => exited = Some(exit),
            _ => tree.wait(&[], None),
        }
        assert!(began.elapsed() < Duration::from_secs(30), "it never ends");
    };
    assert_eq!(exited, Some(Exit::Code(137)));
    assert_eq!((report.killed, report.survivors.len()), (1, 0));
    assert!(tree.event().is_none(), "a report is given once");
}

fn listed() {
    let (tree, _open, _roll) = server("detached", 2);
    let members = tree.members().expect("a list");
    assert_eq!(members.len(), 2);
    assert!(members.contains(&tree.leader().expect("a leader")));
    assert!(members.iter().all(lariat_contain::Member::is_alive));
    let _report = close(tree);
    assert!(!members.iter().any(lariat_contain::Member::is_alive));
}

fn exit_code() {
    let mut tree = Tree::spawn(spec("cmd", &["/c", "exit 300"])).expect("the tree starts");
    let exit = loop {
        match tree.event() {
            Some(Event::Exited(exit)) => break exit,
            _ => tree.wait(&[], None),
        }
    };
    assert_eq!(exit, Exit::Code(300), "all of it, not a byte");
}

fn missing() {
    let error = Tree::spawn(spec("no-such-program-at-all", &[])).expect_err("it is not there");
    assert_eq!(error.exit_code(), 127);
}

fn no_program() {
    let scratch = Scratch::new("text");
    let text = scratch.0.join("text.exe");
    fs::write(&text, "this is no program").expect("a file");
    let error = Tree::spawn(spec(text, &[])).expect_err("it is text");
    assert_eq!(error.exit_code(), 126, "{error:?}");
}

const WORDS: &[&str] = &[
    "",
    "-y",
    "a b",
    r#"say "hi""#,
    r"C:\a dir\",
    r#"back\"slash"#,
    "@scope/pkg@1.2",
    "100%",
    "%SAID%",
    "a&b",
    r#"x"&y"#,
    "x|y<z>w^v(u)",
    "!d!",
    "k=v,w;x",
    "naïve 日本 🤠",
];

/// What a command that says its arguments has said.
fn said(mut spec: Spec) -> Vec<String> {
    let (mut out, end) = std::io::pipe().expect("a pipe");
    spec.stdout = end.into();
    let tree = Tree::spawn(spec).expect("the tree starts");
    let mut text = String::new();
    out.read_to_string(&mut text).expect("it says something and leaves");
    let _report = close(tree);
    text.lines().map(str::to_owned).collect()
}

fn arguments() {
    let words: Vec<&str> = [SAY].iter().chain(WORDS).copied().collect();
    assert_eq!(said(spec(own(), &words))[0], format!("{WORDS:?}"));
}

/// A script as package managers write it, in a directory whose name is not plain.
fn shim(scratch: &Scratch) -> PathBuf {
    let path = scratch.0.join("shim.cmd");
    let own = own();
    let text = format!("@echo off\r\n\"{}\" {SAY} %*\r\n", own.display());
    fs::write(&path, text).expect("a file");
    path
}

fn script() {
    let scratch = Scratch::new("shim");
    let path = shim(&scratch);
    // Wine's cmd.exe does not read percent signs as the real one does.
    let sayable = |word: &&&str| !(is_wine() && word.contains('%'));
    let words: Vec<&str> = WORDS.iter().filter(sayable).copied().collect();
    let mut spec = spec("shim", &words);
    let search = std::env::join_paths([scratch.0.clone()]).expect("a path");
    let kept = std::env::vars_os().filter(|(name, _)| !name.eq_ignore_ascii_case("PATH"));
    spec.env = Some(kept.chain([("Path".into(), search)]).collect());
    assert_eq!(said(spec)[0], format!("{words:?}"), "{}", path.display());
}

fn refused() {
    let scratch = Scratch::new("shim");
    let error = Tree::spawn(spec(shim(&scratch), &["a\nb"])).expect_err("it cannot be said");
    assert!(matches!(error, Error::Exec(_)));
    assert_eq!(error.exit_code(), 126);
}

fn surroundings() {
    let scratch = Scratch::new("place");
    let mut spec = spec(own(), &[SAY]);
    let kept = std::env::vars_os().filter(|(name, _)| name != "SAID");
    spec.env = Some(kept.chain([("SAID".into(), "grüße".into())]).collect());
    spec.cwd = Some(scratch.0.clone());
    let said = said(spec);
    let named = Path::new(&scratch.0).file_name().and_then(|name| name.to_str()).expect("text");
    assert!(said[1].contains(named), "{said:?}");
    assert_eq!(said[2], r#"Some(("SAID", "grüße"))"#);
}

/// A directory with a space and other alphabets in its name, gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(what: &str) -> Scratch {
        let name = format!("lariat {what} ü日 {}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a directory");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}
