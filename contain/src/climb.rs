//! The climb: where on the ladder a tree stands, and what is due there.
//!
//! Pure: times and facts in, acts out. Whoever runs it looks at the processes and signals them.

use crate::ladder::{Ask, Ladder, SIGTERM};
use std::time::{Duration, Instant};

/// While killing, how soon to look again at first, and at most. Looking takes time that those who
/// are dying need.
const FIRST_ROUND: Duration = Duration::from_millis(2);
const LAST_ROUND: Duration = Duration::from_millis(40);

/// How often newcomers are asked to leave after the command has left. A storm has a death, and somebody new,
/// every moment: who looks each time does nothing else.
const NEWCOMERS: Duration = Duration::from_millis(10);

/// For how long somebody new buys a kill more time.
const LONGEST: Duration = Duration::from_secs(60);

/// By how much the end of a kill moves before the holder is told.
const NEWS: Duration = Duration::from_secs(1);

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Nothing.
    Nothing,
    /// Take note of who is there: they have been given time.
    Look,
    /// Send this signal to the command's process group.
    Signal(i32),
    /// Ask everyone who was not asked yet.
    AskEveryone,
    /// Kill whoever is there, for the first time or again.
    Kill { first: bool },
    /// Report.
    Finish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nobody has asked for an end.
    Running,
    /// Asked gently: standard input closed, or a signal other than SIGTERM passed on.
    Closing { until: Instant },
    /// The command left by itself; its descendants have a moment to follow.
    Lingering { until: Instant },
    /// SIGTERM was sent; once the command has left, newcomers are asked at `next`.
    Asked { until: Instant, next: Option<Instant> },
    /// Killing and looking until nobody is left or the time is up.
    Killing { since: Instant, until: Instant, next: Instant, round: Duration },
    /// Reported.
    Ended,
}

/// A tree's place on the ladder.
#[derive(Debug)]
pub(crate) struct Climb {
    ladder: Ladder,
    phase: Phase,
    /// When somebody first asked for an end, or the command left.
    began: Option<Instant>,
    /// When the holder expects the kill to be over at the latest. From the ladder it knows the first such time.
    known_until: Option<Instant>,
}

impl Climb {
    pub(crate) fn new(ladder: Ladder) -> Climb {
        Climb { ladder, phase: Phase::Running, began: None, known_until: None }
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.phase != Phase::Running
    }

    pub(crate) fn is_killing(&self) -> bool {
        matches!(self.phase, Phase::Killing { .. })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// How long it has been ending.
    pub(crate) fn took(&self, now: Instant) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began))
    }

    /// When `tick` is due even if nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running | Phase::Ended => None,
            Phase::Closing { until } | Phase::Lingering { until } => Some(until),
            Phase::Asked { until, next } => Some(next.map_or(until, |next| next.min(until))),
            Phase::Killing { next, until, .. } => Some(next.min(until)),
        }
    }

    /// How much longer the kill may take, if new processes have moved its end further away than the holder was
    /// told; the holder would take us for stuck. It is told no more often than it is worth.
    pub(crate) fn overtime(&mut self, now: Instant) -> Option<Duration> {
        let Phase::Killing { until, .. } = self.phase else { return None };
        let known = self.known_until.get_or_insert(until);
        (until > *known + NEWS).then(|| {
            *known = until;
            until.saturating_duration_since(now)
        })
    }

    /// Starts the end, or climbs higher. Never lower.
    pub(crate) fn ask(&mut self, ask: Ask, now: Instant, has_left: bool) -> Act {
        let rung = match self.phase {
            Phase::Running => None,
            Phase::Closing { .. } | Phase::Lingering { .. } => Some(1),
            Phase::Asked { .. } => Some(2),
            Phase::Killing { .. } | Phase::Ended => Some(3),
        };
        if rung.is_some_and(|rung| rung >= ask.rung()) {
            return Act::Nothing;
        }
        self.began.get_or_insert(now);
        match ask {
            Ask::Closed => {
                self.phase = Phase::Closing { until: now + self.ladder.grace };
                Act::Look
            }
            Ask::Signal(SIGTERM) | Ask::OwnerDied => self.terminate(now, has_left),
            Ask::Signal(number) => {
                self.phase = Phase::Closing { until: now + self.ladder.grace };
                Act::Signal(number)
            }
            Ask::Kill => self.kill(now),
        }
    }

    /// What is due, now that the command has left or not, and the tree was seen empty or not.
    pub(crate) fn tick(&mut self, now: Instant, has_left: bool, empty: bool) -> Act {
        if self.phase != Phase::Ended && empty {
            return self.finish(now);
        }
        match self.phase {
            Phase::Running if has_left => {
                self.began = Some(now);
                self.phase = Phase::Lingering { until: now + self.ladder.linger };
                Act::Look
            }
            Phase::Closing { until } if has_left => {
                // A slow command must not buy its descendants more time than the ladder has.
                self.phase = Phase::Lingering { until: until.min(now + self.ladder.linger) };
                Act::Look
            }
            Phase::Closing { until } | Phase::Lingering { until } if now >= until => {
                self.terminate(now, has_left)
            }
            Phase::Asked { until, .. } if now >= until => self.kill(now),
            // The command heeded the signal; those it never reached are asked now.
            Phase::Asked { next, .. } if has_left && next.is_none_or(|next| now >= next) => {
                self.asked(now);
                Act::AskEveryone
            }
            Phase::Killing { until, .. } if now >= until => self.finish(now),
            Phase::Killing { since, until, next, round } if now >= next => {
                let round = (round * 2).min(LAST_ROUND);
                self.phase = Phase::Killing { since, until, next: now + round, round };
                Act::Kill { first: false }
            }
            _ => Act::Nothing,
        }
    }

    fn terminate(&mut self, now: Instant, has_left: bool) -> Act {
        let next = has_left.then(|| now + NEWCOMERS);
        self.phase = Phase::Asked { until: now + self.ladder.term_grace, next };
        if has_left { Act::AskEveryone } else { Act::Signal(SIGTERM) }
    }

    fn kill(&mut self, now: Instant) -> Act {
        let (since, until) = (now, now + self.ladder.look);
        self.phase = Phase::Killing { since, until, next: now + FIRST_ROUND, round: FIRST_ROUND };
        Act::Kill { first: true }
    }

    /// Everyone who was found has been asked by now; who comes then has a moment to himself.
    pub(crate) fn asked(&mut self, now: Instant) {
        if let Phase::Asked { next, .. } = &mut self.phase {
            *next = Some(now + NEWCOMERS);
        }
    }

    /// A kill was done by now; the dying have this long at least before they are looked at again. As long
    /// as it meets somebody new there is something to do: only who does not die of it is a survivor.
    pub(crate) fn struck(&mut self, now: Instant, at_least: Duration, newcomers: bool) {
        if let Phase::Killing { since, until, next, round } = &mut self.phase {
            *round = at_least.max(*round);
            *next = now + *round;
            if newcomers {
                *until = (now + self.ladder.look).min(*since + LONGEST).max(*until);
            }
        }
    }

    fn finish(&mut self, now: Instant) -> Act {
        self.began.get_or_insert(now);
        self.phase = Phase::Ended;
        Act::Finish
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LADDER: Ladder = Ladder {
        grace: Duration::from_secs(2),
        term_grace: Duration::from_secs(3),
        linger: Duration::from_millis(250),
        look: Duration::from_secs(5),
    };

    /// Ticks at each deadline until the report, and notes what was done when, in milliseconds. What is
    /// done again is not.
    fn acts(climb: &mut Climb, begin: Instant, left_at: u64, empty_at: u64) -> Vec<(u64, Act)> {
        let mut acts = Vec::new();
        let mut now = begin;
        for _ in 0..1_000 {
            let at = now.duration_since(begin).as_millis() as u64;
            let act = climb.tick(now, at >= left_at, at >= empty_at);
            let again = acts.last().is_some_and(|(_, last)| *last == act);
            if !again && !matches!(act, Act::Nothing | Act::Look | Act::Kill { first: false }) {
                acts.push((at, act));
            }
            if act == Act::Finish {
                assert!(climb.is_over() && climb.deadline().is_none());
                return acts;
            }
            let facts = [left_at, empty_at].map(|at| begin + Duration::from_millis(at));
            let coming = facts.into_iter().filter(|at| *at > now);
            now = coming.chain(climb.deadline()).min().expect("something is due");
        }
        panic!("no end: {acts:?}");
    }

    const NEVER: u64 = 1_000_000;
    const KILL: Act = Act::Kill { first: true };

    #[test]
    fn who_ignores_everything_is_asked_then_killed_then_named() {
        let (mut climb, begin) = (Climb::new(LADDER), Instant::now());
        assert_eq!(climb.ask(Ask::Closed, begin, false), Act::Look);
        let acts = acts(&mut climb, begin, NEVER, NEVER);
        let expected = [(2_000, Act::Signal(SIGTERM)), (5_000, KILL), (10_000, Act::Finish)];
        assert_eq!(acts, expected);
    }

    #[test]
    fn those_who_outlive_the_command_have_a_moment() {
        let (mut climb, begin) = (Climb::new(LADDER), Instant::now());
        let acts = acts(&mut climb, begin, 0, 300);
        assert_eq!(acts, [(250, Act::AskEveryone), (300, Act::Finish)]);
        assert_eq!(climb.took(begin + Duration::from_millis(300)).as_millis(), 300);
    }

    #[test]
    fn a_dead_owner_means_no_first_grace() {
        let (mut climb, begin) = (Climb::new(LADDER), Instant::now());
        assert_eq!(climb.ask(Ask::OwnerDied, begin, false), Act::Signal(SIGTERM));
        // The command leaves; those whom the signal did not reach are asked as well.
        let acts = acts(&mut climb, begin, 100, NEVER);
        assert_eq!(acts[0], (100, Act::AskEveryone));
        assert!(acts.contains(&(3_000, KILL)), "{acts:?}");
    }

    #[test]
    fn a_slow_command_buys_nobody_time() {
        let (mut climb, begin) = (Climb::new(LADDER), Instant::now());
        climb.ask(Ask::Closed, begin, false);
        let acts = acts(&mut climb, begin, 1_900, NEVER);
        assert_eq!(acts[0], (2_000, Act::AskEveryone));
    }

    #[test]
    fn the_dying_are_looked_at_less_and_less_often() {
        let (mut climb, begin) = (Climb::new(LADDER), Instant::now());
        assert_eq!(climb.ask(Ask::Kill, begin, false), KILL);
        // The kill itself takes a while, and is not counted.
        let mut now = begin + Duration::from_millis(100);
        climb.struck(now, Duration::from_millis(15), false);
        for pause in [15, 30, 40, 40] {
            assert_eq!(climb.deadline(), Some(now + Duration::from_millis(pause)));
            now = climb.deadline().expect("a look");
            assert_eq!(climb.tick(now, false, false), Act::Kill { first: false });
            climb.struck(now, Duration::from_millis(15), false);
        }
    }

    #[test]
    fn newcomers_are_asked_now_and_then_and_not_at_every_death() {
        let (mut climb, begin) = (Climb::new(LADDER), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(climb.ask(Ask::OwnerDied, begin, false), Act::Signal(SIGTERM));
        assert_eq!(climb.tick(at(1), true, false), Act::AskEveryone);
        for ms in 2..11 {
            assert_eq!(climb.tick(at(ms), true, false), Act::Nothing);
            assert_eq!(climb.deadline(), Some(at(11)));
        }
        assert_eq!(climb.tick(at(11), true, false), Act::AskEveryone);
    }

    #[test]
    fn who_is_new_is_killed_too_but_not_for_ever() {
        let (mut climb, begin) = (Climb::new(LADDER), Instant::now());
        assert_eq!(climb.ask(Ask::Kill, begin, false), KILL);
        assert_eq!(climb.overtime(begin), None, "that long the holder waits anyway");
        let storm_until = Duration::from_secs(20);
        let mut told = Vec::new();
        let mut ended = |climb: &mut Climb, storm: Duration| {
            let mut now = begin;
            while climb.tick(now, false, false) != Act::Finish {
                climb.struck(now, Duration::ZERO, now < begin + storm);
                told.extend(climb.overtime(now));
                now = climb.deadline().expect("something is due");
            }
            now.duration_since(begin).as_secs()
        };
        assert_eq!(ended(&mut climb, storm_until), 24, "five seconds after the last of them");
        let mut climb = Climb::new(LADDER);
        climb.ask(Ask::Kill, begin, false);
        assert_eq!(ended(&mut climb, Duration::from_secs(1_000)), 60);
        assert!((60..80).contains(&told.len()), "about once in a second: {told:?}");
        assert!(told.iter().all(|left| *left <= LADDER.look), "{told:?}");
    }

    #[test]
    fn nobody_climbs_down() {
        let (mut climb, begin) = (Climb::new(LADDER), Instant::now());
        assert!(!climb.is_ending());
        assert_eq!(climb.ask(Ask::Signal(2), begin, false), Act::Signal(2));
        assert!(climb.is_ending());
        assert_eq!(climb.ask(Ask::Closed, begin, false), Act::Nothing);
        assert_eq!(climb.ask(Ask::Signal(15), begin, false), Act::Signal(15));
        assert_eq!(climb.ask(Ask::Kill, begin, false), KILL);
        assert_eq!(climb.ask(Ask::OwnerDied, begin, false), Act::Nothing);
        assert!(climb.is_killing());
        let later = begin + Duration::from_millis(1);
        assert_eq!(climb.tick(later, true, true), Act::Finish);
        assert_eq!(climb.ask(Ask::Kill, later, true), Act::Nothing);
        assert_eq!(climb.tick(later + LADDER.look * 2, true, true), Act::Nothing);
    }
}
