//! What passes between a host and a server comes out as it went in, whatever it is, however much,
//! in both directions at once. Lariat's own memory stays as it was.
//!
//! Every fact is checked for every mode and for each way in which hosts join themselves to a
//! server: two pipes, two sockets, one socket for both directions. The servers are `cat` and `sh`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host/place.rs"]
mod place;

use place::{PATIENCE, Place};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::Shutdown;
use rustix::time::Timespec;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use trials::until;

const MIB: usize = 1 << 20;

/// What Lariat's two processes may gain while they serve. A pipe's worth of bytes and some change.
const MAY_GROW: u64 = 2 << 20;

/// What all buffers on the way can hold together, generously.
const ON_THE_WAY: usize = 4 * MIB;

#[test]
fn a_message_of_64_mib_comes_back_as_it_went() {
    let message = message(64 * MIB);
    for way in WAYS {
        let place = Place::new();
        let echoed = Talk::start(&place, way, &["cat"]).exchange(&message);
        assert_same(way, &echoed, &message);
    }
}

#[test]
fn a_hundred_thousand_pipelined_messages_come_back_in_order() {
    let one = |id| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}\n");
    let messages: String = (0..100_000).map(one).collect();
    for way in WAYS {
        let place = Place::new();
        let echoed = Talk::start(&place, way, &["cat"]).exchange(messages.as_bytes());
        assert_same(way, &echoed, messages.as_bytes());
    }
}

#[test]
fn bytes_that_are_no_messages_come_back_as_they_went() {
    let every_byte: Vec<u8> = (0..=255).collect();
    let specimens: [&[u8]; 11] = [
        b"",
        b"{\"id\":1}\r\n{\"id\":2}\r\n",
        b"\n\n\r\r\n \n",
        b"\xff\xfe{\"text\":\"\xc3\x28 \xed\xa0\x80\"}\n",
        b"\xef\xbb\xbf{\"id\":1}\n\0\0\0\n",
        b"[{\"id\":1,\"method\":\"a\"},{\"id\":2,\"method\":\"b\"}]\n[]\n",
        b"{\"id\":1}\n{\"a last line without an end\":",
        b"x",
        &every_byte,
        // One byte less, as much and one more than the buffer of a pump or of a pipe.
        &[b'a'; (64 << 10) - 1],
        &[b'b'; (64 << 10) + 1],
    ];
    for way in WAYS {
        for bytes in specimens {
            let place = Place::new();
            let echoed = Talk::start(&place, way, &["cat"]).exchange(bytes);
            assert_same(way, &echoed, bytes);
        }
    }
}

#[test]
fn half_a_message_arrives_before_its_other_half_is_sent() {
    for way in WAYS {
        let place = Place::new();
        let mut talk = Talk::start(&place, way, &["cat"]);
        for half in [&b"{\"id\":1,\"meth"[..], b"od\":\"ping\"}\n"] {
            talk.to.as_ref().unwrap().write_all(half).unwrap();
            let echoed = talk.read(half.len());
            assert_same(way, &echoed, half);
        }
        talk.hang_up();
        talk.end_with(0);
    }
}

#[test]
fn a_full_pipe_one_way_does_not_stop_the_other_way() {
    let (up, down) = (message(4 * MIB), noise(4 * MIB));
    for way in WAYS {
        let place = Place::new();
        let given = file(&place, "given", &down);
        let got = place.path("got");
        let script = "cat \"$0\" & cat > \"$1\"; wait";
        let server = ["sh", "-c", script, text(&given), text(&got)];
        let mut talk = Talk::start(&place, way, &server);
        // Not one byte is read until all is written: nothing but the server's own pace counts.
        let written = AtomicUsize::new(0);
        talk.write_beside(&up, &written, |talk| {
            if !until(PATIENCE, || written.load(Ordering::SeqCst) == up.len()) {
                let reached = written.load(Ordering::SeqCst);
                talk.give_up(&format!("{way:?}: stuck after {reached} bytes"));
            }
        });
        assert_same(way, &talk.read(down.len()), &down);
        talk.hang_up();
        assert_same(way, &talk.read_to_end(), b"");
        talk.end_with(0);
        assert_same(way, &fs::read(&got).unwrap(), &up);
    }
}

#[test]
fn a_server_may_write_before_it_reads() {
    let (first, then) = (noise(2 * MIB), message(2 * MIB));
    for way in WAYS {
        let place = Place::new();
        let given = file(&place, "given", &first);
        let server = ["sh", "-c", "cat \"$0\"; exec cat", text(&given)];
        let answers = Talk::start(&place, way, &server).exchange(&then);
        assert_same(way, &answers, &[first.as_slice(), &then].concat());
    }
}

#[test]
fn a_host_that_stops_reading_is_waited_for_and_loses_nothing() {
    let message = message(16 * MIB);
    for way in WAYS {
        let place = Place::new();
        let mut talk = Talk::start(&place, way, &["cat"]);
        let before = talk.warm_up();
        let (written, mut echoed) = (AtomicUsize::new(0), Vec::new());
        talk.write_beside(&message, &written, |talk| {
            let stalled_at = when_it_stands_still(&written);
            let grown = talk.memory().saturating_sub(before);
            if stalled_at > ON_THE_WAY || grown > MAY_GROW {
                let what = format!("{way:?}: took {stalled_at} bytes, grew by {grown}");
                talk.give_up(&what);
            }
            echoed = talk.read(message.len());
        });
        assert_same(way, &echoed, &message);
        talk.hang_up();
        talk.end_with(0);
    }
}

#[test]
fn memory_does_not_grow_with_the_message() {
    let message = message(64 * MIB);
    for way in WAYS {
        let place = Place::new();
        let mut talk = Talk::start(&place, way, &["cat"]);
        let before = talk.warm_up();
        let (written, mut largest) = (AtomicUsize::new(0), 0);
        talk.write_beside(&message, &written, |talk| {
            for part in message.chunks(MIB) {
                let echoed = talk.read(part.len());
                if echoed != part {
                    talk.give_up("the echo differs");
                }
                largest = largest.max(talk.memory());
            }
        });
        talk.hang_up();
        talk.end_with(0);
        let grown = largest.saturating_sub(before);
        assert!(grown < MAY_GROW, "{way:?}: {before} bytes and {grown} more");
    }
}

#[test]
fn what_a_server_wrote_before_it_left_arrives() {
    let words = noise(MIB);
    for way in WAYS {
        let place = Place::new();
        let given = file(&place, "given", &words);
        let mut talk = Talk::start(&place, way, &["cat", text(&given)]);
        assert_same(way, &talk.read_to_end(), &words);
        talk.end_with(0);
    }
}

#[test]
fn it_also_arrives_when_the_host_reads_late() {
    // More than a pipe holds, less than the buffers on the way: the server leaves, its words do not.
    let words = &noise(180_000);
    let try_it = |way| {
        let place = Place::new();
        let given = file(&place, "given", words);
        let mut talk = Talk::start(&place, way, &["cat", text(&given)]);
        // A socket may take it all at once; then there is nothing to wait for.
        let _left = until(Duration::from_secs(3), || talk.has_left());
        assert_same(way, &talk.read_to_end(), words);
        talk.end_with(0);
    };
    // All wait at the same time.
    thread::scope(|scope| {
        for way in WAYS {
            scope.spawn(move || try_it(way));
        }
    });
}

#[test]
fn a_host_that_closes_stdin_and_reads_on_gets_everything() {
    let words = noise(4 * MIB);
    for way in WAYS {
        let place = Place::new();
        let given = file(&place, "given", &words);
        let server = ["sh", "-c", "cat > /dev/null; cat \"$0\"", text(&given)];
        let mut talk = Talk::start(&place, way, &server);
        talk.hang_up();
        assert_same(way, &talk.read_to_end(), &words);
        talk.end_with(0);
    }
}

#[test]
fn a_host_may_half_close_a_socket_that_it_only_reads() {
    let message = message(MIB);
    for mode in MODES {
        let place = Place::new();
        let way = Way { mode, link: Link::Sockets };
        let mut talk = Talk::start(&place, way, &["cat"]);
        hang_up(&talk.from);
        // Time to draw the wrong conclusion, before stdin closes as well.
        assert!(!until(Duration::from_millis(500), || talk.has_left()));
        assert_same(way, &talk.exchange(&message), &message);
        // The end began when stdin closed, not before: this half says nothing about the other.
        let events = fs::read_to_string(place.path("state/events.jsonl")).unwrap();
        assert!(events.contains("\"stdin-closed\""), "{way:?}: {events}");
    }
}

#[test]
fn a_host_that_reads_stderr_gets_all_of_it() {
    let words = noise(MIB);
    for way in WAYS {
        let place = Place::new();
        let given = file(&place, "given", &words);
        let (host_end, lariat_end) = way.link.one_way();
        let server = ["sh", "-c", "cat \"$0\" >&2; exit 3", text(&given)];
        let mut talk = Talk::start_with(&place, way, &server, lariat_end.into());
        let mut heard = Vec::new();
        File::from(host_end).read_to_end(&mut heard).unwrap();
        assert_same(way, &heard, &words);
        talk.end_with(3);
        assert_same(way, &logged(&place), &words);
    }
}

#[test]
fn a_host_that_does_not_read_stderr_does_not_stop_the_server() {
    let words = noise(MIB);
    for way in WAYS {
        let place = Place::new();
        let given = file(&place, "given", &words);
        let (host_end, lariat_end) = way.link.one_way();
        let server = ["sh", "-c", "cat \"$0\" >&2; echo done; cat", text(&given)];
        let mut talk = Talk::start_with(&place, way, &server, lariat_end.into());
        assert_same(way, &talk.read(5), b"done\n");
        let grown = talk.memory();
        assert!(grown < 2 * MAY_GROW, "{way:?}: {grown} bytes are held");
        talk.hang_up();
        talk.end_with(0);
        assert_same(way, &logged(&place), &words);
        // What it finds when it looks at last is the beginning, and a word about the rest.
        let mut heard = Vec::new();
        File::from(host_end).read_to_end(&mut heard).unwrap();
        let same = heard.iter().zip(&words).take_while(|(a, b)| a == b).count();
        assert!(same > 4096, "{way:?}: only {same} bytes are as written");
    }
}

#[test]
fn a_host_that_does_not_read_stderr_is_still_told_that_the_server_left() {
    let words = noise(MIB / 2);
    for way in WAYS {
        let place = Place::new();
        let given = file(&place, "given", &words);
        let (_unread, lariat_end) = way.link.one_way();
        let server = ["sh", "-c", "cat \"$0\" >&2; exit 3", text(&given)];
        let mut talk = Talk::start_with(&place, way, &server, lariat_end.into());
        talk.end_with(3);
    }
}

/// How a host and a server are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Pipes,
    Sockets,
    OneSocket,
}

impl Link {
    /// A stream that is read at its first end and written at its second.
    fn one_way(self) -> (OwnedFd, OwnedFd) {
        match self {
            Link::Pipes => {
                let (reader, writer) = std::io::pipe().unwrap();
                (reader.into(), writer.into())
            }
            Link::Sockets | Link::OneSocket => {
                let (reader, writer) = UnixStream::pair().unwrap();
                (reader.into(), writer.into())
            }
        }
    }
}

/// What Lariat does with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Direct,
    Relayed,
    /// Passed on, and looked at afterwards.
    Watched,
}

const MODES: [Mode; 3] = [Mode::Direct, Mode::Relayed, Mode::Watched];

impl Mode {
    /// How it is asked for. Nothing here is silent for long enough to be put to sleep.
    fn options(self) -> &'static [&'static str] {
        match self {
            Mode::Direct => &[],
            Mode::Relayed => &["--relay"],
            Mode::Watched => &["--idle", "1h"],
        }
    }
}

/// A mode and a link.
#[derive(Clone, Copy, Debug)]
struct Way {
    mode: Mode,
    link: Link,
}

const WAYS: [Way; 9] = {
    let [pipes, sockets, socket] = [Link::Pipes, Link::Sockets, Link::OneSocket];
    let [direct, relayed, watched] = MODES;
    [
        Way { mode: direct, link: pipes },
        Way { mode: direct, link: sockets },
        Way { mode: direct, link: socket },
        Way { mode: relayed, link: pipes },
        Way { mode: relayed, link: sockets },
        Way { mode: relayed, link: socket },
        Way { mode: watched, link: pipes },
        Way { mode: watched, link: sockets },
        Way { mode: watched, link: socket },
    ]
};

/// A wrapped server as its host sees it.
struct Talk {
    wrapper: Child,
    /// Until the host hangs up.
    to: Option<File>,
    from: File,
}

impl Talk {
    fn start(place: &Place, way: Way, server: &[&str]) -> Talk {
        Talk::start_with(place, way, server, Stdio::inherit())
    }

    fn start_with(place: &Place, way: Way, server: &[&str], stderr: Stdio) -> Talk {
        let (stdin, to, from, stdout) = match way.link {
            Link::OneSocket => {
                let (host, lariat) = UnixStream::pair().unwrap();
                let copy = |end: &UnixStream| OwnedFd::from(end.try_clone().unwrap());
                (copy(&lariat), copy(&host), host.into(), lariat.into())
            }
            link => {
                let (stdin, to) = link.one_way();
                let (from, stdout) = link.one_way();
                (stdin, to, from, stdout)
            }
        };
        let mut command = place.lariat("run");
        // A slow machine must not be mistaken for a server that does not want to leave.
        command.args(["--grace", "60s", "--name", "talker", "--log-dir"]);
        command.arg(place.path("log"));
        command.args(way.mode.options());
        command.arg("--").args(server);
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        Talk { wrapper: command.spawn().unwrap(), to: Some(to.into()), from: from.into() }
    }

    /// Writes everything, hangs up and reads until the server does the same. It must end well.
    fn exchange(mut self, bytes: &[u8]) -> Vec<u8> {
        let to = self.to.take().unwrap();
        let echoed = thread::scope(|scope| {
            scope.spawn(move || {
                // If the server is gone the echo is short, and that is what fails.
                let _written = (&to).write_all(bytes);
                hang_up(&to);
            });
            self.read_to_end()
        });
        self.end_with(0);
        echoed
    }

    /// Writes in the background while `meanwhile` runs, and counts.
    fn write_beside(
        &mut self,
        bytes: &[u8],
        count: &AtomicUsize,
        meanwhile: impl FnOnce(&mut Talk),
    ) {
        let to = self.to.as_ref().unwrap().try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                for part in bytes.chunks(4096) {
                    if (&to).write_all(part).is_err() {
                        return;
                    }
                    count.fetch_add(part.len(), Ordering::SeqCst);
                }
            });
            meanwhile(self);
        });
    }

    fn hang_up(&mut self) {
        hang_up(&self.to.take().unwrap());
    }

    fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            self.await_bytes(filled);
            match self.from.read(&mut bytes[filled..]).unwrap_or(0) {
                0 => self.give_up(&format!("the stream ended after {filled} bytes")),
                n => filled += n,
            }
        }
        bytes
    }

    fn read_to_end(&mut self) -> Vec<u8> {
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            self.await_bytes(bytes.len());
            match self.from.read(&mut buffer).unwrap_or(0) {
                0 => return bytes,
                n => bytes.extend_from_slice(&buffer[..n]),
            }
        }
    }

    fn await_bytes(&mut self, so_far: usize) {
        let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.from, PollFlags::IN)];
        if poll(&mut fds, Some(&timeout)) == Ok(0) {
            self.give_up(&format!("nothing came any more after {so_far} bytes"));
        }
    }

    /// Ends everything first: a thread that writes would be waited for.
    fn give_up(&mut self, why: &str) -> ! {
        let _left = self.wrapper.kill();
        let _left = self.wrapper.wait();
        panic!("{why}");
    }

    fn has_left(&mut self) -> bool {
        self.wrapper.try_wait().unwrap().is_some()
    }

    fn end_with(&mut self, code: i32) {
        if !until(PATIENCE, || self.has_left()) {
            self.give_up("the wrapper does not end");
        }
        assert_eq!(self.wrapper.wait().unwrap().code(), Some(code));
    }

    /// Lets everything happen once, so that only what grows counts as growth.
    fn warm_up(&mut self) -> u64 {
        let small = message(1 << 10);
        self.to.as_ref().unwrap().write_all(&small).unwrap();
        self.read(small.len());
        self.memory()
    }

    /// What the wrapper and its guardian have written to memory.
    fn memory(&self) -> u64 {
        let wrapper = self.wrapper.id();
        let children = format!("/proc/{wrapper}/task/{wrapper}/children");
        let guardian = fs::read_to_string(children).unwrap();
        anonymous(&wrapper.to_string()) + anonymous(guardian.split(' ').next().unwrap())
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // After a failed check: whatever is left of it must not stay.
        let _left = self.wrapper.kill();
        let _left = self.wrapper.wait();
    }
}

/// Closes the host's end of stdin. One socket for both directions is closed by half.
fn hang_up(to: &File) {
    // A pipe is no socket: dropping it is enough.
    let _pipe = rustix::net::shutdown(to.as_fd(), Shutdown::Write);
}

/// Not what counts as private: a page of the program's file becomes that when whoever else ran the
/// same program, another test, has left.
fn anonymous(pid: &str) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let kib = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// How far a writer came before it had to wait.
fn when_it_stands_still(written: &AtomicUsize) -> usize {
    loop {
        let before = written.load(Ordering::SeqCst);
        let moved = || written.load(Ordering::SeqCst) != before;
        if !until(Duration::from_millis(300), moved) {
            return before;
        }
    }
}

/// One message of this length on one line.
fn message(length: usize) -> Vec<u8> {
    let mut bytes = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"".to_vec();
    let letters = noise(length - bytes.len() - 3);
    bytes.extend(letters.iter().map(|byte| b'0' + byte % 10));
    bytes.extend_from_slice(b"\"}\n");
    bytes
}

/// Bytes without a pattern, the same every time.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn file(place: &Place, name: &str, bytes: &[u8]) -> PathBuf {
    let path = place.path(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// The server's log, with what was rotated away before.
fn logged(place: &Place) -> Vec<u8> {
    let part = |name| fs::read(place.path("log").join(name)).unwrap_or_default();
    [part("talker.log.1"), part("talker.log")].concat()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[track_caller]
fn assert_same(way: Way, got: &[u8], want: &[u8]) {
    if got != want {
        let same = got.iter().zip(want).take_while(|(a, b)| a == b).count();
        let (got, want) = (got.len(), want.len());
        panic!("{way:?}: {got} bytes instead of {want}, different from byte {same} on");
    }
}
