//! A change as a person is shown it before it is made.
//!
//! Arguments can hold keys and passwords, and so can any line of a config. So no line of a file is
//! shown. What is shown of each server is its command before and after, as words, and of these only what
//! cannot be a secret: the program, switches, the package that a launcher is to start, and our own.

use super::entry::{Wrapping, wrapping};
use super::plan::{Fate, Outcome};
use super::survey::{Problem, Work};
use super::table::Scope;
use crate::show::plain;
use std::path::Path;

/// What stands for words that are not shown.
const HIDDEN: &str = "…";

/// Programs that start a package, and words of theirs that come before its name.
const LAUNCHERS: [&str; 8] = ["npx", "uvx", "bunx", "pnpx", "node", "python", "python3", "npm"];
const BEFORE_PACKAGE: [&str; 9] =
    ["-y", "--yes", "-q", "--quiet", "--offline", "-m", "exec", "--silent", "--prefer-offline"];

/// A command without what may be a secret.
pub(crate) fn command(words: &[String]) -> String {
    let inner = match wrapping(words) {
        Wrapping::Installed { inner, .. } => inner,
        Wrapping::Nobody | Wrapping::Hand => 0,
    };
    let mut shown: Vec<String> = words[..inner].to_vec();
    let (program, args) = match words[inner..].split_first() {
        Some((program, args)) => (program.as_str(), args),
        None => ("", &[][..]),
    };
    shown.push(program.into());
    let base = program.rsplit(['/', '\\']).next().unwrap_or(program);
    let mut package_next =
        LAUNCHERS.contains(&base.trim_end_matches(".cmd").trim_end_matches(".exe"));
    for word in args {
        let launcher = package_next && BEFORE_PACKAGE.contains(&word.as_str());
        let package = !launcher && std::mem::take(&mut package_next) && is_package(word);
        let next = if launcher || package { word.clone() } else { switch(word) };
        if next != HIDDEN || shown.last().is_none_or(|last| last != HIDDEN) {
            shown.push(next);
        }
    }
    plain(&shown.join(" "))
}

/// A switch without its value; nothing of any other word.
fn switch(word: &str) -> String {
    let (name, value) =
        word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    let letters = name.trim_start_matches('-');
    let dashes = name.len() - letters.len();
    let is_name = |c: char| c.is_ascii_lowercase() || c == '-';
    // `-p5ecret` is a switch with its value.
    let is_switch = match dashes {
        1 => letters.len() == 1,
        2 => letters.len() < 32 && letters.chars().all(is_name),
        _ => false,
    };
    match (is_switch, value) {
        (false, _) => HIDDEN.into(),
        (true, None) => name.into(),
        (true, Some(_)) => format!("{name}={HIDDEN}"),
    }
}

/// A package or a path: no option, no address with credentials, no assignment.
fn is_package(word: &str) -> bool {
    let fits = |c: char| c.is_alphanumeric() || "@/._-".contains(c);
    !word.starts_with('-') && word.len() < 100 && word.chars().all(fits)
}

/// A path as people write it.
pub(crate) fn path(path: &Path, home: &Path) -> String {
    let shown = match path.strip_prefix(home) {
        Ok(below) if !home.as_os_str().is_empty() => format!("~/{}", below.display()),
        _ => path.display().to_string(),
    };
    plain(&shown)
}

/// The name of a server, with its project where that matters.
pub(crate) fn name(fate: &Fate) -> String {
    match &fate.within {
        Some(project) => plain(&format!("{} (in {project})", fate.server)),
        None => plain(&fate.server),
    }
}

/// The word for whom a file concerns.
pub(crate) fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::User => "user",
        Scope::Project => "project",
        Scope::System => "system",
    }
}

/// Why a file is left alone, after its name.
pub(crate) fn problem(problem: &Problem) -> String {
    match problem {
        Problem::Broken(broken) => plain(&format!(":{broken}")),
        Problem::Unreadable(trouble) => {
            let source = std::error::Error::source(trouble);
            let cause = source.map(|cause| format!(": {cause}")).unwrap_or_default();
            plain(&format!(": {trouble}{cause}"))
        }
    }
}

/// What would change in a file, and what would not and why.
pub(crate) fn diff(work: &Work, home: &Path, colour: bool) -> String {
    let Ok((_, plan)) = &work.plan else { return String::new() };
    let paint = |code: &str, line: String| match colour {
        true => format!("\x1b[{code}m{line}\x1b[0m\n"),
        false => format!("{line}\n"),
    };
    let file = path(&work.found.path, home);
    let mut text = String::new();
    if work.changes() > 0 {
        text += &paint("1", format!("--- {file}"));
        text += &paint("1", format!("+++ {file}  ({})", work.found.host.name));
    }
    for fate in &plan.servers {
        if let Outcome::Changed { before, after, .. } = &fate.outcome {
            text += &paint("36", format!("@@ line {}: {} @@", fate.line, name(fate)));
            text += &paint("31", format!("-{}", command(before)));
            text += &paint("32", format!("+{}", command(after)));
        }
    }
    for fate in &plan.servers {
        if let Outcome::Skipped(why) = &fate.outcome {
            text += &format!("{file}: {} is left alone: {}\n", name(fate), plain(why));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> String {
        command(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn what_may_be_a_secret_is_not_shown() {
        for (line, expected) in [
            (
                "npx -y @scope/pkg@1.2 --token s3cret --key=s3cret /srv",
                "npx -y @scope/pkg@1.2 --token … --key=… …",
            ),
            ("npx --token s3cret pkg", "npx --token …"),
            ("uvx https://user:s3cret@host/x", "uvx …"),
            ("docker run -i --rm -e TOKEN=s3cret img", "docker … -i --rm -e …"),
            ("sh -c s3cret", "sh -c …"),
            ("mysql -ps3cret", "mysql …"),
            ("s --S3CRET --0s3cret", "s …"),
            ("node C:\\s3cret", "node …"),
            ("/opt/server", "/opt/server"),
            (
                "/x/lariat run --installed --idle auto -- npx -y pkg s3cret",
                "/x/lariat run --installed --idle auto -- npx -y pkg …",
            ),
        ] {
            assert_eq!(shown(line), expected);
            assert!(!shown(line).to_lowercase().contains("s3cret"));
        }
    }

    #[test]
    fn nothing_moves_the_cursor() {
        assert_eq!(command(&["a\u{1b}[2J".into()]), "a?[2J");
    }
}
