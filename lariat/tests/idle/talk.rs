//! Random conversations: what a host may say to each real server whose answers depend on nothing
//! but what is on disk.

use crate::kept::modern;
use crate::kit::Dice;
use crate::packages::Package;
use serde_json::{Value, json};
use std::path::Path;

/// Which generation of the protocol a conversation is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Modern,
}

/// What a host does next.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Says these lines at once and waits for the answers to these ids.
    Ask { lines: Vec<String>, ids: Vec<Value> },
    /// Says it; there is no answer.
    Tell(String),
}

impl Step {
    /// True if this asks for nothing but a sign of life.
    pub(crate) fn is_ping(&self) -> bool {
        matches!(self, Step::Ask { lines, .. } if lines.iter().all(|line| line.contains(r#""ping""#)))
    }
}

/// A conversation from the handshake on.
pub(crate) fn conversation(
    package: Package,
    era: Era,
    dice: &mut Dice,
    files: &Path,
    page: &str,
) -> Vec<Step> {
    let mut talk = Talk { package, era, dice, files, page, next: 0 };
    let mut steps = talk.greeting();
    for _ in 0..3 + talk.dice.below(4) {
        let step = talk.step();
        steps.push(step);
    }
    steps
}

struct Talk<'a> {
    package: Package,
    era: Era,
    dice: &'a mut Dice,
    files: &'a Path,
    page: &'a str,
    next: u64,
}

impl Talk<'_> {
    fn greeting(&mut self) -> Vec<Step> {
        if self.era == Era::Modern {
            let discover = self.ask("server/discover", json!({}));
            return if self.dice.below(2) == 0 { vec![] } else { vec![discover] };
        }
        let mut versions = vec!["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
        let mut capabilities = json!({});
        match self.package {
            // Its elicitation needs a form, which older revisions do not know.
            Package::Everything => {
                versions.truncate(1);
                capabilities = json!({"sampling": {}, "elicitation": {}});
            }
            // It asks for roots after each handshake, and answers by them.
            Package::Filesystem if self.dice.below(2) == 0 => {
                capabilities = json!({"roots": {"listChanged": true}});
            }
            _ => {}
        }
        let hello = json!({
            "protocolVersion": self.dice.pick(&versions), "capabilities": capabilities,
            "clientInfo": {"name": "forgetful", "version": "1"},
        });
        let ready = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_owned();
        vec![self.ask("initialize", hello), Step::Tell(ready)]
    }

    fn step(&mut self) -> Step {
        match self.dice.below(12) {
            0 if self.era == Era::Legacy => self.ask("ping", json!({})),
            1 => self.ask("tools/list", json!({})),
            2 => {
                let what = ["prompts/list", "resources/list", "resources/templates/list"];
                let what = *self.dice.pick(&what);
                self.ask(what, json!({}))
            }
            3 => self.ask("no/such/method", json!({"x": 1})),
            4 => Step::Tell(
                json!({
                    "jsonrpc": "2.0", "method": "notifications/cancelled",
                    "params": {"requestId": 100_000, "reason": "never asked"},
                })
                .to_string(),
            ),
            5 => self.several(),
            6 if self.package == Package::Everything => self.cancelled(),
            _ => {
                let (method, params) = self.question();
                self.ask(method, params)
            }
        }
    }

    /// One question; its id is a number or a word.
    fn ask(&mut self, method: &str, params: Value) -> Step {
        self.next += 1;
        let id = if self.dice.below(3) == 0 {
            json!(format!("q-{}", self.next))
        } else {
            json!(self.next)
        };
        let params = if self.era == Era::Modern { modern(params) } else { params };
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        Step::Ask { lines: vec![line.to_string()], ids: vec![id] }
    }

    /// A few questions at once, of which none changes anything.
    fn several(&mut self) -> Step {
        let (mut lines, mut ids) = (vec![], vec![]);
        for _ in 0..2 + self.dice.below(3) {
            let what = ["tools/list", "no/such/method", "prompts/list"];
            let what = *self.dice.pick(&what);
            if let Step::Ask { lines: more, ids: others } = self.ask(what, json!({})) {
                lines.extend(more);
                ids.extend(others);
            }
        }
        Step::Ask { lines, ids }
    }

    /// A long call that is taken back: it is never answered, the next one is.
    fn cancelled(&mut self) -> Step {
        let arguments = json!({"duration": 0.3, "steps": 1});
        let params = json!({"name": "trigger-long-running-operation", "arguments": arguments});
        let Step::Ask { mut lines, ids } = self.ask("tools/call", params) else { unreachable!() };
        let back = json!({"requestId": ids[0], "reason": "enough"});
        let back = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": back});
        lines.push(back.to_string());
        let Step::Ask { lines: more, ids } = self.ask("tools/list", json!({})) else {
            unreachable!()
        };
        lines.extend(more);
        Step::Ask { lines, ids }
    }

    /// Something that only this server answers.
    fn question(&mut self) -> (&'static str, Value) {
        let n = self.next;
        let call = |name: &str, arguments: Value| {
            ("tools/call", json!({"name": name, "arguments": arguments}))
        };
        let file = |name: &str| self.files.join(name).display().to_string();
        let choice = self.dice.below(8);
        match self.package {
            Package::Everything => match choice {
                0 => call("get-sum", json!({"a": n, "b": 0.5})),
                1 => call("get-structured-content", json!({"location": "Chicago"})),
                2 => call("trigger-sampling-request", json!({"prompt": format!("say {n}")})),
                3 => call("trigger-elicitation-request", json!({})),
                4 => {
                    let arguments = json!({"duration": 0.4, "steps": 4});
                    let name = "trigger-long-running-operation";
                    let meta = json!({"progressToken": format!("p{n}")});
                    ("tools/call", json!({"name": name, "arguments": arguments, "_meta": meta}))
                }
                5 => ("prompts/get", json!({"name": "args-prompt", "arguments": {"city": "Ulm"}})),
                6 => {
                    ("resources/read", json!({"uri": "demo://resource/static/document/startup.md"}))
                }
                _ => call("echo", json!({"message": format!("grüße {n}, 世界 🐂")})),
            },
            Package::Filesystem => match choice {
                0 | 1 => {
                    let text = format!("line {n}\n");
                    call(
                        "write_file",
                        json!({"path": file(&format!("f{}", n % 3)), "content": text}),
                    )
                }
                2 => call("list_allowed_directories", json!({})),
                3 => call("list_directory", json!({"path": file("")})),
                4 => call("create_directory", json!({"path": file(&format!("d{n}"))})),
                5 => call("read_text_file", json!({"path": "/etc/hostname"})),
                6 => {
                    let edits = json!([{"oldText": "ox", "newText": format!("ox {n}")}]);
                    call("edit_file", json!({"path": file("page"), "edits": edits}))
                }
                _ => call("read_text_file", json!({"path": file(&format!("f{}", n % 3))})),
            },
            Package::Memory => match choice {
                0..=2 => {
                    let ox = json!({"name": format!("ox{n}"), "entityType": "ox", "observations": ["slow"]});
                    call("create_entities", json!({"entities": [ox]}))
                }
                3 => {
                    let more = json!([{"entityName": "ox2", "contents": [format!("seen {n}")]}]);
                    call("add_observations", json!({"observations": more}))
                }
                4 => call("delete_entities", json!({"entityNames": [format!("ox{}", n - 1)]})),
                5 => call("search_nodes", json!({"query": "ox"})),
                _ => call("read_graph", json!({})),
            },
            Package::Thinking => {
                let thought = json!({
                    "thought": format!("thought {n}"), "nextThoughtNeeded": choice > 2,
                    "thoughtNumber": n, "totalThoughts": 9,
                });
                call("sequentialthinking", thought)
            }
            Package::Time => {
                let zones = ["UTC", "Asia/Tokyo", "America/New_York", "Nowhere/At_All"];
                let (from, to) = (self.dice.pick(&zones), *self.dice.pick(&zones));
                let time = format!("{:02}:30", n % 24);
                call(
                    "convert_time",
                    json!({"source_timezone": from, "time": time, "target_timezone": to}),
                )
            }
            Package::Git => {
                let repo = file("repo");
                match choice {
                    0 => call("git_status", json!({"repo_path": repo})),
                    1 => call("git_log", json!({"repo_path": repo})),
                    2 => call("git_add", json!({"repo_path": repo, "files": ["page"]})),
                    3 => call("git_reset", json!({"repo_path": repo})),
                    4 => call("git_diff_unstaged", json!({"repo_path": repo})),
                    5 => call("git_diff_staged", json!({"repo_path": repo})),
                    6 => {
                        let branch = format!("b{n}");
                        call("git_create_branch", json!({"repo_path": repo, "branch_name": branch}))
                    }
                    _ => call("git_branch", json!({"repo_path": repo, "branch_type": "local"})),
                }
            }
            Package::Fetch | Package::Playwright => match choice {
                0..=4 => {
                    let url = format!("{}/{n}", self.page);
                    call("fetch", json!({"url": url, "raw": choice < 2}))
                }
                5 => {
                    let url = format!("{}/{n}", self.page);
                    ("prompts/get", json!({"name": "fetch", "arguments": {"url": url}}))
                }
                _ => call("fetch", json!({"url": "http://127.0.0.1:1/"})),
            },
        }
    }
}
