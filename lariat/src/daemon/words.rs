//! The line of a process that waits for the daemon: it says once what it wants, hands over descriptors with
//! that, and then hears words, each a line of JSON, until there is nothing more to say.
//!
//! Without a runtime and without threads, as those who use it: `joining/guest` and `handover/successor`.

use rustix::event::{PollFd, PollFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A daemon's word has a sentence in it at most.
const LONGEST: usize = 1 << 20;

/// The line, and what of it has been heard and not been understood yet.
#[derive(Debug)]
pub(super) struct Words {
    line: UnixStream,
    heard: Vec<u8>,
}

impl Words {
    pub(super) fn new(line: UnixStream) -> Words {
        Words { line, heard: Vec::new() }
    }

    /// Says what is wanted, behind the byte that says of which kind that is, and hands over up to five
    /// descriptors.
    pub(super) fn ask(
        &mut self,
        kind: u8,
        wish: &impl Serialize,
        given: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut text = vec![kind];
        serde_json::to_writer(&mut text, wish)?;
        text.push(b'\n');
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(given)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::NOSIGNAL;
        let sent = sendmsg(&self.line, &[IoSlice::new(&text)], &mut ancillary, flags)?;
        self.line.write_all(&text[sent..])
    }

    /// The first word, within this time.
    pub(super) fn first<T: DeserializeOwned>(&mut self, within: Duration) -> io::Result<T> {
        let deadline = Instant::now() + within;
        loop {
            let mut fds = [PollFd::new(&self.line, PollFlags::IN)];
            contain::wait(&mut fds, Some(deadline));
            let speaks = !fds[0].revents().is_empty();
            if let Some(word) = self.next(speaks)? {
                return Ok(word);
            }
            if !speaks && Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// To be waited for.
    pub(super) fn interest(&self) -> PollFd<'_> {
        PollFd::new(&self.line, PollFlags::IN)
    }

    /// Until when to wait, if not for ever: not at all, if a word was heard together with the one before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.whole().map(|_| Instant::now())
    }

    /// The next word that was heard, or is heard now if the line is readable; nothing if that is no whole one
    /// yet. The end of the line is an error, and comes after all that was said.
    pub(super) fn next<T: DeserializeOwned>(&mut self, speaks: bool) -> io::Result<Option<T>> {
        if speaks && self.whole().is_none() {
            let mut bytes = [0; 1024];
            let count = self.line.read(&mut bytes)?;
            if count == 0 || self.heard.len() > LONGEST {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.heard.extend_from_slice(&bytes[..count]);
        }
        let Some(end) = self.whole() else { return Ok(None) };
        let line: Vec<u8> = self.heard.drain(..=end).collect();
        serde_json::from_slice(&line).map(Some).map_err(io::Error::from)
    }

    /// Where the first whole word ends.
    fn whole(&self) -> Option<usize> {
        self.heard.iter().position(|byte| *byte == b'\n')
    }

    /// Says one more thing.
    pub(super) fn say(&mut self, byte: u8) -> io::Result<()> {
        self.line.write_all(&[byte])
    }

    /// Says nothing more.
    pub(super) fn fall_silent(&self) -> io::Result<()> {
        self.line.shutdown(Shutdown::Write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const SOON: Duration = Duration::from_secs(5);

    /// The last word must not be lost because it came together with the first, and the end behind it.
    #[test]
    fn words_that_come_at_once_are_heard_one_by_one() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut words = Words::new(ours);
        theirs.write_all(b"1\n2\n").unwrap();
        drop(theirs);
        assert_eq!(words.first::<u32>(SOON).unwrap(), 1);
        assert!(words.deadline().is_some());
        assert_eq!(words.next::<u32>(true).unwrap(), Some(2));
        assert!(words.deadline().is_none());
        assert!(words.next::<u32>(true).is_err(), "that was all");
    }

    #[test]
    fn half_a_word_is_none_yet() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut words = Words::new(ours);
        theirs.write_all(b"[1,").unwrap();
        assert_eq!(words.next::<[u32; 2]>(true).unwrap(), None);
        theirs.write_all(b"2]\n").unwrap();
        assert_eq!(words.first::<[u32; 2]>(SOON).unwrap(), [1, 2]);
        let silence = words.first::<u32>(Duration::ZERO).unwrap_err();
        assert_eq!(silence.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn descriptors_go_along() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let stdin = io::stdin();
        let mut words = Words::new(ours);
        words.ask(b'?', &"a wish", &[stdin.as_fd()]).unwrap();
        words.fall_silent().unwrap();
        let mut text = String::new();
        theirs.read_to_string(&mut text).unwrap();
        assert_eq!(text, "?\"a wish\"\n");
    }
}
