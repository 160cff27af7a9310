//! The same random conversation twice: with a bare server, and with one that is put to sleep
//! between any two messages. The host hears the same.
//!
//! Compared are the bytes of every answer by its id, progress by its token, what the server asked
//! the host, and which other notifications came. Left out is what a server says unasked after each
//! of its handshakes, and one counter that a server keeps in memory.

use crate::host::Host;
use crate::kept::IDLE;
use crate::kit::{Dice, Much, PATIENCE, Place, how_much, trial};
use crate::packages::{Package, Packages};
use crate::talk::{Era, Step, conversation};
use libtest_mimic::Trial;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use trials::until;

const SEED: u64 = 18_881;
/// Conversations in one test of the full run, and in the only one of a shorter run.
const BATCH: u64 = 5;
const FEW: u64 = 2;

/// A server of which there are fewer in the full run is slow to start.
const MANY: u64 = 100;

/// Conversations of each server in the full run; a thousand in all. Python starts slowly.
const ALL: [(Package, Era, u64); 10] = [
    (Package::Everything, Era::Legacy, 200),
    (Package::Filesystem, Era::Legacy, 200),
    (Package::Memory, Era::Legacy, 180),
    (Package::Thinking, Era::Legacy, 180),
    (Package::Time, Era::Legacy, 40),
    (Package::Time, Era::Modern, 40),
    (Package::Git, Era::Legacy, 40),
    (Package::Git, Era::Modern, 40),
    (Package::Fetch, Era::Legacy, 40),
    (Package::Fetch, Era::Modern, 40),
];

pub(crate) fn tests() -> Vec<Trial> {
    let packages = Packages::find();
    let mut tests = vec![
        trial("transcript::a_difference_is_seen", a_difference_is_seen),
        trial("transcript::the_full_run_is_a_thousand", || {
            assert_eq!(ALL.iter().map(|(_, _, number)| number).sum::<u64>(), 1000);
        }),
    ];
    for (package, era, number) in ALL {
        let slow = number < MANY;
        let (number, batch) = match how_much() {
            Much::Full => (number, BATCH),
            // As many as it takes to meet each server, in each era.
            Much::Middle | Much::Quick if slow => (1, 1),
            Much::Middle | Much::Quick => (FEW, FEW),
        };
        let name = format!("{}::{era:?}", package.name()).to_lowercase();
        for from in (0..number).step_by(batch as usize) {
            tests.push(packages.trial(
                format!("transcript::{name}::{from}"),
                package,
                move |packages| {
                    let seeds = from..from + batch;
                    seeds.for_each(|seed| same(packages, package, era, seed, true));
                },
            ));
        }
        // The comparison itself holds for a relay that never sleeps.
        let control = !slow || how_much() == Much::Full;
        tests.extend(control.then(|| {
            packages.trial(format!("transcript::{name}::awake"), package, move |packages| {
                same(packages, package, era, 0, false);
            })
        }));
    }
    tests
}

/// One conversation both ways.
fn same(packages: &Packages, package: Package, era: Era, seed: u64, sleeps: bool) {
    let place = Place::new();
    let page = Page::serve();
    let files = place.path("files");
    let seed = SEED ^ (package as u64) << 32 ^ (era as u64) << 48 ^ seed << 8;
    let steps = conversation(package, era, &mut Dice(seed), &files, &page.url);
    let server = packages.command(package, &place);
    let vars = [("MEMORY_FILE_PATH", files.join("memory.json"))];
    let vars = vars.each_ref().map(|(name, path)| (*name, path.as_path()));

    furnish(&files);
    let mut bare = Host::start(&place, &server, &vars);
    steps.iter().for_each(|step| play(&mut bare, step));
    let known = known_asleep(&steps);
    let expected = Told::of(&bare.heard, package, &known);
    bare.leave();

    furnish(&files);
    let options: &[&str] = if sleeps { &["--idle", IDLE] } else { &["--relay"] };
    let mut host = Host::start(&place, &place.wrapped(options, &server), &vars);
    let mut dice = Dice(!seed);
    // Some are put to sleep after every message, some now and then.
    let often = [3, 6, 10][dice.below(3)];
    let mut naps = 0;
    for (at, step) in steps.iter().enumerate() {
        let naps_now = sleeps && at > 0 && dice.below(10) < often;
        if naps_now {
            // A wrapper that has not come so far has nobody below it either.
            assert!(until(PATIENCE, || !place.events("started").is_empty()));
            host.await_sleep();
            naps += 1;
        }
        let started = place.events("started").len();
        play(&mut host, step);
        // What was told without an answer may be about to wake it; after an answer all is quiet.
        if naps_now && step.is_ping() && matches!(steps[at - 1], Step::Ask { .. }) {
            assert_eq!(place.events("started").len(), started, "a ping started something");
            assert_eq!(host.tree(), [], "a ping started something");
        }
    }
    let told = Told::of(&host.heard, package, &known);
    host.leave();
    assert!(told == expected, "seed {seed}, {naps} naps:\n{}", expected.unlike(&told));
    place.assert_gone(crate::kit::PATIENCE);
    place.assert_accounted();
    let idle = place.reasons().iter().filter(|reason| *reason == "idle").count();
    assert!(naps == 0 || idle > 0, "seen asleep, and no receipt says so: {:?}", place.reasons());
}

/// Says what a step says and hears what it asks for.
fn play(host: &mut Host, step: &Step) {
    match step {
        Step::Tell(line) => host.say(line),
        Step::Ask { lines, ids } => {
            lines.iter().for_each(|line| host.say(line));
            // Servers may answer in any order.
            let mut open: Vec<&Value> = ids.iter().collect();
            while !open.is_empty() {
                let message = host.attend(PATIENCE);
                let message =
                    message.unwrap_or_else(|| panic!("no answer to {open:?}: {:#?}", host.heard));
                open.retain(|id| message.get("method").is_some() || message["id"] != **id);
            }
        }
    }
}

/// What a host was told, as far as it does not depend on time or on how often a server was started.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    /// The bytes, by id.
    answers: BTreeMap<String, Vec<String>>,
    /// The bytes, by token.
    progress: BTreeMap<String, Vec<String>>,
    /// What the server wanted of the host, without the numbers that it gives its questions.
    asked: Vec<String>,
    /// Everything else, once.
    others: BTreeSet<String>,
}

impl Told {
    fn of(heard: &[String], package: Package, known: &BTreeSet<String>) -> Told {
        let mut told = Told::default();
        for line in heard {
            let mut message: Value = serde_json::from_str(line).expect(line);
            let method = message["method"].as_str().unwrap_or_default().to_owned();
            let is_question = message.get("id").is_some();
            let line = without_memory(line, package);
            match method.as_str() {
                "" => {
                    let id = message["id"].to_string();
                    let line = if known.contains(&id) { without_envelope(&line) } else { line };
                    told.answers.entry(id).or_default().push(line);
                }
                "notifications/progress" => {
                    let token = message["params"]["progressToken"].to_string();
                    told.progress.entry(token).or_default().push(line);
                }
                // Said unasked after each handshake, sooner or later.
                "roots/list"
                | "notifications/message"
                | "notifications/tools/list_changed"
                | "notifications/prompts/list_changed"
                | "notifications/resources/list_changed" => {}
                _ if is_question => {
                    message.as_object_mut().expect("an object").remove("id");
                    told.asked.push(message.to_string());
                }
                _ => drop(told.others.insert(line)),
            }
        }
        told
    }

    /// Where the other differs, for people.
    fn unlike(&self, other: &Told) -> String {
        let lines = |told: &Told| {
            let all = told.answers.values().chain(told.progress.values()).flatten();
            all.chain(&told.asked).chain(&told.others).cloned().collect::<Vec<String>>()
        };
        let (mine, theirs) = (lines(self), lines(other));
        let only = |one: &[String], other: &[String]| {
            let only = one.iter().filter(|line| !other.contains(line));
            only.map(|line| line.chars().take(600).collect::<String>())
                .collect::<Vec<_>>()
                .join("\n  ")
        };
        format!("  bare:\n  {}\n  slept:\n  {}", only(&mine, &theirs), only(&theirs, &mine))
    }
}

/// The ids of what may be answered for a server that is asleep: its result is known, the order in
/// which the server would have put the words around it is not.
fn known_asleep(steps: &[Step]) -> BTreeSet<String> {
    let lines = steps.iter().flat_map(|step| match step {
        Step::Ask { lines, .. } => lines.as_slice(),
        Step::Tell(_) => &[],
    });
    let messages = lines.map(|line| serde_json::from_str::<Value>(line).expect(line));
    let known = messages.filter(|message| {
        let method = message["method"].as_str().unwrap_or_default();
        method == "ping" || method == "server/discover" || method.ends_with("/list")
    });
    known.map(|message| message["id"].to_string()).collect()
}

/// An answer as its result or error, each byte of it.
fn without_envelope(line: &str) -> String {
    let parts: BTreeMap<String, &RawValue> = serde_json::from_str(line).expect(line);
    let parts: Vec<String> = parts.iter().map(|(name, part)| format!("{name}: {part}")).collect();
    parts.join(", ")
}

/// The line without what this server counts in its memory.
fn without_memory(line: &str, package: Package) -> String {
    let counter = "thoughtHistoryLength";
    match line.split_once(counter) {
        Some((before, after)) if package == Package::Thinking => {
            // In the text, where the quotes are escaped, and in the structured content. Where no
            // number follows, the line is about the counter: a schema.
            let value = after.trim_start_matches(|c: char| "\\\": ".contains(c));
            let rest = value.trim_start_matches(|c: char| c.is_ascii_digit());
            let rest = if rest.len() < value.len() { rest } else { after };
            format!("{before}{counter}{}", without_memory(rest, package))
        }
        _ => line.to_owned(),
    }
}

/// The files that servers work on, as they are in the beginning.
fn furnish(files: &Path) {
    if files.exists() {
        fs::remove_dir_all(files).unwrap();
    }
    let repo = files.join("repo");
    fs::create_dir_all(&repo).unwrap();
    fs::write(files.join("page"), "an ox\n").unwrap();
    fs::write(repo.join("page"), "an ox\n").unwrap();
    let then = "2026-01-01T00:00:00Z";
    for words in [
        &["init", "-q", "-b", "main"][..],
        &["add", "page"],
        &["-c", "user.name=Ox", "-c", "user.email=ox@example.org", "commit", "-q", "-m", "An ox"],
    ] {
        let mut git = Command::new("git");
        git.args(words).current_dir(&repo).env("GIT_AUTHOR_DATE", then);
        let output = git.env("GIT_COMMITTER_DATE", then).output().unwrap();
        assert!(output.status.success(), "git {words:?}: {output:?}");
    }
    fs::write(repo.join("page"), "two oxen\n").unwrap();
}

/// A page on this machine that is always the same. It goes with its value.
struct Page {
    url: String,
    over: Arc<AtomicBool>,
    address: SocketAddr,
    server: Option<JoinHandle<()>>,
}

impl Page {
    fn serve() -> Page {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let server = thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let mut head = [0; 4096];
                // One read has the head of a small request; who sends less is answered all the same.
                let _head = stream.read(&mut head);
                let body = "<html><title>An ox</title><body><h1>An ox</h1><p>It is slow.</p></body></html>";
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\
                     Connection: close\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).ok();
            }
        });
        Page { url: format!("http://{address}"), over, address, server: Some(server) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // So that it looks.
        drop(TcpStream::connect(self.address));
        let _over = self.server.take().map(JoinHandle::join);
    }
}

/// A comparison that cannot fail is none.
fn a_difference_is_seen() {
    let heard: Vec<String> = [
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":"1","result":{}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":2}}"#,
        r#"{"jsonrpc":"2.0","id":0,"method":"sampling/createMessage","params":{}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{}}"#,
    ]
    .map(String::from)
    .to_vec();
    let known = BTreeSet::from([r#""1""#.to_owned()]);
    let told = |heard: &[String]| Told::of(heard, Package::Everything, &known);
    let whole = told(&heard);
    for lost in 0..heard.len() {
        let mut fewer = heard.clone();
        fewer.remove(lost);
        assert_ne!(told(&fewer), whole, "without line {lost}");
    }
    let twice = [&heard[..], &heard[..1]].concat();
    assert_ne!(told(&twice), whole, "an answer twice");
    let mut spaced = heard.clone();
    spaced[0] = spaced[0].replace(':', ": ");
    assert_ne!(told(&spaced), whole, "other bytes");
    let mut swapped = heard.clone();
    swapped.swap(2, 3);
    assert_ne!(told(&swapped), whole, "progress in another order");
    spaced.clone_from(&heard);
    spaced[1] = spaced[1].replace("{}", "{ }");
    assert_ne!(told(&spaced), whole, "other bytes in a result that is known");
    spaced[1] = r#"{"result":{},"id":"1","jsonrpc":"2.0"}"#.into();
    assert_eq!(told(&spaced), whole, "the words around it");
    // What may differ: the number that a server gives its question, and a counter in its memory.
    let mut renumbered = heard.clone();
    renumbered[4] = renumbered[4].replace(r#""id":0"#, r#""id":7"#);
    assert_eq!(told(&renumbered), whole);
    let [one, other] = ["3", "14"].map(|n| {
        let line =
            format!(r#"{{"text":"\"thoughtHistoryLength\": {n}\n","thoughtHistoryLength":{n}}}"#);
        without_memory(&line, Package::Thinking)
    });
    assert_eq!(one, other);
    assert!(one.contains(r"\n"), "{one}");
}
