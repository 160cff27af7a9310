//! The rules of the house: which way the arrows point, how long a file may be, how many packages
//! a build may need, where `unsafe` may live.
//!
//! Each rule is a function from text to complaints, and each is tried on a bad sample first: a
//! rule that cannot fail is no rule. A complaint says what to do; an exception is argued in a table
//! here, never in passing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The layers of `lariat/src`, lowest first. A module names only modules of earlier lines.
/// The binary is the face above them all, and sees the library by its public names.
const LAYERS: &[&[&str]] = &[
    // words: no I/O (dice only in tests)
    &["bytes", "dice", "duration", "id", "moment"],
    &["receipt", "spec"],
    &["snapshot"],
    // own
    &["docker", "journal"],
    &["held"],
    &["books"],
    // start
    &["start"],
    // speak
    &["mcp"],
    // share
    &["pool"],
    &["session"],
    // serve
    &["probe", "relay"],
    &["holder"],
    &["daemon"],
];

/// A longer file needs a line here: its path, and why it is one homogeneous thing.
const MAY_BE_LONG: &[(&str, &str)] = &[];
const LONGEST: usize = 600;

/// Packages of the default build, ours included. Raise it with an argument. Half of them came with
/// the Docker proxy: tokio, and rustls for engines behind TCP. Three write completions and manual pages.
/// Nine read the configs of hosts with the place of every word: TOML and YAML have too many ways to
/// write one thing for a reader of our own.
const PACKAGES: usize = 68;

/// What a test file with a harness of its own begins a line with.
const MAIN: &str = "fn main()";

/// How the third line of a design page begins.
const REVISION: &str = "*Last substantive revision: ";

/// Where `unsafe` may live: what calls the kernel, and what misbehaves on purpose.
const UNSAFE_ROOMS: &[&str] = &["contain/", "trials/"];

#[test]
fn arrows_point_down() {
    let root = workspace().join("lariat/src");
    let mut complaints = Vec::new();
    for (path, text) in sources(&root) {
        if path.starts_with("bin/") || path == "lib.rs" {
            continue;
        }
        let module = path.trim_end_matches(".rs").split('/').next().unwrap();
        complaints.extend(arrows(module, &text).into_iter().map(|what| format!("{path}: {what}")));
    }
    assert_none(complaints);
}

#[test]
fn an_upward_arrow_is_seen() {
    assert_eq!(arrows("books", "use crate::{held::Gone, id};"), [""; 0]);
    assert_eq!(arrows("relay", "// crate::daemon is above\nuse crate::relay::pump;"), [""; 0]);
    assert_eq!(arrows("id", "use crate::books::Books;").len(), 1);
    assert_eq!(arrows("held", "fn f() { crate::books::open() }").len(), 1);
    assert_eq!(arrows("mcp", "use crate::{\n    id::{Id, X},\n    relay::{a, b},\n};").len(), 1);
    assert_eq!(arrows("docker", "use super::super::held::Held;").len(), 1);
    assert_eq!(arrows("docker", "use crate::journal::Journal;").len(), 1, "same line of the table");
    assert_eq!(arrows("id", "use crate::helpers::x;").len(), 1, "not in the table");
    assert_eq!(arrows("utils", "").len(), 1, "not in the table");
}

#[test]
fn files_are_short() {
    let files = all_sources();
    let mut complaints: Vec<_> =
        files.iter().flat_map(|(path, text)| too_long(path, text)).collect();
    for (path, _) in MAY_BE_LONG {
        let is_long = files.iter().any(|(p, text)| p == path && text.lines().count() > LONGEST);
        if !is_long {
            complaints.push(format!("{path} needs no exception any more"));
        }
    }
    assert_none(complaints);
}

#[test]
fn a_long_file_is_seen() {
    assert!(too_long("a.rs", &"x\n".repeat(LONGEST)).is_none());
    assert!(too_long("a.rs", &"x\n".repeat(LONGEST + 1)).is_some());
}

#[test]
fn nothing_is_allowed_away() {
    assert_none(all_sources().iter().flat_map(|(path, text)| allowed(path, text)).collect());
}

#[test]
fn an_allowed_lint_is_seen() {
    let [outer, inner] = [concat!("#", "[allow(dead_code)]"), concat!("#!", "[allow(unused)]")];
    assert_eq!(allowed("a.rs", &format!("{inner}\n\n{outer}\nfn f() {{}}\n")).len(), 2);
    assert_eq!(allowed("a.rs", "#[expect(dead_code, reason = \"soon\")]").len(), 0);
}

#[test]
fn unsafe_stays_in_its_rooms() {
    let files = all_sources();
    let outside =
        files.iter().filter(|(path, _)| !UNSAFE_ROOMS.iter().any(|r| path.starts_with(r)));
    assert_none(outside.flat_map(|(path, text)| unsafe_words(path, text)).collect());
}

#[test]
fn an_unsafe_word_is_seen() {
    let bad = format!("fn f() {{\n    {} {{ g() }}\n}}", concat!("un", "safe"));
    assert_eq!(unsafe_words("a.rs", &bad).len(), 1);
    assert_eq!(unsafe_words("a.rs", "#![forbid(unsafe_code)] // no unsafe here").len(), 0);
}

#[test]
fn platforms_differ_by_the_file() {
    let files = all_sources().into_iter().filter(|(path, _)| path.contains("/src/"));
    assert_none(files.flat_map(|(path, text)| torn(&path, &text)).collect());
}

#[test]
fn a_torn_function_is_seen() {
    let [inside, asked] = [concat!("#[", "cfg(windows)]"), concat!("if cfg", "!(unix) {}")];
    assert_eq!(
        torn("a.rs", &format!("fn f() {{\n    {inside}\n    g();\n    {asked}\n}}")).len(),
        2
    );
    assert_eq!(torn("a.rs", &format!("{inside}\nmod a;\nmod b {{\n    // {asked}\n}}")).len(), 0);
}

#[test]
fn the_build_needs_few_packages() {
    let tree = cargo(&["tree", "-e", "normal", "-p", "lariat", "--prefix", "none"]);
    assert_none(over_budget(&tree, PACKAGES).into_iter().collect());
}

#[test]
fn a_package_too_many_is_seen() {
    let tree = "a v1.0.0\nb v0.2.0 (proc-macro)\na v1.0.0 (*)\n\n";
    assert!(over_budget(tree, 2).is_none());
    assert!(over_budget(tree, 1).is_some());
}

#[test]
fn every_test_file_is_run() {
    let metadata = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let mut complaints = Vec::new();
    for package in ["lariat", "contain"] {
        let manifest = fs::read_to_string(workspace().join(package).join("Cargo.toml")).unwrap();
        for (path, text) in sources(&workspace().join(package).join("tests")) {
            if !path.contains('/') {
                let path = format!("{package}/tests/{path}");
                complaints.extend(forgotten(&path, &text, &manifest, &metadata));
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn a_forgotten_test_file_is_seen() {
    let metadata = r#"{"packages":[{"targets":[{"kind":["test"],"src_path":"/x/p/tests/a.rs"}]}]}"#;
    let manifest = "[[test]]\nname = \"a\"\nharness = false\n\n[[test]]\nname = \"b\"\n";
    assert!(forgotten("p/tests/a.rs", MAIN, manifest, metadata).is_none());
    assert!(forgotten("p/tests/b.rs", "", manifest, metadata).is_some());
    // Compiles, runs, and tries nothing: the standard harness finds no #[test] in it.
    assert!(forgotten("p/tests/a.rs", MAIN, "", metadata).is_some());
}

#[test]
fn design_pages_say_what_is_not_covered_and_how_old_they_are() {
    let mut complaints = Vec::new();
    for entry in fs::read_dir(workspace().join("docs/design")).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ext| ext == "md") {
            let text = fs::read_to_string(&path).unwrap();
            complaints.extend(boastful(&path.display().to_string(), &text));
        }
    }
    assert_none(complaints);
}

#[test]
fn a_boastful_page_is_seen() {
    let head = format!("# A\n\n{REVISION}2026-01-31.*\n\n## Not covered\n\n");
    assert!(boastful("a.md", &format!("{head}- this\n")).is_none());
    assert!(boastful("a.md", &format!("{head}- this\n\n## More\n\nx\n")).is_some());
    assert!(boastful("a.md", &head).is_some(), "an empty section");
    assert!(boastful("a.md", "# A\n\n## Not covered\n\n- this\n").is_some(), "no date");
}

/// Every module that `text` names and that `module` may not know.
fn arrows(module: &str, text: &str) -> Vec<String> {
    let rank = |name: &str| LAYERS.iter().position(|line| line.contains(&name));
    let Some(own) = rank(module) else {
        return vec![format!("module {module} is in no layer; add it to LAYERS")];
    };
    let mut complaints = Vec::new();
    for name in named(&code(text), rank) {
        match rank(&name) {
            Some(_) if name == module => {}
            Some(other) if other < own => {}
            Some(_) => complaints.push(format!("{module} names {name}, which is not below it")),
            None => complaints.push(format!("{module} names {name}, which is in no layer")),
        }
    }
    complaints
}

/// The first words after `crate::`, also inside braces; after `super::` only names of layers, as
/// a module's own children are called that way too.
fn named(code: &str, rank: impl Fn(&str) -> Option<usize>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, start) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        let rest = &code[at + start.len()..];
        let firsts = match rest.strip_prefix('{') {
            Some(list) => members(list),
            None => vec![word(rest)],
        };
        let counts = |name: &&str| !name.is_empty() && (start == "crate::" || rank(name).is_some());
        // Types and macros at the root are re-exports, not modules.
        let module = |name: &&str| name.starts_with(|c: char| c.is_ascii_lowercase());
        let firsts = firsts.into_iter().filter(|name| *name != "super" && *name != "self");
        names.extend(firsts.filter(counts).filter(module).map(str::to_owned));
    }
    names
}

/// The first word of each member of a braced list; `list` begins after the opening brace.
fn members(list: &str) -> Vec<&str> {
    let (mut depth, mut fresh, mut found) = (1, true, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => fresh = true,
            c if fresh && !c.is_whitespace() => {
                found.push(word(&list[at..]));
                fresh = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| c != '_' && !c.is_ascii_alphanumeric());
    &text[..end.unwrap_or(text.len())]
}

/// The text without comments. Good enough for rules: a string with two slashes loses its end.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or("").to_owned() + "\n").collect()
}

fn too_long(path: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    let excepted = MAY_BE_LONG.iter().any(|(long, _)| *long == path);
    (lines > LONGEST && !excepted)
        .then(|| format!("{path} has {lines} lines; split it, or argue in MAY_BE_LONG"))
}

fn allowed(path: &str, text: &str) -> Vec<String> {
    let is_allow = |line: &str| {
        let inside = line.trim_start().strip_prefix('#');
        inside.is_some_and(|l| l.trim_start_matches('!').starts_with("[allow("))
    };
    let lines = text.lines().enumerate().filter(|(_, line)| is_allow(line));
    lines.map(|(n, _)| format!("{path}:{}: use #[expect(…, reason = …)]", n + 1)).collect()
}

fn unsafe_words(path: &str, text: &str) -> Vec<String> {
    let code = code(text);
    let words = |line: &str| {
        line.split(|c: char| c != '_' && !c.is_ascii_alphanumeric())
            .any(|word| word == concat!("un", "safe"))
    };
    let lines = code.lines().enumerate().filter(|(_, line)| words(line));
    lines.map(|(n, _)| format!("{path}:{}: belongs in contain", n + 1)).collect()
}

/// Where part of a function or of a type is there on one platform and not on another.
fn torn(path: &str, text: &str) -> Vec<String> {
    let code = code(text);
    let lines: Vec<&str> = code.lines().collect();
    let is_item = |line: &str| {
        ["pub", "fn", "async", "mod", "use", "impl"].contains(&word(line.trim_start()))
    };
    let is_torn = |at: &usize| {
        let line = lines[*at];
        let is_inside =
            line.starts_with(' ') && line.trim_start().starts_with(concat!("#[", "cfg("));
        let next = lines[at + 1..].iter().find(|line| !line.trim_start().starts_with('#'));
        (is_inside && !next.is_some_and(|next| is_item(next)))
            || line.contains(concat!("cfg", "!("))
    };
    let what = "give each platform a file of its own, and choose at `mod`";
    (0..lines.len()).filter(is_torn).map(|at| format!("{path}:{}: {what}", at + 1)).collect()
}

fn over_budget(tree: &str, budget: usize) -> Option<String> {
    let lines = tree.lines().map(|line| line.trim_end_matches(" (*)").trim());
    let packages: BTreeSet<&str> = lines.filter(|line| !line.is_empty()).collect();
    (packages.len() > budget)
        .then(|| format!("{} packages, budget {budget}: {packages:#?}", packages.len()))
}

fn forgotten(path: &str, text: &str, manifest: &str, metadata: &str) -> Option<String> {
    let metadata: serde_json::Value = serde_json::from_str(metadata).expect("cargo speaks JSON");
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let mut targets =
        packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let is_this = |target: &serde_json::Value| {
        target["kind"][0] == "test"
            && target["src_path"].as_str().is_some_and(|p| p.ends_with(path))
    };
    if !targets.any(is_this) {
        return Some(format!("{path} is no test target; it never runs"));
    }
    let name = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
    let mut stanzas = manifest.split("[[test]]").skip(1);
    let own_main = stanzas.any(|s| {
        let stanza = s.split("\n[").next().unwrap_or("");
        stanza.contains(&format!("name = \"{name}\"")) && stanza.contains("harness = false")
    });
    (text.lines().any(|line| line.starts_with(MAIN)) && !own_main)
        .then(|| format!("{path} has its own main; it needs `harness = false`"))
}

fn boastful(path: &str, text: &str) -> Option<String> {
    let (_, last) = text.rsplit_once("\n## ").unwrap_or_default();
    let (title, body) = last.split_once('\n').unwrap_or_default();
    if title.trim() != "Not covered" || body.trim().is_empty() {
        return Some(format!("{path} does not end with a section \"Not covered\""));
    }
    let dated = text.lines().nth(2).is_some_and(|line| line.starts_with(REVISION));
    (!dated).then(|| format!("{path} does not say below its title: {REVISION}DATE.*"))
}

#[track_caller]
fn assert_none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}

/// Every Rust file of the workspace, by its path from the root.
fn all_sources() -> Vec<(String, String)> {
    let rooms = ["contain", "lariat", "trials"];
    let of_room = |room: &str| {
        let files = sources(&workspace().join(room)).into_iter();
        files.map(|(path, text)| (format!("{room}/{path}"), text)).collect::<Vec<_>>()
    };
    let files: Vec<_> = rooms.into_iter().flat_map(of_room).collect();
    assert!(files.len() > 10, "saw only {} files", files.len());
    files
}

/// Every Rust file below a directory, by its path from there.
fn sources(root: &Path) -> Vec<(String, String)> {
    let (mut found, mut waiting) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten() {
            let path = entry.expect("a readable directory").path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                waiting.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let name = path.strip_prefix(root).expect("below it").display().to_string();
                found.push((name, fs::read_to_string(&path).expect("readable text")));
            }
        }
    }
    found.sort();
    found
}

fn cargo(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    let output =
        command.args(args).arg("--offline").current_dir(workspace()).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}
