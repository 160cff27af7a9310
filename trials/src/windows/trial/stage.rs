//! The host, or the owner program, and what is around it.

use crate::windows::job::{CLOSED, Job, OPEN, SILENT};
use crate::windows::misbehave::{FLAG, HOST};
use crate::windows::subject::{Around, Subject};
use crate::windows::table::Death;
use crate::windows::world::{Process, problem, until};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::windows::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use windows_sys::Win32::System::Threading::{CREATE_NO_WINDOW, DETACHED_PROCESS};

/// How long it may take to answer.
const ANSWER: Duration = Duration::from_secs(40);

pub(super) struct Stage {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    process: Process,
    wrapper: Option<Process>,
    is_host: bool,
    /// Open for as long as the stage is there. It ends nobody.
    _job: Option<Job>,
}

impl Stage {
    pub(super) fn start(subject: &Subject, server: &[OsString]) -> Result<Self, String> {
        let host = || [subject.program.clone().into_os_string(), FLAG.into(), HOST.into()].to_vec();
        let front = subject.owner.clone().unwrap_or_else(host);
        let mut command = Command::new(&front[0]);
        command.args(&front[1..]).arg("--").args(&subject.wrap).args(server);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let (flags, job) = match subject.around {
            Around::Console => (CREATE_NO_WINDOW, None),
            Around::NoConsole => (DETACHED_PROCESS, None),
            Around::Job => (CREATE_NO_WINDOW, Some(CLOSED)),
            Around::OpenJob => (CREATE_NO_WINDOW, Some(OPEN)),
            Around::SilentJob => (CREATE_NO_WINDOW, Some(SILENT)),
        };
        let mut child = command.creation_flags(flags).spawn().map_err(problem("starting"))?;
        let job = job.map(Job::new).transpose().map_err(problem("making a job"))?;
        if let Some(job) = &job {
            // It does nothing until it is told to go.
            job.take(&child).map_err(problem("putting the host into its job"))?;
        }
        let process = Process::now(child.id()).ok_or("the host ended at once")?;
        let (stdin, out) = (child.stdin.take(), child.stdout.take());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in out.into_iter().flat_map(|out| BufReader::new(out).lines()) {
                if line.map_or(true, |line| sender.send(line).is_err()) {
                    break;
                }
            }
        });
        let is_host = subject.owner.is_none();
        Ok(Self { child, stdin, lines, process, wrapper: None, is_host, _job: job })
    }

    pub(super) fn process(&self) -> Process {
        self.process
    }

    /// Lets it start the tree.
    pub(super) fn go(&mut self) -> Result<(), String> {
        self.say("go")?;
        let line = self.hear()?;
        let (up, pid) = line.split_once(' ').unwrap_or((&line, ""));
        if up != "up" {
            return Err(format!("the host said {line:?}"));
        }
        self.wrapper = pid.parse().ok().and_then(Process::now);
        Ok(())
    }

    fn hear(&self) -> Result<String, String> {
        self.lines.recv_timeout(ANSWER).map_err(|error| format!("the host says nothing: {error}"))
    }

    fn say(&mut self, line: &str) -> Result<(), String> {
        let stdin = self.stdin.as_mut().ok_or("the host's input is closed")?;
        stdin.write_all(format!("{line}\n").as_bytes()).map_err(problem("telling the host"))
    }

    /// Lets the death come.
    pub(super) fn strike(&mut self, death: Death) -> Result<(), String> {
        match death {
            Death::StdinEof => self.say("close-stdin"),
            Death::WrapperKilled => {
                self.wrapper.ok_or("no wrapper was found")?.end();
                Ok(())
            }
            Death::HostKilled => self.child.kill().map_err(problem("killing the host")),
            Death::Close | Death::Drop | Death::Panic => self.say(death.name()),
        }
    }

    /// Whether it lives if it is to live.
    pub(super) fn is_as_it_should_be(&self, death: Death) -> bool {
        matches!(death, Death::HostKilled | Death::Panic) || self.process.is_alive()
    }

    /// The wrapper's exit code, if there is a host to ask.
    pub(super) fn wrapper_exit(&mut self, death: Death) -> Option<i32> {
        if !self.is_host || death == Death::HostKilled {
            return None;
        }
        self.say("exit").ok()?;
        let line = self.lines.recv_timeout(Duration::from_secs(5)).ok()?;
        line.strip_prefix("exit ")?.parse().ok()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let process = self.process;
        if !until(Duration::from_secs(5), || !process.is_alive()) {
            self.child.kill().ok();
        }
        self.child.wait().ok();
    }
}
