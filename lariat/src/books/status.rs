//! What a living session says of itself, in a file beside its page.
//!
//! The page is written once and says where to look if everything else is lost. This file changes
//! with the session and is for those who look on: lost or unwritten, nothing depends on it.

use super::{Entry, paper, replace, sharing};
use crate::snapshot::Status;
use contain::{Gauge, Member};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    /// When this life of the server began: whoever finishes a crashed session writes its receipt.
    began_ms: u64,
    /// Where what changes with every message can be read: a descriptor of the wrapper's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pulse: Option<i32>,
    #[serde(flatten)]
    status: Status,
}

/// What changes with every message: whether somebody waits, and when anybody last spoke. Too often
/// for a file, so it is a number in memory that others can read.
#[derive(Debug)]
pub(crate) struct Pulse {
    gauge: Gauge,
    /// One moment by two clocks of the same kind.
    base: (Instant, Duration),
}

impl Pulse {
    /// `None` where the kernel has no such memory for us.
    pub(crate) fn new() -> Option<Pulse> {
        Some(Pulse { gauge: Gauge::new()?, base: (Instant::now(), uptime()) })
    }

    /// The one that this descriptor was before this process became another program.
    pub(crate) fn again(memory: OwnedFd) -> Option<Pulse> {
        let (now, up) = (Instant::now(), uptime());
        // What was said before is before this moment, too.
        let boot = now.checked_sub(up).map(|boot| (boot, Duration::ZERO));
        Some(Pulse { gauge: Gauge::again(memory)?, base: boot.unwrap_or((now, up)) })
    }

    /// Says whether somebody waits for an answer, and when anybody last spoke.
    pub(crate) fn beat(&self, awaited: bool, spoke: Instant) {
        let spoke = self.base.1 + spoke.saturating_duration_since(self.base.0);
        self.gauge.set(((spoke.as_millis() as u64) << 1) | u64::from(awaited));
    }

    /// What a wrapper shows at this descriptor; `None` if that is not to be seen.
    pub(super) fn feel(wrapper: Member, number: i32) -> Option<Felt> {
        let shown = Gauge::read(wrapper, number)?;
        let silence = uptime().saturating_sub(Duration::from_millis(shown >> 1));
        Some(match shown {
            0 => Felt::Nothing,
            shown if shown & 1 == 1 => Felt::Awaited,
            _ => Felt::Silence(silence),
        })
    }
}

/// For whoever holds the session and does not see its messages.
impl AsFd for Pulse {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.gauge.as_fd()
    }
}

/// What a pulse says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Felt {
    /// It has not begun.
    Nothing,
    /// Somebody waits.
    Awaited,
    /// Nobody waits, for this long.
    Silence(Duration),
}

/// Whose pulse a session shows.
#[derive(Debug)]
pub(super) enum Shown {
    /// Our own.
    Own(Pulse),
    /// That of somebody who sees the messages, who has given us a copy.
    Given(OwnedFd),
}

impl Shown {
    fn number(&self) -> i32 {
        match self {
            Shown::Own(pulse) => pulse.gauge.number(),
            Shown::Given(copy) => copy.as_raw_fd(),
        }
    }
}

/// The clock behind `Instant`, which other processes have as well.
fn uptime() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Where the session with this page says how it is.
fn beside(page: &Path) -> PathBuf {
    page.with_extension("state")
}

fn read(page: &Path) -> Option<Told> {
    serde_json::from_slice(&paper::read(&beside(page)).ok()?).ok()
}

/// What the session with this page has said last, and where its pulse can be felt.
pub(super) fn of(page: &Path) -> Option<(Status, Option<i32>)> {
    read(page).map(|told| (told.status, told.pulse))
}

impl Entry {
    /// Says how the session is. A full disk must not keep it from being so.
    pub fn tell(&self, status: &Status) {
        let began_ms = self.began_ms.load(Ordering::Relaxed);
        let pulse = self.pulse.get().map(Shown::number);
        let told = Told { began_ms, pulse, status: status.clone() };
        let draft = self.draft();
        let _untold = serde_json::to_vec(&told)
            .map_err(io::Error::from)
            .and_then(|text| replace(&beside(&self.path), &draft, &text));
        if self.is_struck() {
            // Somebody else has accounted for it meanwhile.
            self.hush();
        }
    }

    /// Lets others see from here on what [`Entry::beat`] says. Where that cannot be, nobody sees it.
    pub fn show_pulse(&self) {
        if let (None, Some(pulse)) = (self.pulse.get(), Pulse::new()) {
            let _there_already = self.pulse.set(Shown::Own(pulse));
        }
    }

    /// Lets others see what somebody else says who sees the messages.
    pub(crate) fn show_pulse_of(&self, copy: OwnedFd) {
        let _there_already = self.pulse.set(Shown::Given(copy));
    }

    /// Says whether somebody waits for an answer, and when anybody last spoke. Costs next to nothing.
    pub fn beat(&self, awaited: bool, spoke: Instant) {
        if let Some(Shown::Own(pulse)) = self.pulse.get() {
            pulse.beat(awaited, spoke);
        }
    }

    /// Says nothing any more.
    pub(super) fn hush(&self) {
        for beside in [beside(&self.path), self.draft(), sharing::beside(&self.path)] {
            let _never_told = fs::remove_file(beside);
        }
    }

    /// Where a status is written before it has its name; whoever writes may be killed in between.
    fn draft(&self) -> PathBuf {
        self.path.with_extension("state.new")
    }

    /// Takes over a session whose processes have died: its next receipt begins where theirs would.
    pub(super) fn resume(&self) {
        if let Some(told) = read(&self.path) {
            self.began_ms.store(told.began_ms, Ordering::Relaxed);
        }
    }
}
