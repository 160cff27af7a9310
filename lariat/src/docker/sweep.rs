//! Removing what a session started in an engine: containers, then networks, then volumes.
//!
//! The one implementation, whoever calls it: an orderly end, a guardian whose wrapper is dead, the
//! next command after a crash. The label is the record, so nothing needs to be remembered; success
//! is a list that came back empty, never the answer to a removal.

use super::client::{Client, Kind, Thing};
use super::endpoint::Endpoint;
use super::tally::{self, Expect};
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How long a container that was asked to stop may take before it is killed.
const GRACE: Duration = Duration::from_millis(500);

/// How long the whole sweep may take.
const LONGEST: Duration = Duration::from_secs(15);

/// How soon to look again when there is nothing to wait for.
const ROUND: Duration = Duration::from_millis(50);

/// How soon to look for new ones while others are leaving.
const LOOK: Duration = Duration::from_millis(250);

/// How long nothing must appear where a create may still be on its way.
const QUIET: Duration = Duration::from_secs(2);

/// What a sweep did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Distinct containers that were there.
    pub seen: u32,
    /// Those of them that are gone.
    pub removed: u32,
    /// What is still there, or may be.
    pub left: Vec<Left>,
}

/// Something that a sweep could not remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// `container`, `network` or `volume`.
    pub kind: &'static str,
    /// The engine's name for it; empty if the engine could not even be asked.
    pub id: String,
    /// A person's name for it.
    pub name: String,
    /// Why it is still there.
    pub why: String,
}

/// Proof that nothing of a session was left in its engine.
#[derive(Debug)]
#[must_use = "the books are struck with it"]
pub struct Removed {
    _observed: (),
}

impl Swept {
    /// Both together.
    pub fn add(&mut self, other: Swept) {
        self.seen += other.seen;
        self.removed += other.removed;
        self.left.extend(other.left);
    }

    /// The proof, if there is nothing left.
    pub fn verdict(&self) -> Option<Removed> {
        self.left.is_empty().then_some(Removed { _observed: () })
    }
}

/// Removes everything that carries the session's label and is not to be kept. Blocks.
///
/// What it sees it notes in the tally: if it is interrupted, whoever goes on knows of them too.
pub fn sweep(endpoint: &Endpoint, session: &str, tally: &Path) -> Swept {
    let expect = tally::expect(tally);
    if expect == Expect::Nothing {
        return Swept::default();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => {
            let seen = tally::seen(tally);
            let sweep = Sweep {
                client: Client::new(endpoint),
                session,
                until: Instant::now() + LONGEST,
                tally,
                listed: seen.len(),
                seen,
                images: HashMap::new(),
            };
            runtime.block_on(sweep.run(expect))
        }
        Err(e) => Swept { left: vec![unknown(endpoint, &e)], ..Swept::default() },
    }
}

/// Nobody knows what is left, because the engine cannot be asked.
fn unknown(endpoint: &Endpoint, error: &io::Error) -> Left {
    Left {
        kind: Kind::Container.word(),
        id: String::new(),
        name: String::new(),
        why: format!("{endpoint} cannot be asked ({error}); the next lariat command tries again"),
    }
}

struct Sweep<'a> {
    client: Client,
    session: &'a str,
    until: Instant,
    tally: &'a Path,
    seen: HashSet<String>,
    /// How many of them were there at the last look; without a look, all.
    listed: usize,
    /// By image, its labels.
    images: HashMap<String, HashMap<String, String>>,
}

impl Sweep<'_> {
    async fn run(mut self, expect: Expect) -> Swept {
        let mut left = Vec::new();
        let mut spared = false;
        match self.containers(expect).await {
            Ok(ended) => (left, spared) = ended,
            Err(e) => left.push(unknown(self.client.endpoint(), &e)),
        }
        if !left.iter().any(|l| l.id.is_empty()) {
            // Neither needs the other.
            let rest =
                tokio::join!(self.rest(Kind::Network, spared), self.rest(Kind::Volume, spared));
            for rest in <[_; 2]>::from(rest) {
                match rest {
                    Ok(more) => left.extend(more),
                    Err(e) => left.push(unknown(self.client.endpoint(), &e)),
                }
            }
        }
        let (seen, listed) = (self.seen.len() as u32, self.listed as u32);
        Swept { seen, removed: seen - listed.min(seen), left }
    }

    /// Ends containers until none is listed. Also says whether some are to be kept.
    async fn containers(&mut self, expect: Expect) -> io::Result<(Vec<Left>, bool)> {
        let mut work: JoinSet<(String, Option<String>)> = JoinSet::new();
        let mut busy: HashSet<String> = HashSet::new();
        let mut refused: Vec<(String, String)> = Vec::new();
        let mut quiet_since = Instant::now();
        loop {
            let listed = self.client.of_session(Kind::Container, self.session).await?;
            let listed = self.born_here(listed).await?;
            let (kept, ours): (Vec<Thing>, Vec<Thing>) =
                listed.into_iter().partition(Thing::is_kept);
            self.listed = ours.len();
            if !ours.is_empty() {
                quiet_since = Instant::now();
            }
            let settled = expect == Expect::Settled || quiet_since.elapsed() >= QUIET;
            if ours.is_empty() && settled {
                return Ok((Vec::new(), !kept.is_empty()));
            }
            if Instant::now() >= self.until {
                let left = ours.iter().map(|thing| {
                    let why = refused.iter().rev().find(|(id, _)| id == thing.key());
                    let why = why.map_or("it did not go in time", |(_, why)| why);
                    self.left(Kind::Container, thing, why)
                });
                return Ok((left.collect(), !kept.is_empty()));
            }
            for thing in ours {
                if self.seen.insert(thing.key().into()) {
                    tally::see(self.tally, thing.key());
                }
                if busy.insert(thing.key().into()) {
                    work.spawn(end(self.client.clone(), thing));
                }
            }
            if work.is_empty() {
                sleep(ROUND).await;
            }
            // Those that are done are tried again if they are still listed. The engine has better
            // things to do than to list them all the time.
            let look = Instant::now() + LOOK;
            while let Ok(Some(done)) = timeout_at(look, work.join_next()).await {
                if let Ok((id, why)) = done {
                    busy.remove(&id);
                    refused.extend(why.map(|why| (id, why)));
                }
            }
        }
    }

    /// Without those that have our labels from their image, and were started by somebody else.
    async fn born_here(&mut self, listed: Vec<Thing>) -> io::Result<Vec<Thing>> {
        let mut ours = Vec::new();
        for thing in listed {
            if !self.images.contains_key(&thing.image) {
                let labels = self.client.image_labels(&thing.image).await?;
                self.images.insert(thing.image.clone(), labels);
            }
            let image = self.images.get(&thing.image);
            if !image.is_some_and(|image| thing.is_inherited(self.session, image)) {
                ours.push(thing);
            }
        }
        Ok(ours)
    }

    /// Removes networks or volumes. What a container just left may be busy for a moment; what a
    /// container uses that is to be kept (`spared`) may stay busy.
    async fn rest(&self, kind: Kind, spared: bool) -> io::Result<Vec<Left>> {
        let patience = self.until.min(Instant::now() + GRACE);
        loop {
            let mut ours = self.client.of_session(kind, self.session).await?;
            ours.retain(|thing| !thing.is_kept());
            let (mut left, mut in_use, mut refused) = (Vec::new(), 0, false);
            let mut work = JoinSet::new();
            for thing in ours.iter().cloned() {
                let client = self.client.clone();
                work.spawn(async move { (client.remove(kind, thing.key()).await, thing) });
            }
            while let Some(Ok((answer, thing))) = work.join_next().await {
                let answer = answer?;
                match answer.status {
                    200..=299 | 404 => left.push(self.left(kind, &thing, "it did not go in time")),
                    403 | 409 if spared => in_use += 1,
                    _ => {
                        refused = true;
                        left.push(self.left(kind, &thing, &answer.message()));
                    }
                }
            }
            if ours.len() == in_use {
                return Ok(Vec::new());
            }
            if Instant::now() >= patience {
                // Removed at the last moment, they are not listed any more.
                let still = self.client.of_session(kind, self.session).await?;
                left.retain(|left| still.iter().any(|thing| thing.key() == left.id));
                return Ok(left);
            }
            // What let itself be removed is not listed any more when we look.
            if refused {
                sleep(ROUND).await;
            }
        }
    }

    fn left(&self, kind: Kind, thing: &Thing, why: &str) -> Left {
        Left {
            kind: kind.word(),
            id: thing.key().into(),
            name: thing.name().into(),
            why: why.into(),
        }
    }
}

/// Ends one container. Gives its id, and why it refused if it did.
async fn end(client: Client, thing: Thing) -> (String, Option<String>) {
    let id = thing.key().to_string();
    if thing.state == "paused" {
        // A paused process cannot heed anything. If this fails the removal will say why.
        let _still_paused = client.unpause(&id).await;
    }
    if matches!(thing.state.as_str(), "running" | "paused" | "restarting") {
        // Whether it heeded is seen by looking.
        if timeout(GRACE, client.stop(&id)).await.is_err() {
            // A removal kills as well.
            let _gone_already = client.kill(&id).await;
        }
    }
    let why = match client.remove(Kind::Container, &id).await {
        // Conflict: somebody, perhaps the engine itself, is removing it already.
        Ok(answer) if matches!(answer.status, 200..=299 | 404 | 409) => None,
        Ok(answer) => Some(answer.message()),
        Err(e) => Some(e.to_string()),
    };
    (id, why)
}
