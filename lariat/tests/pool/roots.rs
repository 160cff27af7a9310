//! The filesystem server lets its client read below the client's roots. Shared carelessly, whoever
//! comes last decides what everybody may read.

use crate::client::{Client, VERSION};
use crate::naive::{Manner, Naive};
use crate::stage::{PATIENCE, Stage, packages, trial};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use trials::until;

const SERVER: &str = "node/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js";

pub(crate) fn tests() -> Vec<Trial> {
    let server = packages().map(|home| home.join(SERVER)).filter(|file| file.exists());
    let with_server = |name: &'static str, test: fn(&Path)| match server.clone() {
        Some(file) => trial(name, move || test(&file)),
        None => {
            eprintln!("skipped {name}: no server-filesystem below LARIAT_CLIENTS");
            Trial::test(name, || Ok(())).with_ignored_flag(true)
        }
    };
    vec![
        with_server("roots::each_keeps_its_own", each_keeps_its_own),
        with_server("roots::naive_sharing_is_seen", naive_sharing_is_seen),
    ]
}

/// A client and the directory that it offers.
struct Reader {
    client: Client,
    root: PathBuf,
}

impl Reader {
    /// With a file of its own in a directory of its own.
    fn new(stage: &Stage, name: &str, client: Client) -> Reader {
        let root = stage.path(name);
        std::fs::create_dir(&root).expect("a directory");
        std::fs::write(root.join("mine"), name).expect("a file");
        let mut reader = Reader { client, root };
        let hello = json!({
            "protocolVersion": VERSION, "capabilities": {"roots": {"listChanged": true}},
            "clientInfo": {"name": name, "version": "1"},
        });
        assert!(reader.ask("initialize", hello)["result"].is_object());
        reader.client.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        reader
    }

    /// Asks, and answers what it is asked meanwhile.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.client.send(method, params);
        let deadline = Instant::now() + PATIENCE;
        while let Some(message) = self.hear(deadline.saturating_duration_since(Instant::now())) {
            if message["id"] == id {
                return message;
            }
        }
        panic!("no answer to {method}");
    }

    /// The next message that is no question; those are answered.
    fn hear(&mut self, within: Duration) -> Option<Value> {
        let deadline = Instant::now() + within;
        loop {
            let line = self.client.hear(deadline.saturating_duration_since(Instant::now()))?;
            let message: Value = serde_json::from_slice(&line).expect("JSON");
            if message["method"] != "roots/list" {
                return Some(message);
            }
            let uri = format!("file://{}", self.root.display());
            let roots = json!({"roots": [{"uri": uri, "name": "mine"}]});
            let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": roots});
            self.client.say(&answer.to_string());
        }
    }

    fn call(&mut self, tool: &str, arguments: Value) -> String {
        let answer = self.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        answer["result"]["content"][0]["text"].to_string()
    }

    /// Whether this file can be read.
    fn reads(&mut self, root: &Path) -> bool {
        let name = root.file_name().expect("a name").to_string_lossy().into_owned();
        let text = self.call("read_text_file", json!({"path": root.join("mine")}));
        text == format!("\"{name}\"")
    }

    /// Whether it may read its own directory and no other.
    fn keeps_its_own(&mut self, other: &Path) -> bool {
        let root = self.root.clone();
        let allowed = self.call("list_allowed_directories", json!({}));
        allowed.contains(&root.display().to_string())
            && !allowed.contains(&other.display().to_string())
            && self.reads(&root)
            && !self.reads(other)
    }
}

/// The server, allowed a directory that neither client offers.
fn server(stage: &Stage, file: &Path) -> Vec<String> {
    let common = stage.path("common");
    std::fs::create_dir(&common).expect("a directory");
    ["node".into(), file.display().to_string(), common.display().to_string()].into()
}

fn each_keeps_its_own(file: &Path) {
    let stage = Stage::new();
    let words = server(&stage, file);
    let join = || Client::start(stage.sharing(&["--name", "files"], &words));
    let mut one = Reader::new(&stage, "one", join());
    let (mine, other) = (one.root.clone(), stage.path("two"));
    assert!(until(PATIENCE, || one.keeps_its_own(&other)), "it has not asked for roots");
    let mut two = Reader::new(&stage, "two", join());
    assert!(until(PATIENCE, || two.keeps_its_own(&mine)), "it has not asked for roots");
    assert!(one.keeps_its_own(&other), "who came last has decided for both");
    let why = "private: client declares roots";
    assert!(until(PATIENCE, || stage.verdicts() == [why; 2]), "{:#?}", stage.listed());
    one.client.leave();
    two.client.leave();
    stage.close();
}

fn naive_sharing_is_seen(file: &Path) {
    let stage = Stage::without_daemon();
    let words = server(&stage, file);
    let naive = Naive::share(&stage, Manner::IdsAlone, &words);
    let mut one = Reader::new(&stage, "one", naive.join());
    let (mine, other) = (one.root.clone(), stage.path("two"));
    assert!(until(PATIENCE, || one.keeps_its_own(&other)), "alone it is as it should be");
    let mut two = Reader::new(&stage, "two", naive.join());
    until(PATIENCE, || two.keeps_its_own(&mine));
    assert!(!one.keeps_its_own(&other), "the trial is blind");
}
