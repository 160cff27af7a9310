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
    if let Some(ours) = shown.first_mut() {
        *ours = file_name(ours);
    }
    let (program, args) = match words[inner..].split_first() {
        Some((program, args)) => (program.as_str(), args),
        None => ("", &[][..]),
    };
    shown.push(file_name(program));
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

/// A program as it is written, if that can be a file: an assignment and an address may hold a secret.
fn file_name(program: &str) -> String {
    let odd = |c: char| c.is_whitespace() || "=?&;|<>*\"'".contains(c);
    let scoped = program.split('/').all(|part| !part.get(1..).unwrap_or(part).contains('@'));
    let plain = scoped && program.len() < 200 && !program.contains(odd) && !program.contains("://");
    if plain && !is_token(program) { program.into() } else { HIDDEN.into() }
}

/// A package or a path: no option, no address with credentials, no assignment, and no word that could
/// as well be a key.
fn is_package(word: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "@/._-".contains(c);
    if word.starts_with('-') || word.len() >= 100 || !word.chars().all(fits) || is_token(word) {
        return false;
    }
    // `pkg@1.2` is a package; `word@host/path` is an address.
    let scope = usize::from(word.starts_with('@'));
    let (name, version) = match word[scope..].split_once('@') {
        Some((name, version)) => (name, Some(version)),
        None => (&word[scope..], None),
    };
    let is_version = |version: &str| {
        let named = ["latest", "next", "alpha", "beta", "canary", "stable"].contains(&version);
        named || (version.starts_with(|c: char| c.is_ascii_digit()) && !version.contains('/'))
    };
    if version.is_some_and(|version| !is_version(version)) {
        return false;
    }
    let is_script = SCRIPTS.iter().any(|end| name.ends_with(end));
    let lower = !name.contains(|c: char| c.is_ascii_uppercase());
    // A lone word is what passwords look like, too.
    let several = name.contains(['/', '-', '_', '.']);
    let path = ["/", "./", "../"].iter().any(|start| name.starts_with(start));
    (is_script || (several && (lower || path))) && name.split(['/', '-', '_', '.']).all(is_readable)
}

/// Ends of scripts that launchers start.
const SCRIPTS: [&str; 7] = [".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".py"];

/// A part of a name that a person has chosen: letters or a number, not a mix of many.
fn is_readable(part: &str) -> bool {
    let digits = part.chars().filter(char::is_ascii_digit).count();
    part.len() <= 24 && (digits <= 4 && part.len() <= 12 || digits == 0)
}

/// True if it begins as the keys of well-known services do.
fn is_token(word: &str) -> bool {
    const BEGINNINGS: [&str; 16] = [
        "sk-",
        "sk_",
        "pk_",
        "rk_",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "glpat-",
        "xox",
        "hf_",
        "npm_",
        "AKIA",
        "eyJ",
    ];
    BEGINNINGS.iter().any(|beginning| word.starts_with(beginning))
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
                "/x/lariat run --installed --idle auto -- npx -y a-pkg s3cret",
                "/x/lariat run --installed --idle auto -- npx -y a-pkg …",
            ),
            ("TOKEN=S3CRET x", "…"),
            ("https://u:S3CRET@h/bin -y", "… -y"),
            ("u:S3CRET@h/bin", "…"),
            ("sk_live_S3CRET", "…"),
            ("npx sk_live_s3cret", "npx …"),
            ("npx sk-ant-s3cret", "npx …"),
            ("node S3CRET", "node …"),
            ("npx s3cret", "npx …"),
            ("npx s3cret@host", "npx …"),
            ("npx u-s3cret@host/x", "npx …"),
            ("npx a1b2c3d4-s3cret9f8e7d6c5b4a", "npx …"),
            ("uvx eyJhbG.s3cret.x", "uvx …"),
            ("npx -y @a/b-c@latest", "npx -y @a/b-c@latest"),
            ("uvx mcp-server-git", "uvx mcp-server-git"),
            ("python -m mcp_server_git", "python -m mcp_server_git"),
            ("node /home/Me/srv/dist/index.js", "node /home/Me/srv/dist/index.js"),
            ("/n/@a/b/bin", "/n/@a/b/bin"),
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
