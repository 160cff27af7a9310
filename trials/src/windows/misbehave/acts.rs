//! What each misbehaviour does.

use super::{Script, become_deaf, leave};
use crate::speech::{Answer, answer};
use crate::windows::job::{CLOSED, Job};
use crate::windows::table::Misbehaviour;
use crate::windows::world::until;
use std::io::{BufRead, Write};
use std::os::windows::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use windows_sys::Win32::System::Threading::{
    CREATE_BREAKAWAY_FROM_JOB, CREATE_NO_WINDOW, CREATE_SUSPENDED, DETACHED_PROCESS,
};

/// A member that sits, deaf to what can be heard.
const LEAF: &str = "leaf";
/// A member that starts its successor and leaves.
const HOP: &str = "hop";

/// How many leaves a server starts at most once its end has begun, so that it cannot fill a machine.
const DURING_KILL: usize = 400;

pub(super) fn play(script: &Script) {
    match script.verb.as_str() {
        LEAF => {
            become_deaf();
            script.up();
            script.linger()
        }
        HOP => hop(script),
        verb => {
            if let Some(misbehaviour) = Misbehaviour::from_name(verb) {
                serve(script, misbehaviour);
            }
        }
    }
}

/// Builds the tree, serves until the end of input, and misbehaves then.
fn serve(script: &Script, misbehaviour: Misbehaviour) -> ! {
    if misbehaviour != Misbehaviour::IgnoresEof {
        become_deaf();
    }
    build(script, misbehaviour);
    script.up();
    if misbehaviour.leader_exits() {
        leave(0);
    }
    if misbehaviour == Misbehaviour::StartsDuringKill {
        until(super::LIFETIME, || script.is_over() || script.end_has_begun());
        for _ in 0..DURING_KILL {
            script.start(LEAF, DETACHED_PROCESS).ok();
        }
        script.linger()
    }
    answer_all(script);
    if matches!(misbehaviour, Misbehaviour::Polite | Misbehaviour::HoldsStdout) {
        leave(0)
    }
    script.linger()
}

fn build(script: &Script, misbehaviour: Misbehaviour) {
    let started = match misbehaviour {
        Misbehaviour::Polite
        | Misbehaviour::IgnoresEof
        | Misbehaviour::IgnoresBreak
        | Misbehaviour::StartsDuringKill => return,
        Misbehaviour::CmdChain => shell(&format!("cmd /d /s /c \"{}\"", leaf_line(script))).spawn(),
        // The second word is the title of a window that is not there.
        Misbehaviour::CmdStarts => shell(&format!("start \"x\" /b {}", leaf_line(script))).spawn(),
        Misbehaviour::Detached | Misbehaviour::LeaderExits => script.start(LEAF, DETACHED_PROCESS),
        Misbehaviour::Breakaway => {
            let broken = script.start(LEAF, CREATE_BREAKAWAY_FROM_JOB | DETACHED_PROCESS);
            // A job that does not allow it refuses; then the leaf is a plain one.
            broken.or_else(|_| script.start(LEAF, DETACHED_PROCESS))
        }
        Misbehaviour::OwnConsole => script.start(LEAF, CREATE_NO_WINDOW),
        Misbehaviour::Suspended => {
            // It will never speak for itself.
            script.up();
            script.start(LEAF, CREATE_SUSPENDED | DETACHED_PROCESS)
        }
        Misbehaviour::NestedJob => script.start(LEAF, DETACHED_PROCESS).inspect(|child| {
            // The handle stays open, as the server does.
            let job = Job::new(CLOSED).and_then(|job| job.take(child).map(|()| job));
            job.map(std::mem::forget).unwrap_or_else(|_| leave(4));
        }),
        Misbehaviour::HoldsStdout => {
            script.command(LEAF).stdout(Stdio::inherit()).stderr(Stdio::inherit()).spawn()
        }
        Misbehaviour::Rabbit => script.start(HOP, DETACHED_PROCESS),
        Misbehaviour::WideTree => {
            // Four at a time: what takes long is that each comes up by itself.
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..50 {
                            // Now and then Wine cannot start one.
                            let start = || script.start(LEAF, DETACHED_PROCESS).is_ok();
                            until(Duration::from_secs(10), start);
                        }
                    });
                }
            });
            return;
        }
    };
    if started.is_err() {
        leave(4);
    }
}

/// The line that starts a leaf, for a shell.
fn leaf_line(script: &Script) -> String {
    let words = script.words(LEAF).map(|word| format!("\"{}\"", word.to_string_lossy())).join(" ");
    format!("\"{}\" {words}", script.exe.to_string_lossy())
}

/// A shell that runs a line, of which it takes the outer quotation marks away.
fn shell(line: &str) -> Command {
    let mut command = Command::new("cmd");
    command.raw_arg(format!("/d /s /c \"{line}\""));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Starts a successor and leaves.
fn hop(script: &Script) -> ! {
    script.up();
    if !script.is_over() {
        script.start(HOP, DETACHED_PROCESS).ok();
        until(Duration::from_millis(20), || false);
    }
    leave(0)
}

/// Answers until the end of input.
fn answer_all(script: &Script) {
    for line in std::io::stdin().lock().split(b'\n').map_while(Result::ok) {
        if let Answer::Reply(reply) = answer(&script.verb, &String::from_utf8_lossy(&line)) {
            let mut out = std::io::stdout();
            out.write_all(reply.as_bytes()).and_then(|()| out.flush()).ok();
        }
    }
}
