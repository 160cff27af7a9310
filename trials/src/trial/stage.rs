//! The runner's side of the host, or of the owner program that stands in its place.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use super::place::Place;
use crate::misbehave::{FLAG, HOST};
use crate::subject::Subject;
use crate::world::lines::{Line, Lines};
use crate::world::{Process, until};

/// How long the host itself may take to answer when it has nothing to wait for.
const PROMPT: Duration = Duration::from_secs(5);

/// A host or an owner, and the line to it.
#[derive(Debug)]
pub(super) struct Stage {
    child: Child,
    pub(super) process: Process,
    orders: Option<ChildStdin>,
    replies: Lines<ChildStdout>,
}

impl Stage {
    /// Starts a host that has been told everything but to begin.
    pub(super) fn host(
        place: &Place,
        subject: &Subject,
        server: &[OsString],
        bystander: OwnedFd,
    ) -> Result<Self, String> {
        let mut command = place.command([place.program.as_os_str(), FLAG.as_ref(), HOST.as_ref()]);
        // A host has nothing to say on stderr; the bystander's end travels there.
        command.stderr(bystander);
        let mut stage = Self::spawn(command)?;
        for (verb, words) in [("wrap", place.wrap.as_slice()), ("server", server)] {
            for word in words {
                let word = word.to_str().filter(|word| !word.contains('\n'));
                let word = word.ok_or("an argument is not one line of text")?;
                stage.ask(&format!("{verb} {word}"), PROMPT)?;
            }
        }
        if subject.socketpair {
            stage.ask("socketpair", PROMPT)?;
        }
        if !subject.drains_stderr {
            stage.ask("deaf-to-stderr", PROMPT)?;
        }
        stage.ask("bystander", PROMPT)?;
        Ok(stage)
    }

    /// Starts an owner program, which starts the tree by itself.
    pub(super) fn owner(
        place: &Place,
        owner: &[OsString],
        server: &[OsString],
    ) -> Result<Self, String> {
        let argv = owner.iter().cloned().chain([OsString::from("--")]);
        let mut command = place.command(argv.chain(server.iter().cloned()));
        command.stderr(Stdio::null());
        Self::spawn(command)
    }

    fn spawn(mut command: std::process::Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        as_from_a_terminal(&mut command);
        let spawned = command.spawn();
        let mut child =
            spawned.map_err(|error| format!("starting {:?}: {error}", command.get_program()))?;
        let orders = child.stdin.take();
        let replies = child.stdout.take().ok_or("no pipe to the host")?;
        // It cannot have been reaped: only this handle does that.
        let pid = i32::try_from(child.id()).map_err(|error| error.to_string())?;
        let process = Process::now(pid).ok_or("the host vanished")?;
        Ok(Self { child, process, orders, replies: Lines::new(replies) })
    }

    /// Gives an order and waits for the reply; `patience` is what the order itself may take.
    pub(super) fn ask(&mut self, order: &str, patience: Duration) -> Result<String, String> {
        self.say(order).map_err(|error| format!("the host takes no orders: {error}"))?;
        match self.replies.next(patience + PROMPT) {
            Line::Text(reply) => match reply.strip_prefix("error ") {
                Some(error) => Err(format!("the host could not {order:?}: {error}")),
                None => Ok(reply),
            },
            Line::End => Err("the host is gone".to_owned()),
            Line::Late => Err(format!("the host did not answer {order:?}")),
        }
    }

    /// Sends one line, without waiting for anything.
    pub(super) fn say(&mut self, line: &str) -> io::Result<()> {
        let orders = self.orders.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        orders.write_all(format!("{line}\n").as_bytes())
    }

    /// Waits for one line that comes by itself, as an owner's `up` does.
    pub(super) fn hear(&mut self, patience: Duration) -> Line {
        self.replies.next(patience)
    }

    /// Has the host start the wrapper.
    pub(super) fn start(&mut self) -> Result<Process, String> {
        let reply = self.ask("start", PROMPT)?;
        let pid = reply.strip_prefix("started ").and_then(|pid| pid.parse().ok());
        // The host does not reap before it is asked, so the pid is the wrapper's even if it ended.
        pid.and_then(Process::now).ok_or_else(|| format!("no wrapper: {reply}"))
    }

    /// Sends the server one message.
    pub(super) fn send(&mut self, message: &str) -> Result<(), String> {
        self.ask(&format!("send {message}"), PROMPT).map(drop)
    }

    /// Waits for one message from the server.
    pub(super) fn receive(&mut self, patience: Duration) -> Result<String, String> {
        let reply = self.ask(&format!("read {}", patience.as_millis()), patience)?;
        match reply.strip_prefix("line ") {
            Some(line) => Ok(line.to_owned()),
            None if reply == "end" => Err("stdout ended".to_owned()),
            None => Err(format!("nothing within {patience:?}")),
        }
    }

    /// The wrapper's exit code, if it has ended within the time.
    pub(super) fn wrapper_exit(&mut self, patience: Duration) -> Option<i32> {
        let reply = self.ask(&format!("status {}", patience.as_millis()), patience).ok()?;
        reply.strip_prefix("exit ")?.parse().ok()
    }

    /// Whether it still runs, unstopped.
    pub(super) fn is_well(&self) -> bool {
        self.process.stat().is_some_and(|stat| !matches!(stat.state, 'Z' | 'X' | 'T' | 't'))
    }

    /// Kills it.
    pub(super) fn kill(&mut self) {
        // The handle is unreaped, so the pid is still this process.
        self.child.kill().ok();
    }
}

/// Has the command begin in a session of its own. A wrapper that hits its parent's group then does not hit the
/// runner; and the kernel gives CPU by session: many cells in one would starve each other.
pub(super) fn as_from_a_terminal(command: &mut std::process::Command) {
    // SAFETY: between fork and exec only setsid is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| match libc::setsid() {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // A host leaves at the end of its orders; whoever does not is ours to kill.
        self.orders = None;
        let left = until(Duration::from_secs(1), || {
            self.child.try_wait().is_ok_and(|status| status.is_some())
        });
        if !left {
            self.kill();
            self.child.wait().ok();
        }
    }
}
