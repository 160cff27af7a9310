//! A browser below a server: while it sleeps, no process of the browser's is alive.

use crate::eyes;
use crate::host::Host;
use crate::kit::{PATIENCE, PROMISE, Place};
use crate::packages::{Package, Packages};
use libtest_mimic::Trial;
use serde_json::json;
use trials::{Process, until};

/// Server, browser, its zygotes and helpers.
const CROWD: usize = 5;

pub(crate) fn tests() -> Vec<Trial> {
    vec![Packages::find().trial("playwright::the_browser_sleeps_too", Package::Playwright, play)]
}

fn play(packages: &Packages) {
    let place = Place::new();
    let server = packages.command(Package::Playwright, &place);
    // A browser that is ended leaves its profile behind.
    let vars = [("HOME", place.dir.as_path()), ("TMPDIR", place.dir.as_path())];
    let mut host = Host::start(&place, &place.wrapped(&["--idle", "1s"], &server), &vars);
    host.shake_hands(&json!({}));
    let navigate = json!({"url": "data:text/html,<title>An ox</title><h1>An ox</h1>"});
    let first = host.call(1, "browser_navigate", &navigate);
    assert!(first.contains("An ox"), "{first}");
    let tree: Vec<Process> = host.tree();
    assert!(tree.len() >= CROWD, "only {:#?}", place.crowd());
    host.await_sleep();
    // By identity too: a browser's helpers hide their environment.
    assert!(until(PROMISE, || !tree.iter().any(|one| one.is_alive())));
    let crew = host.crew();
    let strangers = || eyes::carriers(&place.token).into_iter().filter(|one| !crew.contains(one));
    assert_eq!(strangers().count(), 0, "{:#?}", place.crowd());
    place.assert_reasons(&["idle"]);
    let second = host.call(2, "browser_navigate", &navigate);
    assert!(second.contains("An ox"), "{second}");
    let again = host.tree();
    assert!(again.len() >= CROWD, "only {:#?}", place.crowd());
    host.leave();
    assert!(until(PATIENCE, || !again.iter().any(|one| one.is_alive())));
    place.assert_gone(PROMISE);
    place.assert_accounted();
}
