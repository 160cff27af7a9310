//! `lariat install` and `uninstall` on the configs of every known host: there and back is the same to
//! the byte, twice is once, and parsers that are not ours read what is meant.
//!
//! The configs are in `install/corpus/`, one directory per host, laid out as in a home directory.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "a test says what it cannot try")]

#[path = "host/finish.rs"]
mod finish;
#[path = "host/place.rs"]
mod place;

use finish::finish;
use place::{PATIENCE, Place};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const LARIAT: &str = env!("CARGO_BIN_EXE_lariat");
const TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/install");

/// Every host, how many of its servers are wrapped, and how many are left alone.
const CORPUS: [(&str, usize, usize); 19] = [
    ("amp", 1, 1),
    ("claude-code", 4, 1),
    ("claude-desktop", 3, 0),
    ("cline", 1, 0),
    ("codex", 8, 2),
    ("continue", 4, 1),
    ("copilot", 2, 1),
    ("crush", 1, 1),
    ("cursor", 2, 1),
    ("gemini", 1, 1),
    ("goose", 6, 6),
    ("kiro", 1, 0),
    ("lmstudio", 1, 1),
    ("openclaw", 3, 1),
    ("opencode", 3, 1),
    ("roo", 1, 1),
    ("vscode", 3, 1),
    ("windsurf", 1, 1),
    ("zed", 2, 1),
];

#[test]
fn every_host_there_and_back() {
    let mut hosts: Vec<String> = fs::read_dir(format!("{TESTS}/corpus"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    hosts.sort();
    assert_eq!(hosts, CORPUS.map(|(host, ..)| host));
    // Whoever has one host may have them all.
    let place = Place::new();
    for host in &hosts {
        copy(Path::new(&format!("{TESTS}/corpus/{host}")), &place.path("home"));
    }
    let before = files(&place);
    let report = report_of(&place, &["install", "--yes"]);
    for (host, wrapped, skipped) in CORPUS {
        let of = servers(&report, Some(host));
        let counted = |action| of.iter().filter(|one| one["action"] == action).count();
        assert_eq!((counted("wrap"), counted("skip")), (wrapped, skipped), "{host}: {of:#?}");
    }
    let installed = files(&place);
    let (mut seen, mut strict) = (0, 0);
    for (file, text) in &before {
        // Others read the dialects of JSON no better than we do.
        let Some(before) = meaning(&place, file, text) else { continue };
        let after = meaning(&place, file, &installed[file]).expect("still readable");
        seen += same_but_wrapped("", &before, &after);
        strict += 1;
    }
    assert!(strict >= 14 && seen >= 20, "{strict} files, {seen} servers");
    // Again is no change.
    let again = report_of(&place, &["install", "--yes"]);
    let kept = |one: &&Value| one["action"] == "none" || one["action"] == "skip";
    assert!(servers(&again, None).iter().all(kept), "{again}");
    assert_eq!(files(&place), installed);
    // Another time to sleep is another word, and no more.
    report_of(&place, &["install", "--yes", "--idle", "10m"]);
    assert_ne!(files(&place), installed);
    report_of(&place, &["install", "--yes", "--idle", "auto"]);
    assert_eq!(files(&place), installed);
    report_of(&place, &["uninstall", "--yes"]);
    assert_eq!(files(&place), before);
}

#[test]
fn two_hundred_servers_there_and_back() {
    let place = Place::new();
    let server =
        |n: usize| (format!("s{n}"), json!({ "command": "npx", "args": ["-y", format!("p{n}")] }));
    let all: serde_json::Map<String, Value> = (0..200).map(server).collect();
    let text = serde_json::to_string_pretty(&json!({ "mcpServers": all })).unwrap();
    write(&place, ".cursor/mcp.json", &text);
    let before: Value = serde_json::from_str(&text).unwrap();
    report_of(&place, &["install", "--yes"]);
    let after = fs::read_to_string(place.path("home/.cursor/mcp.json")).unwrap();
    assert_eq!(same_but_wrapped("", &before, &serde_json::from_str(&after).unwrap()), 200);
    report_of(&place, &["uninstall", "--yes"]);
    assert_eq!(fs::read_to_string(place.path("home/.cursor/mcp.json")).unwrap(), text);
}

const SIMPLE: &str = r#"{"mcpServers": {"a": {"command": "npx", "args": ["-y", "pkg", "--token", "s3cret", "-ps3cret", "--key=s3cret"], "env": {"TOKEN": "s3cret"}}}}"#;

/// Runs a command at a terminal, where somebody answers no.
const ANSWER: &str = "
import os, pty, sys
def hear(fd):
    heard = os.read(fd, 4096)
    if b'[y/N]' in heard:
        os.write(fd, b'n\\n')
    return heard
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:], hear)))
";

#[test]
fn nothing_changes_without_a_yes() {
    let place = Place::new();
    write(&place, ".cursor/mcp.json", SIMPLE);
    let before = files(&place);
    let asked = finish(&mut lariat(&place, &["install"]));
    assert_eq!(asked.status.code(), Some(2));
    assert!(text(&asked.stderr).contains("--yes"), "{asked:?}");
    // Who says no is nobody who said yes.
    let typed = lariat(&place, &["install"]);
    let mut at_terminal = Command::new("python3");
    at_terminal.args(["-c", ANSWER]).arg(typed.get_program()).args(typed.get_args());
    at_terminal.env("HOME", place.path("home")).current_dir(place.path("home"));
    let said_no = finish(&mut at_terminal);
    assert_eq!(said_no.status.code(), Some(2), "{said_no:?}");
    assert!(text(&said_no.stdout).contains("[y/N]"), "{said_no:?}");
    assert!(text(&said_no.stdout).contains("lariat: nothing was changed"), "{said_no:?}");
    let looked = finish(&mut lariat(&place, &["install", "--dry-run"]));
    assert!(looked.status.success());
    assert!(text(&looked.stdout).contains("+++ ~/.cursor/mcp.json"), "{looked:?}");
    assert!(text(&looked.stdout).contains("1 server to wrap; nothing was changed"), "{looked:?}");
    let report = report_of(&place, &["install", "--dry-run"]);
    assert_eq!((&report["dry_run"], &report["files"][0]["written"]), (&json!(true), &json!(false)));
    assert_eq!(files(&place), before);
    let refused = finish(&mut lariat(&place, &["install", "emacs"]));
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("codex"), "{refused:?}");
}

#[test]
fn secrets_are_not_shown_and_backups_are_nobody_elses() {
    let place = Place::new();
    write(&place, ".cursor/mcp.json", SIMPLE);
    for args in [
        &["hosts"][..],
        &["hosts", "--json"],
        &["install", "--dry-run"],
        &["install", "--dry-run", "--json"],
        &["install", "--yes"],
        &["install", "--yes", "--idle", "1h"],
        &["uninstall", "--yes"],
    ] {
        let output = finish(&mut lariat(&place, args));
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && !said.contains("s3cret"), "{args:?}: {said}");
    }
    for _ in 0..4 {
        report_of(&place, &["install", "--yes"]);
        report_of(&place, &["uninstall", "--yes"]);
    }
    let backups = place.path("state/backups");
    assert_eq!(fs::metadata(&backups).unwrap().mode() & 0o777, 0o700);
    let entries: Vec<_> =
        fs::read_dir(&backups).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 5);
    for entry in entries {
        assert_eq!(fs::metadata(&entry).unwrap().mode() & 0o777, 0o600);
        assert!(fs::read_to_string(&entry).unwrap().contains("s3cret"));
    }
}

#[test]
fn links_and_modes_stay() {
    let place = Place::new();
    write(&place, "dotfiles/mcp.json", SIMPLE);
    let real = place.path("home/dotfiles/mcp.json");
    fs::set_permissions(&real, Permissions::from_mode(0o640)).unwrap();
    let owner = rustix::process::getuid().is_root().then_some(54_321);
    if let Some(other) = owner {
        std::os::unix::fs::chown(&real, Some(other), Some(other)).unwrap();
    }
    fs::create_dir(place.path("home/.cursor")).unwrap();
    let link = place.path("home/.cursor/mcp.json");
    symlink("../dotfiles/mcp.json", &link).unwrap();
    report_of(&place, &["install", "--yes"]);
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("../dotfiles/mcp.json"));
    let metadata = fs::metadata(&real).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o640);
    assert!(owner.is_none_or(|owner| (metadata.uid(), metadata.gid()) == (owner, owner)));
    assert!(fs::read_to_string(&real).unwrap().contains("--installed"));
    let beside: Vec<_> = fs::read_dir(place.path("home/dotfiles")).unwrap().collect();
    assert_eq!(beside.len(), 1, "{beside:?}");
}

#[test]
fn a_bad_file_is_pointed_at_and_does_not_keep_the_others() {
    let place = Place::new();
    write(&place, ".cursor/mcp.json", SIMPLE);
    write(&place, ".codex/config.toml", "[mcp_servers.a]\ncommand = \"x\nargs = []\n");
    write(&place, ".gemini/settings.json", "{\n  \"mcpServers\": {\n<<<<<<< HEAD\n  }\n}\n");
    fs::create_dir_all(place.path("home/.kiro/settings")).unwrap();
    fs::write(place.path("home/.kiro/settings/mcp.json"), b"{\"mcpServers\": \"\xff\"}").unwrap();
    write(&place, ".lmstudio/mcp.json", SIMPLE);
    fs::hard_link(place.path("home/.lmstudio/mcp.json"), place.path("home/second")).unwrap();
    let before = files(&place);
    let output = finish(&mut lariat(&place, &["install", "--yes"]));
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    for place in
        ["~/.codex/config.toml:2:", "~/.gemini/settings.json:3:1:", "mcp.json: byte 16", "2 names"]
    {
        assert!(said.contains(place), "{place}: {said}");
    }
    let mut after = files(&place);
    assert!(after[".cursor/mcp.json"].contains("--installed"));
    after.insert(".cursor/mcp.json".into(), SIMPLE.into());
    assert_eq!(after, before);
    let hosts: Value =
        serde_json::from_str(&text(&finish(&mut lariat(&place, &["hosts", "--json"])).stdout))
            .unwrap();
    let codex = hosts.as_array().unwrap().iter().find(|file| file["host"] == "codex").unwrap();
    assert!(codex["error"].as_str().unwrap().starts_with("2:"), "{codex}");
}

#[test]
fn what_a_project_shares_is_touched_only_when_asked() {
    let place = Place::new();
    write(&place, "work/.mcp.json", SIMPLE);
    write(&place, "work/.vscode/mcp.json", r#"{"servers": {"b": {"command": "b"}}}"#);
    let before = files(&place);
    let project = format!("--project={}", place.path("home/work").display());
    report_of(&place, &["install", "--yes"]);
    assert_eq!(files(&place), before);
    let report = report_of(&place, &["install", "--yes", &project]);
    assert_eq!(servers(&report, None).iter().filter(|one| one["action"] == "wrap").count(), 2);
    assert!(!place.path("home/work/backups").exists());
    report_of(&place, &["uninstall", "--yes"]);
    assert_ne!(files(&place), before);
    report_of(&place, &["uninstall", "--yes", &project]);
    assert_eq!(files(&place), before);
}

#[test]
fn hosts_are_found_where_their_variables_say() {
    let place = Place::new();
    write(&place, "elsewhere/config.toml", "mcp_servers.a.command = \"a\"\n");
    write(
        &place,
        "xdg/zed/settings.json",
        r#"{"context_servers": {"z": {"command": "z", "args": []}}}"#,
    );
    let mut hosts = lariat(&place, &["hosts", "--json"]);
    hosts
        .env("CODEX_HOME", place.path("home/elsewhere"))
        .env("XDG_CONFIG_HOME", place.path("home/xdg"));
    let hosts: Value = serde_json::from_str(&text(&finish(&mut hosts).stdout)).unwrap();
    let ids: Vec<&str> =
        hosts.as_array().unwrap().iter().map(|file| file["host"].as_str().unwrap()).collect();
    assert_eq!(ids, ["codex", "zed"]);
    assert_eq!(hosts[0]["servers"][0]["state"], "bare");
    let none = finish(&mut lariat(&place, &["hosts"]));
    assert!(text(&none.stdout).contains("no configs of known hosts are here"), "{none:?}");
}

#[test]
fn what_is_written_starts_the_server() {
    let place = Place::new();
    write(
        &place,
        ".cursor/mcp.json",
        r#"{"mcpServers": {"a": {"command": "true"}, "b": {"command": "false", "args": []}}}"#,
    );
    report_of(&place, &["install", "--yes"]);
    let text = fs::read_to_string(place.path("home/.cursor/mcp.json")).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    for (server, code) in [("a", 0), ("b", 1)] {
        let entry = &config["mcpServers"][server];
        let mut command = Command::new(entry["command"].as_str().unwrap());
        command.args(entry["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()));
        let output =
            finish(command.env("HOME", place.path("home")).current_dir(place.path("home")));
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
    let state = place.path("home/.local/state/lariat/sessions");
    assert!(trials::until(PATIENCE, || fs::read_dir(&state)
        .is_ok_and(|mut pages| pages.next().is_none())));
}

/// `lariat VERB` for a home of its own and nothing of ours.
fn lariat(place: &Place, args: &[&str]) -> Command {
    let home = place.path("home");
    fs::create_dir_all(&home).unwrap();
    let mut command = match args[0] {
        "hosts" => Command::new(LARIAT),
        verb => place.lariat(verb),
    };
    command.env_clear().env("HOME", &home).current_dir(&home);
    command.args(if args[0] == "hosts" { args } else { &args[1..] });
    command
}

/// What it says it did.
#[track_caller]
fn report_of(place: &Place, args: &[&str]) -> Value {
    let output: Output = finish(lariat(place, args).arg("--json"));
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What it says of the servers of a host, or of all.
fn servers<'r>(report: &'r Value, host: Option<&str>) -> Vec<&'r Value> {
    let files = report["files"].as_array().unwrap().iter();
    let files = files.filter(|file| host.is_none_or(|host| file["host"] == host));
    files.flat_map(|file| file["servers"].as_array().unwrap()).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn write(place: &Place, path: &str, text: &str) {
    let path = place.path("home").join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, to) =
            (entry.as_ref().unwrap().path(), to.join(entry.as_ref().unwrap().file_name()));
        if path.is_dir() {
            copy(&path, &to)
        } else {
            fs::write(&to, fs::read(&path).unwrap()).unwrap()
        }
    }
}

/// Every file of the home, by its path from there.
fn files(place: &Place) -> BTreeMap<String, String> {
    let home = place.path("home");
    let (mut found, mut waiting) = (BTreeMap::new(), vec![home.clone()]);
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let name = path.strip_prefix(&home).unwrap().display().to_string();
                found.insert(name, text(&fs::read(&path).unwrap()));
            }
        }
    }
    found
}

/// A text as somebody else's parser reads it; nothing where there is none for its dialect.
fn meaning(place: &Place, name: &str, said: &str) -> Option<Value> {
    if name.ends_with("json") || name.ends_with("jsonc") {
        return serde_json::from_str(said.trim_start_matches('\u{feff}')).ok();
    }
    let file = place.path(name.rsplit('/').next().unwrap());
    fs::write(&file, said).unwrap();
    let python = finish(Command::new("python3").arg(format!("{TESTS}/read.py")).arg(&file));
    fs::remove_file(&file).unwrap();
    if !python.status.success() {
        let error = text(&python.stderr);
        // Without the module, and without Python: nothing is claimed. A text that cannot be parsed is worse.
        assert!(error.contains("ModuleNotFoundError"), "{name}: {error}\n{said}");
        eprintln!("not tried: {name}: {error}");
        return None;
    }
    Some(serde_json::from_slice(&python.stdout).unwrap())
}

/// Both mean the same, but for servers that are wrapped in the second. How many are. What is looked at
/// is called so in the file.
#[track_caller]
fn same_but_wrapped(called: &str, before: &Value, after: &Value) -> usize {
    let ours = |bare: bool| {
        let mark = if bare { "--installed=bare" } else { "--installed" };
        let fit = |c: char| if c.is_alphanumeric() || "-_.+".contains(c) { c } else { '-' };
        let name: String = called.chars().map(fit).collect();
        ["run", mark, "--name", &name, "--idle", "auto", "--"].map(|word| json!(word)).to_vec()
    };
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let key = ["command", "cmd", "path"].into_iter().find(|key| {
                old.get(*key).is_some_and(|old| Some(old) != new.get(*key) && !old.is_object())
            });
            let Some(key) = key else {
                let keys =
                    |map: &serde_json::Map<String, Value>| map.keys().cloned().collect::<Vec<_>>();
                assert_eq!(keys(old), keys(new));
                let each = |(key, old): (&String, &Value)| {
                    let called = if key == "command" { called } else { key };
                    same_but_wrapped(called, old, &new[key])
                };
                return old.iter().map(each).sum();
            };
            let mut expected = old.clone();
            if let Some(words) = old[key].as_array() {
                expected[key] = [vec![json!(LARIAT)], ours(false), words.clone()].concat().into();
            } else {
                let args = old.get("args").map(|args| args.as_array().unwrap().clone());
                let words =
                    [ours(args.is_none()), vec![old[key].clone()], args.unwrap_or_default()];
                expected.insert("args".into(), words.concat().into());
                expected[key] = json!(LARIAT);
            }
            assert_eq!(&expected, new);
            1
        }
        (Value::Array(old), Value::Array(new)) => {
            assert_eq!(old.len(), new.len());
            let name = |server: &Value| server["name"].as_str().unwrap_or(called).to_owned();
            old.iter().zip(new).map(|(old, new)| same_but_wrapped(&name(old), old, new)).sum()
        }
        (old, new) => {
            assert_eq!(old, new);
            0
        }
    }
}
