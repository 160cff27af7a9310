//! Where a session lives: pids and start times mean something only there.

use serde::{Deserialize, Serialize};
use std::fs;
use std::io;

/// The pid namespace that all others are in has this number since Linux 3.8.
pub(super) const OUTERMOST: &str = "pid:[4026531836]";

/// Where pids mean what they say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub(super) machine: String,
    pub(super) boot: String,
    pub(super) pid_namespace: String,
}

impl Place {
    /// Here and now. Fails if that cannot be read just now: nobody may conclude from that what has ended. Where
    /// the kernel does not tell at all, it is empty.
    pub fn here() -> io::Result<Place> {
        let boot = told(fs::read_to_string("/proc/sys/kernel/random/boot_id"))?;
        let pid_namespace = told(fs::read_link("/proc/self/ns/pid"))?;
        Ok(Place {
            machine: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            boot: boot.trim().to_owned(),
            pid_namespace: pid_namespace.to_string_lossy().into_owned(),
        })
    }

    /// True if the machine has been started anew since: nobody of those who lived there is alive.
    pub(super) fn is_of_another_boot(&self, here: &Place) -> bool {
        let known = !self.boot.is_empty() && !here.boot.is_empty();
        known && self.boot != here.boot
    }

    /// True if it is the same machine. Its name may change while it runs; which boot it is does not.
    fn is_on(&self, here: &Place) -> bool {
        self.machine == here.machine || (!self.boot.is_empty() && self.boot == here.boot)
    }

    /// True if a process there has the same number here.
    pub(super) fn shares_pids(&self, here: &Place) -> bool {
        self.is_on(here)
            && !self.is_of_another_boot(here)
            && self.pid_namespace == here.pid_namespace
    }

    /// True if a crash there is finished from here. Another machine or container may share the
    /// directory: its pids mean nothing here. After a reboot its processes are gone anyway, and outside of
    /// all containers everybody can be seen, by the mark.
    pub(super) fn is_finished_from(&self, here: &Place) -> bool {
        let boot_is_known = !self.boot.is_empty() && !here.boot.is_empty();
        self.shares_pids(here)
            || (self.is_on(here) && self.is_of_another_boot(here))
            || (boot_is_known && self.boot == here.boot && here.pid_namespace == OUTERMOST)
    }
}

fn told<T: Default>(read: io::Result<T>) -> io::Result<T> {
    match read {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            Ok(T::default())
        }
        read => read,
    }
}
