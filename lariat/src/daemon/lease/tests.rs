//! The end of a process or of a connection is seen, and only that.

use super::*;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(10);
const A_WHILE: Duration = Duration::from_millis(50);

/// Somebody who lives until told otherwise.
struct Somebody(Child);

impl Somebody {
    fn new() -> Somebody {
        Somebody(Command::new("cat").stdin(Stdio::piped()).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Somebody {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn line(peer: Option<Member>) -> Line {
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    Line::new(peer, permit, Arc::new(Notify::new()))
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

#[test]
fn a_session_ends_with_the_process_that_was_named() {
    run(async {
        let (owner, line) = (Somebody::new(), line(Member::current()));
        let mut lease = Lease::new(&line, Some(owner.pid()), false).unwrap();
        assert_eq!((lease.owner.pid, lease.owner.lease), (owner.pid(), api::Lease::Process));
        drop(line);
        assert!(timeout(A_WHILE, lease.ended()).await.is_err(), "the connection is not the lease");
        drop(owner);
        let why = timeout(SOON, lease.ended()).await.unwrap();
        assert!(why.contains("(cat), has ended"), "{why}");
    });
}

#[test]
fn a_zombie_has_ended() {
    run(async {
        let mut owner = Somebody::new();
        let line = line(None);
        let mut lease = Lease::new(&line, Some(owner.pid()), false).unwrap();
        owner.0.kill().unwrap();
        timeout(SOON, lease.ended()).await.unwrap();
        let pid = owner.pid();
        assert_eq!(Lease::new(&line, Some(pid), false).unwrap_err(), Unowned::Nobody(pid));
    });
}

#[test]
fn a_session_ends_with_the_connection() {
    run(async {
        let line = line(Member::current());
        let mut lease = Lease::new(&line, None, true).unwrap();
        assert_eq!(lease.owner.pid, std::process::id() as i32);
        assert_eq!(lease.owner.lease, api::Lease::Connection);
        assert!(timeout(A_WHILE, lease.ended()).await.is_err());
        drop(line);
        assert!(timeout(SOON, lease.ended()).await.unwrap().contains("connection"));
    });
}

#[test]
fn of_both_the_first_ends_it() {
    run(async {
        let (owner, line) = (Somebody::new(), line(None));
        let mut one = Lease::new(&line, Some(owner.pid()), true).unwrap();
        let mut other = Lease::new(&line, Some(owner.pid()), true).unwrap();
        assert!(timeout(A_WHILE, one.ended()).await.is_err());
        drop(line);
        assert!(timeout(SOON, one.ended()).await.unwrap().contains("connection"));
        drop(owner);
        timeout(SOON, other.ended()).await.unwrap();
    });
}

#[test]
fn nobody_named_is_who_is_at_the_other_end() {
    run(async {
        let somebody = Somebody::new();
        let line = line(Member::of(somebody.pid()));
        let mut lease = Lease::new(&line, None, false).unwrap();
        assert_eq!((lease.owner.pid, lease.owner.command.as_str()), (somebody.pid(), "cat"));
        let gone = somebody.pid();
        drop(somebody);
        timeout(SOON, lease.ended()).await.unwrap();
        assert_eq!(Lease::new(&line, None, false).unwrap_err(), Unowned::Nobody(gone));
    });
}

#[test]
fn without_anybody_there_is_no_session() {
    run(async {
        assert_eq!(Lease::new(&line(None), None, false).unwrap_err(), Unowned::Unseen);
        assert!(Lease::new(&line(None), None, true).is_ok());
        let nobody = Lease::new(&line(None), Some(i32::MAX), false).unwrap_err();
        assert_eq!(nobody, Unowned::Nobody(i32::MAX));
    });
}

#[test]
fn a_line_that_ends_gives_its_place_back_and_says_so() {
    run(async {
        let (places, changed) = (Arc::new(Semaphore::new(1)), Arc::new(Notify::new()));
        let line = Line::new(None, places.clone().try_acquire_owned().unwrap(), changed.clone());
        assert_eq!(places.available_permits(), 0);
        drop(line);
        assert_eq!(places.available_permits(), 1);
        timeout(SOON, changed.notified()).await.unwrap();
    });
}
