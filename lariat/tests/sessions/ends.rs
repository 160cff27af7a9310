//! Hosts that end in the ways hosts do, each many times: nothing of theirs is left.

use crate::kit::{self, PATIENCE, PROMISE, Place, babbling, mute, server};
use lariat::session::Manager;
use lariat::spec::ServerSpec;
use libtest_mimic::{Failed, Trial};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How a host ends.
const ENDS: &[&str] = &[
    "closes",
    "drops",
    "drops-without-runtime",
    "drops-in-a-panic",
    "drops-runtime-first",
    "drops-runtime-in-background",
    "leaks-clones",
    "exits-in-the-middle-of-close",
    "exits",
    "aborts",
    "ctrl-c-handled",
    "ctrl-c",
    "sigkill",
];

/// What its four servers are just doing.
const WHEN: &[&str] = &["in-flight", "before-handshake", "endless-handshake"];

pub(crate) fn tests() -> Vec<Trial> {
    let pairs = ENDS.iter().flat_map(|end| WHEN.iter().map(move |when| (*end, *when)));
    let test = |(end, when): (&'static str, &'static str)| {
        Trial::test(format!("ends::{end}::{when}"), move || {
            for round in 0..kit::rounds() {
                play(end, when).map_err(|e| Failed::from(format!("round {round}: {e}")))?;
            }
            Ok(())
        })
    };
    pairs.map(test).collect()
}

fn play(end: &str, when: &str) -> Result<(), String> {
    let place = Place::new(end);
    let mut host = Host::start(&place, end, when)?;
    let mut witness = place.witness();
    let alive = trials::until(PATIENCE, || witness.look().len() >= 4);
    if !alive {
        return Err(format!("there are only {} processes", witness.look().len()));
    }
    host.end(end)?;
    if ["closes", "ctrl-c-handled"].contains(&end) {
        let left = place.witness().look();
        if !left.is_empty() {
            return Err(format!("still there when close returned: {left:?}"));
        }
    }
    place.assert_gone(PROMISE);
    Ok(())
}

/// A host process.
struct Host {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Host {
    fn start(place: &Place, end: &str, when: &str) -> Result<Host, String> {
        let me = std::env::current_exe().map_err(|e| e.to_string())?;
        // Its own command line is without the token: the host is not what must be gone.
        let mut command = Command::new(me);
        command.args(["__act", end, when]).arg(&place.dir).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|e| e.to_string())?;
        let out = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let mut host = Host { child, out };
        host.hear("up")?;
        Ok(host)
    }

    fn hear(&mut self, word: &str) -> Result<(), String> {
        let mut line = String::new();
        self.out.read_line(&mut line).map_err(|e| e.to_string())?;
        if line.trim() == word { Ok(()) } else { Err(format!("{line:?} and not {word}")) }
    }

    fn end(&mut self, end: &str) -> Result<(), String> {
        let group = Pid::from_raw(self.child.id() as i32).ok_or("no pid")?;
        match end {
            "ctrl-c" | "ctrl-c-handled" => {
                kill_process_group(group, Signal::INT).map_err(|e| e.to_string())?;
            }
            "sigkill" => self.child.kill().map_err(|e| e.to_string())?,
            _ => {
                let stdin = self.child.stdin.as_mut().ok_or("no stdin")?;
                stdin.write_all(b"go\n").map_err(|e| e.to_string())?;
            }
        }
        match end {
            "closes" | "ctrl-c-handled" => self.hear("survivors=[]"),
            // They stay, without what they let go of.
            "drops"
            | "drops-without-runtime"
            | "drops-runtime-first"
            | "leaks-clones"
            | "drops-runtime-in-background" => self.hear("dropped"),
            _ => Ok(()),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Plays a host if asked: `EXE __act END WHEN DIR`.
pub(crate) fn act_if_asked() -> bool {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|verb| verb != "__act") {
        return false;
    }
    let mut text = || args.next().and_then(|a| a.into_string().ok()).unwrap_or_default();
    let (end, when, dir) = (text(), text(), PathBuf::from(text()));
    act(&end, &when, &dir);
    true
}

fn servers(when: &str, token: &str) -> [(&'static str, ServerSpec); 4] {
    let one = |verb: &str| match when {
        "in-flight" => server(verb, token),
        "before-handshake" => mute(token),
        _ => babbling(token),
    };
    [
        ("a", one("ignores-eof-and-term")),
        ("b", one("setsid-child")),
        ("c", one("double-fork")),
        ("d", one("shell-wrapper")),
    ]
}

fn say(word: &str) {
    let mut out = std::io::stdout();
    out.write_all(format!("{word}\n").as_bytes()).and_then(|()| out.flush()).expect("heard");
}

fn act(end: &str, when: &str, dir: &std::path::Path) {
    let name = dir.file_name().and_then(|name| name.to_str()).expect("a name");
    let token = name.replacen("sessions", "token", 1);
    let runtime = kit::runtime();
    let config = kit::config(dir, kit::named(servers(when, &token)));
    let manager = runtime.block_on(async {
        let manager = Manager::open(config).expect("it opens");
        let session = manager.session().clone();
        if when == "in-flight" {
            session.settled().await;
            for name in ["a", "b", "c", "d"] {
                let session = session.clone();
                // Calls that never return, held by tasks that nobody holds.
                tokio::spawn(async move { session.call(name, "hang", json!({})).await.map(drop) });
            }
        }
        manager
    });
    let clones: Vec<_> = (0..8).map(|_| manager.session().clone()).collect();
    if end == "ctrl-c-handled" {
        return interrupted(runtime, manager);
    }
    say("up");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a word");
    match end {
        "closes" => {
            let ended = runtime.block_on(manager.close());
            let left = ended.map_or_else(|e| e.to_string(), |_| "survivors=[]".into());
            say(&left);
        }
        "drops" => {
            runtime.block_on(async { drop(manager) });
            say("dropped");
            wait_for_ever();
        }
        "leaks-clones" => {
            std::mem::forget(clones);
            drop(manager);
            say("dropped");
            wait_for_ever();
        }
        "drops-without-runtime" => {
            std::mem::forget(runtime);
            std::thread::spawn(move || drop(manager)).join().expect("it drops");
            say("dropped");
            wait_for_ever();
        }
        "drops-runtime-first" => {
            drop(runtime);
            say("dropped");
            wait_for_ever();
        }
        "drops-runtime-in-background" => {
            runtime.shutdown_background();
            drop(manager);
            say("dropped");
            wait_for_ever();
        }
        "drops-in-a-panic" => {
            let _manager = manager;
            panic!("as asked, with the manager on the stack");
        }
        "exits-in-the-middle-of-close" => {
            runtime.spawn(async move { manager.close().await.map(drop) });
            runtime.block_on(tokio::time::sleep(Duration::from_millis(20)));
            lariat::contain::leave(0);
        }
        "exits" => lariat::contain::leave(0),
        "aborts" => std::process::abort(),
        _ => wait_for_ever(),
    }
}

/// A host that handles Ctrl-C as hosts do.
fn interrupted(runtime: tokio::runtime::Runtime, manager: Manager) {
    runtime.block_on(async {
        let mut signal = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())
            .expect("a signal");
        say("up");
        signal.recv().await;
        let ended = manager.close().await;
        say(&ended.map_or_else(|e| e.to_string(), |_| "survivors=[]".into()));
    });
}

fn wait_for_ever() {
    // Until the test closes our stdin, or kills us.
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).is_ok_and(|n| n > 0) {}
}
