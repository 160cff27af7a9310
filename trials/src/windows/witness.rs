//! The witness: finds everybody of a cell by its own means, and says who is left.
//!
//! A member carries the cell's token in its command line, or was started by a member. Whoever was
//! seen once is known by identity from then on, whatever becomes of its parent.

use super::world::{Listed, Process, everybody};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// For so long a process may have no command line yet.
const YOUTH: Duration = Duration::from_secs(5);

/// Looks for everybody who carries a token, and for everybody they started.
#[derive(Debug)]
pub struct Witness {
    token: String,
    members: HashMap<Process, String>,
    strangers: HashSet<Process>,
    spared: HashSet<Process>,
    peak: usize,
}

impl Witness {
    /// One who knows nobody yet.
    #[must_use]
    pub fn new(token: &str) -> Self {
        Self {
            token: token.to_owned(),
            members: HashMap::new(),
            strangers: HashSet::new(),
            spared: HashSet::new(),
            peak: 0,
        }
    }

    /// Leaves somebody out who carries the token and is no part of the session.
    pub fn spare(&mut self, process: Process) {
        self.spared.insert(process);
    }

    /// The members who are alive now.
    pub fn look(&mut self) -> Vec<Process> {
        let everybody = everybody();
        let mut alive: Vec<Process> = Vec::new();
        // Children come after their parents only by chance, so it is looked until nobody is new.
        loop {
            let before = alive.len();
            for listed in &everybody {
                if !alive.contains(&listed.process) && self.is_member(listed, &alive) {
                    alive.push(listed.process);
                }
            }
            if alive.len() == before {
                break;
            }
        }
        self.peak = self.peak.max(alive.len());
        alive
    }

    fn is_member(&mut self, listed: &Listed, alive: &[Process]) -> bool {
        let process = listed.process;
        if self.spared.contains(&process) {
            return false;
        }
        if self.members.contains_key(&process) {
            return true;
        }
        // Only of those who are alive at the same time: the number of one who is gone may be a
        // stranger's by now, and with it everybody whom that stranger started.
        let by_birth = alive
            .iter()
            .any(|member| member.pid == listed.parent && member.created <= process.created);
        if !by_birth && self.strangers.contains(&process) {
            return false;
        }
        let line = process.command_line();
        let by_token = line.as_ref().is_some_and(|line| line.contains(&self.token));
        if by_birth || by_token {
            self.members.insert(process, listed.name.clone());
            return true;
        }
        if line.is_some_and(|line| !line.is_empty()) || process.age() > YOUTH {
            self.strangers.insert(process);
        }
        false
    }

    /// The file name of a member's program.
    #[must_use]
    pub fn name(&self, process: Process) -> &str {
        self.members.get(&process).map_or("?", String::as_str)
    }

    pub(crate) fn describe(&self, process: Process) -> String {
        let (pid, name, age) = (process.pid, self.name(process), process.age().as_millis());
        format!("{pid} {name}, {age} ms old")
    }

    /// The most members seen at once.
    pub(crate) fn peak(&self) -> usize {
        self.peak
    }
}
