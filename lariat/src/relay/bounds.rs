//! Holding a server to its bounds where the kernel does not, and seeing it run wild.

use crate::receipt::Reason;
use contain::{Ask, Breach, Hold, Limits, Waits};
use std::time::{Duration, Instant};

/// How often to look at a server whose limits the kernel does not keep, or only in part.
const LOOK: Duration = Duration::from_millis(500);

/// The same for processes, which can be many soon.
const LOOK_AT_PROCESSES: Duration = Duration::from_millis(100);

/// Who looks no oftener than this keeps nothing for it in between.
const SELDOM: Duration = Duration::from_secs(1);

/// Whoever uses this share of a CPU or more, spins: of the time in which it could have had one. On a busy machine
/// that is less than all the time.
const SPINS: f64 = 0.5;

/// But a twentieth at least: however busy the machine is, somebody with little to do is not taken for one who spins.
const COULD: u32 = 20;

/// How many looks it takes to say so.
const LOOKS: u32 = 3;

/// What a server must not do, and when it was last looked at.
#[derive(Debug)]
pub(super) struct Bounds {
    limits: Limits,
    /// How long it may spin while nobody waits for it.
    spin: Option<Duration>,
    /// The stretch in which nobody waits.
    alone: Option<Stretch>,
    /// When it was last looked at, and what it had used then.
    last: Option<(Instant, Duration)>,
    next: Option<Instant>,
}

/// A time that is looked at as one.
#[derive(Debug)]
struct Stretch {
    since: Instant,
    /// What had been used then.
    cpu: Duration,
    /// What its threads had waited then; not read of one who does nothing.
    waits: Option<Waits>,
}

/// Why a server has to go, in words for its host, and how.
#[derive(Debug)]
pub(super) struct Beyond {
    pub(super) reason: Reason,
    pub(super) words: String,
    pub(super) ask: Ask,
}

impl Bounds {
    pub(super) fn new(limits: Limits, spin: Option<Duration>) -> Bounds {
        Bounds { limits, spin, alone: None, last: None, next: None }
    }

    /// The server runs: from now on it is looked at, if there is something to look at.
    pub(super) fn begin(&mut self, hold: &Hold) {
        self.next = self.pause(hold).map(|pause| Instant::now() + pause);
    }

    /// True if a share of the CPU was asked for and cannot be kept.
    pub(super) fn cannot_limit_cpu(&self, hold: &Hold) -> bool {
        self.limits.cpu.is_some() && !hold.enforced().cpu
    }

    /// When to look again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next
    }

    fn pause(&self, hold: &Hold) -> Option<Duration> {
        let enforced = hold.enforced();
        let memory = (self.limits.memory.is_some() && !enforced.memory).then_some(LOOK);
        let processes = self.limits.processes.map(|_| match enforced.processes {
            // The kernel refuses more; that it had to is ours to see.
            true => LOOK,
            false => LOOK_AT_PROCESSES,
        });
        let spin = self.spin.map(|spin| spin / LOOKS);
        [memory, processes, spin].into_iter().flatten().min()
    }

    /// Looks, if it is time to. `alone` says since when nobody waits for it.
    pub(super) fn look(&mut self, hold: &Hold, alone: Option<Instant>) -> Option<Beyond> {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return None;
        }
        let pause = self.pause(hold);
        self.next = pause.map(|pause| now + pause);
        let usage = hold.usage();
        if pause.is_some_and(|pause| pause >= SELDOM) {
            // What it took to look is not needed again for long.
            contain::give_back_code();
        }
        let (enforced, Limits { memory, processes, cpu }) = (hold.enforced(), self.limits);
        if memory.is_some_and(|most| !enforced.memory && usage.memory > most) {
            return Some(Beyond::breach(Breach::Memory));
        }
        let too_many = processes.is_some_and(|most| usage.tasks > most as usize);
        let refused = hold.breach() == Some(Breach::Processes);
        if (too_many && !enforced.processes) || refused {
            return Some(Beyond::breach(Breach::Processes));
        }
        let spin = self.spin?;
        let spins = |used: Duration, could: Duration| {
            used >= could.mul_f64(SPINS * cpu.unwrap_or(1.0).min(1.0))
        };
        let (at, used) = self.last.replace((now, usage.cpu)).unwrap_or((now, usage.cpu));
        let passed = now.duration_since(at);
        let is_busy = !passed.is_zero() && spins(usage.cpu.saturating_sub(used), passed / COULD);
        let begin = || Stretch { since: now, cpu: usage.cpu, waits: is_busy.then(|| hold.waits()) };
        let before = self.alone.take();
        let alone = alone?;
        // What it did before somebody last spoke was for them.
        let stretch = before.filter(|stretch| stretch.since >= alone).unwrap_or_else(begin);
        let lasted = now.duration_since(stretch.since);
        if lasted < spin {
            self.alone = Some(stretch);
            return None;
        }
        let next = begin();
        let waited = match (&next.waits, &stretch.waits) {
            (Some(now), Some(before)) => now.longest_since(before),
            _ => Duration::ZERO,
        };
        self.alone = Some(next);
        let could = lasted.saturating_sub(waited).max(lasted / COULD);
        spins(usage.cpu.saturating_sub(stretch.cpu), could).then(|| Beyond {
            reason: Reason::Limit("cpu-idle".into()),
            words: format!(
                "the server was ended: it ran for {} s with nothing to do",
                lasted.as_secs()
            ),
            ask: Ask::Closed,
        })
    }
}

impl Beyond {
    /// What the kernel saw, or we.
    pub(super) fn breach(breach: Breach) -> Beyond {
        let (which, more) = match breach {
            Breach::Memory => ("memory", "memory than --memory allows"),
            Breach::Processes => ("pids", "processes than --pids allows"),
        };
        Beyond {
            reason: Reason::Limit(which.into()),
            words: format!("the server was ended: it wanted more {more}"),
            ask: Ask::Kill,
        }
    }
}
