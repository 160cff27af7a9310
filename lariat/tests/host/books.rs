//! Lariat's books as somebody else reads them: what they say, and that nothing is left open.

use crate::place::Place;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The event log.
pub(crate) fn events(place: &Place) -> Vec<Value> {
    let text = fs::read_to_string(place.path("state/events.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The pages of sessions that are open.
pub(crate) fn pages(place: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.path("state/sessions")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// No open session, no draft of a receipt, no cgroup of any session that was here.
#[track_caller]
pub(crate) fn assert_nothing_left(place: &Place) {
    assert_eq!(pages(place), Vec::<PathBuf>::new());
    let entries = fs::read_dir(place.path("")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let drafts: Vec<String> = names.filter(|name| name.ends_with(".new")).collect();
    assert_eq!(drafts, [""; 0]);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let unified = mounts.lines().filter(|line| line.contains(" - cgroup2 "));
    for mount in unified.map(|line| line.split(' ').nth(4).unwrap()) {
        for event in events(place) {
            let leaf = format!("lariat-{}", event["session"].as_str().unwrap());
            assert!(!is_below(Path::new(mount), &leaf), "{leaf} in {mount}");
        }
    }
}

/// True if a directory of this name is somewhere below.
fn is_below(dir: &Path, name: &str) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.any(|entry| entry.file_name() == name || is_below(&entry.path(), name))
}
