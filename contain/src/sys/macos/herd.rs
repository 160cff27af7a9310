//! Everyone in a tree: looking for them, stopping them, killing them.

use super::mark::{Mark, Search};
use super::process;
use crate::kin::{Row, Tie, kin};
use crate::member::Member;
use crate::report::{Kind, Survivor};
use rustix::io::Errno;
use rustix::process::Signal;
use std::collections::{HashMap, HashSet};
use std::io;

/// How often a freeze looks for new members before it settles for those it has.
const ROUNDS: usize = 64;

/// The members of a tree as far as they are known.
#[derive(Debug)]
pub(crate) struct Herd {
    mark: Mark,
    leader: Option<Member>,
    /// True if the leader is a child of ours that we have not waited for.
    keeps_leader: bool,
    /// The one behind the guardian: a fork of what was executed with the mark, and no part of the tree.
    behind: Option<Member>,
    /// Those who belonged when last seen, and were still there.
    known: HashMap<Member, Tie>,
    /// Everyone who was ever seen alive.
    ever: HashSet<Member>,
    refused: HashMap<Member, Errno>,
}

impl Herd {
    /// A tree whose command may be gone already.
    pub(crate) fn new(mark: Mark, leader: Option<Member>) -> Herd {
        Herd {
            mark,
            leader,
            keeps_leader: false,
            behind: None,
            known: HashMap::new(),
            ever: HashSet::new(),
            refused: HashMap::new(),
        }
    }

    /// A tree whose command is our child, and will not be waited for before all is over. Behind us is
    /// whoever ends the tree if we are killed.
    pub(crate) fn led_by(mark: Mark, leader: Member, behind: Option<Member>) -> Herd {
        Herd { keeps_leader: true, behind, ..Herd::new(mark, Some(leader)) }
    }

    /// Who is alive in the tree now. With `thorough`, environments are read as well.
    pub(crate) fn look(&mut self, thorough: bool) -> io::Result<Vec<Member>> {
        self.look_and(thorough, |_| {})
    }

    /// The same; does something to each bearer of the mark as soon as it is seen.
    fn look_and(&mut self, thorough: bool, on_sight: impl Fn(Member)) -> io::Result<Vec<Member>> {
        let me = rustix::process::getpid().as_raw_pid();
        let behind = self.behind;
        let on_sight = |member| {
            if Some(member) != behind {
                on_sight(member);
            }
        };
        let mut rows = process::picture(thorough.then(|| Search::new(self.mark)), on_sight)?;
        rows.retain(|row| Some(row.member) != behind);
        if let Some(leader) = self.leader.filter(|_| self.keeps_leader)
            && !rows.iter().any(|row| row.member == leader)
        {
            // It is on its way out and not shown at this moment; its session is still its own.
            rows.push(Row {
                member: leader,
                parent: me,
                group: leader.pid,
                session: leader.pid,
                alive: false,
                marked: false,
            });
        }
        let mut found = kin(&rows, self.leader, &self.known, me);
        let living: HashSet<Member> =
            rows.iter().filter(|row| row.alive).map(|row| row.member).collect();
        found.retain(|member, _| living.contains(member));
        self.ever.extend(found.keys());
        self.known = found;
        Ok(self.known.keys().copied().collect())
    }

    /// How many were ever seen alive.
    pub(crate) fn ever(&self) -> usize {
        self.ever.len()
    }

    /// Stops everyone until nobody new turns up, then kills them: a stopped process cannot fork.
    /// What one pass misses the next finds. True if it has killed somebody new.
    pub(crate) fn kill(&mut self) -> bool {
        let (before, mut stopped) = (self.ever.clone(), HashSet::new());
        let stop = |member: Member| {
            // A refusal shows up again when the kill fails too.
            let _refused = member.signal(Signal::STOP);
        };
        for _ in 0..ROUNDS {
            let Ok(living) = self.look_and(true, stop) else { break };
            let new: Vec<Member> = living.into_iter().filter(|m| stopped.insert(*m)).collect();
            if new.is_empty() {
                break;
            }
            new.into_iter().for_each(stop);
        }
        // If nobody could be listed, those who are known are killed all the same.
        stopped.extend(self.known.keys());
        let mut newcomers = false;
        for member in stopped {
            match member.signal(Signal::KILL) {
                // Whom we may not kill buys nobody time.
                Ok(killed) => newcomers |= killed && !before.contains(&member),
                Err(errno) => drop(self.refused.insert(member, errno)),
            }
        }
        newcomers
    }

    /// Whoever is left, by name. A list that cannot be read is a survivor too: calling a tree empty
    /// because nothing could be read would be the worst of lies.
    pub(crate) fn survivors(&mut self) -> Vec<Survivor> {
        match self.look(true) {
            Ok(living) => living.into_iter().map(|member| self.survivor(member)).collect(),
            Err(e) => vec![Survivor {
                kind: Kind::Process,
                member: Member { pid: 0, start: 0 },
                name: "unknown".into(),
                why: format!("the processes could not be listed: {e}"),
            }],
        }
    }

    fn survivor(&self, member: Member) -> Survivor {
        let name = process::look(member.pid).map_or_else(|| "unknown".into(), |seen| seen.name);
        let why = match self.refused.get(&member) {
            Some(_) if member.start == 0 => "it belongs to another user".into(),
            Some(errno) => format!("the kill was refused: {errno}"),
            None => "killed but still there".into(),
        };
        Survivor { kind: Kind::Process, member, name, why }
    }
}
