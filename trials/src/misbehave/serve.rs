//! The server that a misbehaving leader plays: newline-delimited JSON-RPC on stdin and stdout,
//! and a choice of bad manners at the end of input and on SIGTERM.

use std::time::Duration;

use super::Script;
use super::process::{
    block, fork, is_hung_up, leave, new_session, read, signal_descriptor, wait_for, write_all,
};
use crate::speech::{Answer, answer};

/// What the server does at the end of input.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OnEof {
    Exit,
    Stay,
    Spin,
    ForkAndExit,
}

/// What the server does on SIGTERM.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OnTerm {
    Die,
    Ignore,
    ForkAndStay,
    ForkAndExit,
}

/// Serves until the end, in the given manner.
pub(super) fn serve(script: &Script, on_eof: OnEof, on_term: OnTerm) -> ! {
    let terms = match on_term {
        OnTerm::Die => -1,
        OnTerm::Ignore => {
            block(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]);
            -1
        }
        OnTerm::ForkAndStay | OnTerm::ForkAndExit => signal_descriptor(&block(&[libc::SIGTERM])),
    };
    script.up();
    let mut input = 0;
    let mut pending = Vec::new();
    while !script.is_over() {
        let [readable, terminated] = wait_for([input, terms], Duration::from_millis(500));
        if terminated {
            let mut info = [0; size_of::<libc::signalfd_siginfo>()];
            read(terms, &mut info);
            leave_a_child(script);
            if on_term == OnTerm::ForkAndExit {
                leave(0);
            }
        }
        if readable && !take_input(script, &mut pending) {
            match on_eof {
                OnEof::Exit => leave(0),
                OnEof::Stay => input = -1,
                OnEof::Spin => spin(script),
                OnEof::ForkAndExit => {
                    leave_a_child(script);
                    leave(0);
                }
            }
        }
    }
    leave(0)
}

/// Reads what there is and answers every whole line; false at the end of input.
fn take_input(script: &Script, pending: &mut Vec<u8>) -> bool {
    let mut chunk = [0; 8192];
    let Some(got) = read(0, &mut chunk) else {
        return false;
    };
    pending.extend_from_slice(&chunk[..got]);
    while let Some(at) = pending.iter().position(|&byte| byte == b'\n') {
        let line: Vec<u8> = pending.drain(..=at).collect();
        match str::from_utf8(&line).map_or(Answer::Nothing, |line| answer(&script.verb, line)) {
            Answer::Reply(reply) => write_all(1, reply.as_bytes()),
            Answer::Hangs => script.note("call"),
            Answer::Nothing => {}
        }
    }
    true
}

/// Starts a deaf child in a session of its own.
fn leave_a_child(script: &Script) {
    let child = fork(|| {
        new_session();
        block(&[]);
        script.arm();
        script.note("late");
        script.linger();
    });
    // Without a child the misbehaviour is only milder; the cell does not depend on it.
    child.ok();
}

fn spin(script: &Script) -> ! {
    // The end is looked for rarely: asking the file system all the time would not be spinning.
    loop {
        for _ in 0..10_000 {
            std::hint::black_box(is_hung_up(0));
        }
        if script.is_over() {
            leave(0);
        }
    }
}
