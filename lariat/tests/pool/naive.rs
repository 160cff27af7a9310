//! Two naive ways to share a server, as stand-ins for the pool: whatever a trial does not hold against
//! them, it cannot see.

use crate::checker;
use crate::client::Client;
use crate::stage::Stage;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// What the server says is said to everybody.
    Broadcast,
    /// Answers are for who asked, progress for who used that token last; tokens and cancellations are
    /// left as they are. What the server asks is asked of who came last.
    IdsAlone,
}

/// One server, and everybody who shares it.
pub(crate) struct Naive {
    middle: Arc<Mutex<Middle>>,
    child: Child,
}

struct Middle {
    manner: Manner,
    to_server: Option<ChildStdin>,
    clients: BTreeMap<u64, UnixStream>,
    /// Whose request it is, and what it was called there, by our own number.
    asked: BTreeMap<u64, (u64, Value)>,
    /// Who used a token last.
    tokens: BTreeMap<String, u64>,
    next: u64,
}

impl Naive {
    /// Shares the checker.
    pub(crate) fn start(stage: &Stage, manner: Manner) -> Naive {
        let words = stage.checker(&[]);
        assert_eq!(words[1], checker::FLAG);
        Naive::share(stage, manner, &words)
    }

    /// Shares any server.
    pub(crate) fn share(stage: &Stage, manner: Manner, words: &[String]) -> Naive {
        let mut command = stage.mark(Command::new(&words[0]));
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a server");
        let (clients, asked, tokens) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let to_server = child.stdin.take();
        let middle = Middle { manner, to_server, clients, asked, tokens, next: 0 };
        let middle = Arc::new(Mutex::new(middle));
        let (shared, output) = (middle.clone(), child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                shared.lock().expect("nobody panics").server_says(&line);
            }
        });
        Naive { middle, child }
    }

    pub(crate) fn join(&self) -> Client {
        let (theirs, ours) = UnixStream::pair().expect("a pair");
        let mut middle = self.middle.lock().expect("nobody panics");
        middle.next += 1;
        let number = middle.next;
        middle.clients.insert(number, ours.try_clone().expect("a descriptor"));
        let shared = self.middle.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(ours).lines().map_while(Result::ok) {
                shared.lock().expect("nobody panics").client_says(number, &line);
            }
            if let Some(stream) = shared.lock().expect("nobody panics").clients.remove(&number) {
                stream.shutdown(std::net::Shutdown::Both).ok();
            }
        });
        // Two descriptors of one socket: the end of what is said has to be said.
        let from = theirs.try_clone().expect("a descriptor");
        Client::over(OwnedFd::from(theirs), OwnedFd::from(from)).hanging_up()
    }
}

impl Drop for Naive {
    fn drop(&mut self) {
        // Threads end with their streams.
        let mut middle = self.middle.lock().expect("nobody panics");
        middle.to_server = None;
        for stream in middle.clients.values() {
            stream.shutdown(std::net::Shutdown::Both).ok();
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Middle {
    fn client_says(&mut self, from: u64, line: &str) {
        let mut message: Value = serde_json::from_str(line).expect("our own client");
        if self.manner == Manner::IdsAlone
            && message["method"].is_string()
            && !message["id"].is_null()
        {
            self.next += 1;
            self.asked.insert(self.next, (from, message["id"].take()));
            message["id"] = json!(self.next);
            self.tokens.insert(message["params"]["_meta"]["progressToken"].to_string(), from);
        }
        if let Some(server) = &mut self.to_server {
            // A server that has left is noticed by its silence.
            server.write_all(format!("{message}\n").as_bytes()).ok();
        }
    }

    fn server_says(&mut self, line: &str) {
        let mut message: Value = serde_json::from_str(line).expect("a server of ours");
        let is_answer = message["method"].is_null();
        let is_question = !is_answer && !message["id"].is_null();
        let mut whom: Vec<u64> = self.clients.keys().copied().collect();
        if self.manner == Manner::IdsAlone && is_answer {
            let number = message["id"].as_u64().unwrap_or_default();
            let Some((client, id)) = self.asked.remove(&number) else { return };
            message["id"] = id;
            whom = vec![client];
        } else if self.manner == Manner::IdsAlone && is_question {
            whom = whom.last().copied().into_iter().collect();
        } else if self.manner == Manner::IdsAlone {
            let token = message["params"]["progressToken"].to_string();
            whom = self.tokens.get(&token).copied().into_iter().collect();
        }
        for client in whom {
            if let Some(stream) = self.clients.get_mut(&client) {
                // One that has left is nobody's concern here.
                stream.write_all(format!("{message}\n").as_bytes()).ok();
            }
        }
    }
}
