//! The mark: a variable in the environment, by which a process is known that left everything else.
//!
//! It is the weakest of the ties. A process can clear its environment, and the kernel does not show
//! that of programs that are part of the system (`/bin/sh`, `/bin/sleep`). The number is in the
//! variable's *name*, so that a tree inside a tree carries both marks.

use super::herd::Herd;
use crate::member::Member;
use crate::procargs;
use crate::report::Report;
use crate::sys::Backend;
use crate::sys::wait::wait;
use std::io;
use std::time::{Duration, Instant};

/// What every variable begins with.
const PREFIX: &str = "LARIAT_TREE_";

/// What the kernel allows for arguments and environment together.
const LONGEST: usize = 1 << 20;

/// A tree's inherited number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark(u64);

impl Mark {
    /// A new one that nobody carries.
    pub fn random() -> io::Result<Mark> {
        let mut bytes = [0u8; 8];
        // SAFETY: the buffer is as long as is said, and valid for writes.
        let filled = unsafe { libc::getentropy(bytes.as_mut_ptr().cast(), bytes.len()) };
        if filled != 0 {
            return Err(io::Error::last_os_error());
        }
        // Zero would be the mark of somebody who forgot to choose one.
        Ok(Mark(u64::from_ne_bytes(bytes) | 1))
    }

    /// The number, as the books keep it.
    pub fn number(self) -> u64 {
        self.0
    }

    /// A mark from the books; `None` if the number cannot be one.
    pub fn from_number(number: u64) -> Option<Mark> {
        (number & 1 == 1).then_some(Mark(number))
    }

    /// The variable that a process of the tree has.
    pub(crate) fn variable(self) -> String {
        format!("{PREFIX}{:016x}", self.0)
    }
}

/// A search for bearers of a mark: the variable, and one buffer for all environments.
pub(crate) struct Search {
    variable: String,
    buffer: Vec<u8>,
}

impl Search {
    pub(crate) fn new(mark: Mark) -> Search {
        Search { variable: mark.variable(), buffer: vec![0; LONGEST] }
    }

    /// True if this process was started with the mark, and the kernel shows that it was.
    pub(crate) fn finds(&mut self, pid: i32) -> bool {
        let mut path = [libc::CTL_KERN, libc::KERN_PROCARGS2, pid];
        let mut size = self.buffer.len();
        // SAFETY: `path` has as many words as is said, `size` is the length of the buffer, which is
        // valid for writes; no new value is set.
        let read = unsafe {
            libc::sysctl(
                path.as_mut_ptr(),
                path.len() as u32,
                self.buffer.as_mut_ptr().cast(),
                &mut size,
                std::ptr::null_mut(),
                0,
            )
        };
        read == 0 && procargs::sets(&self.buffer[..size], self.variable.as_bytes())
    }
}

/// Looks that must find nobody before nobody is there, and the time between them.
const CLEAN_LOOKS: u32 = 5;
const AGAIN: Duration = Duration::from_millis(5);

/// Ends what a crashed tree left: its command, if that is still there, whoever carries its mark,
/// and whoever is found through those. No grace. Bounded by `within`.
pub fn sweep(mark: Mark, leader: Option<Member>, within: Duration) -> Report {
    let begun = Instant::now();
    let mut herd = Herd::new(mark, leader);
    let mut clean = 0;
    while clean < CLEAN_LOOKS && begun.elapsed() < within {
        herd.kill();
        // A list that could not be read says nothing.
        let nobody = herd.look(true).is_ok_and(|living| living.is_empty());
        clean = if nobody { clean + 1 } else { 0 };
        wait(&mut [], Some(Instant::now() + AGAIN));
    }
    let survivors = herd.survivors();
    let seen = herd.ever() as u32;
    Report {
        exit: None,
        backend: Backend::Session,
        seen,
        left: 0,
        asked: 0,
        killed: seen.saturating_sub(survivors.len() as u32),
        survivors,
        breach: None,
        took: begun.elapsed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_survives_the_books() {
        let mark = Mark::random().unwrap();
        assert_eq!(Mark::from_number(mark.number()), Some(mark));
        assert_eq!(Mark::from_number(0), None);
    }

    #[test]
    fn nobody_carries_a_fresh_mark() {
        let report = sweep(Mark::random().unwrap(), None, Duration::from_secs(5));
        assert_eq!((report.seen, report.survivors.len()), (0, 0));
    }

    #[test]
    fn a_child_with_the_mark_is_found() {
        let mark = Mark::random().unwrap();
        // A copy of this program, because the kernel does not show the environment of `/bin/sleep`.
        let program = std::env::current_exe().unwrap();
        let mut child = std::process::Command::new(program)
            .args(["--ignored", "--exact", "sys::macos::mark::tests::wait_to_be_ended"])
            .env(mark.variable(), "1")
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let report = sweep(mark, None, Duration::from_secs(10));
        assert_eq!((report.seen, report.killed, report.survivors.len()), (1, 1, 0));
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    #[ignore = "a child of another test"]
    fn wait_to_be_ended() {
        wait(&mut [], Some(Instant::now() + Duration::from_secs(30)));
    }
}
