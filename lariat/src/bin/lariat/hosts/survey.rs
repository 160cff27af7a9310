//! All config files at once: what is in them, what they would become, and making it so.

use super::file::{Read, Trouble};
use super::found::{self, Found, Surroundings};
use super::plan::{self, Outcome, Plan, Reading, Want};
use super::table::{Host, POLICIES, Policy, Scope};
use super::tree::{self, Broken, Node, Value};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// One file, and what it would become.
pub(crate) struct Work {
    pub(crate) found: Found,
    pub(crate) plan: Result<(Read, Plan), Problem>,
}

/// Why a file is left alone.
pub(crate) enum Problem {
    Unreadable(Trouble),
    Broken(Broken),
}

/// Reads every file and plans what is wanted. Nothing is changed yet.
pub(crate) fn survey(around: &Surroundings, hosts: &[&'static Host], want: &Want) -> Vec<Work> {
    let files = found::all(around, hosts).into_iter();
    files.map(|found| Work { plan: look(around, &found, want), found }).collect()
}

fn look(around: &Surroundings, found: &Found, want: &Want) -> Result<(Read, Plan), Problem> {
    let read = Read::of(&found.path).map_err(Problem::Unreadable)?;
    let reading =
        Reading { format: found.place.format, maps: found.place.maps, command: found.host.command };
    let mut plan = plan::plan(reading, &read.text, want).map_err(Problem::Broken)?;
    let refusal = match (found.scope(), want) {
        // Whoever is responsible for all users of a machine decides about their servers.
        (Scope::System, _) => Some("its file belongs to the administrator".into()),
        (Scope::User | Scope::Project, Want::Installed(_)) => ruled(around, found.host),
        (Scope::User | Scope::Project, Want::Uninstalled) => None,
    };
    if let Some(why) = refusal {
        plan.text.clone_from(&read.text);
        for fate in &mut plan.servers {
            fate.outcome = Outcome::Skipped(why.clone());
        }
    }
    Ok((read, plan))
}

/// Why no server of a host may have another command.
fn ruled(around: &Surroundings, host: &Host) -> Option<String> {
    POLICIES.iter().filter(|policy| policy.host == host.id).find_map(|policy| rule(around, policy))
}

/// What one policy says. One that cannot be read may say anything: only where there is none is nothing
/// ruled.
fn rule(around: &Surroundings, policy: &Policy) -> Option<String> {
    let unknown = |at: &str, why: &dyn std::fmt::Display| {
        Some(format!("what the administrator decides cannot be read (/{}{at}: {why})", policy.path))
    };
    let text = match std::fs::read_to_string(around.rooted(policy.path)) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => return unknown("", &error),
    };
    match tree::parse(policy.format, &text) {
        Ok(tree) => leads(&tree, policy.way)
            .then(|| format!("the administrator decides by its command (/{})", policy.path)),
        Err(Broken { line, column, why }) => unknown(&format!(":{line}:{column}"), &why),
    }
}

/// True if there is something at the end of a way.
fn leads(node: &Node, way: &[&str]) -> bool {
    match (way.split_first(), &node.value) {
        (None, _) => true,
        (Some((&"*", rest)), Value::List(items)) => items.iter().any(|item| leads(item, rest)),
        (Some((&"*", rest)), _) => node.pairs().iter().any(|pair| leads(&pair.value, rest)),
        (Some((key, rest)), _) => node.get(key).is_some_and(|below| leads(below, rest)),
    }
}

impl Work {
    /// How many servers would change.
    pub(crate) fn changes(&self) -> usize {
        self.plan.as_ref().map_or(0, |(_, plan)| plan.changes())
    }

    /// Fails where `write` is known to, and writes nothing.
    pub(crate) fn check(&self, backups: &Path) -> Result<(), Trouble> {
        match &self.plan {
            Ok((read, plan)) if plan.changes() > 0 => read.ready(backups).map(drop),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Writes what was planned. Gives the path of the backup.
    pub(crate) fn write(&self, backups: &Path) -> Result<Option<PathBuf>, Trouble> {
        match &self.plan {
            Ok((read, plan)) if plan.changes() > 0 => read.replace(&plan.text, backups).map(Some),
            Ok(_) | Err(_) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::edit::Wish;
    use crate::hosts::table::HOSTS;
    use std::fs;

    /// A directory that goes with the test.
    struct Dir(std::path::PathBuf);

    impl Drop for Dir {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn where_an_administrator_decides_nothing_is_wrapped() {
        let dir = std::env::temp_dir().join(format!("lariat-ruled-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let _goes = Dir(dir.clone());
        let config = "[mcp_servers.a]\ncommand = \"a\"\n";
        fs::create_dir_all(dir.join(".codex")).unwrap();
        fs::create_dir_all(dir.join("root/etc/codex")).unwrap();
        fs::write(dir.join(".codex/config.toml"), config).unwrap();
        let around = Surroundings {
            home: dir.clone(),
            root: Some(dir.join("root")),
            ..Surroundings::default()
        };
        let hosts: Vec<_> = HOSTS.iter().collect();
        let works = || {
            let wish = Wish { lariat: "/x/lariat".into(), ..Wish::default() };
            survey(&around, &hosts, &Want::Installed(wish))
        };
        let changes = || works().iter().map(Work::changes).sum::<usize>();
        let free = changes();
        let rules = dir.join("root/etc/codex/requirements.toml");
        fs::write(&rules, "allowed_sandbox_modes = [\"read-only\"]\n").unwrap();
        let others = changes();
        fs::write(&rules, "[mcp_servers.a.identity]\ncommand = \"a\"\n").unwrap();
        let ruled = changes();
        // What cannot be read may rule anything.
        let refused = || {
            let works = works();
            let fate = &works[0].plan.as_ref().ok().unwrap().1.servers[0];
            match &fate.outcome {
                Outcome::Skipped(why) => why.clone(),
                _ => String::new(),
            }
        };
        fs::write(&rules, "[mcp_servers.a.identity]\ncommand = \"a\n").unwrap();
        let why = refused();
        assert!(why.contains("cannot be read (/etc/codex/requirements.toml:2:"), "{why:?}");
        fs::write(&rules, b"x = \"\xff\"\n").unwrap();
        let why = refused();
        assert!(why.contains("cannot be read (/etc/codex/requirements.toml: "), "{why:?}");
        fs::remove_file(&rules).unwrap();
        fs::create_dir(&rules).unwrap();
        let why = refused();
        assert!(why.contains("cannot be read (/etc/codex/requirements.toml: "), "{why:?}");
        fs::remove_dir(&rules).unwrap();
        fs::write(dir.join("root/etc/codex/config.toml"), config).unwrap();
        let systems = changes();
        assert_eq!((free, others, ruled, systems), (1, 1, 0, 1));
    }
}
