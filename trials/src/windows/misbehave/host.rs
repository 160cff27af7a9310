//! A host: starts the wrapper in front of the server, and does to it what it is told.

use super::leave;
use std::env;
use std::io::{BufRead, Read, Write};
use std::process::{Command, Stdio};
use std::thread;

/// Plays `EXE __misbehave host -- COMMAND…`: on `go` starts the command, says `up PID`, on
/// `close-stdin` closes its input, and leaves when its own input ends.
pub(super) fn play() -> ! {
    let mut words = env::args_os().skip_while(|word| word != "--").skip(1);
    let mut lines = std::io::stdin().lock().lines().map_while(Result::ok);
    if lines.next().is_none_or(|line| line != "go") {
        leave(5);
    }
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { leave(6) };
    let (mut stdin, stdout) = (child.stdin.take(), child.stdout.take());
    thread::spawn(move || stdout.map(|mut out| out.read_to_end(&mut Vec::new())));
    say(&format!("up {}", child.id()));
    for line in lines {
        match line.as_str() {
            "close-stdin" => drop(stdin.take()),
            "exit" => {
                let code = child.wait().ok().and_then(|status| status.code());
                say(&format!("exit {}", code.unwrap_or(-1)));
            }
            _ => {}
        }
    }
    leave(0)
}

fn say(line: &str) {
    let mut out = std::io::stdout();
    out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).ok();
}
