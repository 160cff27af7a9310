//! A daemon of one test's own, hosts that join it, and a server for them.

use crate::place::{PATIENCE, Place};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use trials::until;

/// A server in few words: it says where it is, can take its time, and can leave.
const SERVER: &str = r#"
while read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
    answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
    case "$line" in
    *'"initialize"'*) answer '{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}' ;;
    *'"leave"'*) echo 'I have had enough' >&2; exit 7 ;;
    *'"slow"'*) sleep 0.5; answer '{"slow":true}' ;;
    *'"where"'*) answer "{\"pid\":$$,\"who\":\"$WHO\",\"umask\":\"$(umask)\",\"cwd\":\"$PWD\"}" ;;
    esac
done
"#;

/// Books, and a daemon that keeps them. It is killed with the test, and what it held ends with it.
pub(crate) struct Stage {
    pub(crate) place: Place,
    pub(crate) daemon: Child,
}

impl Stage {
    pub(crate) fn new() -> Stage {
        Stage::with(&[])
    }

    /// The daemon has more options.
    pub(crate) fn with(options: &[&str]) -> Stage {
        let place = Place::new();
        let daemon = daemon(&place, options);
        Stage { place, daemon }
    }

    /// Has another daemon take over, and gives the one before.
    pub(crate) fn replace(&mut self) -> Child {
        let next = daemon(&self.place, &["--replace"]);
        std::mem::replace(&mut self.daemon, next)
    }

    /// Has the daemon make way, and another take its place. Gives the one before.
    pub(crate) fn make_way(&mut self) -> Child {
        let daemon = Pid::from_child(&self.daemon);
        self.make_way_by(daemon)
    }

    /// The same for a daemon that somebody else stands for.
    pub(crate) fn make_way_by(&mut self, elder: Pid) -> Child {
        kill_process(elder, Signal::USR2).unwrap();
        let socket = self.place.path("state/daemon.sock");
        assert!(until(PATIENCE, || !socket.exists()));
        let next = daemon(&self.place, &[]);
        std::mem::replace(&mut self.daemon, next)
    }

    /// Tells the daemon to end, or whoever stands for it; it does, in good order.
    #[track_caller]
    pub(crate) fn end_daemon(&mut self) {
        kill_process(Pid::from_child(&self.daemon), Signal::TERM).unwrap();
        assert!(ended(&mut self.daemon).success());
    }

    /// `lariat run --share` of the server.
    pub(crate) fn share(&self) -> Command {
        share(&self.place)
    }

    /// A host with two pipes.
    pub(crate) fn host(&self) -> Host {
        Host::start(&mut self.share())
    }

    /// Waits until the daemon leaves by itself.
    #[track_caller]
    pub(crate) fn daemon_ended(&mut self) -> ExitStatus {
        ended(&mut self.daemon)
    }

    pub(crate) fn daemon_is_there(&mut self) -> bool {
        self.daemon.try_wait().unwrap().is_none()
    }

    pub(crate) fn kill_daemon(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // It may have been ended by the test.
        let _ended = self.daemon.kill();
        let _ended = self.daemon.wait();
        // What it held ends without it, and writes that down; then the place can go.
        until(PATIENCE, || crate::books::pages(&self.place).is_empty());
    }
}

#[track_caller]
fn daemon(place: &Place, options: &[&str]) -> Child {
    let mut command = place.lariat("daemon");
    command.args(["--grace", "200ms", "--term-grace", "200ms", "--containers", "leave"]);
    command.args(options).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut daemon = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on /"), "{line}");
    daemon
}

/// Waits for an end.
#[track_caller]
pub(crate) fn ended(child: &mut Child) -> ExitStatus {
    let mut status = None;
    assert!(until(PATIENCE, || {
        status = child.try_wait().unwrap();
        status.is_some()
    }));
    status.unwrap()
}

/// `lariat run --share` of the server, with its books in this place.
pub(crate) fn share(place: &Place) -> Command {
    let mut command = place.lariat("run");
    command.args(["--share", "--name", "teller", "--", "sh", "-c", SERVER]);
    command
}

/// What a client says first.
pub(crate) fn hello() -> Value {
    json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "host", "version": "1" },
        },
    })
}

pub(crate) fn request(id: u64, method: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method })
}

/// A host and its wrapper.
pub(crate) struct Host {
    pub(crate) wrapper: Child,
    pub(crate) stdin: Option<ChildStdin>,
    pub(crate) stdout: BufReader<ChildStdout>,
    stderr: ChildStderr,
}

impl Host {
    pub(crate) fn start(command: &mut Command) -> Host {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut wrapper = command.spawn().unwrap();
        let stdout = BufReader::new(wrapper.stdout.take().unwrap());
        let stderr = wrapper.stderr.take().unwrap();
        Host { stdin: wrapper.stdin.take(), stdout, stderr, wrapper }
    }

    pub(crate) fn say(&mut self, message: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    /// The next message; null at the end.
    #[track_caller]
    pub(crate) fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        if line.is_empty() { Value::Null } else { serde_json::from_str(&line).unwrap() }
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, message: &Value) -> Value {
        self.say(message);
        self.hear()
    }

    /// Shakes hands, and asks where the server is.
    #[track_caller]
    pub(crate) fn where_is_it(&mut self) -> Value {
        let greeted = self.ask(&hello());
        assert_eq!(greeted["result"]["serverInfo"]["name"], "s", "{greeted}");
        self.ask(&request(2, "where"))["result"].clone()
    }

    /// How the wrapper ended, and what it had to say.
    #[track_caller]
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let status = ended(&mut self.wrapper);
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        (status, said)
    }

    /// What a descriptor of the wrapper is.
    pub(crate) fn descriptor(&self, number: i32) -> String {
        let path = format!("/proc/{}/fd/{number}", self.wrapper.id());
        fs::read_link(path).unwrap().display().to_string()
    }
}
