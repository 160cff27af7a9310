//! Every process of the machine, looked at together: one pass serves any number of sessions.
//!
//! Who looks again and again may skip those who did nothing: each of them is looked at every few
//! times, in turn. Who is there at all is seen every time.

use contain::Member;
use contain::process::{self, Seen};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

/// Those who are there, and who is whose child.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    people: HashMap<i32, Person>,
    children: HashMap<i32, Vec<i32>>,
    turn: i32,
    /// Who is quiet is looked at once in so many turns.
    every: i32,
}

/// One process.
#[derive(Debug)]
pub(super) struct Person {
    pub(super) seen: Seen,
    at: Instant,
    /// CPU ticks per second between the last two looks.
    rate: Option<f64>,
    /// What it runs, if anybody has asked.
    program: Option<Option<PathBuf>>,
    /// When it was last seen to be there.
    turn: i32,
}

impl Person {
    fn new(seen: Seen, turn: i32) -> Person {
        Person { seen, at: Instant::now(), rate: None, program: None, turn }
    }

    /// True if it was quiet, and is not to be looked at before its turn comes.
    fn may_wait(&self, turn: i32, every: i32) -> bool {
        let its_turn = self.seen.pid.wrapping_add(turn).rem_euclid(every.max(1)) == 0;
        !its_turn && self.rate == Some(0.0)
    }

    /// It was looked at again. True if it is somebody else by now, or has another parent.
    fn is_now(&mut self, seen: Seen, turn: i32) -> bool {
        if self.seen.stat.start != seen.stat.start {
            *self = Person::new(seen, turn);
            return true;
        }
        let now = Instant::now();
        let ticks = seen.stat.cpu_ticks.saturating_sub(self.seen.stat.cpu_ticks);
        self.rate = Some(ticks as f64 / now.duration_since(self.at).as_secs_f64().max(0.001));
        let moved = self.seen.stat.ppid != seen.stat.ppid;
        if self.seen.name != seen.name {
            // It was asked between fork and exec.
            self.program = None;
        }
        (self.seen, self.at, self.turn) = (seen, now, turn);
        moved
    }

    pub(super) fn member(&self) -> Member {
        Member { pid: self.seen.pid, start: self.seen.stat.start }
    }

    /// What it uses of one CPU, in percent.
    pub(super) fn percent(&self) -> Option<f64> {
        self.rate.map(|ticks| process::time(1).as_secs_f64() * ticks * 100.0)
    }
}

impl Crowd {
    /// One that looks at the quiet every so many times.
    pub(super) fn patient(every: i32) -> Crowd {
        Crowd { every: every.max(1), ..Crowd::default() }
    }

    /// Looks around. Where nobody came, went or changed hands, only those are touched who are looked at.
    pub(super) fn look(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        let (turn, every) = (self.turn, self.every);
        let mut moved = false;
        for pid in process::pids() {
            match self.people.entry(pid) {
                Entry::Occupied(mut known) if known.get().may_wait(turn, every) => {
                    known.get_mut().turn = turn;
                }
                Entry::Occupied(mut known) => {
                    moved |=
                        process::look(pid).is_some_and(|seen| known.get_mut().is_now(seen, turn));
                }
                Entry::Vacant(place) => {
                    let person =
                        process::look(pid).map(|seen| place.insert(Person::new(seen, turn)));
                    moved |= person.is_some();
                }
            }
        }
        let before = self.people.len();
        self.people.retain(|_, person| person.turn == turn);
        if moved || self.people.len() != before {
            self.sort_out();
        }
    }

    /// Finds out who is whose child.
    fn sort_out(&mut self) {
        // Whoever lost its parent has another one by now.
        let there = |person: &Person| {
            let parent = person.seen.stat.ppid;
            parent == 0 || self.people.contains_key(&parent)
        };
        let orphans: Vec<i32> =
            self.people.iter().filter(|(_, p)| !there(p)).map(|(pid, _)| *pid).collect();
        for pid in orphans {
            match (process::look(pid), self.people.get_mut(&pid)) {
                (Some(seen), Some(person)) => _ = person.is_now(seen, self.turn),
                _ => drop(self.people.remove(&pid)),
            }
        }
        self.children.values_mut().for_each(Vec::clear);
        for person in self.people.values() {
            self.children.entry(person.seen.stat.ppid).or_default().push(person.seen.pid);
        }
        self.children.retain(|_, children| !children.is_empty());
    }

    /// The one of this identity, if it is there and not merely a zombie.
    pub(super) fn find(&self, member: Member) -> Option<&Person> {
        let person = self.people.get(&member.pid)?;
        (person.member() == member && person.seen.stat.is_alive()).then_some(person)
    }

    /// The server's processes, parents before their children: everyone below the wrapper but those
    /// of our own that hold the server. Nobody if the number has come to mean somebody else.
    pub(super) fn below(&mut self, wrapper: Member) -> Vec<&Person> {
        if self.find(wrapper).is_none() {
            return Vec::new();
        }
        let ours = self.program(wrapper.pid);
        // Guardian and helpers are forks of the wrapper; the server is the guardian's child.
        let forks: Vec<i32> = self.offspring(wrapper.pid);
        let mut found = Vec::new();
        for fork in forks {
            if self.program(fork) != ours {
                found.push(fork);
            }
            self.descend(fork, &mut found);
        }
        let people = found.iter().filter_map(|pid| self.people.get(pid));
        people.filter(|person| person.seen.stat.is_alive()).collect()
    }

    fn descend(&self, root: i32, found: &mut Vec<i32>) {
        // The numbers were read one after the other: they need not be a tree. No parent is younger.
        let mut waiting = self.offspring(root);
        waiting.reverse();
        while let Some(pid) = waiting.pop() {
            found.push(pid);
            waiting.extend(self.offspring(pid).into_iter().rev());
        }
    }

    /// Its children, oldest first.
    fn offspring(&self, pid: i32) -> Vec<i32> {
        let born = |pid: &i32| self.people.get(pid).map(|person| person.seen.stat.start);
        let since = born(&pid);
        let children = self.children.get(&pid).into_iter().flatten().copied();
        let mut children: Vec<i32> = children.filter(|child| born(child) >= since).collect();
        children.retain(|child| *child != pid);
        children.sort_by_key(|child| (born(child), *child));
        children
    }

    fn program(&mut self, pid: i32) -> Option<PathBuf> {
        let person = self.people.get_mut(&pid)?;
        person.program.get_or_insert_with(|| fs::read_link(format!("/proc/{pid}/exe")).ok()).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;
    use trials::until;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn who_becomes_another_program_is_asked_again() {
        let seen = process::look(std::process::id() as i32).unwrap();
        let mut person = Person::new(Seen { name: "fork".into(), ..seen.clone() }, 0);
        person.program = Some(Some("/before".into()));
        assert!(!person.is_now(Seen { name: "fork".into(), ..seen.clone() }, 1));
        assert_eq!(person.program, Some(Some("/before".into())));
        assert!(!person.is_now(seen, 2));
        assert_eq!(person.program, None);
    }

    /// A shell with a child, which both end with their input.
    fn family() -> (Child, Member) {
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec 3<&0; cat <&3 & echo $!; wait"]);
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let cat = Member::of(line.trim().parse().unwrap()).unwrap();
        // Until it has become another program, it is a fork of the shell.
        let program = |pid: i32| fs::read_link(format!("/proc/{pid}/exe")).ok();
        let shells = program(shell.id() as i32);
        assert!(until(PATIENCE, || program(cat.pid).is_some_and(|own| Some(own) != shells)));
        (shell, cat)
    }

    #[test]
    fn who_is_below_is_found_by_one_look_and_gone_by_the_next() {
        let (mut shell, cat) = family();
        let me = Member::current().unwrap();
        let root = Member::of(shell.id() as i32).unwrap();
        let mut crowd = Crowd::patient(1000);
        crowd.look();
        let below = |crowd: &mut Crowd, of: Member| -> Vec<Member> {
            crowd.below(of).into_iter().map(Person::member).collect()
        };
        let mine = below(&mut crowd, me);
        let at = |member: Member| mine.iter().position(|one| *one == member);
        assert!(at(root).unwrap() < at(cat).unwrap(), "{mine:?}");
        assert_eq!(below(&mut crowd, root), [cat]);
        // Somebody else by the same number.
        assert_eq!(below(&mut crowd, Member { start: root.start + 1, ..root }), []);
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(until(PATIENCE, || !cat.is_alive()));
        // However patient: who has gone is gone.
        crowd.look();
        assert!(crowd.find(cat).is_none() && crowd.find(root).is_none());
        assert!(crowd.find(me).is_some());
    }

    #[test]
    fn the_quiet_wait_for_their_turn_and_the_busy_do_not() {
        let person = |rate| Person {
            rate,
            ..Person::new(process::look(std::process::id() as i32).unwrap(), 0)
        };
        let waits = |rate, every| (0..5).filter(|turn| person(rate).may_wait(*turn, every)).count();
        assert_eq!(waits(Some(0.0), 5), 4);
        assert_eq!(waits(Some(3.0), 5), 0);
        assert_eq!(waits(None, 5), 0);
        assert_eq!(waits(Some(0.0), 1), 0);
    }
}
