//! Ctrl-C, Ctrl-Break and a closing console, as they reach a wrapper.

use super::bell::Bell;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use windows_sys::Win32::System::Console::{CTRL_BREAK_EVENT, CTRL_C_EVENT, SetConsoleCtrlHandler};

/// The numbers that the C runtime has for them; a console that closes is a terminal that hangs up.
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
const SIGBREAK: i32 = 21;

static BELL: OnceLock<Bell> = OnceLock::new();
static COUNT: AtomicU32 = AtomicU32::new(0);
static LAST: AtomicI32 = AtomicI32::new(0);

/// Interruptions of this process, which no longer end it.
#[derive(Debug)]
pub struct Interrupts {
    known: u32,
}

impl Interrupts {
    /// From now on each one rings the bell. Once in the life of a process.
    pub fn watch(bell: &Bell) -> io::Result<Interrupts> {
        let _earlier = BELL.set(bell.clone());
        // SAFETY: the handler lives as long as the program, and what it touches may be touched by any
        // thread.
        if unsafe { SetConsoleCtrlHandler(Some(note), 1) } == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Interrupts { known: 0 })
    }

    /// The number of the last one that has come since the last call, if any has.
    pub fn heard(&mut self) -> Option<i32> {
        let count = COUNT.load(Ordering::SeqCst);
        let new = count != self.known;
        self.known = count;
        new.then(|| LAST.load(Ordering::SeqCst))
    }
}

unsafe extern "system" fn note(event: u32) -> i32 {
    let signal = match event {
        CTRL_C_EVENT => SIGINT,
        CTRL_BREAK_EVENT => SIGBREAK,
        _ => SIGHUP,
    };
    LAST.store(signal, Ordering::SeqCst);
    COUNT.fetch_add(1, Ordering::SeqCst);
    if let Some(bell) = BELL.get() {
        bell.ring();
    }
    if signal == SIGHUP {
        // The process ends when this returns; it has a few seconds to end by itself.
        loop {
            std::thread::park();
        }
    }
    1
}

/// The name of a signal, as receipts have it.
pub fn name(signal: i32) -> String {
    let known = match signal {
        SIGHUP => "HUP",
        SIGINT => "INT",
        SIGTERM => "TERM",
        SIGBREAK => "BREAK",
        other => return other.to_string(),
    };
    known.into()
}
