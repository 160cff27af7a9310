//! The hosts' own configs: where they are, which servers are in them, and how to put Lariat in front of
//! one without touching another byte.
//!
//! What belongs here is the knowledge of other people's files. It prints nothing and asks nobody; the
//! commands do.

pub(crate) mod edit;
pub(crate) mod entry;
pub(crate) mod file;
pub(crate) mod found;
mod json;
pub(crate) mod plan;
pub(crate) mod shown;
pub(crate) mod survey;
pub(crate) mod table;
mod toml;
pub(crate) mod tree;
mod yaml;

pub(crate) use found::Surroundings;

use entry::Wrapping;
use plan::{Fate, Want};
use std::path::PathBuf;
use survey::Problem;
use table::HOSTS;

/// A server that some host would start on this machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Configured {
    /// The host's id.
    pub(crate) host: &'static str,
    /// What it is called there.
    pub(crate) server: String,
    /// The server's own program and arguments, also if it is wrapped. They can hold secrets, and are
    /// compared only.
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) wrapped: bool,
}

/// What one config says.
pub(crate) struct Config {
    /// The host's id.
    pub(crate) host: &'static str,
    pub(crate) file: PathBuf,
    pub(crate) servers: Result<Vec<Entry>, Problem>,
}

/// A server in a config.
pub(crate) enum Entry {
    /// A process of this machine.
    Here(Configured),
    /// Somebody else runs it, or nobody can tell how it is started.
    Elsewhere,
}

/// What is configured, file by file, with those that cannot be read. The same files and the same
/// servers as `install` and `hosts` see.
pub(crate) fn configs(around: &Surroundings) -> Vec<Config> {
    let all: Vec<_> = HOSTS.iter().collect();
    // What is wanted does not matter: nothing is written.
    let works = survey::survey(around, &all, &Want::Uninstalled).into_iter();
    works
        .map(|work| {
            let host = work.found.host.id;
            let entries = |plan: plan::Plan| {
                let entry = |fate| Configured::of(host, fate).map_or(Entry::Elsewhere, Entry::Here);
                plan.servers.into_iter().map(entry).collect()
            };
            let servers = work.plan.map(|(_, plan)| entries(plan));
            Config { host, file: work.found.path, servers }
        })
        .collect()
}

impl Configured {
    fn of(host: &'static str, fate: Fate) -> Option<Configured> {
        let wrapped = fate.is_wrapped();
        let mut words = fate.launch?;
        let inner = match entry::wrapping(&words) {
            Wrapping::Nobody => 0,
            Wrapping::Hand => words.iter().position(|word| word == "--").map_or(0, |at| at + 1),
            Wrapping::Installed { inner, .. } => inner,
        };
        let mut words = words.drain(inner..);
        let command = words.next()?;
        Some(Configured { host, server: fate.server, command, args: words.collect(), wrapped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A directory that goes with the test.
    struct Dir(PathBuf);

    impl Drop for Dir {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_server_is_its_own_command_whoever_wrapped_it() {
        let dir = std::env::temp_dir().join(format!("lariat-configs-{}", std::process::id()));
        fs::create_dir_all(dir.join(".codex")).unwrap();
        let _goes = Dir(dir.clone());
        let server = |name: &str, words: &str| format!("[mcp_servers.{name}]\n{words}\n");
        let text = server("a", "command = \"node\"\nargs = [\"/a.js\"]")
            + &server("b", "command = \"lariat\"\nargs = [\"run\", \"--\", \"node\", \"/a.js\"]")
            + &server(
                "c",
                "command = \"/x/lariat-next\"\nargs = [\"run\", \"--installed\", \"--\", \"node\", \"/a.js\"]",
            )
            + &server("d", "url = \"https://x\"");
        fs::write(dir.join(".codex/config.toml"), text).unwrap();
        let root = Some(dir.join("none"));
        let around = Surroundings { home: dir, root, ..Surroundings::default() };
        let mut configs = configs(&around);
        assert_eq!(configs.len(), 1);
        let entries = configs.remove(0).servers.ok().unwrap();
        let seen = entries.iter().map(|entry| match entry {
            Entry::Here(s) => Some((s.server.as_str(), s.command.as_str(), &s.args[..], s.wrapped)),
            Entry::Elsewhere => None,
        });
        let args = &["/a.js".to_string()][..];
        let here = |name, wrapped| Some((name, "node", args, wrapped));
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [here("a", false), here("b", true), here("c", true), None]
        );
    }
}
