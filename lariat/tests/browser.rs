//! The page as people see it: in a real browser, with fifty servers; and the metrics as Prometheus
//! reads them. What is not installed here is skipped by name.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "page/kit.rs"]
mod kit;
#[path = "host/place.rs"]
mod place;

use kit::{House, Wrapped};
use libtest_mimic::{Arguments, Failed, Trial};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Debian's.
const CHROMIUM: &str = "/usr/bin/chromium";
/// Wherever it is; `./test` may have taken it out of its package.
const PROMTOOL: &str = "promtool";

/// As many as the page is to show.
const SERVERS: usize = 50;

fn main() {
    let arguments = Arguments::from_args();
    let tests = vec![
        trial("chromium::the_page_shows_fifty_servers_and_ends_one", no_browser(), watch),
        trial("promtool::the_metrics_are_as_they_should_be", no_promtool(), metrics),
        trial("promtool::the_rules_make_sense", no_promtool(), rules),
    ];
    libtest_mimic::run(&arguments, tests).exit();
}

#[expect(clippy::print_stderr, reason = "what is skipped is said by name")]
fn trial(name: &str, missing: Option<String>, test: fn()) -> Trial {
    if let Some(reason) = &missing {
        eprintln!("skipped browser::{name}: {reason}");
    }
    let run = move || std::panic::catch_unwind(test).map_err(|_| Failed::without_message());
    Trial::test(name, run).with_ignored_flag(missing.is_some())
}

#[expect(
    clippy::disallowed_methods,
    reason = "how ./test tells where packages are, and a person what to keep"
)]
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

fn no_browser() -> Option<String> {
    let Some(home) = variable("LARIAT_CLIENTS") else {
        return Some("LARIAT_CLIENTS is not set (see ./test)".into());
    };
    let package = home.join("node/node_modules/playwright-core/package.json");
    let missing = [package.as_path(), Path::new(CHROMIUM)].into_iter().find(|path| !path.exists());
    missing.map(|path| format!("no {}", path.display()))
}

fn no_promtool() -> Option<String> {
    let output = Command::new(PROMTOOL).arg("--version").output();
    output.is_err().then(|| format!("no {PROMTOOL}"))
}

/// The script says what it wants to happen elsewhere, and looks whether the page shows it.
fn watch() {
    let house = House::new();
    let mut servers: Vec<Option<Wrapped>> = (0..SERVERS)
        .map(|number| {
            let script = if number % 5 == 0 { "sleep 100 &" } else { "" };
            Some(Wrapped::start(&house.place, &format!("server-{number:02}"), script))
        })
        .collect();
    let home = variable("LARIAT_CLIENTS").unwrap();
    let mut command = Command::new("node");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/script.mjs"));
    command.args([&home.join("node"), Path::new(CHROMIUM)]).arg(&house.address);
    command.args(variable("LARIAT_SCREENSHOTS"));
    // The browser's profile goes with the test.
    command.env("HOME", house.place.path("")).env("TMPDIR", house.place.path(""));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut script = command.spawn().unwrap();
    let mut errors = script.stderr.take().unwrap();
    let mut orders = script.stdin.take().unwrap();
    let mut heard = Vec::new();
    for line in BufReader::new(script.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let answer = match line.split_once(' ').unwrap_or((&line, "")) {
            ("link", _) => house.link(),
            ("end", number) => {
                servers[number.parse::<usize>().unwrap()] = None;
                "ended".into()
            }
            _ => {
                heard.push(line);
                continue;
            }
        };
        writeln!(orders, "{answer}").unwrap();
    }
    let ended = script.wait().unwrap();
    let mut said = String::new();
    errors.read_to_string(&mut said).unwrap();
    assert!(ended.success(), "{heard:#?}\n{said}");
    assert_eq!(heard.last().map(String::as_str), Some("done"), "{heard:#?}");
}

fn metrics() {
    let house = House::new();
    let one = Wrapped::start(&house.place, "ox", "");
    drop(one);
    let answer = house.get("/metrics", &house.bearer()).expect(200);
    assert!(answer.headers["content-type"].starts_with("text/plain; version=0.0.4"));
    let text = answer.text;
    let mut tool = Command::new(PROMTOOL);
    let tool = tool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = tool.stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&said));
    assert_eq!(String::from_utf8_lossy(&said), "");
}

/// Rules and dashboard name only what there is.
fn rules() {
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("contrib");
    for (what, file) in [("rules", "alerts.yml"), ("config", "scrape.yml")] {
        let mut tool = Command::new(PROMTOOL);
        tool.args(["check", what]).args((what == "config").then_some("--syntax-only"));
        let output = tool.arg(contrib.join("prometheus").join(file)).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    }
    let output = Command::new(PROMTOOL)
        .args(["test", "rules"])
        .arg(contrib.join("prometheus/alerts.test.yml"))
        .output();
    let output = output.unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    let house = House::new();
    let served = house.get("/metrics", &house.bearer()).expect(200).text;
    let families: Vec<&str> =
        served.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let mut named = 0;
    for file in ["prometheus/alerts.yml", "grafana/lariat.json"] {
        let text = std::fs::read_to_string(contrib.join(file)).unwrap();
        let words = text.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
        for word in words.filter(|word| word.starts_with("lariat_")) {
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| word.strip_suffix(end))
                .unwrap_or(word);
            assert!(families.contains(&family) || families.contains(&word), "{file}: {word}");
            named += 1;
        }
    }
    assert!(named > 10, "only {named} names seen");
}
