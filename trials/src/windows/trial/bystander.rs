//! Bystanders: innocent processes that look exactly like the server.
//!
//! They have its executable and command line and are no part of the session. A wrapper that guesses
//! by name or command line is caught here, and so is one that interrupts more than its own.

use crate::windows::misbehave::{BYSTANDER, INTERRUPTED};
use crate::windows::world::{Process, until};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::os::windows::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use windows_sys::Win32::System::Threading::{CREATE_NEW_PROCESS_GROUP, CREATE_NO_WINDOW};

pub(super) struct Bystander {
    child: Child,
    out: BufReader<ChildStdout>,
    process: Process,
    place: &'static str,
}

impl Bystander {
    /// One beside the runner, and one in a process group of its own.
    pub(super) fn look_alikes(server: &[OsString]) -> io::Result<Vec<Self>> {
        [(0, "beside the runner"), (CREATE_NEW_PROCESS_GROUP | CREATE_NO_WINDOW, "on its own")]
            .into_iter()
            .map(|(flags, place)| Self::start(server, flags, place))
            .collect()
    }

    fn start(server: &[OsString], flags: u32, place: &'static str) -> io::Result<Self> {
        let mut command = Command::new(&server[0]);
        command.args(&server[1..]).env(BYSTANDER, "1").creation_flags(flags);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let process = Process::now(child.id()).ok_or(io::ErrorKind::NotFound)?;
        let mut bystander = Self { child, out: BufReader::new(out), process, place };
        let mut line = String::new();
        bystander.out.read_line(&mut line)?;
        if line.trim() == "up" { Ok(bystander) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    pub(super) fn process(&self) -> Process {
        self.process
    }

    /// Tells it to leave; what was done to it, if anything.
    pub(super) fn end(mut self) -> Option<String> {
        let was_alive = self.process.is_alive();
        drop(self.child.stdin.take());
        let left = until(Duration::from_secs(10), || !self.process.is_alive());
        if !left {
            self.child.kill().ok();
        }
        self.child.wait().ok();
        let mut said = String::new();
        self.out.read_to_string(&mut said).ok();
        let what = match (was_alive, left) {
            (false, _) => "ended",
            (_, false) => "stopped",
            _ if said.contains(INTERRUPTED) => "interrupted",
            _ => return None,
        };
        Some(format!("bystander {} ({}) was {what}", self.process.pid, self.place))
    }
}
