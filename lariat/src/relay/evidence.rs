//! What can be seen from here of a host that may have forgotten its server.
//!
//! Each is looked at when a silence has lasted, and costs nothing in between. None is a verdict: a
//! host that was started with nohup loses its shell, too, and goes on using its servers.

use super::host::Host;
use super::policy::Signs;
use crate::books::Generation;
use contain::{Member, process};
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// More ancestors than this nobody has.
const MOST: usize = 64;

/// Where to look for them, and how things were at first.
#[derive(Debug)]
pub(super) struct Clues {
    /// Which start of the server by its host this is.
    generation: Generation,
    ancestors: Option<Ancestors>,
    /// Whether anybody read what we say on stderr, at first.
    had_stderr: bool,
}

impl Clues {
    /// Remembers how things are now.
    pub(super) fn find(generation: Generation, host: &Host) -> Clues {
        let ancestors = host.member().map(Ancestors::of);
        Clues { generation, ancestors, had_stderr: !is_closed(io::stderr().as_fd()) }
    }

    /// What has changed since.
    pub(super) fn look(&self) -> Signs {
        Signs {
            superseded: self.generation.is_superseded(),
            host_orphaned: self.ancestors.as_ref().is_some_and(Ancestors::lost_one),
            ends_closed: self.had_stderr && is_closed(io::stderr().as_fd()),
            ..Signs::default()
        }
    }
}

/// Who was above the host when we first looked, without the first process of all.
#[derive(Debug)]
struct Ancestors(Vec<Member>);

impl Ancestors {
    /// Walks up from the host.
    fn of(host: Member) -> Ancestors {
        let parent = |member: &Member| {
            let stat = process::stat(member.pid).filter(|stat| stat.start == member.start)?;
            // Zero is above those whose parent is in another pid namespace.
            (stat.ppid > 1).then(|| Member::of(stat.ppid)).flatten()
        };
        // A parent is older than its child; what is not has come by the number since.
        let older = |pair: &(Member, Member)| pair.1.start <= pair.0.start;
        let step = |child: &Member| parent(child).map(|found| (*child, found)).filter(older);
        let above = std::iter::successors(step(&host), |(_, parent)| step(parent));
        Ancestors(above.map(|(_, parent)| parent).take(MOST).collect())
    }

    /// True once one of them has died.
    fn lost_one(&self) -> bool {
        self.0.iter().any(|member| !member.is_alive())
    }
}

/// True if nobody reads what is written here any more. Nothing is written to find out.
fn is_closed(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::empty())];
    contain::wait(&mut fds, Some(Instant::now()));
    fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    #[test]
    fn the_death_of_an_ancestor_is_seen() {
        // A shell below a shell below us; both wait for the last, which waits for its input.
        let script = "sh -c 'cat & echo $!; wait' & wait";
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec 3<&0; {}", script.replace("cat &", "cat <&3 &"))]);
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // Whoever waits for a child drops its input first.
        let stdin = shell.stdin.take();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let host = Member::of(line.trim().parse().unwrap()).unwrap();
        let ancestors = Ancestors::of(host);
        let pids: Vec<i32> = ancestors.0.iter().map(|member| member.pid).collect();
        let me = std::process::id() as i32;
        assert_eq!(pids.iter().position(|pid| *pid == me), Some(2), "{pids:?}");
        assert_eq!(pids[1], shell.id() as i32);
        assert!(!pids.contains(&1) && !pids.contains(&host.pid));
        assert!(!ancestors.lost_one());
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert!(ancestors.lost_one());
        assert!(host.is_alive(), "it was the host that died");
        drop(stdin);
        assert!(trials::until(std::time::Duration::from_secs(10), || !host.is_alive()));
    }

    #[test]
    fn nobody_is_above_a_host_that_has_gone() {
        let gone = Member { start: 1, ..Member::current().unwrap() };
        let ancestors = Ancestors::of(gone);
        assert!(ancestors.0.is_empty() && !ancestors.lost_one());
    }

    #[test]
    fn an_end_without_a_reader_is_closed() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        assert!(!is_closed(writer.as_fd()));
        drop(reader);
        assert!(is_closed(writer.as_fd()));
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(!is_closed(ours.as_fd()));
        drop(theirs);
        assert!(is_closed(ours.as_fd()));
        assert!(!is_closed(File::open("/dev/null").unwrap().as_fd()));
    }
}
