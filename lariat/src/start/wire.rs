//! What an owner and its holder say to each other: lines of JSON on one socket.
//!
//! The socket is the lease. The owner closing its end, in whatever way, ends the server. The
//! holder's end is also held by the guardian, so it closes only when nobody is left to report.

pub(crate) use super::word::{Order, Word};
use super::{Docker, Owner};
use crate::id::{ServerName, SessionId};
use crate::receipt::Receipt;
use contain::{Backend, Choice, Ladder};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::{Deserialize, Serialize};
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A longer line is none of ours.
pub(crate) const LONGEST: usize = 16 << 20;

/// How long an owner that does not read may keep a holder from going on.
const PATIENCE: Duration = Duration::from_secs(1);

/// The byte with which the server's streams are sent.
pub(crate) const STREAMS: u8 = b'!';

/// The owner's first line: what to run and how to hold it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Brief {
    /// Who wants it, by pid and start time.
    pub(crate) owner: Option<(i32, u64)>,
    /// For whom, if that is somebody else.
    #[serde(default)]
    pub(crate) on_behalf: Option<(i32, u64)>,
    /// The session of several servers that it is part of.
    pub(crate) within: SessionId,
    /// Its name in receipts and logs.
    pub(crate) server: ServerName,
    /// The program.
    pub(crate) program: String,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// Its working directory.
    pub(crate) cwd: Option<PathBuf>,
    /// A backend by name, or the best there is.
    pub(crate) backend: Option<String>,
    /// The rungs of the ladder.
    pub(crate) ladder: [Duration; 4],
    /// The engine that it may use.
    pub(crate) docker: Option<Docker>,
    /// Where the books are.
    pub(crate) state_dir: PathBuf,
    /// True to finish first what crashed sessions left.
    pub(crate) sweep: bool,
    /// Which permissions its files do not get, if not those of the owner.
    #[serde(default)]
    pub(crate) umask: Option<u32>,
}

impl Brief {
    pub(crate) fn rungs(ladder: &Ladder) -> [Duration; 4] {
        [ladder.grace, ladder.term_grace, ladder.linger, ladder.look]
    }

    pub(crate) fn ladder(&self) -> Ladder {
        let [grace, term_grace, linger, look] = self.ladder;
        Ladder { grace, term_grace, linger, look }
    }

    pub(crate) fn choice(&self) -> Choice {
        let named = self.backend.as_deref().and_then(Backend::named);
        named.map_or(Choice::Auto, Choice::Named)
    }
}

/// Takes the next whole line out of what was read.
pub(crate) fn next_line(buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let end = buffer.iter().position(|b| *b == b'\n')?;
    Some(buffer.drain(..=end).collect())
}

/// What comes with the first byte.
#[derive(Debug)]
pub(crate) struct Given {
    /// The server's stdin.
    pub(crate) stdin: OwnedFd,
    /// Its stdout.
    pub(crate) stdout: OwnedFd,
    /// Where the owner shows whether somebody waits for the server; absent if it cannot.
    pub(crate) pulse: Option<OwnedFd>,
}

/// The holder's end.
#[derive(Debug)]
pub(crate) struct Control {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// True once the owner's end has closed.
    gone: bool,
}

impl Control {
    /// Takes the server's streams and the brief. Waits for them; `None` if the owner has changed its
    /// mind.
    pub(crate) fn receive(stream: UnixStream) -> Option<(Control, Given, Brief)> {
        let given = receive_streams(&stream)?;
        let mut control = Control { stream, buffer: Vec::new(), gone: false };
        let line = loop {
            if let Some(line) = next_line(&mut control.buffer) {
                break line;
            }
            if !control.fill() {
                return None;
            }
        };
        control.stream.set_nonblocking(true).ok()?;
        // An owner that is gone by now, or has said something more, wants nothing started.
        let patient = control.hear() && control.buffer.is_empty();
        let brief = serde_json::from_slice(&line).ok().filter(|_| patient)?;
        Some((control, given, brief))
    }

    /// Readable when [`Control::order`] has something; `None` once there will be nothing more.
    pub(crate) fn interest(&self) -> Option<PollFd<'_>> {
        (!self.gone).then(|| PollFd::new(&self.stream, PollFlags::IN))
    }

    /// Takes in what the owner said. False once it has nothing more to say.
    pub(crate) fn hear(&mut self) -> bool {
        while self.fill() {}
        !self.gone
    }

    /// The next thing the owner said.
    pub(crate) fn order(&mut self) -> Option<Order> {
        // What cannot be understood comes from nobody whom we know.
        std::iter::from_fn(|| next_line(&mut self.buffer))
            .find_map(|line| serde_json::from_slice(&line).ok())
    }

    /// Says something. An owner that does not listen is not waited for long.
    pub(crate) fn say(&self, word: &Word) {
        let Ok(mut line) = serde_json::to_vec(word) else { return };
        line.push(b'\n');
        let deadline = Instant::now() + PATIENCE;
        let mut rest = &line[..];
        while !rest.is_empty() {
            match (&self.stream).write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    let mut fds = [PollFd::new(&self.stream, PollFlags::OUT)];
                    contain::wait(&mut fds, Some(deadline));
                }
                // Nobody is there to hear it.
                Err(_) => return,
            }
        }
    }

    /// Reads once. False if there is nothing more to read now, or ever.
    fn fill(&mut self) -> bool {
        let mut bytes = [0u8; 8192];
        match (&self.stream).read(&mut bytes) {
            Ok(n) if n > 0 && self.buffer.len() < LONGEST => {
                self.buffer.extend_from_slice(&bytes[..n]);
                true
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => false,
            Ok(_) | Err(_) => {
                self.gone = true;
                false
            }
        }
    }
}

impl Owner for Control {
    fn line(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn tell(&self, receipt: &Receipt) {
        self.say(&Word::Ended(Box::new(receipt.clone())));
    }
}

fn receive_streams(stream: &UnixStream) -> Option<Given> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8];
    let got = loop {
        let mut into = [IoSliceMut::new(&mut byte)];
        match recvmsg(stream, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            got => break got.ok()?,
        }
    };
    let mut streams = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds.collect::<Vec<OwnedFd>>()),
        _ => None,
    });
    let mut streams = streams.next()?.into_iter();
    let (stdin, stdout) = (streams.next()?, streams.next()?);
    let given = Given { stdin, stdout, pulse: streams.next() };
    (got.bytes == 1 && byte[0] == STREAMS).then_some(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control() -> (Control, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Control { stream: ours, buffer: Vec::new(), gone: false }, theirs)
    }

    #[test]
    fn orders_come_out_however_they_went_in() {
        let (mut control, mut owner) = control();
        for byte in b"\"close\"\nnonsense\n\"close\"\n" {
            owner.write_all(&[*byte]).unwrap();
            assert!(control.hear());
        }
        assert_eq!(control.order(), Some(Order::Close));
        assert_eq!(control.order(), Some(Order::Close));
        assert_eq!(control.order(), None);
    }

    #[test]
    fn an_owner_that_has_changed_its_mind_gets_nothing() {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let brief = Brief {
            owner: None,
            on_behalf: None,
            within: serde_json::from_str("\"s\"").unwrap(),
            server: ServerName::given("x").unwrap(),
            program: "true".into(),
            args: Vec::new(),
            cwd: None,
            backend: None,
            ladder: Brief::rungs(&Ladder::default()),
            docker: None,
            state_dir: "/".into(),
            sweep: false,
            umask: None,
        };
        let brief = serde_json::to_string(&brief).unwrap() + "\n";
        for (said, wanted) in [("", true), ("\"close\"\n", false), ("\"clo", false)] {
            let (ours, mut owner) = UnixStream::pair().unwrap();
            let fds = [ours.as_fd(), ours.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
            let byte = [io::IoSlice::new(&[STREAMS])];
            sendmsg(&owner, &byte, &mut ancillary, SendFlags::empty()).unwrap();
            owner.write_all(format!("{brief}{said}").as_bytes()).unwrap();
            assert_eq!(Control::receive(ours).is_some(), wanted, "{said:?}");
        }
    }

    #[test]
    fn an_owner_that_is_gone_is_noticed_after_its_last_order() {
        let (mut control, mut owner) = control();
        owner.write_all(b"\"close\"\n").unwrap();
        drop(owner);
        assert!(!control.hear());
        assert_eq!(control.order(), Some(Order::Close));
        assert!(control.interest().is_none());
    }

    #[test]
    fn an_owner_that_does_not_listen_is_not_waited_for_long() {
        let (control, _owner) = control();
        let why = "x".repeat(1 << 20);
        let began = Instant::now();
        control.say(&Word::Failed { why, code: 125 });
        assert!(began.elapsed() < PATIENCE * 3);
    }
}
