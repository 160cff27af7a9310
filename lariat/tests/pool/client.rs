//! A host's end of one conversation: two descriptors, lines, and the process behind them, if there is
//! one.

use crate::checker::modern_meta;
use crate::stage::PATIENCE;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use trials::{Process, until};

/// The revision that clients here speak unless told otherwise.
pub(crate) const VERSION: &str = "2025-11-25";

/// One conversation.
pub(crate) struct Client {
    to: Option<File>,
    from: Option<File>,
    pending: Vec<u8>,
    scanned: usize,
    child: Option<Child>,
    process: Option<Process>,
    is_modern: bool,
    /// Both descriptors are one socket, and closing one says nothing.
    hangs_up: bool,
    next: u64,
}

impl Client {
    /// Starts a command as hosts do, with a pipe on both sides.
    pub(crate) fn start(mut command: Command) -> Client {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a program");
        let process = Process::now(child.id() as i32);
        let to = OwnedFd::from(child.stdin.take().expect("piped"));
        let from = OwnedFd::from(child.stdout.take().expect("piped"));
        let mut client = Client::over(to, from);
        (client.child, client.process) = (Some(child), process);
        client
    }

    /// Speaks over descriptors of somebody else's making.
    pub(crate) fn over(to: OwnedFd, from: OwnedFd) -> Client {
        Client {
            to: Some(to.into()),
            from: Some(from.into()),
            pending: Vec::new(),
            scanned: 0,
            child: None,
            process: None,
            is_modern: false,
            hangs_up: false,
            next: 1_000_000,
        }
    }

    /// Has everything from now on say that it is of the later era.
    pub(crate) fn modern(mut self) -> Client {
        self.is_modern = true;
        self
    }

    /// Another one that speaks for this one, in a thread of its own, and hears nothing.
    pub(crate) fn speaking_half(&mut self) -> Client {
        let to = self.to.take().expect("one that speaks");
        let mut half = Client::over(to.into(), File::open("/dev/null").expect("nothing").into());
        half.hangs_up = self.hangs_up;
        half
    }

    /// For one socket in both directions: says that it says nothing more.
    pub(crate) fn hanging_up(mut self) -> Client {
        self.hangs_up = true;
        self
    }

    /// The process that was started.
    pub(crate) fn process(&self) -> Process {
        self.process.expect("one that was started")
    }

    /// Says a line. False if nobody is there any more.
    pub(crate) fn say(&mut self, line: &str) -> bool {
        let Some(to) = &mut self.to else { return false };
        to.write_all(format!("{line}\n").as_bytes()).is_ok()
    }

    /// Says a part of a line.
    pub(crate) fn say_part(&mut self, part: &str) -> bool {
        self.to.as_mut().is_some_and(|to| to.write_all(part.as_bytes()).is_ok())
    }

    /// The next line, or nothing within that time. The end of the stream is nothing, too.
    pub(crate) fn hear(&mut self, within: Duration) -> Option<Vec<u8>> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(at) = self.pending[self.scanned..].iter().position(|byte| *byte == b'\n') {
                let end = self.scanned + at;
                let mut line: Vec<u8> = self.pending.drain(..=end).collect();
                line.pop();
                self.scanned = 0;
                return Some(line);
            }
            self.scanned = self.pending.len();
            let from = self.from.as_mut()?;
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).expect("a short time");
            let mut fds = [PollFd::new(from, PollFlags::IN)];
            if poll(&mut fds, Some(&left)).unwrap_or(0) == 0 {
                return None;
            }
            let mut piece = [0; 1 << 16];
            match from.read(&mut piece) {
                Ok(0) | Err(_) => self.from = None,
                Ok(got) => self.pending.extend_from_slice(&piece[..got]),
            }
        }
    }

    /// Whether the other side has closed its end, and everything it said was heard.
    pub(crate) fn is_over(&self) -> bool {
        self.from.is_none() && self.pending.is_empty()
    }

    /// Hears until there is an answer with this id. What else is said meanwhile goes to `aside`.
    pub(crate) fn answer_aside(&mut self, id: &Value, aside: &mut Vec<Value>) -> Option<Value> {
        let deadline = Instant::now() + PATIENCE;
        while let Some(line) = self.hear(deadline.saturating_duration_since(Instant::now())) {
            let message: Value = serde_json::from_slice(&line).expect("JSON");
            if message.get("method").is_none() && message["id"] == *id {
                return Some(message);
            }
            aside.push(message);
        }
        None
    }

    /// Sends a request and gives its id.
    pub(crate) fn send(&mut self, method: &str, mut params: Value) -> Value {
        self.next += 1;
        if self.is_modern {
            params["_meta"] = modern_meta();
        }
        let id = json!(self.next);
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.say(&line.to_string());
        id
    }

    /// Asks and waits for the answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        let (id, mut aside) = (self.send(method, params), Vec::new());
        let answer = self.answer_aside(&id, &mut aside);
        answer.unwrap_or_else(|| panic!("no answer to {method}; heard {aside:#?}"))
    }

    /// The handshake of the older era.
    #[track_caller]
    pub(crate) fn greet_as(&mut self, version: &str, capabilities: &Value) -> Value {
        let hello = json!({
            "protocolVersion": version, "capabilities": capabilities,
            "clientInfo": {"name": "trial", "version": "1"},
        });
        let answer = self.ask("initialize", hello);
        self.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        answer
    }

    /// The usual handshake, of a client that can do nothing.
    #[track_caller]
    pub(crate) fn greet(&mut self) {
        let answer = self.greet_as(VERSION, &json!({}));
        assert_eq!(answer["result"]["protocolVersion"], VERSION, "{answer}");
    }

    /// What a tool of the checker's says, in the structured part of its answer.
    #[track_caller]
    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        assert!(answer["result"].is_object(), "{tool}: {answer}");
        answer["result"]["structuredContent"].clone()
    }

    /// The pid of the server that answers.
    #[track_caller]
    pub(crate) fn server(&mut self) -> i32 {
        let told = self.call("whoami", json!({"who": "me", "nonce": 7}));
        assert_eq!((&told["who"], &told["nonce"]), (&json!("me"), &json!(7)));
        told["pid"].as_i64().expect("a pid") as i32
    }

    /// What the server says of itself.
    #[track_caller]
    pub(crate) fn about(&mut self) -> Value {
        self.call("about", json!({}))
    }

    /// Says nothing more.
    pub(crate) fn close_stdin(&mut self) {
        if let Some(to) = self.to.take()
            && self.hangs_up
        {
            rustix::net::shutdown(&to, rustix::net::Shutdown::Write).ok();
        }
    }

    /// Hears nothing more.
    pub(crate) fn close_stdout(&mut self) {
        self.from = None;
        self.pending.clear();
    }

    /// Says nothing and hears nothing more.
    pub(crate) fn close_both(&mut self) {
        self.close_stdin();
        self.close_stdout();
    }

    /// SIGKILL to the process that was started.
    pub(crate) fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            child.kill().expect("ours");
        }
    }

    /// How the process that was started ended, if it did in time.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        let child = self.child.as_mut()?;
        let mut status = None;
        until(PATIENCE, || {
            status = child.try_wait().expect("our child");
            status.is_some()
        });
        status
    }

    /// Ends as a host does, and sees that the wrapper does too.
    #[track_caller]
    pub(crate) fn leave(mut self) {
        self.close_stdin();
        self.close_stdout();
        if self.child.is_some() {
            assert!(self.ended().is_some(), "the wrapper does not end");
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close_stdin();
        self.from = None;
        if let Some(child) = &mut self.child
            && !until(PATIENCE, || child.try_wait().is_ok_and(|ended| ended.is_some()))
        {
            child.kill().ok();
            child.wait().ok();
        }
    }
}
