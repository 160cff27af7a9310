//! Where a session lives: pids and start times mean something only there.

use serde::{Deserialize, Serialize};
use std::fs;

/// Where pids mean what they say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub(super) machine: String,
    pub(super) boot: String,
    pub(super) pid_namespace: String,
}

impl Place {
    /// Here and now.
    pub fn here() -> Place {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_string();
        let link = |path: &str| fs::read_link(path).unwrap_or_default();
        Place {
            machine: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            boot: text("/proc/sys/kernel/random/boot_id"),
            pid_namespace: link("/proc/self/ns/pid").to_string_lossy().into_owned(),
        }
    }

    /// True if a crash there is finished from here. Another machine or container may share the
    /// directory: its pids mean nothing here. After a reboot its processes are gone anyway.
    pub(super) fn is_finished_from(&self, here: &Place) -> bool {
        let same_boot = self.boot == here.boot;
        let same_pids = self.pid_namespace == here.pid_namespace;
        self.machine == here.machine && (same_pids || !same_boot)
    }
}
