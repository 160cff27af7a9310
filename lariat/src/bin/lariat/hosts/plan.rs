//! What would become of a file: its new text, checked, and what is said about each server.
//!
//! A new text is believed only after it was read again: every server that was to change has changed
//! as meant, nothing else means anything else, and taking Lariat away again gives the old text to the
//! byte. A server for which that does not hold is left alone; the others are not.

use super::edit::{self, Edit, Page, Wish};
use super::entry::{self, Launch, Server, Step, Wrapping};
use super::tree::{self, Broken, Format, Node, Plain};

/// How a file is to be read.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) format: Format,
    pub(crate) maps: &'static [&'static [&'static str]],
    /// The key of a server's program.
    pub(crate) command: &'static str,
}

/// What is wanted.
pub(crate) enum Want {
    Installed(Wish),
    Uninstalled,
}

/// A file that has not been touched yet, and what it would become.
pub(crate) struct Plan {
    pub(crate) text: String,
    pub(crate) servers: Vec<Fate>,
}

/// What becomes of one server.
pub(crate) struct Fate {
    pub(crate) server: String,
    /// The project it belongs to, where a file has servers of several.
    pub(crate) within: Option<String>,
    pub(crate) line: usize,
    /// How the host starts it, word for word; none if it is no process of this machine. The words can
    /// hold secrets, and are compared only.
    pub(crate) launch: Option<Vec<String>>,
    pub(crate) outcome: Outcome,
}

impl Fate {
    /// True if Lariat is in front of it, whoever put it there.
    pub(crate) fn is_wrapped(&self) -> bool {
        self.launch.as_ref().is_some_and(|words| entry::wrapping(words) != Wrapping::Nobody)
    }
}

/// What becomes of a server, and why.
pub(crate) enum Outcome {
    Changed {
        act: Act,
        before: Vec<String>,
        after: Vec<String>,
    },
    /// It is as it is wanted. True if it is wrapped.
    Same(bool),
    Skipped(String),
}

/// What is done to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Wrap,
    Renew,
    Unwrap,
}

impl Act {
    /// The word for scripts.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Act::Wrap => "wrap",
            Act::Renew => "renew",
            Act::Unwrap => "unwrap",
        }
    }
}

impl Plan {
    /// How many servers would change.
    pub(crate) fn changes(&self) -> usize {
        let changed = |fate: &&Fate| matches!(fate.outcome, Outcome::Changed { .. });
        self.servers.iter().filter(changed).count()
    }
}

/// Said of one that a person wrapped.
pub(crate) const BY_HAND: &str = "it is already wrapped, by hand";

const NOT_AS_MEANT: &str =
    "its neighbours would change with it, or it is written in an unusual way";

/// Plans a change of a whole file.
pub(crate) fn plan(reading: Reading, text: &str, want: &Want) -> Result<Plan, Broken> {
    let tree = tree::parse(reading.format, text)?;
    let page = Page { text, format: reading.format };
    let mut fates = Vec::new();
    let mut edits = Vec::new();
    for server in entry::servers(&tree, reading.maps) {
        let outcome = match decide(page, reading, &server, want, true) {
            Err(why) => Outcome::Skipped(why),
            Ok(Decision::Same(wrapped)) => Outcome::Same(wrapped),
            Ok(Decision::Change(change)) => {
                let outcome = change.outcome();
                edits.push((fates.len(), server.way.clone(), *change));
                outcome
            }
        };
        let (line, _) = tree::place(text, server.node.span.start);
        let within = within(&server.way);
        let launch = Launch::of(&server, reading.command).ok().map(|launch| launch.said());
        fates.push(Fate { server: server.name, within, line, launch, outcome });
    }
    if let (true, Want::Installed(_)) = (fates.is_empty(), want) {
        fates.extend(whole(reading, &tree));
    }
    if edits.is_empty() {
        return Ok(Plan { text: text.to_owned(), servers: fates });
    }
    // All at once, as it nearly always can be.
    let changes: Vec<_> = edits.iter().map(|(_, way, change)| (way.clone(), change)).collect();
    if let Some(new) = checked(reading, text, &changes) {
        return Ok(Plan { text: new, servers: fates });
    }
    // By halves, to find which one cannot.
    let mut now = text.to_owned();
    let all: Vec<_> = edits.into_iter().map(|(index, way, _)| (index, way)).collect();
    let mut waiting: Vec<&[(usize, Vec<Step>)]> = all.chunks(all.len().div_ceil(2)).rev().collect();
    while let Some(some) = waiting.pop() {
        match (some, together(reading, &now, some, want)) {
            (_, Some(next)) => now = next,
            ([(index, way)], None) => match alone(reading, &now, way, want) {
                Some(next) => now = next,
                None => fates[*index].outcome = Outcome::Skipped(NOT_AS_MEANT.into()),
            },
            (_, None) => {
                let (first, second) = some.split_at(some.len() / 2);
                waiting.extend([second, first]);
            }
        }
    }
    Ok(Plan { text: now, servers: fates })
}

/// The change of some servers at once.
fn together(
    reading: Reading,
    text: &str,
    some: &[(usize, Vec<Step>)],
    want: &Want,
) -> Option<String> {
    let tree = tree::parse(reading.format, text).ok()?;
    let page = Page { text, format: reading.format };
    let mut changes = Vec::new();
    for server in entry::servers(&tree, reading.maps) {
        if !some.iter().any(|(_, way)| *way == server.way) {
            continue;
        }
        match decide(page, reading, &server, want, true) {
            Ok(Decision::Change(change)) => changes.push((server.way, change)),
            Ok(Decision::Same(_)) | Err(_) => return None,
        }
    }
    let changes: Vec<_> = changes.iter().map(|(way, change)| (way.clone(), &**change)).collect();
    checked(reading, text, &changes)
}

/// What is said of a file that is one server, and not a map of them. Its name is the file's.
fn whole(reading: Reading, tree: &Node) -> Option<Fate> {
    tree.get(reading.command)?;
    let why = "the file is one server by itself; write it below `mcpServers` to have it wrapped";
    let outcome = Outcome::Skipped(why.into());
    Some(Fate { server: "its server".into(), within: None, line: 1, launch: None, outcome })
}

/// The key of the project that a server of one person in one project belongs to.
fn within(way: &[Step]) -> Option<String> {
    match way {
        [Step::Key(projects), Step::Key(path), _, _] if projects == "projects" => {
            Some(path.clone())
        }
        _ => None,
    }
}

enum Decision {
    Same(bool),
    Change(Box<Change>),
}

struct Change {
    act: Act,
    before: Vec<String>,
    inside: Option<&'static str>,
    edit: Edit,
}

impl Change {
    fn outcome(&self) -> Outcome {
        let after = self.edit.words.clone();
        Outcome::Changed { act: self.act, before: self.before.clone(), after }
    }
}

fn decide(
    page: Page<'_>,
    reading: Reading,
    server: &Server<'_>,
    want: &Want,
    as_written: bool,
) -> Result<Decision, String> {
    let launch = match (Launch::of(server, reading.command), want) {
        (Err(_), Want::Uninstalled) => return Ok(Decision::Same(false)),
        (launch, _) => launch?,
    };
    let before = launch.said();
    let (act, edit) = match (entry::wrapping(&before), want) {
        (Wrapping::Nobody, Want::Uninstalled) => return Ok(Decision::Same(false)),
        (Wrapping::Hand, Want::Uninstalled) => {
            return Err("it was wrapped by hand; `install` did not do that".into());
        }
        (Wrapping::Hand, Want::Installed(_)) => return Err(BY_HAND.into()),
        (Wrapping::Nobody, Want::Installed(wish)) => {
            (Act::Wrap, page.wrap(&launch, &server.name, wish)?)
        }
        (Wrapping::Installed { inner, bare }, Want::Uninstalled) => {
            (Act::Unwrap, page.unwrap(&launch, inner, bare, as_written))
        }
        (Wrapping::Installed { inner, .. }, Want::Installed(wish)) => {
            match page.renew(&launch, inner, &server.name, wish)? {
                None => return Ok(Decision::Same(true)),
                Some(edit) => (Act::Renew, edit),
            }
        }
    };
    Ok(Decision::Change(Box::new(Change { act, before, inside: launch.inside, edit })))
}

/// The new text, if it means what it is to mean, and the old one can be had back.
fn checked(reading: Reading, text: &str, changes: &[(Vec<Step>, &Change)]) -> Option<String> {
    let mut expected = tree::parse(reading.format, text).ok()?.plain();
    let mut cuts = Vec::new();
    for (way, change) in changes {
        let inside = change.inside.map(|key| Step::Key(key.into()));
        let map = descend(&mut expected, way.iter().chain(&inside))?;
        for (key, value) in &change.edit.keys {
            match value {
                Some(value) => map.insert(key.clone(), value.clone()),
                None => map.remove(key),
            };
        }
        cuts.extend(change.edit.cuts.iter().cloned());
    }
    let new = edit::apply(text, cuts);
    let tree = tree::parse(reading.format, &new).ok()?;
    if tree.plain() != expected {
        return None;
    }
    // The way back of those that are new, to what the others alone would have made of the file.
    let others = changes.iter().filter(|(_, change)| change.act != Act::Wrap);
    let back = edit::apply(text, others.flat_map(|(_, change)| change.edit.cuts.clone()).collect());
    let page = Page { text: &new, format: reading.format };
    let is_new = |server: &Server<'_>| {
        changes.iter().any(|(way, change)| change.act == Act::Wrap && *way == server.way)
    };
    let mut cuts = Vec::new();
    for server in entry::servers(&tree, reading.maps).into_iter().filter(is_new) {
        match decide(page, reading, &server, &Want::Uninstalled, true) {
            Ok(Decision::Change(change)) => cuts.extend(change.edit.cuts),
            Ok(Decision::Same(_)) | Err(_) => return None,
        }
    }
    (edit::apply(&new, cuts) == back).then_some(new)
}

fn descend<'p>(
    mut plain: &'p mut Plain,
    way: impl Iterator<Item = &'p Step>,
) -> Option<&'p mut std::collections::BTreeMap<String, Plain>> {
    for step in way {
        plain = match (plain, step) {
            (Plain::Map(map), Step::Key(key)) => map.get_mut(key)?,
            (Plain::List(list), Step::Index(index)) => list.get_mut(*index)?,
            _ => return None,
        };
    }
    match plain {
        Plain::Map(map) => Some(map),
        Plain::Text(_) | Plain::Other(_) | Plain::List(_) => None,
    }
}

/// The same for one server.
fn alone(reading: Reading, text: &str, way: &[Step], want: &Want) -> Option<String> {
    let tree = tree::parse(reading.format, text).ok()?;
    let page = Page { text, format: reading.format };
    let server =
        entry::servers(&tree, reading.maps).into_iter().find(|server| server.way == way)?;
    // As it is written, or else written anew.
    [true, false].into_iter().find_map(|as_written| {
        match decide(page, reading, &server, want, as_written) {
            Ok(Decision::Change(change)) => checked(reading, text, &[(way.to_vec(), &change)]),
            Ok(Decision::Same(_)) | Err(_) => None,
        }
    })
}

#[cfg(test)]
mod tests;
