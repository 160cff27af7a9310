//! The guardian: the command's parent, in a session of its own, with one end of the owner's socket.
//!
//! The socket closing is the one death signal, as on Linux. What it cannot do here is to get orphans
//! back: they become launchd's, and are known by their session, their group and their mark.

use super::Backend;
use super::process::{MARK, Search, Seen};
use super::watch::Watch;
use crate::ladder::{Ask, Ladder};
use crate::member::Member;
use crate::report::{Exit, Kind, Report, Survivor};
use crate::wire::{Order, Word};
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The verb by which an executable knows that it is to be a guardian.
pub(crate) const VERB: &str = "__lariat_guardian";
/// The descriptor of the owner's socket in the guardian.
pub(crate) const SOCKET: i32 = 3;

/// How often it is looked at who is there, while nothing ends: a child that leaves its parent's
/// session between two looks, and loses its parent before the second, is known by its mark alone.
const LOOK: Duration = Duration::from_secs(2);
/// The same while everybody should be leaving.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Becomes the guardian and never returns, if the first argument says so; returns at once otherwise.
///
/// Call it first thing in `main`.
pub fn main_if_asked() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|verb| verb != VERB) {
        return;
    }
    let brief = args.next().and_then(|text| decode(text.to_str()?));
    let mut command = args.skip(1);
    // SAFETY: the owner has put its socket there before it executed us, and nobody else owns it.
    let line = unsafe { UnixStream::from_raw_fd(SOCKET) };
    let code = match (brief, command.next()) {
        (Some((ladder, mark)), Some(program)) => {
            guard(line, &program, command.collect(), ladder, &mark)
        }
        _ => 2,
    };
    #[expect(clippy::disallowed_methods, clippy::exit, reason = "the owner's main must not run")]
    std::process::exit(code)
}

/// What the guardian has to know, on its command line.
pub(crate) fn encode(ladder: &Ladder, mark: &str) -> String {
    let times = [ladder.grace, ladder.term_grace, ladder.linger, ladder.look];
    let times: Vec<String> = times.iter().map(|time| time.as_micros().to_string()).collect();
    format!("{} {mark}", times.join(" "))
}

fn decode(text: &str) -> Option<(Ladder, String)> {
    let mut words = text.split(' ');
    let mut time = || Some(Duration::from_micros(words.next()?.parse().ok()?));
    let ladder = Ladder { grace: time()?, term_grace: time()?, linger: time()?, look: time()? };
    Some((ladder, words.next()?.to_owned()))
}

fn guard(
    mut line: UnixStream,
    program: &OsString,
    args: Vec<OsString>,
    ladder: Ladder,
    mark: &str,
) -> i32 {
    // Hosts kill whole groups and sessions.
    // SAFETY: takes nothing and touches no memory of ours.
    let _already_leader = unsafe { libc::setsid() };
    let mut command = Command::new(program);
    command.args(args).env(MARK, mark);
    // SAFETY: between fork and exec only setsid and close are called, both async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::close(SOCKET);
            if libc::setsid() < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    let child = match command.spawn() {
        Ok(child) => child,
        Err(e) => {
            say(&mut line, &Word::NotExecuted(e.raw_os_error().unwrap_or(libc::EINVAL)));
            return 1;
        }
    };
    let pid = child.id().cast_signed();
    let leader = Member::of(pid).unwrap_or(Member { pid, start: 0 });
    say(&mut line, &Word::Started(leader, Backend::Session));
    // Without it we look now and then, which is enough.
    let watch = Watch::new(pid, line.as_fd()).ok();
    let _nonblocking = line.set_nonblocking(true);
    let search = Search::new(leader, mark);
    let asked = HashSet::new();
    let mut guard = Guard { child, search, ladder, exit: None, rung: None, began: None, asked };
    let report = guard.serve(&mut line, watch.as_ref());
    for survivor in &report.survivors {
        say(&mut line, &Word::Survivor(survivor.clone()));
    }
    say(&mut line, &Word::Ended(report));
    0
}

/// One line for each word. An owner who is gone is not an error: then nobody wants to know.
fn say(line: &mut UnixStream, word: &Word) {
    let _gone = line.write_all(format!("{}\n", word.encode()).as_bytes());
}

struct Guard {
    child: Child,
    search: Search,
    ladder: Ladder,
    exit: Option<Exit>,
    /// The rung of the ladder, and until when.
    rung: Option<(u8, Instant)>,
    began: Option<Instant>,
    /// Those who were there when they were asked.
    asked: HashSet<Member>,
}

impl Guard {
    fn serve(&mut self, line: &mut UnixStream, watch: Option<&Watch>) -> Report {
        let (mut heard, mut killed) = (String::new(), HashSet::new());
        loop {
            let members = self.search.look();
            if self.exit.is_none()
                && let Ok(Some(status)) = self.child.try_wait()
            {
                let exit = status.code().map(Exit::Code);
                let exit = exit.or_else(|| status.signal().map(Exit::Signal));
                self.exit = exit.or(Some(Exit::Code(0)));
                self.exit.into_iter().for_each(|exit| say(line, &Word::Exited(exit)));
                let linger = Instant::now() + self.ladder.linger;
                let until = |until: Instant| until.min(linger);
                self.began.get_or_insert_with(Instant::now);
                self.rung = Some(self.rung.map_or((0, linger), |(rung, at)| (rung, until(at))));
            }
            let gone = self.exit.is_some() && members.is_empty();
            let late = self.rung.is_some_and(|(_, until)| Instant::now() >= until);
            match self.rung {
                Some(_) if gone => return self.report(&killed, Vec::new()),
                Some((3, _)) if late => return self.report(&killed, members),
                Some((3, _)) => self.kill(&mut killed),
                Some((rung, _)) if late => self.climb(if rung < 2 { 2 } else { 3 }, &members),
                _ => {}
            }
            let pause = if self.rung.is_some() { LOOK_AGAIN } else { LOOK };
            match watch {
                Some(watch) => watch.wait(pause),
                None => std::thread::park_timeout(pause),
            }
            self.hear(line, &mut heard, &members);
        }
    }

    /// Takes the owner's orders; its silence for ever is one as well.
    fn hear(&mut self, line: &mut UnixStream, heard: &mut String, members: &[Seen]) {
        let mut bytes = [0; 512];
        match line.read(&mut bytes) {
            Ok(0) => self.ask(Ask::OwnerDied, members),
            Ok(n) => heard.push_str(&String::from_utf8_lossy(&bytes[..n])),
            Err(e) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&e.kind()) => {}
            Err(_) => self.ask(Ask::OwnerDied, members),
        }
        while let Some((order, rest)) = heard.split_once('\n') {
            let (order, rest) = (Order::decode(order), rest.to_owned());
            *heard = rest;
            if let Some(Order::Ask(ask)) = order {
                self.ask(ask, members);
            }
        }
    }

    fn ask(&mut self, ask: Ask, members: &[Seen]) {
        if self.rung.is_some_and(|(now, _)| now >= ask.rung()) {
            return;
        }
        self.began.get_or_insert_with(Instant::now);
        self.climb(ask.rung(), members);
    }

    fn climb(&mut self, rung: u8, members: &[Seen]) {
        let time = match rung {
            0 => self.ladder.grace,
            1 | 2 => {
                for seen in members {
                    self.asked.insert(seen.member);
                    // Who cannot be asked is killed, or named.
                    let _refused = seen.member.signal(libc::SIGTERM);
                }
                if rung == 1 { self.ladder.grace } else { self.ladder.term_grace }
            }
            _ => self.ladder.look,
        };
        self.rung = Some((rung, Instant::now() + time));
    }

    /// Stops everybody until nobody is new, and kills them then.
    fn kill(&mut self, killed: &mut HashSet<Member>) {
        let mut members = Vec::new();
        for _ in 0..64 {
            let before = members.len();
            members = self.search.look();
            for seen in &members {
                let _refused = seen.member.signal(libc::SIGSTOP);
            }
            if members.len() <= before {
                break;
            }
        }
        for seen in &members {
            if seen.member.signal(libc::SIGKILL).is_ok() {
                killed.insert(seen.member);
            }
        }
    }

    fn report(&self, killed: &HashSet<Member>, members: Vec<Seen>) -> Report {
        let survivors: Vec<Survivor> = members
            .into_iter()
            .map(|seen| Survivor {
                kind: Kind::Process,
                member: seen.member,
                name: seen.name,
                why: "killed but still there".into(),
            })
            .collect();
        let is_left = |member: &&Member| survivors.iter().any(|left| left.member == **member);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let killed_count = killed.iter().filter(|member| !is_left(member)).count();
        let asked = self.asked.difference(killed).filter(|member| !is_left(member)).count();
        let seen = self.search.known.len();
        Report {
            exit: self.exit,
            backend: Backend::Session,
            seen: count(seen),
            left: count(seen.saturating_sub(killed_count + asked + survivors.len())),
            asked: count(asked),
            killed: count(killed_count),
            survivors,
            breach: None,
            took: self.began.map(|began| began.elapsed()).unwrap_or_default(),
        }
    }
}
