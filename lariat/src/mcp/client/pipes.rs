//! A server's stdin and stdout as pipes, each with a thread that may block in our place.

use super::{GLANCE, Moved};
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::marker::PhantomData;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;

/// A longer line is not a message we asked for.
const LONGEST: u64 = 64 << 20;

/// The streams of a conversation. Dropping it closes the server's input.
#[derive(Debug)]
pub struct Wire<'a> {
    input: Sender<Vec<u8>>,
    lines: Receiver<Vec<u8>>,
    _like_elsewhere: PhantomData<&'a ()>,
}

impl Wire<'_> {
    /// Both streams are ours.
    pub fn new(mut input: PipeWriter, output: PipeReader) -> Wire<'static> {
        let (to_input, messages) = channel::<Vec<u8>>();
        let (from_output, lines) = channel();
        thread::spawn(move || messages.iter().try_for_each(|text| input.write_all(&text)));
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            loop {
                let mut line = Vec::new();
                let read = output.by_ref().take(LONGEST).read_until(b'\n', &mut line);
                if read.map_or(true, |n| n == 0) || from_output.send(line).is_err() {
                    return;
                }
            }
        });
        Wire { input: to_input, lines, _like_elsewhere: PhantomData }
    }

    /// Hands everything to the thread that writes.
    pub(super) fn write(&mut self, rest: &mut &[u8]) -> Moved<()> {
        let sent = self.input.send(std::mem::take(rest).to_vec());
        if sent.is_ok() { Moved::Done(()) } else { Moved::Closed }
    }

    /// The next line, after a glance at most.
    pub(super) fn line(&mut self) -> Moved<Vec<u8>> {
        match self.lines.recv_timeout(GLANCE) {
            Ok(line) if !line.ends_with(b"\n") && line.len() as u64 >= LONGEST => Moved::TooLong,
            Ok(line) => Moved::Done(line),
            Err(RecvTimeoutError::Timeout) => Moved::NotYet,
            Err(RecvTimeoutError::Disconnected) => Moved::Closed,
        }
    }
}
