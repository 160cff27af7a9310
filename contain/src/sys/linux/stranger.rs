//! Ending trees that nobody holds: they were started by somebody else, and found later.
//!
//! There is no subreaper above them and no mark on them, so what is known is what can be seen: the
//! root by identity, and everyone below it while its parent lives. Whoever has been seen once stays
//! known by pid and start time, also after its parent died. Nothing is ever done to a number alone,
//! nor to a process group: its members may be anybody.

use super::procfs;
use crate::ladder::Ladder;
use crate::member::Member;
use crate::report::{Report, Survivor};
use crate::sys::Backend;
use crate::sys::wait::wait;
use rustix::io::Errno;
use rustix::process::Signal;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

/// How often a tree that was asked to leave is looked at.
const ROUND: Duration = Duration::from_millis(25);

/// How often a freeze looks for new members before it settles for those it has.
const FREEZES: usize = 64;

/// Ends these trees, all at once: SIGTERM to everyone, `term_grace`, then each is stopped so that it
/// cannot fork, and killed; `look` bounds the last part. One report for each root, in their order.
///
/// A root that has gone meanwhile, or whose number means somebody else now, is a tree of nobody.
pub fn end(roots: &[Member], ladder: &Ladder) -> Vec<Report> {
    let mut trees: Vec<Tree> = roots.iter().map(|root| Tree::of(*root)).collect();
    let asked_until = Instant::now() + ladder.term_grace;
    loop {
        trees.iter_mut().for_each(Tree::ask);
        if trees.iter().all(Tree::is_empty) || Instant::now() >= asked_until {
            break;
        }
        wait(&mut [], Some(asked_until.min(Instant::now() + ROUND)));
    }
    let killed_until = Instant::now() + ladder.look;
    while !trees.iter().all(Tree::is_empty) && Instant::now() < killed_until {
        trees.iter_mut().for_each(Tree::kill);
        wait(&mut [], Some(Instant::now() + ROUND / 5));
        trees.iter_mut().for_each(Tree::look);
    }
    trees.into_iter().map(Tree::report).collect()
}

/// One of them.
#[derive(Debug, Default)]
struct Tree {
    /// Who lives, as of the last look.
    members: BTreeMap<Member, Asked>,
    seen: u32,
    left: u32,
    asked: u32,
    killed: u32,
    refused: HashMap<Member, Errno>,
}

/// What was said to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nothing,
    Term,
    Kill,
}

impl Tree {
    fn of(root: Member) -> Tree {
        let mut tree = Tree::default();
        if root.is_alive() {
            tree.meet(root);
        }
        tree
    }

    fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    fn meet(&mut self, member: Member) -> bool {
        let is_new = !self.members.contains_key(&member);
        if is_new {
            self.members.insert(member, Asked::Nothing);
            self.seen += 1;
        }
        is_new
    }

    /// Notes who is new, and how those that have gone left.
    fn look(&mut self) {
        self.walk(|_| {});
        let (mut left, mut asked, mut killed) = (0, 0, 0);
        self.members.retain(|member, said| {
            let lives = member.is_alive();
            if !lives {
                *match said {
                    Asked::Nothing => &mut left,
                    Asked::Term => &mut asked,
                    Asked::Kill => &mut killed,
                } += 1;
            }
            lives
        });
        self.left += left;
        self.asked += asked;
        self.killed += killed;
    }

    /// Visits every member before its children are listed, and meets them. True if one was new.
    fn walk(&mut self, mut visit: impl FnMut(&Member)) -> bool {
        let mut queue: Vec<Member> = self.members.keys().copied().collect();
        let mut visited: HashSet<Member> = HashSet::new();
        let mut grown = false;
        while let Some(member) = queue.pop() {
            if !visited.insert(member) {
                continue;
            }
            visit(&member);
            for child in children(member) {
                grown |= self.meet(child);
                queue.push(child);
            }
        }
        grown
    }

    /// Asks everyone who has not been asked yet, and wakes whoever is stopped.
    fn ask(&mut self) {
        self.look();
        for (member, said) in &mut self.members {
            if *said != Asked::Nothing {
                continue;
            }
            match member.signal(Signal::TERM) {
                Ok(_) => *said = Asked::Term,
                Err(errno) => {
                    self.refused.insert(*member, errno);
                }
            }
            if procfs::stat(member.pid).is_some_and(|stat| stat.state == 'T') {
                let _gone = member.signal(Signal::CONT);
            }
        }
    }

    /// Stops everyone until nobody new is found, then kills them all.
    fn kill(&mut self) {
        for _ in 0..FREEZES {
            // A refusal (another user's process) shows up below, when the kill fails too.
            let stop = |member: &Member| {
                let _refused = member.signal(Signal::STOP);
            };
            if !self.walk(stop) {
                break;
            }
        }
        for (member, said) in &mut self.members {
            match member.signal(Signal::KILL) {
                Ok(true) => *said = Asked::Kill,
                Ok(false) => {}
                Err(errno) => {
                    self.refused.insert(*member, errno);
                }
            }
        }
    }

    fn report(mut self) -> Report {
        self.look();
        let refused = self.refused;
        let survivors = self.members.keys().map(|member| {
            let mut survivor = Survivor::unkilled(*member);
            if let Some(errno) = refused.get(member) {
                survivor.why = format!("the kill was refused: {errno}");
            }
            survivor
        });
        Report {
            seen: self.seen,
            left: self.left,
            asked: self.asked,
            killed: self.killed,
            survivors: survivors.collect(),
            ..Report::nothing(Backend::Descent)
        }
    }
}

/// The living children of this very process. Each is believed only if it names the parent, and the
/// parent, looked at afterwards, is still the same: then the number meant it all the time.
fn children(parent: Member) -> Vec<Member> {
    let Some(stat) = procfs::stat(parent.pid).filter(|stat| stat.start == parent.start) else {
        return Vec::new();
    };
    // Kernels built without `children` files: everyone is asked who their parent is.
    let listed = procfs::children(parent.pid, stat.threads).unwrap_or_else(|_| procfs::pids());
    let child = |pid: i32| {
        let stat = procfs::stat(pid)?;
        let ours = stat.ppid == parent.pid && stat.is_alive();
        ours.then_some(Member { pid, start: stat.start })
    };
    let found: Vec<Member> = listed.into_iter().filter_map(child).collect();
    let same = procfs::stat(parent.pid).is_some_and(|stat| stat.start == parent.start);
    if same { found } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    const QUICK: Ladder = Ladder {
        grace: Duration::ZERO,
        term_grace: Duration::from_millis(300),
        linger: Duration::ZERO,
        look: Duration::from_secs(5),
    };

    /// A shell that has said that it is ready.
    fn shell(script: &str) -> (Child, Member) {
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let member = Member::of(child.id() as i32).unwrap();
        (child, member)
    }

    #[test]
    fn whole_trees_go_and_nobody_else() {
        let deaf = "trap '' TERM; setsid sh -c \"trap '' TERM; while :; do sleep 9; done\" & echo up; \
                    while :; do sleep 9; done";
        let (mut heeds, one) = shell("setsid sleep 60 & echo up; wait");
        let (mut deaf, two) = shell(deaf);
        let (mut other, three) = shell("echo up; exec sleep 60");
        let below = || -> Vec<Member> {
            [one, two].into_iter().flat_map(|m| crate::process::below(m.pid)).collect()
        };
        // They say that they are up before they sleep.
        let deadline = Instant::now() + Duration::from_secs(10);
        while below().len() < 4 {
            assert!(Instant::now() < deadline, "{:?}", below());
            wait(&mut [], Some(Instant::now() + Duration::from_millis(1)));
        }
        let below = below();
        // The number of somebody else, with a start time that is not theirs.
        let stranger = Member { start: three.start + 1, ..three };
        let reports = end(&[one, two, stranger], &QUICK);
        assert!(below.iter().chain([&one, &two]).all(|member| !member.is_alive()));
        assert!(three.is_alive());
        assert!(reports.iter().all(|report| report.survivors.is_empty()), "{reports:?}");
        assert_eq!((reports[0].asked, reports[0].killed), (2, 0), "{:?}", reports[0]);
        assert!(reports[1].killed >= 2, "{:?}", reports[1]);
        assert_eq!(reports[2].seen, 0);
        other.kill().unwrap();
        for child in [&mut heeds, &mut deaf, &mut other] {
            child.wait().unwrap();
        }
    }
}
