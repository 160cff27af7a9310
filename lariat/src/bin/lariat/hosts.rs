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

use entry::{Launch, Wrapping};
use std::path::PathBuf;
use table::HOSTS;

/// A server that some host would start on this machine.
pub(crate) struct Configured {
    /// The host's id.
    pub(crate) host: &'static str,
    pub(crate) server: String,
    /// The server's own program and arguments, also if it is wrapped.
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    #[expect(dead_code, reason = "for whoever has to say where")]
    pub(crate) file: PathBuf,
    pub(crate) wrapped: bool,
}

/// Every server that a host would start from a config that can be read. Their arguments may hold
/// secrets: they are for comparing, not for showing.
pub(crate) fn configured(around: &Surroundings) -> Vec<Configured> {
    let all: Vec<_> = HOSTS.iter().collect();
    let mut configured = Vec::new();
    for found in found::files(around, &all) {
        let Ok(text) = std::fs::read_to_string(&found.path) else { continue };
        let Ok(tree) = tree::parse(found.place.format, &text) else { continue };
        for server in entry::servers(&tree, found.place.maps) {
            let Ok(launch) = Launch::of(&server, found.host.command) else { continue };
            let mut words = launch.said();
            let wrapping = entry::wrapping(&words);
            let inner = match wrapping {
                Wrapping::Nobody => 0,
                Wrapping::Hand => words.iter().position(|word| word == "--").map_or(0, |at| at + 1),
                Wrapping::Installed { inner, .. } => inner,
            };
            words.drain(..inner);
            if words.is_empty() {
                continue;
            }
            configured.push(Configured {
                host: found.host.id,
                server: server.name,
                command: words.remove(0),
                args: words,
                file: found.path.clone(),
                wrapped: wrapping != Wrapping::Nobody,
            });
        }
    }
    configured
}
