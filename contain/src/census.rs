//! The census of a tree: who was seen in it, and how those who are gone since have left.

use crate::ladder::SIGTERM;
use crate::member::Member;
use std::collections::{HashMap, HashSet};

/// Everyone seen alive and not yet seen gone, and the count of the others.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// What each was told.
    told: HashMap<Member, Told>,
    pub(crate) gone: Gone,
}

/// What a member was told so far. The later ones are stronger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    /// Nothing.
    Nothing,
    /// A signal that ends most programs, as SIGINT does, but that a background job of a shell ignores.
    Otherwise,
    /// To terminate.
    ToTerminate,
}

/// How many have gone, and how they left.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone {
    /// By themselves.
    pub(crate) left: u32,
    /// After they were asked.
    pub(crate) asked: u32,
    /// After the kill had begun.
    pub(crate) killed: u32,
}

impl Census {
    /// Notes who was not known yet.
    pub(crate) fn note(&mut self, members: impl IntoIterator<Item = Member>) {
        for member in members {
            self.meet(member);
        }
    }

    /// The same for one. True if it was not known yet.
    pub(crate) fn meet(&mut self, member: Member) -> bool {
        let known = self.told.len();
        self.told.entry(member).or_insert(Told::Nothing);
        self.told.len() > known
    }

    /// Notes that this signal was sent to this one.
    pub(crate) fn note_signal(&mut self, member: Member, number: i32) {
        let what = if number == SIGTERM { Told::ToTerminate } else { Told::Otherwise };
        let told = self.told.entry(member).or_insert(what);
        *told = what.max(*told);
    }

    /// Counts whoever is not among the living any more.
    pub(crate) fn settle(&mut self, living: &[Member], killing: bool) {
        let living: HashSet<Member> = living.iter().copied().collect();
        let gone = &mut self.gone;
        self.told.retain(|member, told| {
            if living.contains(member) {
                return true;
            }
            match (killing, *told) {
                (true, _) => gone.killed += 1,
                (false, Told::Otherwise | Told::ToTerminate) => gone.asked += 1,
                (false, Told::Nothing) => gone.left += 1,
            }
            false
        });
    }

    /// Everyone who was not seen gone.
    pub(crate) fn members(&self) -> Vec<Member> {
        self.told.keys().copied().collect()
    }

    /// Those of them that were not told to terminate yet.
    pub(crate) fn to_be_terminated(&self) -> Vec<Member> {
        let untold = self.told.iter().filter(|(_, told)| **told < Told::ToTerminate);
        untold.map(|(member, _)| *member).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(pid: i32) -> Member {
        Member { pid, start: 7 }
    }

    #[test]
    fn each_is_counted_once_by_how_it_left() {
        let mut census = Census::default();
        let all = [1, 2, 3, 4].map(member);
        census.note(all);
        let sigint = 2;
        census.note_signal(all[1], SIGTERM);
        census.note_signal(all[1], sigint);
        census.note_signal(all[2], sigint);
        census.note(all);
        assert_eq!(census.to_be_terminated().len(), 3, "all but the one that was told so");
        assert!(!census.meet(all[0]), "whoever is met again is not new");
        census.settle(&all[2..], false);
        assert_eq!(census.gone, Gone { left: 1, asked: 1, killed: 0 });
        census.settle(&all[3..], true);
        census.settle(&all[3..], true);
        assert_eq!(census.gone, Gone { left: 1, asked: 1, killed: 1 });
        assert_eq!(census.members(), [all[3]]);
    }
}
