//! A session may have several lives: each has its receipt, and the page goes with the last.

use super::*;
use crate::snapshot::{Evidence, State, Status};
use contain::{Backend, Choice};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU32;

/// Books that go when the test does.
pub(super) struct Desk {
    pub(super) books: Books,
}

impl Desk {
    pub(super) fn new() -> Desk {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lariat-books-{}-{number}", std::process::id());
        Desk { books: Books::open(&std::env::temp_dir().join(name)).unwrap() }
    }

    pub(super) fn note(&self) -> Entry {
        self.note_with(None)
    }

    fn note_with(&self, engine: Option<Endpoint>) -> Entry {
        let mark = Mark::random().unwrap();
        let machine = contain::probe(Choice::Named(Backend::Descent), mark).unwrap();
        let opening = Opening {
            server: ServerName::given("worker").unwrap(),
            within: None,
            mark,
            machine: &machine,
            host: Member::current(),
            on_behalf: None,
            engine,
            podman: None,
            generation: Generation::UNCOUNTED,
            receipt: Some(self.books.dir.join("receipt.json")),
        };
        self.books.note(opening).unwrap()
    }

    /// Everything that is written about open sessions.
    fn files(&self) -> usize {
        fs::read_dir(self.books.sessions()).unwrap().count()
    }

    /// Why and how often something ended, by the event log and by the receipt.
    fn reasons(&self) -> (Vec<String>, String) {
        let events = fs::read_to_string(self.books.events()).unwrap();
        let reason = |text: &str| {
            let receipt: serde_json::Value = serde_json::from_str(text).unwrap();
            receipt["reason"].as_str().unwrap().to_owned()
        };
        let receipt = fs::read_to_string(self.books.dir.join("receipt.json")).unwrap();
        (events.lines().map(reason).collect(), reason(&receipt))
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.books.dir).unwrap();
    }
}

fn nothing() -> Report {
    Report::nothing(Backend::Descent)
}

/// Waits for the clock to show another time than this.
fn pass(time: SystemTime) {
    while moment::millis(SystemTime::now()) == moment::millis(time) {
        std::hint::spin_loop();
    }
}

fn status(state: State) -> Status {
    Status { state, since_ms: 1, quiet_since_ms: None, evidence: Vec::new() }
}

#[test]
fn each_life_has_its_receipt_and_the_page_goes_with_the_last() {
    let desk = Desk::new();
    let entry = desk.note();
    let first = entry.account(&Reason::Idle, nothing()).receipt;
    assert!(!entry.is_struck());
    assert_eq!(desk.files(), 1);
    pass(entry.began());
    entry.begin();
    let woken = moment::rfc3339(entry.began());
    let last = entry.settle(&Reason::StdinClosed, nothing()).receipt;
    assert!(entry.is_struck());
    assert_eq!(desk.files(), 0);
    assert!(first.started < last.started);
    assert_eq!(last.started, woken);
    let (events, receipt) = desk.reasons();
    assert_eq!(events, ["idle", "stdin-closed"]);
    assert_eq!(receipt, "stdin-closed");
}

#[test]
fn the_last_receipt_is_found_also_after_a_rotation() {
    let desk = Desk::new();
    let entry = desk.note();
    let session = entry.page().session.clone();
    assert_eq!(desk.books.last_receipt(&session), None);
    let _first = entry.account(&Reason::Idle, nothing());
    let last = entry.settle(&Reason::StdinClosed, nothing()).receipt;
    // However much was said since.
    for _ in 0..600 {
        desk.books.log("other", &serde_json::json!({ "text": "a".repeat(1 << 9) })).unwrap();
    }
    assert_eq!(desk.books.last_receipt(&session).as_ref(), Some(&last));
    fs::rename(desk.books.events(), crate::journal::predecessor(&desk.books.events())).unwrap();
    assert_eq!(desk.books.last_receipt(&session), Some(last));
}

/// Only this one is left.
fn left(member: Member) -> Report {
    let (kind, name) = (contain::Kind::Process, "cat".into());
    let survivor = contain::Survivor { kind, member, name, why: "it may".into() };
    Report { survivors: vec![survivor], seen: 1, ..nothing() }
}

#[test]
fn who_survives_one_life_is_named_until_it_is_gone() {
    let desk = Desk::new();
    let entry = desk.note();
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let member = Member::of(child.id() as i32).unwrap();
    let left = left(member);
    assert_eq!(entry.account(&Reason::Idle, left).receipt.survivors.len(), 1);
    pass(entry.began());
    entry.begin();
    // The next life is clean, and yet not all is gone.
    let second = entry.account(&Reason::Idle, nothing()).receipt;
    assert_eq!(second.survivors.iter().map(|s| s.pid).collect::<Vec<_>>(), [member.pid]);
    assert_eq!((second.reason.as_str(), second.processes.seen), ("idle", 0));
    pass(entry.began());
    entry.begin();
    entry.settle(&Reason::StdinClosed, nothing());
    assert!(!entry.is_struck(), "somebody was forgotten");
    drop(child.stdin.take());
    child.wait().unwrap();
    pass(entry.began());
    entry.begin();
    assert_eq!(entry.settle(&Reason::StdinClosed, nothing()).receipt.survivors, []);
    assert!(entry.is_struck());
    assert_eq!(desk.files(), 0);
}

#[test]
fn who_survived_is_ended_by_the_next_sweep_whatever_it_carries() {
    let desk = Desk::new();
    let entry = desk.note();
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let member = Member::of(child.id() as i32).unwrap();
    let left = left(member);
    let settled = entry.settle(&Reason::StdinClosed, left);
    assert_eq!(settled.receipt.survivors.len(), 1);
    drop(entry);
    assert_eq!(desk.books.sweep().iter().map(|r| r.survivors.len()).collect::<Vec<_>>(), [0]);
    assert!(!member.is_alive(), "it was forgotten");
    child.wait().unwrap();
    assert_eq!(desk.files(), 0);
}

#[test]
fn whom_somebody_elses_receipt_names_is_left_alone() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let desk = Desk::new();
    let entry = desk.note();
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let member = Member::of(child.id() as i32).unwrap();
    entry.settle(&Reason::StdinClosed, left(member));
    std::os::unix::fs::chown(entry.so_far(), Some(65534), None).unwrap();
    drop(entry);
    desk.books.sweep();
    assert!(member.is_alive(), "a bystander was harmed");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_was_seen_in_one_life_is_not_counted_in_the_next() {
    let desk = Desk::new();
    let entry = desk.note();
    fs::write(entry.tally(), "+-").unwrap();
    entry.account(&Reason::Idle, nothing());
    assert!(!entry.tally().exists());
    entry.settle(&Reason::Exited, nothing());
}

#[test]
fn a_session_says_how_it_is_for_as_long_as_it_is() {
    let desk = Desk::new();
    let entry = desk.note();
    let quiet = moment::millis(SystemTime::now()) - 5000;
    let asleep = Status {
        quiet_since_ms: Some(quiet),
        evidence: vec![Evidence::Superseded, Evidence::Asked],
        ..status(State::Asleep)
    };
    entry.tell(&status(State::Ready));
    entry.tell(&asleep);
    assert_eq!(desk.files(), 2, "a page and a state");
    let living = desk.books.living();
    let [one] = &living[..] else { panic!("{living:?}") };
    assert_eq!((&one.session, one.state), (&entry.page().session, State::Asleep));
    assert_eq!(one.evidence, asleep.evidence);
    assert!(one.idle_s.is_some_and(|idle| (5.0..60.0).contains(&idle)), "{one:?}");
    assert_eq!(one.wrapper, std::process::id() as i32);
    assert_eq!(one.host.as_ref().map(|host| host.pid), Some(one.wrapper));
    // What another version says is not understood, and harms nobody.
    fs::write(entry.path.with_extension("state"), r#"{"state":"dreaming"}"#).unwrap();
    assert!(matches!(desk.books.living()[0].state, State::Starting | State::Ready));
    entry.settle(&Reason::Exited, nothing());
    entry.tell(&asleep);
    assert_eq!(desk.files(), 0);
    assert_eq!(desk.books.living(), []);
}

#[test]
fn a_crash_in_a_later_life_has_that_lifes_beginning() {
    let desk = Desk::new();
    let entry = desk.note();
    let page = entry.path.clone();
    entry.account(&Reason::Idle, nothing());
    pass(entry.began());
    entry.begin();
    entry.tell(&status(State::Waking));
    let began = moment::rfc3339(entry.began());
    drop(entry);
    assert_eq!(desk.books.living(), [], "nobody holds it");
    assert!(page.exists());
    let receipts = desk.books.sweep();
    assert_eq!(receipts.iter().map(|r| r.started.clone()).collect::<Vec<_>>(), [began]);
    assert_eq!(desk.reasons().0, ["idle", "wrapper-died"]);
    assert_eq!(desk.files(), 0);
}

#[test]
fn the_books_say_how_they_are() {
    let desk = Desk::new();
    assert_eq!(
        serde_json::to_value(desk.books.health()).unwrap()["unreadable"],
        serde_json::json!([])
    );
    let living = desk.note();
    let crashed = desk.note();
    let haunted = desk.note();
    let sessions = desk.books.sessions();
    fs::write(sessions.join("0.json"), "{}").unwrap();
    fs::write(desk.books.logs().join("a.log"), "12345").unwrap();
    let left = Survivor {
        kind: "process".into(),
        pid: 7,
        start: 7,
        id: None,
        command: "stuck".into(),
        why: "in uninterruptible sleep".into(),
    };
    let nothing = Report::nothing(Backend::Descent);
    let mut receipt = haunted.settle(&Reason::Closed, nothing).receipt;
    receipt.survivors = vec![left];
    fs::write(haunted.so_far(), serde_json::to_vec(&receipt).unwrap()).unwrap();
    fs::set_permissions(&sessions, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let page = crashed.page.session.clone();
    drop(crashed);
    let health = desk.books.health();
    assert_eq!((health.living, health.unfinished), (1, vec![page]));
    assert_eq!(health.unreadable, ["0.json"]);
    assert_eq!(health.survivors[0].survivors[0].command, "stuck");
    assert_eq!((health.logs, health.logs_bytes), (1, 5));
    assert!(health.events_bytes > 0);
    assert_eq!(health.open_to_others, ["sessions"]);
    drop(living);
}

#[test]
fn a_pipe_among_the_pages_keeps_nobody_waiting() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let desk = Desk::new();
    for name in ["one.json", "one.state", "one.receipt"] {
        let path = desk.books.sessions().join(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }
    assert_eq!(desk.books.sweep().len(), 0);
    assert_eq!(desk.books.living(), []);
    assert_eq!(desk.books.health().unreadable.len(), 1);
}

#[test]
fn who_looks_on_sees_that_fewer_are_left() {
    let desk = Desk::new();
    let entry = desk.note();
    let survivor = |pid: i32| contain::Survivor {
        kind: contain::Kind::Process,
        member: Member { pid, start: 1 },
        name: "stuck".into(),
        why: "it is a test".into(),
    };
    let receipt = |survivors: Vec<contain::Survivor>| {
        entry.settle(&Reason::Closed, Report { survivors, ..nothing() });
        fs::metadata(entry.so_far()).unwrap().ino()
    };
    let first = receipt(vec![survivor(1), survivor(2)]);
    // A name in the directory changes, which is by what others see that there is news.
    let kept = File::open(entry.so_far()).unwrap();
    assert_ne!(first, receipt(vec![survivor(1)]), "it was written over");
    drop(kept);
    assert_eq!(entry.unfinished().unwrap().survivors.len(), 1);
    assert_eq!(desk.files(), 2, "a draft is left");
    entry.settle(&Reason::Closed, nothing());
    assert_eq!(desk.files(), 0);
}

#[test]
fn an_engine_that_has_none_is_told_from_one_that_is_silent() {
    let desk = Desk::new();
    let socket = desk.books.dir.join("engine.sock");
    let entry = desk.note_with(Some(Endpoint::Unix(socket.clone())));
    let session = entry.page().session.clone();
    let look = || {
        let mut onlooker = Onlooker::new(&desk.books);
        let mut living = onlooker.look();
        assert_eq!(living.len(), 1);
        onlooker.ask_engines(&mut living, Duration::from_secs(5))
    };
    // It has not used one: nobody is asked.
    assert!(look().is_empty());
    fs::write(entry.tally(), "").unwrap();
    assert_eq!(look(), BTreeSet::from([session]));
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let engine = std::thread::spawn(move || {
        // One question for its own, one for those within.
        for stream in listener.incoming().take(2) {
            let mut stream = stream.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                io::Read::read_exact(&mut stream, &mut byte).unwrap();
                asked.extend(byte);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]").unwrap();
        }
    });
    assert!(look().is_empty());
    engine.join().unwrap();
    fs::remove_file(entry.tally()).unwrap();
    entry.settle(&Reason::StdinClosed, nothing());
}
