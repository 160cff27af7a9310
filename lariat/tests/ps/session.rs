//! A wrapped server for those who look on.

use crate::place::{PATIENCE, Place};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use trials::until;

/// A wrapped server that has said its first line. It ends when this is dropped.
pub(crate) struct Session {
    pub(crate) child: Child,
    /// Kept: a host that does not read any more has ended the session.
    _stdout: BufReader<ChildStdout>,
}

impl Session {
    pub(crate) fn start(place: &Place, options: &[&str], server: &[&str]) -> Session {
        let mut run: Command = place.lariat("run");
        run.args(["--grace", "100ms", "--term-grace", "100ms"])
            .args(options)
            .arg("--")
            .args(server);
        let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let session = Session { child, _stdout: stdout };
        assert_eq!(line, "up\n");
        session
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if !until(PATIENCE, || self.child.try_wait().unwrap().is_some()) {
            self.child.kill().unwrap();
        }
        self.child.wait().unwrap();
    }
}
