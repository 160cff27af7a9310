//! Whether a command line runs a configured server: as the host would start it, and as it looks
//! after launchers have done their part. Words in, yes or no out.
//!
//! A program's name alone is never enough: arguments have to be the same as well, and an interpreter
//! without any is nobody in particular.

use super::Process;
use crate::hosts::Configured;

/// Programs that say nothing about what they run.
const INTERPRETERS: [&str; 13] = [
    "node", "bun", "deno", "python", "python3", "ruby", "perl", "java", "sh", "bash", "dash",
    "zsh", "env",
];

/// Launchers of packages for node.
const NODE_LAUNCHERS: [&str; 8] = ["npx", "bunx", "pnpx", "npm", "pnpm", "bun", "yarn", "npx.cmd"];

/// Options of `uvx` that take the next word.
const UV_VALUES: [&str; 8] = [
    "--with",
    "--python",
    "-p",
    "--index-url",
    "--extra-index-url",
    "--index",
    "--with-editable",
    "--directory",
];

/// How many words an interpreter may have before its script: `node --no-warnings script`.
const BEFORE_SCRIPT: usize = 3;

/// True if this process runs what is configured.
pub(super) fn runs(configured: &Configured, process: &Process) -> bool {
    is_run(&configured.command, &configured.args, process, 0)
}

fn is_run(command: &str, args: &[String], process: &Process, depth: usize) -> bool {
    let words = &process.argv;
    if words.is_empty() || depth > 2 {
        return false;
    }
    let base = last_part(command);
    if args.is_empty() && is_interpreter(base) {
        return false;
    }
    direct(command, args, words)
        || of_node(base, args, process)
        || of_python(base, args, words)
        || inner(base, args).is_some_and(|(c, a)| is_run(&c, &a, process, depth + 1))
}

/// As configured, perhaps behind the interpreter that its first line names.
fn direct(command: &str, args: &[String], words: &[String]) -> bool {
    (0..=BEFORE_SCRIPT.min(words.len() - 1)).any(|before| {
        let behind = before == 0 || is_interpreter(last_part(&words[0]));
        behind && same_program(command, &words[before]) && same(args, &words[before + 1..])
    })
}

/// `npx -y @scope/package@1 rest`: as npm's own title, and as the script in the package.
fn of_node(base: &str, args: &[String], process: &Process) -> bool {
    if !NODE_LAUNCHERS.contains(&base) {
        return false;
    }
    let verbs = ["exec", "x", "dlx"];
    let args = match args.split_first() {
        Some((verb, rest)) if verbs.contains(&verb.as_str()) => rest,
        _ => args,
    };
    let Some((package, rest)) = package(args, &["-p", "--package"], &["-c", "--call"]) else {
        return false;
    };
    let words = &process.argv;
    if let [title] = &words[..] {
        let mut whole = format!("npm exec {package}");
        rest.iter().for_each(|word| whole += &format!(" {word}"));
        return *title == whole;
    }
    let name = without_version(package);
    let inside = format!("/node_modules/{name}/");
    let script = process.script.as_deref().or(words.get(1).map(String::as_str));
    is_interpreter(last_part(&words[0]))
        && script.is_some_and(|script| script.contains(&inside))
        && words.get(2..).is_some_and(|after| same(rest, after))
}

/// `uvx package rest`: as uv says it, and as the script that python runs.
fn of_python(base: &str, args: &[String], words: &[String]) -> bool {
    let args = match (base, args) {
        ("uvx", args) => args,
        ("uv", [tool, run, rest @ ..]) if tool == "tool" && run == "run" => rest,
        ("pipx", [run, rest @ ..]) if run == "run" => rest,
        _ => return false,
    };
    if let [uv, tool, uvx, rest @ ..] = words
        && (last_part(uv), tool.as_str(), uvx.as_str()) == ("uv", "tool", "uvx")
    {
        return same(args, rest);
    }
    let Some((package, rest)) = package(args, &["--from"], &[]) else { return false };
    let name = without_version(package);
    let [python, script, after @ ..] = words else { return false };
    is_interpreter(last_part(python)) && last_part(script) == name && same(rest, after)
}

/// What a shell or `env` is told to run, if that is a plain command.
fn inner(base: &str, args: &[String]) -> Option<(String, Vec<String>)> {
    let mut words: Vec<String> = match (base, args) {
        ("sh" | "bash" | "dash" | "zsh", [flag, script])
            if matches!(flag.as_str(), "-c" | "-lc" | "-ic" | "-ec") =>
        {
            let plain = |c: char| c.is_alphanumeric() || " @/._-+=:,".contains(c);
            script.chars().all(plain).then(|| script.split(' ').map(String::from).collect())?
        }
        ("env", args) => args.to_vec(),
        _ => return None,
    };
    let is_command = |word: &String| !(word.is_empty() || word == "exec" || word.contains('='));
    let at = words.iter().position(is_command)?;
    let mut words = words.drain(at..);
    Some((words.next()?, words.collect()))
}

/// The package among a launcher's arguments, and what is for the package. `named` options take the
/// package as their value; then the next word is its command. None where `never` says a script.
fn package<'a>(
    args: &'a [String],
    named: &[&str],
    never: &[&str],
) -> Option<(&'a str, &'a [String])> {
    let (mut at, mut chosen) = (0, None);
    while let Some(word) = args.get(at) {
        let (option, value) = word.split_once('=').unwrap_or((word, ""));
        if never.contains(&option) {
            return None;
        }
        if named.contains(&option) {
            chosen = Some(if value.is_empty() { args.get(at + 1)? } else { value });
            at += if value.is_empty() { 2 } else { 1 };
        } else if UV_VALUES.contains(&option) && value.is_empty() {
            at += 2;
        } else if word.starts_with('-') {
            at += 1;
        } else {
            return Some((chosen.unwrap_or(word), &args[at + 1..]));
        }
    }
    None
}

/// `@scope/name@1.2` is `@scope/name`, and so is `name==1.2` of python.
fn without_version(package: &str) -> &str {
    let version = package.char_indices().skip(1).find(|(_, c)| matches!(c, '@' | '=' | '<' | '>'));
    version.map_or(package, |(at, _)| &package[..at])
}

/// Two absolute paths are the same program if they are the same; else the last part decides.
fn same_program(configured: &str, word: &str) -> bool {
    if configured.starts_with('/') && word.starts_with('/') {
        return configured == word;
    }
    let (one, other) = (last_part(configured), last_part(word));
    let is_python = |name: &str| name.strip_prefix("python").is_some_and(is_version);
    !one.is_empty() && (one == other || (is_python(one) && is_python(other)))
}

fn is_version(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_digit() || c == '.')
}

fn is_interpreter(base: &str) -> bool {
    INTERPRETERS.contains(&base) || base.strip_prefix("python").is_some_and(is_version)
}

/// Word for word.
fn same(configured: &[String], words: &[String]) -> bool {
    configured.len() == words.len()
        && configured.iter().zip(words).all(|(one, other)| same_word(one, other))
}

/// A variable stands for anything; what is around it has to be there.
fn same_word(configured: &str, word: &str) -> bool {
    if configured == word {
        return true;
    }
    if let Some(rest) = configured.strip_prefix("~/") {
        return word.starts_with('/') && word.ends_with(&format!("/{rest}"));
    }
    let Some(first) = configured.find("${") else { return false };
    let last = configured.rfind('}').map_or(configured.len(), |at| at + 1);
    let (before, after) = (&configured[..first], &configured[last.max(first)..]);
    word.len() >= before.len() + after.len() && word.starts_with(before) && word.ends_with(after)
}

pub(super) fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(String::from).collect()
    }

    #[track_caller]
    fn check(configured: &str, process: &str, script: Option<&str>) -> bool {
        let mut all = words(configured);
        let configured = Configured { command: all.remove(0), args: all, ..Configured::default() };
        let argv = process.split('|').map(String::from).collect();
        let process = Process { argv, script: script.map(String::from), ..Process::default() };
        runs(&configured, &process)
    }

    #[test]
    fn as_a_host_starts_it() {
        for (configured, process) in [
            ("node /srv/a.js --x", "node|/srv/a.js|--x"),
            ("/usr/bin/node /srv/a.js", "node|/srv/a.js"),
            ("github-mcp stdio", "/usr/local/bin/github-mcp|stdio"),
            ("mcp-server-time --tz UTC", "/usr/bin/python3|/home/u/bin/mcp-server-time|--tz|UTC"),
            ("thing", "node|--no-warnings|/usr/bin/thing"),
            ("python -m thing", "python3.12|-m|thing"),
            ("node ${workspaceFolder}/a.js", "node|/home/u/w/a.js"),
            ("node ~/a.js", "node|/home/u/a.js"),
            ("sh -c exec", "sh|-c|exec"),
            ("env A=1 node /srv/a.js", "node|/srv/a.js"),
        ] {
            assert!(check(configured, process, None), "{configured} is {process}");
        }
        let mut shell = Configured::default();
        (shell.command, shell.args) = ("bash".into(), vec!["-lc".into(), "exec node /a.js".into()]);
        let process = Process { argv: words("node /a.js"), ..Process::default() };
        assert!(runs(&shell, &process));
    }

    #[test]
    fn as_launchers_leave_it() {
        let npx = "npx -y @scope/mcp-thing@1.2 stdio --flag";
        assert!(check(npx, "npm exec @scope/mcp-thing@1.2 stdio --flag", None));
        let bin = "node|/c/_npx/4646/node_modules/.bin/thing-bin|stdio|--flag";
        assert!(check(npx, bin, Some("/c/_npx/4646/node_modules/@scope/mcp-thing/index.js")));
        assert!(!check(npx, bin, Some("/c/_npx/4646/node_modules/@scope/other/index.js")));
        assert!(!check(npx, bin, None));
        assert!(check(
            "uvx mcp-server-time --tz UTC",
            "uv|tool|uvx|mcp-server-time|--tz|UTC",
            None
        ));
        let leaf = "/c/uv/archive-v0/x/bin/python|/c/uv/archive-v0/x/bin/mcp-server-time|--tz|UTC";
        assert!(check("uvx mcp-server-time@latest --tz UTC", leaf, None));
        assert!(check("uvx --from mcp-server-time==1 mcp-server-time --tz UTC", leaf, None));
    }

    #[test]
    fn alike_is_not_the_same() {
        for (configured, process) in [
            ("node /srv/a.js", "node|/srv/b.js"),
            ("node /srv/a.js", "node|/srv/a.js|--more"),
            ("node /srv/a.js --x", "node|/srv/a.js"),
            ("/opt/a/serve --x", "/opt/b/serve|--x"),
            ("node", "node"),
            ("python3", "python3"),
            ("npx -y thing", "npm exec thing-else"),
            ("npx -c thing", "sh|-c|thing"),
            ("node /srv/a.js", "vim|node|/srv/a.js"),
            ("node /srv/a.js", "grep|node /srv/a.js"),
            ("node ${x}/a.js", "node|/home/u/b.js"),
        ] {
            assert!(!check(configured, process, None), "{configured} is not {process}");
        }
        assert!(!runs(&Configured::default(), &Process::default()));
    }
}
