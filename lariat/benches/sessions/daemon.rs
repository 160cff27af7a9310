//! The daemon that is measured.

use crate::Room;
use crate::witness::{holders, pause, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// It leaves by itself if the bench is killed.
const IDLE: &str = "5s";

/// Dropped, it is asked to leave, and killed if it does not.
pub(crate) struct Daemon(Child);

impl Daemon {
    pub(crate) fn start(room: &Room) -> io::Result<Daemon> {
        let mut command = Command::new(&room.lariat);
        command.args(["daemon", "--idle", IDLE, "--socket", "s", "--state-dir", "state"]);
        command.current_dir(&room.dir).env("HOME", &room.dir);
        command.env("LARIAT_TEST_TOKEN", &room.token);
        // Whoever interrupts the bench does not mean to interrupt it twice.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().unwrap();
        let daemon = Daemon(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if line.is_empty() { Err(io::Error::other("no daemon")) } else { Ok(daemon) }
    }

    /// Descriptors, and resident KiB.
    pub(crate) fn footprint(&self) -> [f64; 2] {
        let pid = self.0.id();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        [descriptors as f64, kib.unwrap_or(f64::NAN)]
    }

    /// The same when the last connections have been seen to end.
    pub(crate) fn calm(&self) -> [f64; 2] {
        pause(Duration::from_millis(500));
        self.footprint()
    }

    /// Everything else of this run that is there, after a moment for what is just leaving.
    pub(crate) fn others(&self, room: &Room) -> Vec<(u32, String)> {
        let others = || {
            let all = holders(&room.token);
            all.into_iter().filter(|(pid, _)| *pid != self.0.id()).collect::<Vec<_>>()
        };
        let _in_time = wait_until(Duration::from_secs(1), || Ok(others().is_empty()));
        others()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).ok();
        let left = wait_until(crate::PROMISE, || Ok(self.0.try_wait()?.is_some()));
        if !left.is_ok_and(|left| left) {
            self.0.kill().ok();
            self.0.wait().ok();
        }
    }
}
