//! Examples in every format, and texts by chance: there and back is the same, twice is once.

use super::*;

mod chance;

const LARIAT: &str = "/usr/local/bin/lariat";

fn reading(format: Format) -> Reading {
    let (maps, command): (&'static [&'static [&'static str]], _) = match format {
        Format::Json => (
            &[&["mcpServers"], &["mcp"], &["mcp", "servers"], &["projects", "*", "mcpServers"]],
            "command",
        ),
        Format::Toml => (&[&["mcp_servers"]], "command"),
        Format::Yaml => (&[&["extensions"], &["mcpServers"]], "cmd"),
    };
    Reading { format, maps, command }
}

fn installed(idle: Option<&str>) -> Want {
    Want::Installed(Wish {
        lariat: LARIAT.into(),
        idle: idle.map(str::to_owned),
        ..Wish::default()
    })
}

#[track_caller]
fn install(format: Format, text: &str) -> String {
    plan(reading(format), text, &installed(None)).expect("it can be read").text
}

#[track_caller]
fn uninstall(format: Format, text: &str) -> String {
    plan(reading(format), text, &Want::Uninstalled).expect("it can be read").text
}

/// Install gives this, uninstall gives back the same, twice is once.
#[track_caller]
fn becomes(format: Format, text: &str, wrapped: &str) {
    assert_eq!(install(format, text), wrapped);
    assert_eq!(install(format, wrapped), wrapped);
    assert_eq!(uninstall(format, wrapped), text);
    assert_eq!(uninstall(format, text), text);
}

#[track_caller]
fn skipped(format: Format, text: &str, why: &str) {
    let plan = plan(reading(format), text, &installed(None)).expect("it can be read");
    assert_eq!(plan.text, text);
    let reasons: Vec<&str> = plan
        .servers
        .iter()
        .filter_map(|fate| match &fate.outcome {
            Outcome::Skipped(why) => Some(why.as_str()),
            Outcome::Changed { .. } | Outcome::Same(_) => None,
        })
        .collect();
    assert!(reasons.iter().any(|reason| reason.contains(why)), "{reasons:?}");
}

#[test]
fn json() {
    becomes(
        Format::Json,
        "{\n  // mine\n  \"mcpServers\": {\n    \"a\": {\n      \"command\": \"npx\", // the launcher\n      \"args\": [\n        // quiet\n        \"-y\",\n        \"pkg\", // last\n      ],\n    },\n  },\n}\n",
        "{\n  // mine\n  \"mcpServers\": {\n    \"a\": {\n      \"command\": \"/usr/local/bin/lariat\", // the launcher\n      \"args\": [\n        // quiet\n        \"run\", \"--installed\", \"--name\", \"a\", \"--idle\", \"auto\", \"--\", \"npx\",\n        \"-y\",\n        \"pkg\", // last\n      ],\n    },\n  },\n}\n",
    );
    becomes(
        Format::Json,
        r#"{"mcpServers":{"a":{"args":[ ],"command":"C:\\x\u00e9\\y.exe"},"b":{"command":"b"}}}"#,
        r#"{"mcpServers":{"a":{"args":[ "run", "--installed", "--name", "a", "--idle", "auto", "--", "C:\\x\u00e9\\y.exe"],"command":"/usr/local/bin/lariat"},"b":{"args": ["run", "--installed=bare", "--name", "b", "--idle", "auto", "--", "b"], "command":"/usr/local/bin/lariat"}}}"#,
    );
    becomes(
        Format::Json,
        "\u{feff}{\r\n\tmcpServers: {\r\n\t\ta: {\r\n\t\t\tcommand: 'x',\r\n\t\t},\r\n\t},\r\n}",
        "\u{feff}{\r\n\tmcpServers: {\r\n\t\ta: {\r\n\t\t\targs: [\"run\", \"--installed=bare\", \"--name\", \"a\", \"--idle\", \"auto\", \"--\", 'x'],\r\n\t\t\tcommand: \"/usr/local/bin/lariat\",\r\n\t\t},\r\n\t},\r\n}",
    );
}

#[test]
fn one_list_and_an_old_map() {
    becomes(
        Format::Json,
        r#"{"mcp": {"a": {"type": "local", "command": ["npx", "-y", "x"]}}}"#,
        r#"{"mcp": {"a": {"type": "local", "command": ["/usr/local/bin/lariat", "run", "--installed", "--name", "a", "--idle", "auto", "--", "npx", "-y", "x"]}}}"#,
    );
    becomes(
        Format::Json,
        r#"{"mcp": {"servers": {"a": {"type": "local", "command": ["npx"]}}}}"#,
        r#"{"mcp": {"servers": {"a": {"type": "local", "command": ["/usr/local/bin/lariat", "run", "--installed", "--name", "a", "--idle", "auto", "--", "npx"]}}}}"#,
    );
    becomes(
        Format::Json,
        r#"{"mcpServers": {"a": {"command": {"path": "p", "args": ["q"], "env": {}}}}}"#,
        r#"{"mcpServers": {"a": {"command": {"path": "/usr/local/bin/lariat", "args": ["run", "--installed", "--name", "a", "--idle", "auto", "--", "p", "q"], "env": {}}}}}"#,
    );
}

#[test]
fn toml() {
    becomes(
        Format::Toml,
        "# top\n[mcp_servers.a] # one\ncommand = 'npx' # literal\nargs = [ # many\n  \"-y\", # yes\n  'pkg',\n]\nenv = { KEY = \"s3cret\" }\n\n[mcp_servers.\"b c\"]\ncommand = \"b\" # alone\n\n[other]\nx = 1\n",
        "# top\n[mcp_servers.a] # one\ncommand = \"/usr/local/bin/lariat\" # literal\nargs = [ # many\n  \"run\", \"--installed\", \"--name\", \"a\", \"--idle\", \"auto\", \"--\", 'npx',\n  \"-y\", # yes\n  'pkg',\n]\nenv = { KEY = \"s3cret\" }\n\n[mcp_servers.\"b c\"]\nargs = [\"run\", \"--installed=bare\", \"--name\", \"b-c\", \"--idle\", \"auto\", \"--\", \"b\"]\ncommand = \"/usr/local/bin/lariat\" # alone\n\n[other]\nx = 1\n",
    );
    becomes(
        Format::Toml,
        "mcp_servers.a.command = \"a\"\r\nmcp_servers.a.enabled = false\r\nmcp_servers.b = { command = \"\"\"b\"\"\", args = [] }\r\nmcp_servers.c = { command = 'c' }",
        "mcp_servers.a.args = [\"run\", \"--installed=bare\", \"--name\", \"a\", \"--idle\", \"auto\", \"--\", \"a\"]\r\nmcp_servers.a.command = \"/usr/local/bin/lariat\"\r\nmcp_servers.a.enabled = false\r\nmcp_servers.b = { command = \"/usr/local/bin/lariat\", args = [\"run\", \"--installed\", \"--name\", \"b\", \"--idle\", \"auto\", \"--\", \"\"\"b\"\"\"] }\r\nmcp_servers.c = { args = [\"run\", \"--installed=bare\", \"--name\", \"c\", \"--idle\", \"auto\", \"--\", 'c'], command = \"/usr/local/bin/lariat\" }",
    );
    becomes(
        Format::Toml,
        "[[mcp_servers]]\nname = \"v\"\ncommand = \"v\"\nargs = [\"1\"]\n",
        "[[mcp_servers]]\nname = \"v\"\ncommand = \"/usr/local/bin/lariat\"\nargs = [\"run\", \"--installed\", \"--name\", \"v\", \"--idle\", \"auto\", \"--\", \"v\", \"1\"]\n",
    );
}

#[test]
fn yaml() {
    becomes(
        Format::Yaml,
        "extensions:\n  a:\n    cmd: npx # launcher\n    args:\n    - -y   # yes\n    - 'pkg'\n    envs: {}\n  b:\n    args: []\n    cmd: \"b\"\n  c: {cmd: c, args: [x, 'y z']}\n  d:\n    cmd: d\n",
        "extensions:\n  a:\n    cmd: \"/usr/local/bin/lariat\" # launcher\n    args:\n    - \"run\"\n    - \"--installed\"\n    - \"--name\"\n    - \"a\"\n    - \"--idle\"\n    - \"auto\"\n    - \"--\"\n    - npx\n    - -y   # yes\n    - 'pkg'\n    envs: {}\n  b:\n    args: [\"run\", \"--installed\", \"--name\", \"b\", \"--idle\", \"auto\", \"--\", \"b\"]\n    cmd: \"/usr/local/bin/lariat\"\n  c: {cmd: \"/usr/local/bin/lariat\", args: [\"run\", \"--installed\", \"--name\", \"c\", \"--idle\", \"auto\", \"--\", c, x, 'y z']}\n  d:\n    args: [\"run\", \"--installed=bare\", \"--name\", \"d\", \"--idle\", \"auto\", \"--\", d]\n    cmd: \"/usr/local/bin/lariat\"\n",
    );
    becomes(
        Format::Yaml,
        "mcpServers:\r\n  - cmd: one\r\n    name: first\r\n  - name: second\r\n    cmd: *no\r\n"
            .replace("*no", "two")
            .as_str(),
        "mcpServers:\r\n  - args: [\"run\", \"--installed=bare\", \"--name\", \"first\", \"--idle\", \"auto\", \"--\", one]\r\n    cmd: \"/usr/local/bin/lariat\"\r\n    name: first\r\n  - name: second\r\n    args: [\"run\", \"--installed=bare\", \"--name\", \"second\", \"--idle\", \"auto\", \"--\", two]\r\n    cmd: \"/usr/local/bin/lariat\"\r\n",
    );
    // An alias is moved as an alias.
    becomes(
        Format::Yaml,
        "x: &npx npx\nextensions:\n  a:\n    cmd: *npx\n    args:\n      - *npx\n",
        "x: &npx npx\nextensions:\n  a:\n    cmd: \"/usr/local/bin/lariat\"\n    args:\n      - \"run\"\n      - \"--installed\"\n      - \"--name\"\n      - \"a\"\n      - \"--idle\"\n      - \"auto\"\n      - \"--\"\n      - *npx\n      - *npx\n",
    );
}

#[test]
fn what_depends_on_a_neighbour_is_left_alone() {
    let merged = "extensions:\n  a: &a\n    cmd: npx\n    args: [x]\n  b:\n    <<: *a\n    args: [y]\n  c:\n    cmd: c\n    args: [z]\n";
    skipped(Format::Yaml, merged.split("  c:").next().unwrap(), "neighbours");
    let plan = plan(reading(Format::Yaml), merged, &installed(None)).unwrap();
    assert_eq!(plan.changes(), 1, "the others are wrapped");
    assert!(plan.text.contains("cmd: npx"));
    assert_eq!(uninstall(Format::Yaml, &plan.text), merged);
    skipped(Format::Yaml, "extensions:\n  a: &a {cmd: npx, args: []}\n  b: *a\n", "alias");
    skipped(Format::Yaml, "x: &x [-y]\nextensions:\n  a: {cmd: npx, args: *x}\n", "alias");
    skipped(Format::Yaml, "extensions:\n  a: {cmd: &c npx, args: []}\n", "anchor");
    skipped(Format::Yaml, "extensions:\n  a:\n    cmd: >-\n      npx\n    args: []\n", "block");
    skipped(Format::Yaml, "extensions:\n  a:\n    cmd: /opt/a,b\n    args: []\n", "unusual");
}

#[test]
fn what_is_not_ours_is_skipped_with_a_reason() {
    for (entry, why) in [
        (r#"{"url": "https://x"}"#, "remote"),
        (r#"{"serverUrl": "https://x"}"#, "remote"),
        (r#"{"httpUrl": "https://x", "command": "x"}"#, "remote"),
        (r#"{"type": "sse", "command": "x"}"#, "remote"),
        (r#"{"type": "streamable-http"}"#, "remote"),
        (r#"{"type": "builtin", "command": "x"}"#, "part of the host"),
        (r#"{"type": "stdio", "bundled": true, "command": "x"}"#, "part of the host"),
        (r#"{"environment_id": "box-1", "command": "x"}"#, "elsewhere"),
        (r#"{"settings": {}}"#, "no command"),
        (r#"{"command": ""}"#, "no command"),
        (r#"{"command": []}"#, "no command"),
        (r#"{"command": 7}"#, "not a text"),
        (r#"{"command": "x", "args": "-y"}"#, "not a list"),
        (r#"{"command": "x", "args": null}"#, "not a list"),
        (r#"{"command": "x", "args": [["y"]]}"#, "list of words"),
        (r#"{"command": "x", "command": "y"}"#, "twice"),
        (r#"{"command": "npx -y pkg"}"#, "shell"),
        (r#"{"command": "lariat", "args": ["run", "--", "x"]}"#, "by hand"),
        (r#"{"command": "npx", "args": ["-y", "lariat@1", "run", "--", "x"]}"#, "by hand"),
        (r#"["x"]"#, "map"),
    ] {
        skipped(Format::Json, &format!("{{\"mcpServers\": {{\"a\": {entry}}}}}"), why);
    }
}

#[test]
fn disabled_ones_are_wrapped_too() {
    let text = "[mcp_servers.a]\ncommand = \"a\"\nargs = []\nenabled = false\n";
    assert_ne!(install(Format::Toml, text), text);
}

#[test]
fn idle_and_a_moved_lariat_are_renewed() {
    let text =
        r#"{"mcpServers": {"a": {"command": "npx", "args": ["-y"]}, "b": {"command": ["x"]}}}"#;
    let first = install(Format::Json, text);
    let later = plan(reading(Format::Json), &first, &installed(Some("10m"))).unwrap();
    assert_eq!((later.changes(), later.text.matches("\"10m\"").count()), (2, 2));
    // Unsaid, it stays.
    assert_eq!(install(Format::Json, &later.text), later.text);
    let moved = Want::Installed(Wish { lariat: "/opt/lariat-next".into(), ..Wish::default() });
    let moved = plan(reading(Format::Json), &later.text, &moved).unwrap();
    assert_eq!((moved.changes(), moved.text.matches("/opt/lariat-next").count()), (2, 2));
    assert_eq!(uninstall(Format::Json, &moved.text), text);
}

#[test]
fn an_idle_that_is_missing_is_added_and_two_are_both_changed() {
    let text = "[mcp_servers.a]\ncommand = \"npx\"\nargs = [\"-y\"]\n";
    let without = install(Format::Toml, text).replace("\"--idle\", \"auto\", ", "");
    let later = plan(reading(Format::Toml), &without, &installed(Some("10m"))).unwrap();
    assert!(later.text.contains("\"a\", \"--idle\", \"10m\", \"--\", \"npx\""), "{}", later.text);
    assert_eq!(uninstall(Format::Toml, &later.text), text);
    let twice = install(Format::Toml, text).replace("\"auto\",", "\"auto\", \"--idle=off\",");
    let later = plan(reading(Format::Toml), &twice, &installed(Some("10m"))).unwrap();
    assert!(later.text.contains("\"10m\", \"--idle=10m\""), "{}", later.text);
    // In lines, too.
    let text = "extensions:\n  a:\n    cmd: npx\n    args:\n    - -y\n";
    let without = install(Format::Yaml, text).replace("    - \"--idle\"\n    - \"auto\"\n", "");
    let later = plan(reading(Format::Yaml), &without, &installed(Some("10m"))).unwrap();
    assert_eq!(later.changes(), 1);
    assert!(later.text.contains("    - \"--idle\"\n    - \"10m\"\n    - \"--\"\n"));
    assert_eq!(uninstall(Format::Yaml, &later.text), text);
}

/// `install --share` and `--unshare` of some servers.
fn sharing(share: &[&str], unshare: &[&str]) -> Want {
    let [share, unshare] = [share, unshare].map(|names| names.iter().map(ToString::to_string));
    let (share, unshare) = (share.collect(), unshare.collect());
    Want::Installed(Wish { lariat: LARIAT.into(), share, unshare, ..Wish::default() })
}

#[test]
fn those_that_are_named_are_shared_and_no_others() {
    for (format, text) in [
        (
            Format::Json,
            r#"{"mcpServers": {"a": {"command": "npx", "args": ["-y"]}, "b": {"command": ["x"]}}}"#,
        ),
        (
            Format::Toml,
            "[mcp_servers.a]\ncommand = \"npx\"\nargs = [\n  \"-y\", # yes\n]\n\n[mcp_servers.b]\ncommand = \"x\"\n",
        ),
        (
            Format::Yaml,
            "extensions:\n  a:\n    cmd: npx\n    args:\n    - -y\n  b:\n    cmd: x\n    args: [y]\n",
        ),
    ] {
        let plan = |text: &str, want: Want| plan(reading(format), text, &want).unwrap();
        let first = plan(text, sharing(&["a"], &[]));
        assert_eq!((first.changes(), first.text.matches("--share").count()), (2, 1));
        // Unsaid, it stays; said again, too.
        assert_eq!(install(format, &first.text), first.text);
        assert_eq!(plan(&first.text, sharing(&["a"], &[])).changes(), 0);
        assert_eq!(uninstall(format, &first.text), text);
        let neither = plan(&first.text, sharing(&[], &["a"]));
        assert_eq!((neither.changes(), neither.text.as_str()), (1, install(format, text).as_str()));
        let both = plan(&neither.text, sharing(&["a", "b"], &[]));
        assert_eq!((both.changes(), both.text.matches("\"--share\"").count()), (2, 2));
        assert_eq!(uninstall(format, &both.text), text);
    }
}

#[test]
fn what_does_not_go_together_with_sharing_is_left_alone() {
    let text = "[mcp_servers.a]\ncommand = \"npx\"\nargs = [\"-y\"]\n";
    let bounded =
        install(Format::Toml, text).replace("\"--idle\"", "\"--memory\", \"1g\", \"--idle\"");
    let plan = plan(reading(Format::Toml), &bounded, &sharing(&["a"], &[])).unwrap();
    assert!(
        matches!(&plan.servers[0].outcome, Outcome::Skipped(why) if why.contains("`--memory`"))
    );
    assert_eq!(plan.text, bounded);
}

#[test]
fn a_program_of_another_name_is_not_ours() {
    let flatpak = r#"{"mcpServers": {"a": {"command": "flatpak", "args": ["run", "--installed", "--", "org.x"]}}}"#;
    assert_eq!(uninstall(Format::Json, flatpak), flatpak);
    let wrapped = install(Format::Json, flatpak);
    assert!(
        wrapped.contains(r#""--", "flatpak", "run", "--installed", "--", "org.x""#),
        "{wrapped}"
    );
    becomes(Format::Json, flatpak, &wrapped);
}

#[test]
fn old_and_new_ones_in_one_file() {
    let [a, b] =
        ["[mcp_servers.a]\ncommand = \"a\"\n", "[mcp_servers.b]\ncommand = 'b'\nargs = [ 'x' ]\n"];
    let mixed = install(Format::Toml, a).replace(LARIAT, "/old/lariat") + b;
    let plan = plan(reading(Format::Toml), &mixed, &installed(Some("off"))).unwrap();
    let acts = plan.servers.iter().map(|fate| match &fate.outcome {
        Outcome::Changed { act, .. } => Some(*act),
        Outcome::Same(_) | Outcome::Skipped(_) => None,
    });
    assert_eq!(acts.collect::<Vec<_>>(), [Some(Act::Renew), Some(Act::Wrap)]);
    assert_eq!(plan.text.matches("\"off\"").count(), 2);
    assert_eq!(uninstall(Format::Toml, &plan.text), format!("{a}{b}"));
}

#[test]
fn flags_of_a_person_do_not_keep_it_from_being_undone() {
    let text = "[mcp_servers.a]\ncommand = \"npx\"\nargs = [\"-y\"]\n";
    let edited =
        install(Format::Toml, text).replace("\"auto\",", "\"1h\", \"--memory\", '2g', # mine\n ");
    assert_eq!(install(Format::Toml, &edited), edited);
    assert_eq!(uninstall(Format::Toml, &edited), text);
}

#[test]
fn a_file_that_its_host_wrote_anew_means_the_same_afterwards() {
    // Sorted, indented otherwise, lists in lines, trailing comma.
    let rewritten = "{\"mcpServers\": {\"a\": {\n \"command\": \"/usr/local/bin/lariat\",\n \"args\": [\n\"run\",\n\"--installed=bare\",\n\"--idle\",\n\"auto\",\n\"--\",\n\"npx\",\n]}}}";
    let text = uninstall(Format::Json, rewritten);
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&text).unwrap(),
        serde_json::json!({"mcpServers": {"a": {"command": "npx"}}})
    );
    let rewritten = "extensions:\n  a:\n    args:\n    - run\n    - --installed\n    - --idle\n    - auto\n    - --\n    - npx\n    cmd: /usr/local/bin/lariat\n";
    let tree = tree::parse(Format::Yaml, &uninstall(Format::Yaml, rewritten)).unwrap();
    let entry = tree.get("extensions").and_then(|all| all.get("a")).unwrap();
    assert_eq!(entry.get("cmd").and_then(Node::text), Some("npx"));
    assert_eq!(entry.get("args").and_then(Node::items).map(<[Node]>::len), Some(0));
}

#[test]
fn a_bare_entry_loses_its_arguments_wherever_its_host_put_them() {
    let ours = r#"["run", "--installed=bare", "--", "npx"]"#;
    for (format, rewritten, text) in [
        (
            Format::Json,
            format!("{{\"mcpServers\": {{\"a\": {{\"command\": \"lariat\", \"env\": {{}}, \"args\": {ours}}}}}}}"),
            "{\"mcpServers\": {\"a\": {\"command\": \"npx\", \"env\": {}}}}",
        ),
        (
            Format::Toml,
            format!("[mcp_servers.a]\ncommand = \"lariat\"\nargs = {ours} # x\n\n[b]\n"),
            "[mcp_servers.a]\ncommand = \"npx\" # x\n\n[b]\n",
        ),
        (
            Format::Yaml,
            "extensions:\n  a:\n    cmd: lariat\n    args:\n    - run\n    - --installed=bare\n    - --\n    - npx\n    x: 1\n".into(),
            "extensions:\n  a:\n    cmd: npx\n    x: 1\n",
        ),
    ] {
        assert_eq!(uninstall(format, &rewritten), text);
    }
}

#[test]
fn there_and_back_by_chance() {
    for format in [Format::Json, Format::Toml, Format::Yaml] {
        let mut changed = 0;
        for seed in 1..=200 {
            let text = chance::text(format, seed);
            let plan = plan(reading(format), &text, &installed(None));
            let plan = plan.unwrap_or_else(|broken| panic!("{seed}: {broken}\n{text}"));
            changed += plan.changes();
            assert_eq!(install(format, &plan.text), plan.text, "twice is once, {seed}");
            assert_eq!(
                uninstall(format, &plan.text),
                text,
                "there and back, {seed}\n{}",
                plan.text
            );
            for fate in &plan.servers {
                if let Outcome::Skipped(why) = &fate.outcome {
                    panic!("{seed}: {} was skipped: {why}\n{text}", fate.server);
                }
            }
        }
        assert!(changed > 500, "{format:?}: {changed}");
    }
}

#[test]
fn damaged_texts_are_refused_or_come_back_whole() {
    for format in [Format::Json, Format::Toml, Format::Yaml] {
        let (mut read, mut refused) = (0, 0);
        for seed in 1..=300 {
            let text = chance::damaged(format, seed);
            match plan(reading(format), &text, &installed(None)) {
                Err(_) => refused += 1,
                Ok(plan) => {
                    read += 1;
                    assert_eq!(install(format, &plan.text), plan.text, "twice is once, {seed}");
                    assert_eq!(uninstall(format, &plan.text), text, "there and back, {seed}");
                }
            }
        }
        assert!(read > 20 && refused > 20, "{format:?}: {read} {refused}");
    }
}

#[test]
fn one_that_cannot_does_not_hold_up_five_hundred() {
    let mut text =
        "extensions:\n  bad: &a\n    cmd: npx\n    args: [x]\n  too:\n    <<: *a\n    args: [y]\n"
            .to_owned();
    for n in 0..500 {
        text += &format!("  s{n}:\n    cmd: s{n}\n    args: [z]\n");
    }
    let began = std::time::Instant::now();
    let plan = plan(reading(Format::Yaml), &text, &installed(None)).unwrap();
    assert_eq!(plan.changes(), 500);
    assert_eq!(uninstall(Format::Yaml, &plan.text), text);
    // One by one, the whole file is read again for every server.
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn a_file_that_is_one_server_is_mentioned() {
    skipped(Format::Json, r#"{"command": "npx", "args": ["-y", "x"]}"#, "by itself");
}

#[test]
fn two_hundred_servers_take_no_time() {
    for format in [Format::Json, Format::Toml, Format::Yaml] {
        let text = chance::many(format, 200);
        let plan = plan(reading(format), &text, &installed(None)).unwrap();
        assert_eq!(plan.changes(), 200);
        assert_eq!(uninstall(format, &plan.text), text);
    }
}
