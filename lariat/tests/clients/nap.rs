//! Clients whose servers sleep: unchanged SDKs with `lariat run --idle` as their server's command.
//! Before each call the client waits until nothing of its server is alive, and hears what it would
//! hear from a server that never sleeps.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;

use super::record::same;
use super::sdk::{self, Era, Manner, Sdk, Stage, Which, called, packages};
use super::witness::{gone, sweep, token};
use super::{PROMISE, Room, Server, Way, wrapper};

pub(crate) fn trials(home: &Result<PathBuf, String>) -> Vec<Trial> {
    let trial = |(sdk, which, era): (Sdk, Which, Era)| {
        let name = match era {
            Era::Auto => format!("naps::{}", called(sdk, which)),
            Era::Legacy => format!("naps::{}::legacy", called(sdk, which)),
        };
        sdk::trial(name, home, sdk, which, move |stage| stage.same_after_naps(era))
    };
    let with_eras = |(sdk, which)| eras(sdk, which).iter().map(move |era| (sdk, which, *era));
    packages().flat_map(with_eras).map(trial).collect()
}

/// What a client can choose: one server speaks both eras, and one SDK knows the legacy one alone.
fn eras(sdk: Sdk, which: Which) -> &'static [Era] {
    match (sdk, which) {
        (Sdk::Python | Sdk::Typescript2, Which::Package(Server::Time)) => &[Era::Auto, Era::Legacy],
        _ => &[Era::Auto],
    }
}

impl Stage {
    fn same_after_naps(&self, era: Era) -> Result<(), Box<dyn Error>> {
        let token = token();
        let room = Room::new(&token)?;
        let outcome = self.nap(&room.0, &token, era);
        sweep(&token);
        outcome.map_err(|error| format!("{error}\n{}", events(&room.0).join("\n")).into())
    }

    fn nap(&self, room: &Path, token: &str, era: Era) -> Result<(), Box<dyn Error>> {
        let server = self.server();
        let bare = self.heard(room, token, era, &server)?;
        // Bare servers may outlive their clients.
        sweep(token);
        let wrapped = [wrapper(Way::Napping, room), server].concat();
        let heard = self.heard(room, token, Manner { era, naps: true }, &wrapped)?;
        same("a sleeper's answers", &bare, &heard)?;
        let left = gone(token, PROMISE);
        if !left.is_empty() {
            return Err(format!("left after the client: {left:#?}").into());
        }
        self.slept_before_each(&heard, room)?;
        self.spoke_its_era(era, room)
    }

    /// Answers that are the same prove nothing if the server never slept. A list that is asked for
    /// again may be known, and is shown once; every other answer needs a server that was woken.
    fn slept_before_each(&self, heard: &[u8], room: &Path) -> Result<(), Box<dyn Error>> {
        let greeting = match self.sdk {
            Sdk::Python => 0,
            // These show who the server is before they ask anything.
            Sdk::Typescript1 | Sdk::Typescript2 => 1,
        };
        let answers = heard.split_inclusive(|byte| *byte == b'\n').count() - greeting;
        for kind in ["asleep", "woke"] {
            let times = happened(room, kind).len();
            if answers < 2 || times < answers {
                return Err(format!("{answers} answers, and {times} times {kind}").into());
            }
        }
        Ok(())
    }

    /// A client of both eras that fell back to the legacy one would have been tried in that twice.
    fn spoke_its_era(&self, era: Era, room: &Path) -> Result<(), Box<dyn Error>> {
        let has_both = eras(self.sdk, self.which).len() > 1;
        let modern = matches!(era, Era::Auto) && has_both;
        // It may sleep before anybody has said anything.
        let silent = usize::from(modern);
        let slept = happened(room, "asleep");
        match slept.iter().skip(silent).all(|event| event.contains("stateless") == modern) {
            true => Ok(()),
            false => Err(format!("{era:?}: another era than expected (modern: {modern})").into()),
        }
    }
}

/// What the wrapper wrote down.
fn events(room: &Path) -> Vec<String> {
    let text = fs::read_to_string(room.join("state/events.jsonl")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The events of one kind.
fn happened(room: &Path, kind: &str) -> Vec<String> {
    let word = format!(r#"{{"event":"{kind}","#);
    events(room).into_iter().filter(|event| event.starts_with(&word)).collect()
}
