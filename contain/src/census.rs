//! The census of a tree: who was seen in it, and how those who are gone since have left.

use crate::member::Member;
use std::collections::{HashMap, HashSet};

/// Everyone seen alive and not yet seen gone, and the count of the others.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// Whether each was asked to leave.
    asked: HashMap<Member, bool>,
    pub(crate) gone: Gone,
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
        let known = self.asked.len();
        self.asked.entry(member).or_insert(false);
        self.asked.len() > known
    }

    /// Notes that this one was asked to leave.
    pub(crate) fn note_asked(&mut self, member: Member) {
        self.asked.insert(member, true);
    }

    /// Counts whoever is not among the living any more.
    pub(crate) fn settle(&mut self, living: &[Member], killing: bool) {
        let living: HashSet<Member> = living.iter().copied().collect();
        let gone = &mut self.gone;
        self.asked.retain(|member, asked| {
            if living.contains(member) {
                return true;
            }
            match (killing, *asked) {
                (true, _) => gone.killed += 1,
                (false, true) => gone.asked += 1,
                (false, false) => gone.left += 1,
            }
            false
        });
    }

    /// Everyone who was not seen gone.
    pub(crate) fn members(&self) -> Vec<Member> {
        self.asked.keys().copied().collect()
    }

    /// Those of them who were not asked to leave.
    pub(crate) fn unasked(&self) -> Vec<Member> {
        self.asked.iter().filter(|(_, asked)| !**asked).map(|(member, _)| *member).collect()
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
        census.note_asked(all[1]);
        census.note(all);
        assert_eq!(census.unasked().len(), 3, "who was asked stays asked");
        assert!(!census.meet(all[0]), "whoever is met again is not new");
        census.settle(&all[2..], false);
        assert_eq!(census.gone, Gone { left: 1, asked: 1, killed: 0 });
        census.settle(&all[3..], true);
        census.settle(&all[3..], true);
        assert_eq!(census.gone, Gone { left: 1, asked: 1, killed: 1 });
        assert_eq!(census.members(), [all[3]]);
    }
}
