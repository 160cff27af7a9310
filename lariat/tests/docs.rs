//! The pages: no link in them leads nowhere, and each page of the book is in its table of contents.
//!
//! Links to other sites are not followed: a test needs no network. Links to files of our own
//! repository on its site are, in this directory.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Where a page of the book finds files that are not in the book.
const SITE: &str = "https://github.com/lariat-dev/lariat/blob/main/";

#[test]
fn no_link_leads_nowhere() {
    let root = workspace();
    let pages = pages(&root);
    assert!(pages.len() > 10, "saw only {pages:?}");
    let complaints: Vec<String> = pages
        .iter()
        .flat_map(|page| dead(page, &fs::read_to_string(root.join(page)).unwrap(), &root))
        .collect();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn every_page_is_in_the_book_once() {
    let root = workspace();
    let summary = fs::read_to_string(root.join("docs/SUMMARY.md")).unwrap();
    let complaints = unlisted(&summary, &pages(&root));
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn every_host_is_in_the_list_of_hosts() {
    let root = workspace();
    let list = fs::read_to_string(root.join("docs/guide/hosts/index.md")).unwrap();
    let listed: BTreeSet<String> = links(&list).into_iter().map(|link| link.target).collect();
    let in_room = |page: &PathBuf| page.parent() == Some(Path::new("docs/guide/hosts"));
    let hosts: Vec<PathBuf> = pages(&root).into_iter().filter(in_room).collect();
    assert!(hosts.len() > 15, "{hosts:?}");
    for host in hosts.iter().filter_map(|page| page.file_name()?.to_str()) {
        assert!(host == "index.md" || listed.contains(host), "{host} is not in index.md");
    }
}

/// What somebody types who is here for the first time.
const FIRST: [&str; 5] = ["demo", "install", "ps", "doctor", "uninstall"];

#[test]
fn the_first_steps_are_in_one_order_everywhere() {
    for page in ["README.md", "docs/guide/start.md", "packaging/npm/README.md"] {
        let text = fs::read_to_string(workspace().join(page)).unwrap();
        assert_eq!(steps(&text), FIRST, "{page}");
    }
    assert_eq!(
        steps("$ lariat doctor\n$ lariat install  # and ps\nlariat demo\n"),
        ["doctor", "install"]
    );
}

#[test]
fn nothing_is_had_from_a_registry_that_has_it_not() {
    for page in ["README.md", "docs/guide/start.md", "packaging/npm/README.md"] {
        let text = fs::read_to_string(workspace().join(page)).unwrap();
        assert_eq!(from_registry(&text), [""; 0], "{page}");
    }
    let published = "$ npm install -g lariat  # x\n$ cargo install lariat\n$ npx lariat demo\n";
    assert_eq!(from_registry(published).len(), 3);
}

/// The first steps in the order in which a page has them typed.
fn steps(text: &str) -> Vec<&str> {
    let mut steps = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let command = line.split('#').next().unwrap_or_default();
        let verb =
            command.strip_prefix("lariat ").or(command.strip_prefix("cargo run --release -- "));
        let verb = verb.and_then(|words| words.split_whitespace().next()).unwrap_or_default();
        if FIRST.contains(&verb) && !steps.contains(&verb) {
            steps.push(verb);
        }
    }
    steps
}

/// Lines that would have somebody fetch a package of our name, whoever's that is.
fn from_registry(text: &str) -> Vec<&str> {
    let typed = text.lines().filter_map(|line| line.strip_prefix("$ "));
    let by_name = |line: &&str| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let fetches =
            words.next().is_some_and(|program| ["npm", "npx", "cargo"].contains(&program));
        fetches && words.any(|word| word == "lariat") && !line.contains("--path lariat")
    };
    typed.filter(by_name).collect()
}

#[test]
fn a_dead_link_is_seen() {
    let root = workspace();
    let page = Path::new("docs/index.md");
    let complaints = |text: &str| dead(page, text, &root).len();
    assert_eq!(
        complaints("[a](guide/start.md), [b](guide/start.md#4-look) and [c](#here)\n# Here"),
        0
    );
    assert_eq!(complaints("[a](https://example.org/x) <b@example.org> `[c](d)`"), 0);
    assert_eq!(complaints("```\n[a](no.md)\n```\n"), 0);
    assert_eq!(complaints(&format!("[a]({SITE}README.md)")), 0);
    assert_eq!(complaints("[a](no.md)"), 1);
    assert_eq!(complaints("[a](guide/start.md#no)"), 1);
    assert_eq!(complaints("[a](#no)"), 1);
    assert_eq!(complaints("![a](no.png)"), 1);
    assert_eq!(complaints("[a\nb](no.md)"), 1);
    assert_eq!(complaints("[a]: no.md"), 1);
    assert_eq!(complaints(&format!("[a]({SITE}no.md)")), 1);
    // It is there, and not in the book.
    assert_eq!(complaints("[a](../README.md)"), 1);
    assert_eq!(dead(Path::new("README.md"), "[a](docs/index.md)", &root).len(), 0);
}

#[test]
fn a_forgotten_page_is_seen() {
    let pages = ["docs/SUMMARY.md", "docs/a.md", "docs/b/c.md", "README.md"].map(PathBuf::from);
    assert_eq!(unlisted("- [A](a.md)\n  - [C](b/c.md)\n", &pages).len(), 0);
    assert_eq!(unlisted("- [A](a.md)\n", &pages).len(), 1);
    assert_eq!(unlisted("- [A](a.md)\n- [C](b/c.md)\n- [A](a.md)\n", &pages).len(), 1);
}

/// A link, and the line it is in.
struct Link {
    line: usize,
    target: String,
}

/// Every link and image of a page. Code is passed over.
fn links(text: &str) -> Vec<Link> {
    let text = prose(text);
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    let inline = text.match_indices("](").filter_map(|(at, start)| {
        let rest = &text[at + start.len()..];
        let target = rest[..rest.find(')')?].split_whitespace().next()?;
        Some(Link { line: line(at), target: target.to_owned() })
    });
    let by_name = text.lines().enumerate().filter_map(|(n, line)| {
        let (name, target) = line.strip_prefix('[')?.split_once("]: ")?;
        (!name.contains(']')).then(|| Link { line: n + 1, target: target.trim().to_owned() })
    });
    inline.chain(by_name).collect()
}

/// The text without code, with as many lines.
fn prose(text: &str) -> String {
    let (mut fenced, mut prose) = (false, String::new());
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        if !fenced && !fence {
            // Every second piece between back-ticks is code.
            prose.extend(line.split('`').step_by(2));
        }
        fenced ^= fence;
        prose.push('\n');
    }
    prose
}

/// What is wrong with the links of a page; paths are from the root.
fn dead(page: &Path, text: &str, root: &Path) -> Vec<String> {
    let wrong = |link: &Link| {
        let target = &link.target;
        let (path, heading) = target.split_once('#').unwrap_or((target, ""));
        let path = match path.strip_prefix(SITE) {
            Some(path) => PathBuf::from(path),
            None if path.contains("://") || path.starts_with("mailto:") => return None,
            None if path.is_empty() => page.to_owned(),
            None => plain(&page.parent().unwrap().join(path)),
        };
        if !root.join(&path).exists() {
            return Some(format!("there is no {}", path.display()));
        }
        if page.starts_with("docs") && !path.starts_with("docs") && !target.starts_with(SITE) {
            return Some(format!("{target} is not in the book; write {SITE}{}", path.display()));
        }
        let own = path == page;
        let there = || fs::read_to_string(root.join(&path)).unwrap_or_default();
        let known = heading.is_empty()
            || headings(&if own { text.to_owned() } else { there() }).contains(heading);
        (!known).then(|| format!("{} has no heading #{heading}", path.display()))
    };
    let links = links(text);
    let complaint = |link: &Link| {
        wrong(link).map(|why| format!("{}:{}: {}: {why}", page.display(), link.line, link.target))
    };
    links.iter().filter_map(complaint).collect()
}

/// The names by which headings are linked to.
fn headings(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let heading = |line: &&str| {
        fenced ^= line.starts_with("```");
        !fenced && line.starts_with('#')
    };
    let name = |line: &str| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    text.lines().filter(heading).map(name).collect()
}

/// Pages below `docs` that the table of contents has not, or twice.
fn unlisted(summary: &str, pages: &[PathBuf]) -> Vec<String> {
    let listed: Vec<String> = links(summary).into_iter().map(|link| link.target).collect();
    let mut complaints = Vec::new();
    for page in pages.iter().filter_map(|page| page.strip_prefix("docs").ok()) {
        let name = page.to_str().unwrap();
        let times = listed.iter().filter(|target| *target == name).count();
        if name != "SUMMARY.md" && times != 1 {
            complaints.push(format!("docs/{name} is {times} times in docs/SUMMARY.md"));
        }
    }
    complaints
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// Every page of the repository, by its path from the root.
fn pages(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut waiting) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && name != "target" && name != "node_modules" && name != ".git" {
                waiting.push(path);
            } else if name.ends_with(".md") {
                found.push(path.strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}
