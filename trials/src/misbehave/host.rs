//! The host's part: an agent host that starts the wrapper and obeys the runner line by line.
//!
//! It is a process of its own so that it can be killed, and so that the wrapper's pipe ends are
//! held here and nowhere else. It carries no token in its command line, since it is not part of
//! what must vanish; it leaves when the runner does.

use std::fs::File;
use std::io::{self, PipeReader, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::process::{default_signals, duplicate, leave};
use crate::world::lines::{Line, Lines};
use crate::world::until;

/// Obeys the runner until its end of the line closes.
pub(super) fn play() -> ! {
    // A runner started in the background or by nohup ignores signals, and so would the wrapper.
    default_signals(&[libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM]);
    let bystander = take_stderr().unwrap_or_else(|_| leave(1));
    let mut host = Host { bystander: Some(bystander), ..Host::default() };
    let mut orders = Lines::new(io::stdin());
    loop {
        match orders.next(Duration::from_secs(120)) {
            Line::Text(order) => {
                let (verb, rest) = order.split_once(' ').unwrap_or((&order, ""));
                let reply = host.obey(verb, rest).unwrap_or_else(|error| format!("error {error}"));
                let mut out = io::stdout().lock();
                if writeln!(out, "{reply}").and_then(|()| out.flush()).is_err() {
                    leave(1);
                }
            }
            Line::End | Line::Late => {
                host.call_off();
                leave(0);
            }
        }
    }
}

#[derive(Default)]
struct Host {
    wrap: Vec<String>,
    server: Vec<String>,
    socketpair: bool,
    deaf_to_stderr: bool,
    bystander: Option<OwnedFd>,
    companion: Option<Child>,
    wrapper: Option<Child>,
    /// The ends of the wrapper's pipes; boxed because pipes and sockets differ in type only.
    input: Option<Box<dyn Write>>,
    output: Option<Lines<OwnedFd>>,
    unread: Option<PipeReader>,
    exited: Option<ExitStatus>,
}

impl Host {
    fn obey(&mut self, verb: &str, rest: &str) -> io::Result<String> {
        match verb {
            "wrap" => self.wrap.push(rest.to_owned()),
            "server" => self.server.push(rest.to_owned()),
            "socketpair" => self.socketpair = true,
            "deaf-to-stderr" => self.deaf_to_stderr = true,
            "bystander" => self.companion = Some(self.start_bystander()?),
            "start" => return self.start().map(|pid| format!("started {pid}")),
            "send" => {
                let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
                let input = self.input.as_mut().ok_or_else(closed)?;
                writeln!(input, "{rest}")?;
                input.flush()?;
            }
            "read" => return Ok(self.read(milliseconds(rest))),
            "close-stdin" => self.input = None,
            "close-pipes" => (self.input, self.output) = (None, None),
            "status" => return Ok(self.status(milliseconds(rest))),
            _ => return Err(io::Error::other("unknown order")),
        }
        Ok("ok".to_owned())
    }

    /// The runner is gone, perhaps killed in the middle of a cell: the roll goes too, and whoever
    /// still plays leaves at once instead of at its deadline.
    fn call_off(&self) {
        if let Some(roll) = self.server.get(4) {
            std::fs::remove_file(roll).ok();
        }
    }

    /// A look-alike of the server beside the wrapper: the host's child, in the host's group.
    fn start_bystander(&mut self) -> io::Result<Child> {
        let stdin = self.bystander.take().ok_or(io::ErrorKind::NotFound)?;
        let mut command = command(&self.server)?;
        command.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    }

    fn start(&mut self) -> io::Result<u32> {
        let mut command = command(&[self.wrap.clone(), self.server.clone()].concat())?;
        // A group of its own, as Codex gives it: the whole group can then be killed.
        command.process_group(0);
        let (stderr, errors) = io::pipe()?;
        command.stderr(errors);
        let output: OwnedFd = if self.socketpair {
            let (ours, theirs) = UnixStream::pair()?;
            self.input = Some(Box::new(ours));
            command.stdin(OwnedFd::from(theirs));
            let (ours, theirs) = UnixStream::pair()?;
            command.stdout(OwnedFd::from(theirs));
            ours.into()
        } else {
            let (theirs, ours) = io::pipe()?;
            self.input = Some(Box::new(ours));
            command.stdin(theirs);
            let (ours, theirs) = io::pipe()?;
            command.stdout(theirs);
            ours.into()
        };
        self.output = Some(Lines::new(output));
        let child = command.spawn()?;
        // The wrapper's ends live in the command; holding them would hide every hang-up.
        drop(command);
        let pid = child.id();
        self.wrapper = Some(child);
        if self.deaf_to_stderr {
            self.unread = Some(stderr);
        } else {
            std::thread::spawn(move || io::copy(&mut &stderr, &mut io::sink()));
        }
        Ok(pid)
    }

    fn read(&mut self, patience: Duration) -> String {
        match self.output.as_mut().map_or(Line::End, |output| output.next(patience)) {
            Line::Text(line) => format!("line {line}"),
            Line::End => "end".to_owned(),
            Line::Late => "late".to_owned(),
        }
    }

    /// How the wrapper ended. It stays a zombie until this is asked, so that its pid is not reused
    /// while the runner still means it.
    fn status(&mut self, patience: Duration) -> String {
        let Some(wrapper) = &mut self.wrapper else {
            return "none".to_owned();
        };
        let exited = &mut self.exited;
        until(patience, || {
            if exited.is_none() {
                *exited = wrapper.try_wait().ok().flatten();
            }
            exited.is_some()
        });
        let Some(status) = *exited else {
            return "running".to_owned();
        };
        let by_signal = || status.signal().map(|signal| 128 + signal);
        format!("exit {}", status.code().or_else(by_signal).unwrap_or(-1))
    }
}

/// The end that is to be the bystander's stdin came as our stderr. The copy is close-on-exec, so
/// that the wrapper does not get it.
fn take_stderr() -> io::Result<OwnedFd> {
    let taken = io::stderr().as_fd().try_clone_to_owned()?;
    duplicate(File::open("/dev/null")?.as_raw_fd(), 2);
    Ok(taken)
}

fn command(argv: &[String]) -> io::Result<Command> {
    let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

fn milliseconds(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap_or(0))
}
