//! The host: says lines, hears lines, answers what a server asks, and writes down all it heard.

use crate::eyes;
use crate::kit::{LARIAT, PATIENCE, Place, WORD};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use trials::{Process, until};

/// How long a host of ours takes to answer what a server asks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manners {
    pub(crate) answers_after: Duration,
}

/// One conversation from the host's side.
pub(crate) struct Host {
    pub(crate) child: Child,
    /// The process that we started.
    pub(crate) first: Process,
    /// Whether that is the wrapper, and not somebody between.
    is_direct: bool,
    stdout: ChildStdout,
    pending: Vec<u8>,
    pub(crate) manners: Manners,
    /// Every line, as it came.
    pub(crate) heard: Vec<String>,
    /// What `roots/list` is answered with.
    roots: Value,
}

impl Host {
    /// Starts a command as hosts do, with a pipe on both sides.
    pub(crate) fn start(place: &Place, words: &[String], vars: &[(&str, &Path)]) -> Host {
        let log = File::options().append(true).create(true).open(place.path("stderr")).unwrap();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stderr(log);
        command.envs(vars.iter().copied());
        Host::run(place, command, words[0] == LARIAT)
    }

    /// The same for a wrapper whose stderr somebody reads, until that is dropped.
    pub(crate) fn start_with_stderr(place: &Place, command: Command) -> (Host, ChildStderr) {
        let mut host = Host::run(place, command, true);
        let stderr = host.child.stderr.take().unwrap();
        (host, stderr)
    }

    fn run(place: &Place, mut command: Command, is_direct: bool) -> Host {
        command.current_dir(&place.dir).env(WORD, &place.token);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let first = Process::now(child.id() as i32).unwrap();
        let stdout = child.stdout.take().unwrap();
        let uri = format!("file://{}", place.path("files").display());
        let roots = json!({"roots": [{"uri": uri, "name": "files"}]});
        let (pending, heard) = (Vec::new(), Vec::new());
        Host { child, first, is_direct, stdout, pending, manners: Manners::default(), heard, roots }
    }

    /// Starts it below another process of ours, which can be killed as a host is.
    pub(crate) fn start_below(place: &Place, words: &[String]) -> Host {
        let me = std::env::current_exe().unwrap().display().to_string();
        let between = [vec![me, "__between".into()], words.to_vec()].concat();
        Host::start(place, &between, &[])
    }

    /// Says a line.
    pub(crate) fn say(&mut self, line: &str) {
        self.write(format!("{line}\n").as_bytes());
    }

    /// Writes bytes, a line or not.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let stdin = self.child.stdin.as_mut().expect("not hung up");
        stdin.write_all(bytes).and_then(|()| stdin.flush()).expect("somebody who reads");
    }

    /// The next line, or nothing within that time. The end of the stream is nothing, too.
    pub(crate) fn hear(&mut self, within: Duration) -> Option<String> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(at) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=at).collect();
                let line = String::from_utf8_lossy(&line[..at]).into_owned();
                self.heard.push(line.clone());
                return Some(line);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap();
            let mut fds = [PollFd::new(&self.stdout, PollFlags::IN)];
            if poll(&mut fds, Some(&left)).unwrap_or(0) == 0 {
                return None;
            }
            let mut piece = vec![0; 1 << 16];
            match self.stdout.read(&mut piece).unwrap() {
                0 => return None,
                got => self.pending.extend_from_slice(&piece[..got]),
            }
        }
    }

    /// The next line that is no question to us; those are answered.
    pub(crate) fn attend(&mut self, within: Duration) -> Option<Value> {
        let deadline = Instant::now() + within;
        loop {
            let line = self.hear(deadline.saturating_duration_since(Instant::now()))?;
            let message: Value = serde_json::from_str(&line).expect(&line);
            if message.get("method").is_none() || message.get("id").is_none() {
                return Some(message);
            }
            let late = self.manners.answers_after;
            crate::kit::let_pass(late);
            let reply = self.reply(&message);
            self.say(&reply.to_string());
        }
    }

    /// What a host says to a question.
    fn reply(&self, question: &Value) -> Value {
        let id = &question["id"];
        let result = match question["method"].as_str().unwrap_or_default() {
            "ping" => json!({}),
            "roots/list" => self.roots.clone(),
            "sampling/createMessage" => json!({
                "role": "assistant", "model": "none", "stopReason": "endTurn",
                "content": {"type": "text", "text": "as you wish"},
            }),
            "elicitation/create" => {
                json!({"action": "accept", "content": {"name": "Ox", "check": true}})
            }
            _ => {
                let error = json!({"code": -32601, "message": "no such method"});
                return json!({"jsonrpc": "2.0", "id": id, "error": error});
            }
        };
        json!({"jsonrpc": "2.0", "id": id, "result": result})
    }

    /// Hears until there is an answer with this id.
    #[track_caller]
    pub(crate) fn answer_to(&mut self, id: &Value) -> Value {
        let deadline = Instant::now() + PATIENCE;
        while let Some(message) = self.attend(deadline.saturating_duration_since(Instant::now())) {
            if message.get("method").is_none() && message["id"] == *id {
                return message;
            }
        }
        panic!("no answer to {id}; heard {:#?}", self.heard);
    }

    /// Asks and waits for the answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.say(&request(id, method, params));
        self.answer_to(&json!(id))
    }

    /// The handshake of the older era, with these capabilities.
    #[track_caller]
    pub(crate) fn shake_hands(&mut self, capabilities: &Value) -> Value {
        let hello = json!({
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": {"name": "forgetful", "version": "1"},
        });
        let answer = self.ask(0, "initialize", &hello);
        self.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        answer
    }

    /// Calls a tool; gives the text that it answers with.
    #[track_caller]
    pub(crate) fn call(&mut self, id: u64, tool: &str, arguments: &Value) -> String {
        let answer = self.ask(id, "tools/call", &json!({"name": tool, "arguments": arguments}));
        let text = answer["result"]["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("{tool}: {answer}")).to_owned()
    }

    /// The notifications of one kind that were heard so far.
    pub(crate) fn told(&self, method: &str) -> Vec<Value> {
        let all = self.heard.iter().map(|line| serde_json::from_str::<Value>(line).expect(line));
        all.filter(|message| message["method"] == method && message.get("id").is_none()).collect()
    }

    /// The wrapper, dead or alive: what we started, or the first of Lariat's below it.
    pub(crate) fn wrapper(&self) -> Process {
        if self.is_direct {
            return self.first;
        }
        let below = || {
            let ours = eyes::below(self.first).into_iter().filter(|one| is_lariat(*one));
            ours.min_by_key(|one| one.start)
        };
        until(PATIENCE, || below().is_some());
        below().expect("a wrapper")
    }

    /// The processes of Lariat's own: the wrapper and what it needs besides.
    pub(crate) fn crew(&self) -> Vec<Process> {
        let wrapper = self.wrapper();
        let below = eyes::below(wrapper).into_iter().filter(|one| is_lariat(*one));
        [wrapper].into_iter().chain(below).collect()
    }

    /// The server's processes.
    pub(crate) fn tree(&self) -> Vec<Process> {
        eyes::below(self.wrapper()).into_iter().filter(|one| !is_lariat(*one)).collect()
    }

    /// Waits until nothing of the server is alive, while we keep the pipes and the wrapper lives.
    /// What the server asks meanwhile is answered: it is not to sleep over its question.
    #[track_caller]
    pub(crate) fn await_sleep(&mut self) {
        let asleep = until(PATIENCE, || {
            while self.attend(Duration::ZERO).is_some() {}
            // Not even its guardian: one that is just being started is no server yet.
            eyes::below(self.wrapper()).is_empty()
        });
        let tree: Vec<String> = self.tree().into_iter().map(eyes::describe).collect();
        assert!(asleep, "awake after {PATIENCE:?}: {tree:#?}");
        let left = self.child.try_wait().unwrap();
        assert!(left.is_none(), "the wrapper has left: {left:?}, and it is to sleep");
    }

    /// Nothing of the server ends or starts for that long.
    #[track_caller]
    pub(crate) fn assert_awake_for(&mut self, time: Duration) {
        let before = self.tree();
        assert!(!before.is_empty(), "asleep");
        crate::kit::let_pass(time);
        assert_eq!(self.tree(), before, "put to sleep");
    }

    /// Says nothing more.
    pub(crate) fn close_stdin(&mut self) {
        self.child.stdin = None;
    }

    /// Closes both pipes.
    pub(crate) fn hang_up(self) -> Child {
        let Host { mut child, stdout, .. } = self;
        child.stdin = None;
        drop(stdout);
        child
    }

    /// Ends the session as a host does, and waits for the wrapper.
    #[track_caller]
    pub(crate) fn leave(self) {
        let mut child = self.hang_up();
        let left = until(PATIENCE, || child.try_wait().unwrap().is_some());
        assert!(left, "the wrapper does not end");
    }
}

/// The line of a request.
pub(crate) fn request(id: u64, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

fn is_lariat(process: Process) -> bool {
    eyes::program(process).is_some_and(|program| program == Path::new(LARIAT))
}

/// Plays a process between this host and what it starts, if asked: `EXE __between COMMAND…`. It
/// lives as long as the pipes do; killed, it is a host that was killed.
pub(crate) fn stand_between_if_asked() -> bool {
    let mut args = std::env::args_os().skip(1);
    if args.next().as_deref() != Some(OsStr::new("__between")) {
        return false;
    }
    let mut command = Command::new(args.next().expect("a command"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    std::thread::spawn(move || std::io::copy(&mut std::io::stdin(), &mut to));
    std::io::copy(&mut from, &mut std::io::stdout()).ok();
    child.wait().ok();
    true
}
