//! Who belongs to a tree, decided from one picture of all processes.
//!
//! macOS has no subreaper: an orphan goes to launchd and its parentage is lost. What is left is
//! the session. A process can leave one only by making one of its own, and nobody can join one, so
//! whoever is in a session that a process of the tree is in was born into the tree. A process that
//! left the session *and* lost its parent before anybody looked is known by its mark alone.

use crate::member::Member;
use std::collections::{HashMap, HashSet};

/// One process in the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    /// Who it is. A start time of zero could not be read: the process belongs to another user.
    pub(crate) member: Member,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    /// Zero or less where the kernel does not say, as for the dead.
    pub(crate) session: i32,
    /// False for a process that has ended and that nobody has waited for.
    pub(crate) alive: bool,
    /// True for a process that carries the mark of the tree.
    pub(crate) marked: bool,
}

/// How a process is known to belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tie {
    /// By parentage or session, both of which the kernel keeps: nobody else can have them.
    Born,
    /// By the mark, or below somebody who has it. Its session may be somebody else's.
    Marked,
}

/// Everyone in the picture who belongs to the tree, the dead whom nobody has waited for too.
///
/// `leader` is the command. It must not have been waited for: as long as it has not, no other
/// process, group or session can get its number. `known` are those who belonged in an earlier
/// picture. `me` is whoever asks, and never belongs.
pub(crate) fn kin(
    rows: &[Row],
    leader: Option<Member>,
    known: &HashMap<Member, Tie>,
    me: i32,
) -> HashMap<Member, Tie> {
    let mut children: HashMap<i32, Vec<&Row>> = HashMap::new();
    let mut sessions: HashMap<i32, Vec<&Row>> = HashMap::new();
    for row in rows.iter().filter(|row| row.member.pid > 1 && row.member.pid != me) {
        children.entry(row.parent).or_default().push(row);
        sessions.entry(row.session).or_default().push(row);
    }
    let mine = rows.iter().find(|row| row.member.pid == me).map_or(0, |row| row.session);
    let everyone = || sessions.values().flatten().copied();
    let mut found = HashMap::new();

    let is_leader = |row: &Row| Some(row.member) == leader;
    let born = |row: &&Row| is_leader(row) || known.get(&row.member) == Some(&Tie::Born);
    let mut queue: Vec<&Row> = everyone().filter(born).collect();
    let mut entered = HashSet::new();
    while let Some(row) = queue.pop() {
        if found.insert(row.member, Tie::Born).is_some() {
            continue;
        }
        queue.extend(children.get(&row.member.pid).into_iter().flatten());
        // The kernel does not name the session of the dead; the leader's is its own.
        let session = if is_leader(row) { row.member.pid } else { row.session };
        if session > 1 && session != mine && entered.insert(session) {
            queue.extend(sessions.get(&session).into_iter().flatten());
        }
        if is_leader(row) {
            // A group is part of one session, so this adds only those whose session is not told.
            queue.extend(everyone().filter(|other| other.group == row.member.pid));
        }
    }

    let marked = |row: &&Row| row.marked || known.get(&row.member) == Some(&Tie::Marked);
    let mut queue: Vec<&Row> = everyone().filter(marked).collect();
    while let Some(row) = queue.pop() {
        if found.contains_key(&row.member) {
            continue;
        }
        found.insert(row.member, Tie::Marked);
        queue.extend(children.get(&row.member.pid).into_iter().flatten());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUARDIAN: i32 = 100;
    const LEADER: Member = Member { pid: 101, start: 7 };

    fn row(pid: i32, parent: i32, session: i32) -> Row {
        let start = if pid == LEADER.pid { LEADER.start } else { 9 };
        let member = Member { pid, start };
        Row { member, parent, group: pid, session, alive: true, marked: false }
    }

    /// Launchd, a host with a child, the guardian in a session of its own, the leader in another.
    fn world() -> Vec<Row> {
        vec![row(1, 0, 1), row(50, 1, 50), row(51, 50, 50), row(GUARDIAN, 1, GUARDIAN), leader()]
    }

    fn leader() -> Row {
        row(LEADER.pid, GUARDIAN, LEADER.pid)
    }

    fn pids(rows: &[Row], known: &HashMap<Member, Tie>) -> Vec<i32> {
        let found = kin(rows, Some(LEADER), known, GUARDIAN);
        let mut pids: Vec<i32> = found.keys().map(|member| member.pid).collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn descendants_belong_and_strangers_do_not() {
        let mut rows = world();
        // A child, and a grandchild that made a session of its own.
        rows.extend([row(102, 101, 101), row(103, 102, 103), row(104, 50, 50)]);
        assert_eq!(pids(&rows, &HashMap::new()), [101, 102, 103]);
    }

    #[test]
    fn an_orphan_is_known_by_the_session_also_after_the_leader_left() {
        let mut rows = world();
        rows.push(row(102, 1, 101));
        assert_eq!(pids(&rows, &HashMap::new()), [101, 102]);
        let dead = Row { alive: false, session: 0, ..leader() };
        rows.retain(|row| row.member != LEADER);
        rows.push(dead);
        assert_eq!(pids(&rows, &HashMap::new()), [101, 102]);
    }

    #[test]
    fn a_session_made_below_belongs_as_long_as_one_of_it_is_known() {
        let mut rows = world();
        // 103 made a session, was seen, and has died; 104 was seen, 105 was not.
        rows.extend([row(104, 1, 103), row(105, 1, 103)]);
        assert_eq!(pids(&rows, &HashMap::new()), [101]);
        let seen = Member { pid: 104, start: 9 };
        assert_eq!(pids(&rows, &HashMap::from([(seen, Tie::Born)])), [101, 104, 105]);
    }

    #[test]
    fn a_number_that_came_round_is_a_stranger() {
        let mut rows = world();
        rows.push(row(104, 1, 103));
        let before = Member { pid: 104, start: 3 };
        assert_eq!(pids(&rows, &HashMap::from([(before, Tie::Born)])), [101]);
        rows.retain(|row| row.member != LEADER);
        rows.push(Row { member: Member { pid: 101, start: 8 }, ..leader() });
        rows.push(row(102, 101, 101));
        assert_eq!(pids(&rows, &HashMap::new()), [0; 0]);
    }

    #[test]
    fn a_marked_escapee_and_those_below_it_belong_but_not_its_session() {
        let mut rows = world();
        // Somebody else's daemon runs 61 with the environment of a client of ours.
        rows.extend([row(60, 1, 60), Row { marked: true, ..row(61, 60, 60) }, row(62, 61, 60)]);
        assert_eq!(pids(&rows, &HashMap::new()), [61, 62, 101]);
        let found = kin(&rows, Some(LEADER), &HashMap::new(), GUARDIAN);
        assert_eq!(found.get(&Member { pid: 62, start: 9 }), Some(&Tie::Marked));
        // Being remembered does not make more of it.
        assert_eq!(pids(&rows, &found), [61, 62, 101]);
    }

    #[test]
    fn who_asks_and_the_first_process_never_belong() {
        let mut rows = world();
        for row in &mut rows {
            row.marked = row.member.pid == GUARDIAN || row.member.pid == 1;
        }
        let known = HashMap::from([(Member { pid: GUARDIAN, start: 9 }, Tie::Born)]);
        assert_eq!(pids(&rows, &known), [101]);
    }

    #[test]
    fn unknown_sessions_are_nobodys() {
        let mut rows = world();
        rows.extend([row(102, 101, 0), row(70, 1, 0), Row { group: 101, ..row(103, 1, 0) }]);
        assert_eq!(pids(&rows, &HashMap::new()), [101, 102, 103]);
    }

    #[test]
    fn a_circle_of_parents_ends() {
        // Rows are read one after the other, so a picture can be impossible.
        let mut rows = world();
        rows.extend([row(102, 103, 101), row(103, 102, 101)]);
        assert_eq!(pids(&rows, &HashMap::new()), [101, 102, 103]);
    }
}
