//! Saying no in the host's own language: a host shows its user the error of a request that it made,
//! and seldom what a wrapper wrote to stderr.

use super::outlet::Outlet;
use crate::mcp;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How long the host may take to ask for something. It does so at once, or it waits for us.
const PATIENCE: Duration = Duration::from_secs(1);

/// A longer first message is not answered.
const LONGEST: usize = 1 << 20;

/// Answers the host's first request with an error that says why. Nothing is said to a host that asks
/// for nothing.
pub(crate) fn refuse(why: &str) {
    refuse_on(io::stdin().as_fd(), io::stdout().as_fd(), why, PATIENCE);
}

fn refuse_on(from: BorrowedFd<'_>, to: BorrowedFd<'_>, why: &str, patience: Duration) {
    let Some(line) = first_line(from, Instant::now() + patience) else { return };
    let Some(mut answer) = mcp::refusal(&line, &format!("lariat: {why}")) else { return };
    answer.push(b'\n');
    // Without waiting: a host that does not read is not to keep us from leaving.
    let _unread = Outlet::new(to).and_then(|outlet| outlet.write(&answer));
}

/// What comes before the first newline, or before the end.
fn first_line(from: BorrowedFd<'_>, deadline: Instant) -> Option<Vec<u8>> {
    let (mut line, mut piece) = (Vec::new(), [0; 4096]);
    while line.len() <= LONGEST {
        let mut fds = [PollFd::from_borrowed_fd(from, PollFlags::IN)];
        contain::wait(&mut fds, Some(deadline));
        if fds[0].revents().is_empty() {
            if Instant::now() >= deadline {
                return None;
            }
            continue;
        }
        let read = match rustix::io::read(from, &mut piece) {
            // A last message need not end its line.
            Ok(0) => return Some(line),
            Ok(n) => &piece[..n],
            Err(Errno::AGAIN | Errno::INTR) => continue,
            Err(_) => return None,
        };
        if let Some(end) = read.iter().position(|byte| *byte == b'\n') {
            line.extend_from_slice(&read[..end]);
            return Some(line);
        }
        line.extend_from_slice(read);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::fs::File;
    use std::io::{Read, Write};

    const MOMENT: Duration = Duration::from_millis(20);

    /// What a host reads that has said this and then closed its end, or not.
    fn answer_to(said: &[u8], closed: bool) -> String {
        let (from, host) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (host_reads, to) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut host = File::from(host);
        std::thread::scope(|scope| {
            let host = scope.spawn(move || {
                // Refused in the middle of a message, the pipe breaks.
                let _broken = host.write_all(said);
                (!closed).then_some(host)
            });
            // Only who neither ends his line nor leaves is waited for in vain.
            let has_end = closed || said.contains(&b'\n');
            let patience = if has_end { 10 * PATIENCE } else { MOMENT };
            refuse_on(from.as_fd(), to.as_fd(), "too many", patience);
            drop((from, to));
            host.join().unwrap();
        });
        let mut text = String::new();
        File::from(host_reads).read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_request_is_answered_with_its_own_id() {
        for id in ["1", "\"a b\"", "1e2", "12345678901234567890123", "\"\\u0061\""] {
            let request = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"initialize\"}}");
            let error = r#"{"code":-32000,"message":"lariat: too many"}"#;
            let answer = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}\n");
            assert_eq!(answer_to(request.as_bytes(), true), answer);
            assert_eq!(answer_to(format!("{request}\r\nmore").as_bytes(), false), answer);
        }
    }

    #[test]
    fn what_is_no_request_is_not_answered() {
        for said in [
            &b""[..],
            b"\n",
            b"hello\n",
            b"{\"method\":\"notifications/initialized\"}\n",
            b"{\"id\":1,\"result\":{}}\n",
            b"{\"id\":null,\"method\":\"a\"}\n",
            b"{\"id\":1,\"id\":2,\"method\":\"a\"}\n",
            b"[{\"id\":1,\"method\":\"a\"}]\n",
        ] {
            assert_eq!(answer_to(said, true), "", "{}", String::from_utf8_lossy(said));
        }
        let endless = [b"{\"id\":1,\"method\":\"".to_vec(), vec![b'x'; 2 * LONGEST]].concat();
        assert_eq!(answer_to(&endless, true), "");
        let unfinished = b"{\"id\":1,\"method\":\"a\"";
        assert_eq!(answer_to(unfinished, false), "");
    }
}
