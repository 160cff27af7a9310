//! The terminal while we draw on it: raw, on its other screen, and given back however we leave.

use crate::show;
use lariat::contain::{self, Signals, signal};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{self, OptionalActions, Termios};
use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How the terminal was. Kept where a panic finds it.
static BEFORE: OnceLock<Termios> = OnceLock::new();

/// The other screen, no cursor, no wrapping of lines that are too long; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
const LEAVE: &str = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

/// How long the rest of a key may take that begins with an escape.
const REST: Duration = Duration::from_millis(20);

/// What a person does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Interrupt,
    Suspend,
    Redraw,
}

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Key(Key),
    /// The terminal may have another size.
    Resized,
    /// We are to leave; or nobody is there any more.
    Stop,
    /// It is time.
    Due,
}

/// The terminal, ours until this is dropped.
pub(super) struct Terminal {
    signals: Signals,
    waiting: Vec<u8>,
}

impl Terminal {
    /// Takes it.
    pub(super) fn enter() -> io::Result<Terminal> {
        let stop = [signal::SIGTERM, signal::SIGINT, signal::SIGHUP, signal::SIGQUIT];
        let signals = Signals::block(&[&stop[..], &[signal::SIGWINCH]].concat())?;
        let before = termios::tcgetattr(io::stdin())?;
        let before = BEFORE.get_or_init(|| before);
        let terminal = Terminal { signals, waiting: Vec::new() };
        raw(before)?;
        let said = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            said(panic);
        }));
        Ok(terminal)
    }

    /// Columns and rows.
    pub(super) fn size() -> (usize, usize) {
        let size = termios::tcgetwinsize(io::stdout()).ok();
        let size = size.map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
        size.filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or((80, 24))
    }

    /// Waits for what happens next.
    pub(super) fn next(&mut self, due: Instant) -> Event {
        loop {
            if let Some(key) = self.key() {
                return Event::Key(key);
            }
            let stdin = io::stdin();
            let mut fds =
                [PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
            contain::wait(&mut fds, Some(due));
            let [signalled, typed] = [fds[0].revents(), fds[1].revents()];
            if !signalled.is_empty() {
                let signals: Vec<i32> = std::iter::from_fn(|| self.signals.next()).collect();
                match signals.iter().any(|signal| *signal != signal::SIGWINCH) {
                    true => return Event::Stop,
                    false => return Event::Resized,
                }
            }
            if !typed.is_empty() && !self.read() {
                return Event::Stop;
            }
            if typed.is_empty() && Instant::now() >= due {
                return Event::Due;
            }
        }
    }

    /// Reads what was typed. False if the terminal is gone.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 256];
        match rustix::io::read(io::stdin(), &mut buffer) {
            Ok(0) => false,
            Ok(n) => {
                self.waiting.extend(&buffer[..n]);
                true
            }
            Err(error) => matches!(error, rustix::io::Errno::INTR | rustix::io::Errno::AGAIN),
        }
    }

    fn key(&mut self) -> Option<Key> {
        if self.waiting == [0x1b] {
            // Alone, or the rest is on its way.
            let stdin = io::stdin();
            let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
            contain::wait(&mut fds, Some(Instant::now() + REST));
            if !fds[0].revents().is_empty() {
                self.read();
            }
        }
        while !self.waiting.is_empty() {
            let (key, used) = parse(&self.waiting);
            self.waiting.drain(..used);
            if key.is_some() {
                return key;
            }
        }
        None
    }

    /// Lets the shell have the terminal until it calls us back.
    pub(super) fn suspend(&self) -> io::Result<()> {
        restore();
        kill_process(getpid(), Signal::STOP)?;
        BEFORE.get().map_or(Ok(()), raw)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Sets the terminal up for drawing.
fn raw(before: &Termios) -> io::Result<()> {
    let mut raw = before.clone();
    raw.make_raw();
    termios::tcsetattr(io::stdin().as_fd(), OptionalActions::Now, &raw)?;
    show::out(ENTER);
    Ok(())
}

/// Gives it back as it was.
fn restore() {
    if let Some(before) = BEFORE.get() {
        show::out(LEAVE);
        // If it is gone, there is nothing to restore.
        let _gone = termios::tcsetattr(io::stdin().as_fd(), OptionalActions::Now, before);
    }
}

/// The first key in what was typed, and how long it is. Other keys than ours are nothing.
fn parse(bytes: &[u8]) -> (Option<Key>, usize) {
    match bytes {
        [0x1b, b'[' | b'O', rest @ ..] => {
            let end = rest.iter().position(|b| (0x40..=0x7e).contains(b));
            let Some(end) = end else { return (None, bytes.len()) };
            let key = match &rest[..=end] {
                b"A" => Some(Key::Up),
                b"B" => Some(Key::Down),
                b"5~" => Some(Key::PageUp),
                b"6~" => Some(Key::PageDown),
                b"H" | b"1~" | b"7~" => Some(Key::Home),
                b"F" | b"4~" | b"8~" => Some(Key::End),
                _ => None,
            };
            (key, end + 3)
        }
        [0x1b, ..] => (Some(Key::Escape), 1),
        [b'\r' | b'\n', ..] => (Some(Key::Enter), 1),
        [0x03, ..] => (Some(Key::Interrupt), 1),
        [0x1a, ..] => (Some(Key::Suspend), 1),
        [0x0c, ..] => (Some(Key::Redraw), 1),
        [byte @ 0x20..0x7f, ..] => (Some(Key::Char(char::from(*byte))), 1),
        _ => (None, bytes.len().min(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        let mut bytes = &b"q\x1b[A\x1bOB\x1b[5~\x1b[1;5C\r\x03\xc3\xa4\x1b"[..];
        let mut keys = Vec::new();
        while !bytes.is_empty() {
            let (key, used) = parse(bytes);
            assert!(used > 0);
            bytes = &bytes[used..];
            keys.extend(key);
        }
        let expected = [
            Key::Char('q'),
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::Enter,
            Key::Interrupt,
            Key::Escape,
        ];
        assert_eq!(keys, expected);
    }
}
