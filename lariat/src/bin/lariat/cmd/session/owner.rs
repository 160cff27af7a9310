//! Whose session it is that a command in a script opens: the script's.
//!
//! The process that started this command is often not the script but a subshell of it, as in
//! `S=$(cd /srv; lariat session open …)`, which ends before the next line runs. A subshell is a fork
//! that never executed anything: the same program with the same arguments in the same memory as its
//! parent. Those are passed over.

use lariat::contain::process;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// More subshells in each other than this are no script.
const DEEPEST: usize = 64;

/// A process, as far as it matters who is a fork of whom.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    parent: i32,
    image: Image,
}

/// What a fork has in common with its parent, and what an exec changes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Image {
    /// The program, as a file.
    program: (u64, u64),
    arguments: Vec<u8>,
    /// Where the stack begins: at random for each exec, and the same for a fork. Zero if it is not
    /// to be known; then the others have to do.
    stack: u64,
}

/// The nearest ancestor of this process that is not a subshell. Nothing if there is only init, whose
/// end nobody will see.
pub(super) fn find() -> Option<i32> {
    let parent = rustix::process::getppid()?.as_raw_pid();
    nearest(parent, look).filter(|pid| *pid > 1)
}

fn nearest(parent: i32, look: impl Fn(i32) -> Option<Seen>) -> Option<i32> {
    let (mut pid, mut seen) = (parent, look(parent));
    for _ in 0..DEEPEST {
        // One that cannot be seen is taken as it is: better too short a life than the wrong owner.
        let Some(this) = seen else { return Some(pid) };
        match look(this.parent) {
            Some(above) if above.image == this.image => (pid, seen) = (this.parent, Some(above)),
            _ => return Some(pid),
        }
    }
    Some(pid)
}

fn look(pid: i32) -> Option<Seen> {
    let program = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
    Some(Seen {
        parent: process::stat(pid)?.ppid,
        image: Image {
            program: (program.dev(), program.ino()),
            arguments: fs::read(format!("/proc/{pid}/cmdline")).ok()?,
            stack: stack(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?).unwrap_or(0),
        },
    })
}

/// Field 28 of `/proc/PID/stat`, counted from behind the name, which may contain anything.
fn stack(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(25)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    /// Processes by pid: parent, program, arguments, stack.
    fn world(of: &[(i32, i32, u64, &str, u64)]) -> impl Fn(i32) -> Option<Seen> + use<> {
        let seen = |&(pid, parent, program, arguments, stack): &(i32, i32, u64, &str, u64)| {
            let arguments = arguments.as_bytes().to_vec();
            (pid, Seen { parent, image: Image { program: (1, program), arguments, stack } })
        };
        let all: BTreeMap<i32, Seen> = of.iter().map(seen).collect();
        move |pid| all.get(&pid).cloned()
    }

    #[test]
    fn subshells_are_passed_over() {
        let script = (10, 5, 2, "bash script", 100);
        let host = (5, 1, 2, "bash", 50);
        let plain = world(&[script, host]);
        assert_eq!(nearest(10, plain), Some(10), "the script itself");
        let once = world(&[(11, 10, 2, "bash script", 100), script, host]);
        assert_eq!(nearest(11, once), Some(10), "$(cd x; lariat …)");
        let sub = |pid, parent| (pid, parent, 2, "bash script", 100);
        let twice = world(&[sub(12, 11), sub(11, 10), script, host]);
        assert_eq!(nearest(12, twice), Some(10), "a subshell of a subshell");
    }

    #[test]
    fn what_was_executed_is_no_subshell() {
        let shells = world(&[(11, 10, 2, "bash", 7), (10, 5, 2, "bash", 8), (5, 1, 3, "term", 9)]);
        assert_eq!(nearest(11, shells), Some(11), "bash typed into bash");
        let other = world(&[(11, 10, 3, "x", 7), (10, 5, 2, "x", 7)]);
        assert_eq!(nearest(11, other), Some(11), "another program");
        let hidden = world(&[(11, 10, 2, "sh s", 0), (10, 5, 2, "sh s", 0), (5, 1, 3, "t", 0)]);
        assert_eq!(nearest(11, hidden), Some(10), "stacks that are not to be known");
    }

    #[test]
    fn what_cannot_be_seen_is_taken_as_it_is() {
        assert_eq!(nearest(7, |_| None), Some(7));
        let circle = |_| Some(Seen { parent: 7, image: world(&[(7, 7, 1, "", 1)])(7)?.image });
        assert_eq!(nearest(7, circle), Some(7));
    }

    #[test]
    fn this_process_is_no_subshell() {
        let me = std::process::id() as i32;
        assert_ne!(look(me).unwrap().image.stack, 0);
        assert_eq!(nearest(me, look), Some(me));
    }

    #[test]
    fn a_real_subshell_is_passed_over() {
        // The subshell waits on the left of the pipe until its own pid has been looked at.
        let script = "(echo ready; read -r word; :) | cat";
        for shell in ["sh", "bash", "dash"] {
            let mut command = Command::new(shell);
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let Ok(mut child) = command.spawn() else { continue };
            let mut line = String::new();
            let stdout = child.stdout.take().unwrap();
            BufReader::new(stdout).read_line(&mut line).unwrap();
            let script = child.id() as i32;
            let children = fs::read_to_string(format!("/proc/{script}/task/{script}/children"));
            let children = children.unwrap();
            let below: Vec<i32> = children.split_whitespace().map(|w| w.parse().unwrap()).collect();
            // One of them is the subshell, the other is cat.
            let owners: Vec<_> = below.iter().map(|pid| nearest(*pid, look).unwrap()).collect();
            assert!(owners.contains(&script), "{shell}: {script} {below:?} {owners:?}");
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }
}
