//! A daemon of the bench's own, in the foreground, and wrappers that find it.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::peer::{Workshop, Wrapper};

/// It ends with its value, and what it held with it.
pub(crate) struct Daemon {
    child: Child,
    state: PathBuf,
    /// Where it serves HTTP, if it was told to.
    pub(crate) address: String,
}

impl Daemon {
    /// With its state in a directory of this name in the workshop.
    pub(crate) fn start(shop: &Workshop, name: &str, options: &[&str]) -> io::Result<Daemon> {
        let state = shop.room.join(name);
        let mut command = Command::new(&shop.lariat);
        command.args(["daemon", "--containers", "leave", "--state-dir"]).arg(&state).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn()?;
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut next = || lines.next().unwrap_or_else(|| Err(io::Error::other("no daemon")));
        next()?;
        let page = if options.contains(&"--http") { next()? } else { String::new() };
        let address = page.strip_prefix("page at http://").unwrap_or_default();
        let address = address.trim_end_matches('/').to_owned();
        Ok(Daemon { child, state, address })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A wrapper that shares its server through this daemon.
    pub(crate) fn sharing(&self, shop: &Workshop) -> Wrapper {
        let state = self.state.display().to_string();
        let words = [&shop.lariat, "run", "--share", "--state-dir", &state, "--"];
        Wrapper { name: "pool".into(), words: words.map(str::to_owned).into() }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
        self.child.wait().ok();
    }
}

/// Memory of a process in units of 1000 bytes: its own, and its share of everything.
pub(crate) fn memory(pid: u32) -> [f64; 2] {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let field = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
    };
    let private = field("Private_Clean:") + field("Private_Dirty:");
    [private, field("Pss:")].map(|kibibytes| kibibytes * 1.024)
}
