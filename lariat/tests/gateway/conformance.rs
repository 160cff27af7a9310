//! The conformance suites against our fixture: what passes on the fixture by itself passes through the
//! gateway. With a process of one's own that is everything; with a shared one it is what the tables say.

use std::path::PathBuf;

use libtest_mimic::Trial;

use super::house::{Direct, House, NAME, Room};
use super::suite::{Check, Except, Found, Mark, Suite};
use super::{Outcome, is_full, trial};

const EARLY: Suite =
    Suite { name: "early", package: "conformance-1", revision: "2025-11-25", checks: 44 };
const LEGACY: Suite =
    Suite { name: "legacy", package: "conformance-2", revision: "2025-11-25", checks: 84 };
const MODERN: Suite =
    Suite { name: "modern", package: "conformance-2", revision: "2026-07-28", checks: 150 };

/// What a server cannot do by stdio, whoever serves it.
const BY_STDIO: &[Except] = &[Except {
    scenario: "server-sse-polling",
    check: Some("server-sse-disconnect-resume"),
    always: true,
    why: "a stdio server has no stream to close: its answer comes on the first one",
}];

/// What a server that serves several at once cannot do for each. The early suite leaves its sessions
/// open and the later one does not, so that the one has more to pass than the other.
const REDUCED: &[Except] = &[
    reduced("tools-call-sampling", ASKS),
    reduced("tools-call-elicitation", ASKS),
    reduced("elicitation-sep1034-defaults", ASKS),
    reduced("elicitation-sep1330-enums", ASKS),
    reduced("tools-call-with-logging", LOGS),
];
const ASKS: &str = "a shared server was greeted without capabilities: it asks nobody, or is refused if \
                    it cannot be seen whom it asks";
const LOGS: &str =
    "whose call a log message is about is not said in it: with others there, nobody hears it";

const fn reduced(scenario: &'static str, why: &'static str) -> Except {
    Except { scenario, check: None, always: false, why }
}

pub(crate) fn trials(home: &Result<PathBuf, String>) -> Vec<Trial> {
    let mut trials = vec![
        trial("conformance::comparing_can_fail", home, NEEDED, comparing_can_fail),
        trial("conformance::modern_after_a_hazard", home, NEEDED, after_a_hazard),
        Trial::test("conformance::a_worse_finding_is_seen", || {
            a_worse_finding_is_seen();
            Ok(())
        }),
    ];
    for suite in [EARLY, LEGACY, MODERN] {
        for way in ["private", "shared", "reduced"] {
            // Who declares something is alone whether sharing was asked for or not; and what the older
            // suite asks of a shared server, the newer one asks too.
            let is_known = match way {
                "shared" => suite.name != MODERN.name,
                "reduced" => suite.name == EARLY.name,
                _ => false,
            };
            if is_known && !is_full() {
                continue;
            }
            let name = format!("conformance::{way}::{}", suite.name);
            trials.push(trial(name, home, NEEDED, move |home| compare(home, suite, way)));
        }
    }
    trials
}

const NEEDED: &[&str] = &[
    "gateway/node_modules/conformance-1",
    "gateway/node_modules/conformance-2",
    "gateway/node_modules/@modelcontextprotocol/server",
];

/// What need not pass through the gateway, and the config's word for how the server is shared.
fn terms(suite: Suite, way: &str) -> (Vec<Except>, &'static str) {
    // The modern era needs no session: there is nothing that a shared server cannot do.
    let modern = suite.revision == MODERN.revision;
    // The early suite does not look that far.
    let mut except = if suite.name == LEGACY.name { BY_STDIO.to_vec() } else { vec![] };
    match way {
        "reduced" if !modern => except.extend(REDUCED),
        _ => {}
    }
    let share = match way {
        "private" => "false",
        "shared" => "true",
        _ => "\"reduced\"",
    };
    (except, share)
}

/// A server that did in one era what one for several must not do is alone there from then on. That says
/// nothing about the other: requests without a session still meet in one process.
fn after_a_hazard(home: PathBuf) -> Outcome {
    let room = Room::new(home)?;
    let direct = direct(&room, MODERN, &[])?;
    let house = House::with_fixture(&room, "\"reduced\"")?;
    EARLY.run(&room, &house.url(NAME), "before")?;
    let worse = MODERN.run(&room, &house.url(NAME), "through")?.worse_than(&direct, &[]);
    if !worse.is_empty() {
        return Err(worse.join("\n").into());
    }
    house.assert_as_before()?;
    house.end()
}

fn compare(home: PathBuf, suite: Suite, way: &str) -> Outcome {
    let (except, share) = terms(suite, way);
    let room = Room::new(home)?;
    let direct = direct(&room, suite, &[])?;
    if direct.passed() < suite.checks {
        return Err(format!("only {} pass directly: {direct:#?}", direct.passed()).into());
    }
    let house = House::with_fixture(&room, share)?;
    let through = suite.run(&room, &house.url(NAME), "through")?;
    let worse = through.worse_than(&direct, &except);
    if !worse.is_empty() {
        return Err(format!("{}\n{}", worse.join("\n"), house.said()).into());
    }
    house.assert_as_before()?;
    house.end()
}

fn direct(room: &Room, suite: Suite, more: &[&str]) -> Outcome<Found> {
    let server = Direct::new(room, more)?;
    suite.run(room, &server.url, &format!("direct{}", more.concat()))
}

/// The suite finds what is broken, and so do we. What is not broken is found the same every time.
fn comparing_can_fail(home: PathBuf) -> Outcome {
    let room = Room::new(home)?;
    let whole = direct(&room, EARLY, &[])?;
    let again = direct(&room, EARLY, &["same"])?;
    let worse = again.worse_than(&whole, &[]);
    if !worse.is_empty() {
        return Err(format!("two runs differ: {worse:#?}").into());
    }
    let broken = direct(&room, EARLY, &["broken"])?.worse_than(&whole, &[]);
    match &broken[..] {
        [one] if one.starts_with("tools-call-simple-text ") => Ok(()),
        _ => Err(format!("one tool is broken, and this is seen: {broken:#?}").into()),
    }
}

fn a_worse_finding_is_seen() {
    let found = |marks: &[(&str, Mark)]| {
        let check = |id: &str| Check { scenario: "a".into(), id: id.into(), name: String::new() };
        Found(marks.iter().map(|(id, mark)| (check(id), (*mark, String::new()))).collect())
    };
    let direct = found(&[("good", Mark::Success), ("bad", Mark::Failure)]);
    assert_eq!(direct.worse_than(&direct, &[]), [""; 0]);
    let except = [Except { scenario: "a", check: Some("good"), always: true, why: "" }];
    for mark in [Mark::Failure, Mark::Warning, Mark::Skipped] {
        let worse = found(&[("good", mark), ("bad", Mark::Failure)]);
        assert_eq!(worse.worse_than(&direct, &[]).len(), 1);
        assert_eq!(worse.worse_than(&direct, &except), [""; 0]);
    }
    assert_eq!(found(&[]).worse_than(&direct, &[]).len(), 1, "one that was not made");
    let new = found(&[("good", Mark::Success), ("new", Mark::Failure)]);
    assert_eq!(new.worse_than(&direct, &[]).len(), 1);
    assert_eq!(direct.worse_than(&direct, &except).len(), 1, "an exception that is none");
}
