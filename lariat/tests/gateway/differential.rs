//! The reference server that has everything, asked directly and through the gateway: each answer is the
//! same, to the Inspector and to a client that looks at the messages themselves.

use std::path::PathBuf;

use libtest_mimic::Trial;
use serde_json::Value;

use super::clients::{Way, inspector, run, same};
use super::house::{self, House, Room, table};
use super::{Outcome, trial};

const RAW: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gateway/raw.mjs");
const SERVER: &str = "node/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
const INSPECTOR: &str = "node/node_modules/.bin/mcp-inspector";
const NAME: &str = "everything";

const QUESTIONS: &[&[&str]] = &[
    &["--method", "tools/list"],
    &["--method", "prompts/list"],
    &["--method", "resources/list"],
    &["--method", "resources/templates/list"],
    &["--method", "tools/call", "--tool-name", "get-tiny-image"],
    &["--method", "tools/call", "--tool-name", "get-sum", "--tool-args-json", r#"{"a":2,"b":3}"#],
    &["--method", "prompts/get", "--prompt-name", "simple-prompt"],
    &["--method", "resources/read", "--uri", "demo://resource/static/document/features.md"],
];

pub(crate) fn trials(home: &Result<PathBuf, String>) -> Vec<Trial> {
    let both = &[SERVER, "gateway/node_modules", INSPECTOR];
    vec![
        trial("differential::raw", home, &both[..2], raw),
        trial("differential::inspector", home, both, inspected),
        trial("differential::all_at_once", home, both, all_at_once),
    ]
}

fn raw(home: PathBuf) -> Outcome {
    let room = Room::new(home)?;
    let ask = |way: &[String]| {
        let mut command = room.program("node")?;
        command.args([RAW, &room.token]).args(way);
        run(&room, command)
    };
    let server = server(&room);
    let bare = ask(&[vec!["--".to_owned()], server.clone()].concat())?;
    let lines = bare.iter().filter(|byte| **byte == b'\n').count();
    if lines < 60 {
        return Err(format!("only {lines} lines").into());
    }
    let house = House::new(&room, &table(NAME, &server))?;
    same("through the gateway", &bare, &ask(&["http".to_owned(), house.url(NAME)])?)?;
    house.assert_as_before()?;
    house.end()
}

fn inspected(home: PathBuf) -> Outcome {
    let room = Room::new(home)?;
    let server = server(&room);
    let house = House::new(&room, &table(NAME, &server))?;
    for question in QUESTIONS {
        let [bare, heard] = [Way::Command(server.clone()), Way::Url(house.url(NAME))]
            .map(|way| run(&room, inspector(&room, question, &way)?));
        same(&format!("{question:?}"), &bare?, &heard?)?;
    }
    house.assert_as_before()?;
    house.end()
}

/// What two servers have is there under their names at the one path, and answers the same.
fn all_at_once(home: PathBuf) -> Outcome {
    let room = Room::new(home)?;
    let servers = [(NAME, server(&room)), (house::NAME, room.fixture())];
    let tables = servers.each_ref().map(|(name, command)| table(name, command));
    let house = House::new(&room, &tables.concat())?;
    let all = Way::Url(format!("http://{}/mcp", house.address));
    let ask = |question: &[&str], way: &Way| run(&room, inspector(&room, question, way)?);
    let listed = |way: &Way| -> Outcome<Vec<Value>> {
        let answer: Value = serde_json::from_slice(&ask(&["--method", "tools/list"], way)?)?;
        Ok(answer["tools"].as_array().ok_or("no tools")?.clone())
    };
    let mut expected = Vec::new();
    for (name, _) in &servers {
        for mut tool in listed(&Way::Url(house.url(name)))? {
            let prefixed = format!("{name}__{}", tool["name"].as_str().unwrap_or_default());
            tool["name"] = prefixed.into();
            expected.push(tool);
        }
    }
    let mut tools = listed(&all)?;
    let name = |tool: &Value| tool["name"].as_str().map(str::to_owned);
    expected.sort_by_key(name);
    tools.sort_by_key(name);
    if tools != expected {
        return Err(format!("listed are {tools:#?} and not {expected:#?}").into());
    }
    for (name, tool) in [(NAME, "get-tiny-image"), (house::NAME, "test_image_content")] {
        let call =
            |tool: &str, way: &Way| ask(&["--method", "tools/call", "--tool-name", tool], way);
        let direct = call(tool, &Way::Url(house.url(name)))?;
        same(tool, &direct, &call(&format!("{name}__{tool}"), &all)?)?;
    }
    house.assert_as_before()?;
    house.end()
}

fn server(room: &Room) -> Vec<String> {
    let script = room.home().join(SERVER).display().to_string();
    vec!["node".into(), script, "stdio".into(), room.token.clone()]
}
